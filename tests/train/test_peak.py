"""Peak memory of a training: what is measured, and over which time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from xclrun.plan import Run
from xclrun.train import peak
from xclrun.train.loop import HopTraining
from xclrun.train.peak import peak_bytes, reset_peak

CPU = torch.device("cpu")
MB = 2**20


def test_a_tensor_that_was_freed_counts_only_until_the_peak_is_reset() -> None:
    if not peak.CLEAR.is_file():
        pytest.skip("this system cannot reset a peak")
    reset_peak(CPU)
    before = peak_bytes(CPU)
    large = torch.ones(256 * MB, dtype=torch.uint8)
    del large
    assert peak_bytes(CPU) - before > 200 * MB
    reset_peak(CPU)
    assert peak_bytes(CPU) - before < 100 * MB


def test_without_proc_the_system_s_own_maximum_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(peak, "STATUS", tmp_path / "none")
    monkeypatch.setattr(peak, "CLEAR", tmp_path / "none" / "none")
    reset_peak(CPU)
    assert peak_bytes(CPU) > 10 * MB


def test_the_larger_peak_of_two_attempts_counts(
    make_run: Callable[..., Run], training: Callable[..., HopTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = [700, 900, 800]
    monkeypatch.setattr("xclrun.train.loop.peak_bytes", lambda device: peaks.pop(0))
    run = make_run("trainer.checkpoint_minutes=1000")
    first = training(run)
    first._note_peak()
    first._note_peak()
    assert first.position.peak_bytes == 900
    first._note_peak()
    assert first.position.peak_bytes == 900
