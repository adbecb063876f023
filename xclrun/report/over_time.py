"""Curves of scores by examples seen, averaged over seeds, and the grids of panels that show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.points import curves
from xclrun.analysis.record import RunRecord
from xclrun.report.style import figure_of, line, plain
from xclrun.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Examples seen, shape (E,); mean scores, (E,) or (E, N); one of the runs.
Curve = tuple[np.ndarray, np.ndarray, RunRecord]


def mean_curves(
    summary: Summary, metric: str, order: str, curve_of: Callable[[RunRecord, str], Any] = curves
) -> dict[str, Curve]:
    """Return each strategy's curve in one order, averaged over runs.

    Runs whose languages or evaluation points differ from those of the strategy's first run are left out.
    """
    curves_of = {}
    for label, (runs, _) in compared(summary.comparison, order).items():
        each = [(run, curve) for run in runs if metric in run.scores and (curve := curve_of(run, metric)) is not None]
        alike = [
            (x, y) for run, (x, y) in each
            if run.languages == each[0][0].languages and np.array_equal(x, each[0][1][0])
        ]  # fmt: skip
        if alike:
            curves_of[label] = alike[0][0], np.mean([y for _, y in alike], axis=0), each[0][0]
    return curves_of


def draw_curve(axes: Axes, x: np.ndarray, y: np.ndarray, k: int, text: str) -> None:
    line(axes, x, y, k, text, linewidth=1.1, markersize=3, markevery=max(1, len(x) // 10))


def order_grid(rows: Sequence[str], orders: Sequence[str], height: float, across: str) -> tuple[Figure, np.ndarray]:
    """Return a figure with a panel for each row and order, and the axes, shape (rows, orders)."""
    figure = figure_of(2.2 + 3.4 * len(orders), height)
    grid = figure.subplots(len(rows), len(orders), squeeze=False, sharex="col", sharey=True)
    for axes in grid.ravel():
        plain(axes)
    for axes, order in zip(grid[0], orders, strict=True):
        axes.set_title(order, fontsize=9)
    for axes, row in zip(grid[:, 0], rows, strict=True):
        axes.set_ylabel(row, fontsize=8)
    figure.supxlabel(across, fontsize=8)
    return figure, grid
