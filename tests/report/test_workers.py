"""Figures drawn by other processes equal those drawn here, and errors are reported."""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from xclrun.core.errors import RunError, UsageError
from xclrun.report import workers
from xclrun.report.part import Plot
from xclrun.report.workers import EACH, PlotWorkers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")


def of(k: int) -> Callable[[], Figure | None]:
    def draw() -> Figure | None:
        if k % 5 == 4:
            return None
        figure = Figure(figsize=(1, 1), layout="constrained")
        figure.subplots().plot([0, k])
        return figure

    return draw


def plots(first: int, last: int) -> list[Plot]:
    return [Plot(f"figure {k}", "", of(k)) for k in range(first, last)]


def drawn(folder: Path, early: list[Plot], every: list[Plot]) -> dict[str, list[bytes]]:
    with PlotWorkers(folder) as drawing:
        drawing.begin(early)
        return {name: [path.read_bytes() for path in paths] for name, paths in drawing.finish(every).items()}


@pytest.mark.full
def test_processes_draw_what_one_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "EACH", 2)
    early, every = plots(2, 6), plots(2, 7)
    monkeypatch.setattr(workers, "cores", lambda: 1)
    alone = drawn(tmp_path / "alone", early, every)
    monkeypatch.setattr(workers, "cores", lambda: 2)
    together = drawn(tmp_path / "together", early, every)
    assert together == alone
    assert together.keys() == {plot.name for plot in every}
    assert [len(together[f"figure {k}"]) for k in range(2, 6)] == [1, 1, 0, 1]


@pytest.mark.full
@pytest.mark.parametrize("before", [False, True], ids=["ours", "the caller's"])
def test_garbage_is_looked_for_among_what_figures_made(before: bool, tmp_path: Path) -> None:
    gc.unfreeze()
    if before:
        gc.freeze()
    try:
        with PlotWorkers(tmp_path):
            assert gc.get_freeze_count() > 1000
        assert (gc.get_freeze_count() > 1000) == before
    finally:
        gc.freeze()


def test_an_error_of_another_process_is_raised_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)
    (tmp_path / "file").write_text("no folder")
    with PlotWorkers(tmp_path / "file") as drawing:
        drawing.begin(plots(0, EACH))
        with pytest.raises(UsageError, match="cannot write"):
            drawing.finish([])


def test_a_killed_process_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)
    parent = os.getpid()

    def die() -> None:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.1)

    with PlotWorkers(tmp_path) as drawing:
        drawing.begin([Plot(f"fatal {k}", "", die) for k in range(EACH)])
        with pytest.raises(RunError, match="killed"):
            drawing.finish([])
