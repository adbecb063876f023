"""The comparison with HF Trainer and a plain loop: sides take turns, and all train the same sentences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from benchmarks import peers
from benchmarks.peers import HF, OURS, PLAIN, Side, seconds_of_sides
from tests.conftest import TINY


def test_sides_take_turns_and_each_step_is_timed() -> None:
    taken: list[str] = []

    def training(name: str) -> Callable[[Callable[[], None]], None]:
        def train(pause: Callable[[], None]) -> None:
            for number in range(3):
                taken.append(f"{name}{number}")
                pause()

        return train

    sides = [Side(training("a")), Side(training("b"))]
    for _ in range(4):
        for side in sides:
            side.turn()
    assert taken == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [len(side.steps) for side in sides] == [3, 3]
    assert all(seconds >= 0 for side in sides for seconds in side.steps)


def test_an_error_of_a_side_ends_the_comparison() -> None:
    def train(pause: Callable[[], None]) -> None:
        pause()
        raise ValueError("no memory")

    side = Side(train)
    side.turn()
    with pytest.raises(ValueError, match="no memory"):
        side.turn()


@pytest.mark.full
@pytest.mark.parametrize("installed", [False, True])
def test_all_sides_train_an_epoch(
    installed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if installed:
        pytest.importorskip("accelerate")
    else:
        monkeypatch.setattr(peers, "find_spec", lambda name: None)
    monkeypatch.setattr(peers, "SENTENCES", 20)
    threads = torch.get_num_threads()
    seconds = seconds_of_sides(TINY, tmp_path)
    assert seconds.keys() == {*OURS, PLAIN, *([HF] if installed else [])}
    assert all(value > 0 for value in seconds.values())
    assert torch.get_num_threads() == threads
    assert {*peers.peers()} == seconds.keys() - OURS.keys()
    assert ("accelerate is not installed" in capsys.readouterr().out) != installed
