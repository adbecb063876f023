"""Heat maps of the score matrix of one run, or of the score matrices of all strategies in one order.

With more than `MOST` languages, cells are small and have no numbers.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.record import RunRecord
from xclrun.core.quantity import Quantity
from xclrun.core.task import BY_NAME, short_name
from xclrun.report.style import (
    MOST,
    WIDEST,
    cut,
    figure_of,
    panel_grid,
    score_axis,
    score_label,
    short,
    tickless,
    tip,
    titled,
    write_cells,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage


# With many languages: size of a cell in inches, and font size of the names of rows and columns in points.
CELL = 0.125
TICKS = 6
# Lines that frame a cell, as (colour, width in points): with few languages, with many languages.
LINES = ((("white", 3.2), ("black", 1.4)), (("white", 1.6), ("black", 0.7)))


def heatmap(record: RunRecord, metric: str) -> Figure:
    """Draw a run's score matrix R. Rows are hops, columns are languages; frames mark the language just learned."""
    if metric not in record.scores:
        raise ValueError(f"run {record.run_id} has no scores for {metric}; it has {', '.join(record.metrics)}")
    quantity = BY_NAME[metric].quantity
    scores = quantity.scale * record.scores[metric]
    rows, columns = scores.shape
    many = columns > MOST
    wide, high = (CELL, CELL) if many else (0.62, 0.42)
    figure = figure_of(max(4.2, 2.3 + wide * columns), 1.75 + high * rows)
    axes = figure.subplots()
    image = _cells(axes, scores, record, score_axis([scores], quantity), quantity)
    _names(axes, record.languages, hop_names(record), TICKS if many else None)
    axes.set(xlabel="evaluated on", ylabel="after hop")
    figure.colorbar(image, ax=axes, label=score_label(metric, [record]), fraction=0.06, pad=0.02)
    shots = "" if record.shots is None else f", K = {record.shots}"
    bucket = "" if record.bucket is None else f", bucket {record.bucket}"
    title = f"Score matrix: {record.strategy}, {record.order}, seed {record.seed}{shots}{bucket} ({short_name(metric)})"
    figure.suptitle(textwrap.fill(title, max(34, 9 * columns)), fontsize=10)
    figure.supxlabel(f"{record.dataset} · {record.model} · run {record.run_id}", fontsize=6, color="#555555")
    return figure


def heatmaps(strategies: Mapping[str, Sequence[RunRecord]], metric: str, title: str) -> Figure:
    """Draw the score matrix of each strategy in a panel, averaged over its runs; all runs have the same order."""
    most = max(len(run.languages) for runs in strategies.values() for run in runs)
    many = most > MOST
    wide, high = (CELL, CELL) if many else (0.42, 0.3)
    width = 1.15 + wide * most
    # As many panels in a row as a page can show.
    columns = min(3, len(strategies), max(1, int(WIDEST / 1.5 // width)) if many else 3)
    figure, grid = panel_grid(len(strategies), columns, (width, 0.85 + high * (most + 1)), (0.9, 0.7))
    rows_of = [hop_names(runs[0]) for runs in strategies.values()]
    quantity = BY_NAME[metric].quantity
    means = {label: np.mean([r.scores[metric] for r in runs], axis=0) for label, runs in strategies.items()}
    matrices = {label: quantity.scale * mean for label, mean in means.items()}
    ends = score_axis(matrices.values(), quantity)
    for k, (axes, (label, runs)) in enumerate(zip(grid, strategies.items(), strict=False)):
        image = _cells(axes, matrices[label], runs[0], ends, quantity, 6.5)
        # Add the tooltip to the axes: the numbers would hide a tooltip of the image.
        tip(axes, f"{label}: mean of {len(runs)} run{'s' if len(runs) > 1 else ''}")
        # Omit names that the panel below or the first panel of the row already shows.
        below, first = k + columns < len(strategies), k - k % columns
        languages = () if below and not many else runs[0].languages
        hops = () if k > first and rows_of[k] == rows_of[first] else rows_of[k]
        _names(axes, languages, hops, TICKS if many else 7)
        axes.set_title(f"{cut(label, int(9 * width))} ({len(runs)} run{'s' if len(runs) > 1 else ''})", fontsize=8)
    label = score_label(metric, chain.from_iterable(strategies.values()))
    figure.colorbar(image, ax=grid[: len(strategies)], label=label, fraction=0.05, pad=0.01)
    titled(figure, f"{title} ({short_name(metric)})", "evaluated on", "after hop")
    return figure


def hop_names(record: RunRecord) -> list[str]:
    """Return the row names of a run's score matrix: ``0 (before)``, ``1 en``, …"""
    if record.stream == "joint":
        return ["0 (before)", "1 (all)"]
    only = " only" if record.stream == "independent" else ""
    return ["0 (before)", *(f"{i} {name}{only}" for i, name in enumerate(record.learnt, start=1))]


def _names(axes: Axes, languages: Sequence[str], hops: Sequence[str], size: float | None) -> None:
    """Label columns and rows; long names are rotated."""
    across = 90 if len(languages) > MOST else 0 if not languages or short(languages) else 45
    for axis, names, rotation in ((axes.xaxis, languages, across), (axes.yaxis, hops, 0)):
        # Hide axes without names, which saves computing their layout.
        axis.set_visible(bool(names))
        if names:
            axis.set_ticks(range(len(names)), names, fontsize=size, rotation=rotation)


def _cells(
    axes: Axes,
    scores: np.ndarray,
    record: RunRecord,
    ends: tuple[float, float],
    quantity: Quantity,
    size: float = 8,
) -> AxesImage:
    """Draw a matrix as printed, best scores brightest, grey where not measured.

    ``size``: font size; ``ends``: limits of the colour scale.
    """
    axes.set_facecolor("#dddddd")
    higher, (low, high) = quantity.higher_is_better, ends
    colours = "viridis" if higher else "viridis_r"
    image = axes.imshow(np.ma.masked_invalid(scores), cmap=colours, vmin=low, vmax=high, aspect="auto")
    if scores.shape[1] <= MOST:
        # Numbers fit into their cells, so the layout can ignore them, which saves measuring text.
        write_cells(
            axes,
            scores,
            f"{{:.{quantity.decimals - 1}f}}",
            low + (0.6 if higher else 0.4) * (high - low),
            dark_below=higher,
            fontsize=size,
            in_layout=False,
        )
    _outlines(axes, record)
    tickless(axes)
    axes.spines[:].set_visible(False)
    return image


def _outlines(axes: Axes, record: RunRecord) -> None:
    """Frame the cells (hop i, language of hop i) in white and black, visible on any colour."""
    from matplotlib.patches import Rectangle

    if record.stream == "joint":
        return
    for i in range(1, min(record.hops, len(record.elements)) + 1):
        for j in map(record.languages.index, record.trains(i)):
            for ink, width in LINES[len(record.languages) > MOST]:
                frame = Rectangle((j - 0.46, i - 0.46), 0.92, 0.92, fill=False, edgecolor=ink, linewidth=width)
                axes.add_patch(frame)
