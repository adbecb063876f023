"""Drawing the figures of a report on all cores: most of the time of a large report is matplotlib's.

Each figure is drawn and saved by a process of its own making: a fork of this one, which has everything that figures
are drawn from. Where processes cannot fork, or there is one core or little to draw, they are drawn here.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.report.style import save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Drawing = tuple[str, "Callable[[], Figure | None]"]

# Figures for which it is worth to start processes.
MANY = 24

# What the processes draw; they take it over when they fork.
_drawings: Sequence[Drawing] = ()
_folder = Path()


def draw_all(drawings: Sequence[Drawing], folder: Path) -> list[list[Path]]:
    """Draw and save figures; return the paths of each, none where there was nothing to draw.

    Args:
        drawings: (name, what draws it); the same bytes wherever it is drawn.
        folder: where they are saved.

    Raises:
        UsageError, RunError: the place cannot be written.
    """
    global _drawings, _folder
    workers = min(cores(), len(drawings) // (MANY // 2))
    if workers < 2 or sys.platform != "linux":
        return [_drawn(name, draw, folder) for name, draw in drawings]
    _prepare()
    _drawings, _folder = drawings, folder
    try:
        with warnings.catch_warnings():
            # Other threads of this process may hold locks; what is drawn with takes none of theirs.
            warnings.simplefilter("ignore", DeprecationWarning)
            with multiprocessing.get_context("fork").Pool(workers) as pool:
                return pool.map(_draw, range(len(drawings)), chunksize=1)
    finally:
        _drawings, _folder = (), Path()


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _prepare() -> None:
    """Import what draws before the fork: once, and not while another thread's import holds a lock."""
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_pdf
    import matplotlib.backends.backend_svg
    import matplotlib.font_manager  # noqa: F401


def _draw(k: int) -> list[Path]:
    return _drawn(*_drawings[k], _folder)


def _drawn(name: str, draw: Callable[[], Figure | None], folder: Path) -> list[Path]:
    figure = draw()
    return [] if figure is None else save(figure, folder, name)
