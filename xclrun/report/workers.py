"""Draw the figures of a report in parallel: matplotlib takes most of the time of a large report.

Forked processes inherit the figures' data, and draw and save the figures. They start with figures that need only the
runs, while this process computes tables and tests. Afterwards, this process draws a share of the remaining figures, or
all of them if forking is impossible or not worthwhile.
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
from xclrun.core.surroundings import cores
from xclrun.report.part import Plot
from xclrun.report.style import save

# Minimum number of plots for each process.
EACH = 6

# Name → figure to draw; forked processes inherit this dictionary.
_PLOTS: dict[str, Plot] = {}


class PlotWorkers:
    """Draw figures to ``folder`` as SVG and in ``further`` formats; leaving the context ends all workers."""

    def __init__(self, folder: Path, further: Sequence[str] = ()) -> None:
        self.folder, self.further = folder, further
        self._pool: ProcessPoolExecutor | None = None
        self._drawings: dict[str, Future[list[Path]]] = {}

    def __enter__(self) -> PlotWorkers:
        # Exclude existing objects from garbage collection, which takes longer than drawing a small figure.
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
        """Start drawing in other processes if that is worthwhile."""
        _PLOTS.update((plot.name, plot) for plot in plots)
        self._submit(plots)

    def finish(self, plots: Sequence[Plot]) -> dict[str, list[Path]]:
        """Draw the remaining figures and return name → paths; figures without data have no paths."""
        self._shut_down()
        _PLOTS.update((plot.name, plot) for plot in plots)
        done = {name for name, drawing in self._drawings.items() if not drawing.cancelled()}
        remaining = [plot for name, plot in _PLOTS.items() if name not in done]
        # This process draws its share of the figures, or all of them if other processes are not worthwhile.
        delegated = [plot for k, plot in enumerate(remaining) if k % cores()]
        mine = remaining[:: cores()] if self._submit(delegated) else remaining
        saved = {plot.name: _draw(plot.name, self.folder, self.further) for plot in mine}
        try:
            return saved | {name: drawing.result() for name, drawing in self._drawings.items() if name not in saved}
        except BrokenProcessPool:
            raise RunError("a drawing process was killed, perhaps for lack of memory; free memory and retry") from None

    def _submit(self, plots: Sequence[Plot]) -> bool:
        """Draw in other processes, which inherit the present `_PLOTS`; return False if that is not worthwhile."""
        processes = min(cores() - 1, len(plots) // EACH)
        if processes < 1 or sys.platform != "linux":
            return False
        # Import the drawing modules once, before the fork: a child must not copy an import lock that a thread holds.
        import matplotlib.backends.backend_agg  # measures text in every format
        import matplotlib.backends.backend_svg
        import matplotlib.font_manager

        if "pdf" in self.further:
            import matplotlib.backends.backend_pdf  # noqa: F401
        self._pool = pool = ProcessPoolExecutor(
            processes, multiprocessing.get_context("fork"), initializer=_end_with_parent
        )
        with warnings.catch_warnings():
            # Ignore the warning that other threads may hold locks: drawing does not use them.
            warnings.simplefilter("ignore", DeprecationWarning)
            for plot in plots:
                self._drawings[plot.name] = pool.submit(_draw, plot.name, self.folder, self.further)
        return True

    def _shut_down(self) -> None:
        """Cancel waiting figures and end the processes."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Exit when the parent process is killed, instead of waiting for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _draw(name: str, folder: Path, further: Sequence[str]) -> list[Path]:
    from matplotlib import rc_context

    # Collect once per figure, after saving: collecting while drawing takes a fifth of the time. The objects of a figure
    # are then in the youngest generation; searching older generations takes as long as drawing a small figure.
    gc.disable()
    try:
        # A fixed height of titles saves measuring tick labels. Names are text: a "$" does not begin a formula.
        with rc_context({"axes.titley": 1.0, "text.parse_math": False}):
            figure = _PLOTS[name].draw()
            return [] if figure is None else save(figure, folder, name, further)
    finally:
        figure = None
        gc.collect(0)
        gc.enable()
