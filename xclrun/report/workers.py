"""Draws the figures of a report on all cores: most of the time of a large report is matplotlib's.

Figures are drawn and saved by forks of this process, which have everything that figures are drawn from. They start with
the figures that need nothing but runs, while tables and tests are still computed here; when all is computed, this
process draws the other figures and helps with what is left. Where processes cannot fork, or there is one core or little
to draw, this process draws all.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import RunError
from xclrun.report.part import Plot
from xclrun.report.style import save

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

# Plots for which it is worth to start a process.
EACH = 6


@dataclass(frozen=True)
class _Batch:
    """Plots, and a number that all processes share: how many of them have been taken."""

    plots: Sequence[Plot]
    taken: Any

    def __iter__(self) -> Iterator[Plot]:
        """Yield plots that no other process has taken."""
        while True:
            with self.taken.get_lock():
                k = self.taken.value
                self.taken.value = k + 1
            if k >= len(self.plots):
                return
            yield self.plots[k]

    @property
    def left(self) -> int:
        return max(0, len(self.plots) - self.taken.value)


class PlotWorkers:
    """Draws figures, and saves them under ``folder``, in ``further`` formats too; as a context it leaves no process.

    The bytes of a figure are the same wherever it is drawn.
    """

    def __init__(self, folder: Path, further: Sequence[str] = ()) -> None:
        self.folder, self.further = folder, further
        self._fork = multiprocessing.get_context("fork") if sys.platform == "linux" else None
        self._froze = False
        self._batches: list[_Batch] = []
        self._working: list[tuple[Any, Connection]] = []

    def __enter__(self) -> PlotWorkers:
        # What was here before the first figure is no figure's garbage: looking through it after each takes longer than
        # drawing a small one.
        self._froze = not gc.get_freeze_count()
        if self._froze:
            gc.freeze()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process, answers in self._working:
            process.terminate()
            process.join()
            answers.close()
        self._working = []
        if self._froze:
            gc.unfreeze()

    def begin(self, plots: Sequence[Plot]) -> None:
        """Begin to draw, on all cores but that of this process; where that is not worth it, leave it to `finish`."""
        self._batches.append(_Batch(plots, multiprocessing.Value("i", 0)))
        self._start(cores() - 1)

    def finish(self, plots: Sequence[Plot]) -> dict[str, list[Path]]:
        """Draw those of these that have not begun, wait for all, and return name → paths; none where nothing was drawn.

        Raises:
            UsageError, RunError: the place cannot be written, or a process was killed.
        """
        begun = {plot.name for batch in self._batches for plot in batch.plots}
        self.begin([plot for plot in plots if plot.name not in begun])
        saved = self._draw()
        for process, answers in self._working:
            try:
                answer = answers.recv()
            except EOFError:
                raise RunError("a process that drew figures was killed: is there enough memory?") from None
            if isinstance(answer, Exception):
                raise answer
            saved |= answer
            process.join()
            answers.close()
        self._working = []
        return saved

    def _start(self, most: int) -> None:
        """Start processes until ``most`` are at work, fewer where little is left."""
        left, alive = sum(batch.left for batch in self._batches), sum(p.is_alive() for p, _ in self._working)
        new = min(most, left // EACH) - alive
        if self._fork is None or new < 1:
            return
        _prepare(self.further)
        for _ in range(new):
            answers, answer = self._fork.Pipe(duplex=False)
            process = self._fork.Process(target=self._work, args=(answer,), daemon=True)
            with warnings.catch_warnings():
                # Other threads of this process may hold locks; what is drawn with takes none of theirs.
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            answer.close()
            self._working.append((process, answers))

    def _work(self, answer: Connection) -> None:
        """Draw what is left, in a process of its own, and send back what was saved or what went wrong."""
        try:
            answer.send(self._draw())
        except Exception as error:
            answer.send(error)

    def _draw(self) -> dict[str, list[Path]]:
        # The last batch first: processes that started before it cannot help with it.
        return {
            plot.name: _save(plot, self.folder, self.further) for batch in reversed(self._batches) for plot in batch
        }


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare(further: Sequence[str]) -> None:
    """Import what draws before the fork: once, and not while another thread's import holds a lock."""
    import matplotlib.backends.backend_agg  # measures text, whatever is written
    import matplotlib.backends.backend_svg
    import matplotlib.font_manager

    if "pdf" in further:
        import matplotlib.backends.backend_pdf  # noqa: F401


def _save(plot: Plot, folder: Path, further: Sequence[str]) -> list[Path]:
    from matplotlib import rc_context

    # Collect once per figure, after saving: collecting while drawing takes a fifth of the time. What a figure has made
    # is the youngest generation then; to look through the older ones takes as long as to draw a small figure.
    gc.disable()
    try:
        # Titles stand on their axes: the numbers along an axis need not be measured to find a place beyond them.
        # Names are text: a "$" in one begins no formula.
        with rc_context({"axes.titley": 1.0, "text.parse_math": False}):
            figure = plot.draw()
            return [] if figure is None else save(figure, folder, plot.name, further)
    finally:
        figure = None
        gc.collect(0)
        gc.enable()
