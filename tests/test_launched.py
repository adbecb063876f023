"""Variables of a launcher (torchrun, Slurm): wrong values are one line, and only commands that train use them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from xclrun.cli import main
from xclrun.core.errors import RunError, UsageError
from xclrun.core.ranks import place

RIGHT = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "node-1",
    "MASTER_PORT": "29500",
}


@pytest.fixture(autouse=True)
def launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the variables that a launcher sets."""
    for name, value in RIGHT.items():
        monkeypatch.setenv(name, value)


def test_the_place_of_a_rank() -> None:
    here = place()
    assert (here.rank, here.size, here.local, here.together, here.address, here.port) == (
        *(1, 4, 1, False),
        *("node-1", 29500),
    )


@pytest.mark.parametrize(("here", "together"), [("4", True), ("2", False), (None, False)])
def test_ranks_are_on_one_machine_only_where_the_launcher_says_so(
    here: str | None, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm sets no LOCAL_WORLD_SIZE, and its ranks may be on several machines."""
    monkeypatch.delenv("LOCAL_WORLD_SIZE")
    if here is not None:
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    assert place().together is together


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WORLD_SIZE", "four"),
        ("WORLD_SIZE", "-4"),
        ("WORLD_SIZE", "9" * 5000),
        ("RANK", "4"),
        ("RANK", "-1"),
        ("RANK", ""),
        ("RANK", "٣"),
        ("LOCAL_RANK", "x"),
        ("LOCAL_WORLD_SIZE", "5"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "65536"),
        ("MASTER_ADDR", ""),
    ],
)
def test_a_wrong_variable_of_a_launcher_is_one_line(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=re.escape(name)):
        place()
    assert main(["strategy=naive"]) == 2
    output = capsys.readouterr().err
    assert name in output
    assert output.count("\n") == 1
    assert len(output) < 250


def test_other_commands_do_not_wait_for_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "strategies"]) == 0
    assert "naive" in capsys.readouterr().out


class Now:
    """A timer that ends immediately."""

    def __init__(self, seconds: float, call: Callable[..., None], arguments: list[Any]) -> None:
        self.call, self.arguments = call, arguments

    def start(self) -> None:
        self.call(*self.arguments)

    def cancel(self) -> None: ...


def test_ranks_that_wait_print_a_notice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def unreachable(here: object) -> None:
        raise RunError("no other rank")

    monkeypatch.setattr("threading.Timer", Now)
    monkeypatch.setattr("xclrun.train.others._launched_store", unreachable)
    monkeypatch.setattr("xclrun.train.others._ignore_signals", lambda: None)
    assert main(["-q", "strategy=naive"]) == 1
    assert "rank 1 of 4 is waiting for rank 0 at node-1:29500" in capsys.readouterr().err
