"""Draw the figures of a report on all cores: matplotlib takes most of the time of a large report.

Forks of this process draw and save figures; they inherit the data of the figures. They start with the figures that
need nothing but runs, while tables and tests are still computed here. This process then takes its share of what is
left. It draws all figures alone where processes cannot fork, or there is one core or little to draw.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import TracebackType

from xclrun.core.errors import RunError
from xclrun.report.part import Plot
from xclrun.report.style import save

# Plots for which it is worth to start a process.
EACH = 6

# Name → figure to draw, as forks inherit them.
_PLOTS: dict[str, Plot] = {}


class PlotWorkers:
    """Draws figures and saves them under ``folder``, in ``further`` formats too; a context that leaves no process.

    The bytes of a figure are the same wherever it is drawn.
    """

    def __init__(self, folder: Path, further: Sequence[str] = ()) -> None:
        self.folder, self.further = folder, further
        self._pool: ProcessPoolExecutor | None = None
        self._drawings: dict[str, Future[list[Path]]] = {}

    def __enter__(self) -> PlotWorkers:
        # Collecting existing objects after every figure takes longer than drawing a small one.
        self._froze = not gc.get_freeze_count()
        if self._froze:
            gc.freeze()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._shut_down()
        _PLOTS.clear()
        if self._froze:
            gc.unfreeze()

    def begin(self, plots: Sequence[Plot]) -> None:
        """Begin to draw on all other cores; if that is not worth it, leave it to `finish`."""
        _PLOTS.update((plot.name, plot) for plot in plots)
        self._submit(plots)

    def finish(self, plots: Sequence[Plot]) -> dict[str, list[Path]]:
        """Draw what has not begun, wait for all, and return name → paths; none where there was nothing to draw.

        Raises:
            UsageError, RunError: the place cannot be written, or a process was killed.
        """
        self._shut_down()
        _PLOTS.update((plot.name, plot) for plot in plots)
        done = {name for name, drawing in self._drawings.items() if not drawing.cancelled()}
        left = [plot for name, plot in _PLOTS.items() if name not in done]
        # This process takes its share; all of them where no other process is worth it.
        others = [plot for k, plot in enumerate(left) if k % cores()]
        mine = left[:: cores()] if self._submit(others) else left
        saved = {plot.name: _draw(plot.name, self.folder, self.further) for plot in mine}
        try:
            return saved | {name: drawing.result() for name, drawing in self._drawings.items() if name not in saved}
        except BrokenProcessPool:
            raise RunError("a process that drew figures was killed: is there enough memory?") from None

    def _submit(self, plots: Sequence[Plot]) -> bool:
        """Have other processes draw, if that is worth it; they inherit `_PLOTS` as it is now."""
        processes = min(cores() - 1, len(plots) // EACH)
        if processes < 1 or sys.platform != "linux":
            return False
        _prepare(self.further)
        self._pool = pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("fork"), initializer=_end_with_parent
        )
        with warnings.catch_warnings():
            # Other threads of this process may hold locks; drawing takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            for plot in plots:
                self._drawings[plot.name] = pool.submit(_draw, plot.name, self.folder, self.further)
        return True

    def _shut_down(self) -> None:
        """End the processes after the figures that they draw."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare(further: Sequence[str]) -> None:
    """Import what draws before the fork: once, and not while another thread's import holds a lock."""
    import matplotlib.backends.backend_agg  # measures text, whatever is written
    import matplotlib.backends.backend_svg
    import matplotlib.font_manager

    if "pdf" in further:
        import matplotlib.backends.backend_pdf  # noqa: F401


def _end_with_parent() -> None:
    """End this process with its parent: one whose parent was killed would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _draw(name: str, folder: Path, further: Sequence[str]) -> list[Path]:
    from matplotlib import rc_context

    # Collect once per figure, after saving: collecting while drawing takes a fifth of the time. What a figure made is
    # the youngest generation then; searching the older ones takes as long as drawing a small figure.
    gc.disable()
    try:
        # Titles stand on their axes: the numbers along an axis need not be measured to find a place beyond them.
        # Names are text: a "$" in one begins no formula.
        with rc_context({"axes.titley": 1.0, "text.parse_math": False}):
            figure = _PLOTS[name].draw()
            return [] if figure is None else save(figure, folder, name, further)
    finally:
        figure = None
        gc.collect(0)
        gc.enable()
