"""Files of sweeps: several commands of one name, and several sweeps as one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.command.reported import chosen_sweep
from xclrun.core.errors import UsageError
from xclrun.launch.sweep import Sweep
from xclrun.plan import Run
from xclrun.store.sweeps import command_of, commands_of, joined, read_sweep, typed_commands

Make = Callable[..., Run]


def sweep(name: str, runs: str, **facts: Any) -> dict[str, Any]:
    return {"name": name, "command": f"xclrun {name}", "started": "now", "runs": runs.split(), **facts}


@pytest.fixture
def written(make_run: Make, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Write the file of a sweep of runs with some seeds, as a command of this name does, and return its content."""

    def write(command: str, *seeds: int, **facts: Any) -> dict[str, Any]:
        Sweep("mine", command, tuple(make_run(f"seed={seed}") for seed in seeds), **facts).write()
        return read_sweep(tmp_path / "outputs" / "sweeps" / "mine.json")

    return write


def test_commands_of_one_name_add_their_runs(
    written: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    first = written("one", 1)
    assert (len(first["runs"]), len(commands_of(first))) == (1, 1)
    second = written("two", 2)
    assert second["runs"] == [*first["runs"], *commands_of(second)[1]["runs"]]
    assert "--only-last" in capsys.readouterr().err
    assert [command_of(second, run) for run in second["runs"]] == ["one", "two"]
    # A command with the same runs and more replaces the earlier ones.
    third = written("both", 1, 2, 3)
    assert (len(third["runs"]), typed_commands(third)) == (3, "both")


def test_two_commands_of_one_name_at_once_lose_no_run(
    written: Callable[..., dict[str, Any]], make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    written("one", 1)
    other, threads = Sweep("mine", "three", (make_run("seed=3"),)), list[threading.Thread]()

    def read(path: Path) -> dict[str, Any]:
        content = read_sweep(path)
        # Another command writes the file between reading and writing, unless it has to wait.
        if not threads:
            threads.append(threading.Thread(target=other.write))
            threads[0].start()
            threads[0].join(0.2)
        return content

    monkeypatch.setattr("xclrun.launch.sweep.read_sweep", read)
    written("two", 2)
    threads[0].join()
    assert len(written("four", 4)["runs"]) == 4


def test_a_search_never_adds_its_runs(
    written: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    search = {"objective": "dev_fp", "keys": [], "trials": 1, "made": 1, "ended": True, "runs": []}
    written("one", 1)
    for command, runs, facts in (("search", 2, {"search": search}), ("two", 3, {})):
        assert capsys.readouterr().err == ""
        assert len(written(command, runs, **facts)["runs"]) == 1
        assert "replaces" in capsys.readouterr().err


def test_earlier_commands_of_a_name_are_not_lost_without_a_note(
    written: Callable[..., dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written("one", 1)
    assert capsys.readouterr().err == ""
    (path := tmp_path / "outputs" / "sweeps" / "mine.json").write_text("{")
    assert len(written("two", 2)["runs"]) == 1
    assert str(path) in capsys.readouterr().err


def test_the_last_command_of_a_name_can_be_reported_alone() -> None:
    whole = joined([sweep("mine", "a b"), sweep("mine", "b c")])
    sweeps = {"mine": whole}
    assert whole["runs"] == ["a", "b", "c"]
    assert chosen_sweep(["mine"], True, sweeps) == "mine"
    assert sweeps["mine"]["runs"] == ["b", "c"]


def test_several_sweeps_are_one_in_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    sweeps = {"one": sweep("one", "a b"), "two": sweep("two", "b c", comparisons={"baseline": "er"})}
    name = chosen_sweep(["one", "two"], False, sweeps)
    assert name not in ("one", "two", None)
    assert sweeps[str(name)]["runs"] == ["a", "b", "c"]
    # Different plans of comparisons are not mixed.
    assert "comparisons" not in sweeps[str(name)]
    assert "comparisons" in capsys.readouterr().err
    sweeps["found"] = sweep("found", "d", search={})
    with pytest.raises(UsageError, match="found is a search"):
        chosen_sweep(["one", "found"], False, sweeps)
