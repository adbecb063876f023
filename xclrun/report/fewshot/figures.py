"""Figures of few-shot runs. FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.fewshot import Spreads
from xclrun.analysis.lexical import PRESENCE
from xclrun.core.task import BY_NAME
from xclrun.report.fewshot.tables import shots_name
from xclrun.report.plots import figure_of, plain
from xclrun.report.style import GREY, METRIC_NAMES, colour, marker, tickless, tip

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Panels in a figure, buckets in a matrix and labels in a confusion: more cannot be read.
PANELS = 12
BUCKETS = 10
LABELS = 20

Cell = tuple[str, int]


def histograms(spreads: Mapping[Cell, Spreads], metric: str, title: str) -> Figure:
    """Draw the distribution of scores over buckets and over seeds, a panel for each (language, K) (FS Fig. 1)."""
    figure, grid = _grid(len(spreads), 2.9, 2.2)
    for axes, ((language, k), one) in zip(grid, spreads.items(), strict=False):
        parts = [(f"{len(one.buckets)} buckets", 100 * one.buckets), (f"{len(one.seeds)} seeds", 100 * one.seeds)]
        parts = [(name, values) for name, values in parts if len(values) > 1]
        low, high = min(v.min() for _, v in parts), max(v.max() for _, v in parts)
        bins = np.linspace(low, high if high > low else low + 1, 13)
        for j, (name, values) in enumerate(parts):
            look: dict[str, Any] = {
                "color": colour(j + 1),
                "alpha": 0.55,
                "hatch": ("", "///")[j],
                "edgecolor": "black",
                "linewidth": 0.5,
            }
            share = np.full(len(values), 100 / len(values))
            axes.hist(values, bins=bins.tolist(), weights=share, label=f"{name}, std {values.std(ddof=1):.2f}", **look)
        axes.set_title(f"{language}, {shots_name(k)}", fontsize=9)
        axes.set_ylim(0, 1.45 * axes.get_ylim()[1])
        axes.locator_params(axis="x", nbins=5)
        axes.legend(fontsize=6.5, frameon=False, loc="upper left")
        plain(axes)
    figure.supxlabel(METRIC_NAMES[metric], fontsize=8)
    figure.supylabel("share of scores (%)", fontsize=8)
    _title(figure, f"{title}: scores over buckets (one seed) and over seeds (one bucket)")
    return figure


def similarities(matrices: Mapping[Cell, np.ndarray], title: str) -> Figure:
    """Draw the Jaccard index of every two buckets, a panel for each (language, K) (FS Fig. 3)."""
    figure, grid = _grid(len(matrices), 2.7, 2.4)
    shown = {cell: matrix[:BUCKETS, :BUCKETS] for cell, matrix in matrices.items()}
    between = [matrix[np.triu_indices(len(matrix), k=1)] for matrix in shown.values()]
    top = max((float(values.max()) for values in between if values.size), default=1.0) or 1.0
    image = None
    for axes, ((language, k), matrix) in zip(grid, shown.items(), strict=False):
        hidden = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
        axes.set_facecolor("#dddddd")
        image = axes.imshow(np.ma.masked_invalid(hidden), cmap="viridis", vmin=0, vmax=top)
        for (i, j), value in np.ndenumerate(hidden):
            if i != j and len(matrix) <= BUCKETS:
                ink = "white" if value < 0.6 * top else "black"
                axes.text(j, i, f"{100 * value:.0f}", ha="center", va="center", fontsize=5, color=ink)
        axes.set_xticks(range(len(matrix)), list(map(str, range(len(matrix)))), fontsize=6)
        axes.set_yticks(range(len(matrix)), list(map(str, range(len(matrix)))), fontsize=6)
        tickless(axes)
        axes.set_title(f"{language}, {shots_name(k)}", fontsize=9)
    if image is not None:
        figure.colorbar(image, ax=grid[: len(shown)], label="Jaccard index", fraction=0.05, pad=0.01)
    figure.supxlabel("bucket", fontsize=8)
    figure.supylabel("bucket", fontsize=8)
    _title(figure, f"{title}: words that buckets have in common (Jaccard index; numbers: × 100)")
    return figure


def improvements(counts: Mapping[Cell, np.ndarray], title: str) -> Figure:
    """Draw the share of wrong zero-shot predictions that adapting puts right, by presence in the bucket (FS Fig. 4)."""
    cells = list(counts)
    figure = figure_of(max(5.0, 1.6 + 0.62 * len(cells)), 3.3)
    axes = figure.subplots()
    hatches = ("", "///", "...")
    for j, name in enumerate(PRESENCE):
        table = np.array([counts[cell][j] for cell in cells], dtype=float)
        shares = 100 * np.divide(table[:, 2], table[:, 1], out=np.full(len(cells), np.nan), where=table[:, 1] > 0)
        place = np.arange(len(cells)) + 0.27 * (j - 1)
        bars = axes.bar(place, shares, 0.26, color=colour(j + 1), hatch=hatches[j], edgecolor="black", linewidth=0.4)
        bars.set_label(name)
        for bar, cell, value in zip(bars, cells, shares, strict=True):
            tip(bar, f"{cell[0]}, {shots_name(cell[1])}, {name}: {value:.1f} %")
    names = [f"{language}\n{shots_name(k)}" for language, k in cells]
    axes.set_xticks(range(len(cells)), names, fontsize=7)
    axes.set_ylabel("improved, of those wrong zero-shot (%)", fontsize=8)
    axes.set_ylim(0, max(5.0, 1.2 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, frameon=False, ncols=3, loc="upper left")
    plain(axes)
    _title(figure, f"{title}: improved word-label predictions by what the bucket holds of the test word")
    return figure


def confusions(pairs: Mapping[Cell, tuple[np.ndarray, np.ndarray]], names: Sequence[str], title: str) -> Figure:
    """Draw what each label was taken for zero-shot and after adapting, a row for each (language, K) (FS Fig. 5).

    Args:
        pairs: (language, K) → counts before and after, summed over buckets and seeds, shape (labels, labels).
        names: of the labels.
    """
    frequency = np.sum([before.sum(axis=1) for before, _ in pairs.values()], axis=0)
    occur = int((frequency > 0).sum())
    chosen = np.sort(np.argsort(-frequency, kind="stable")[: min(LABELS, occur)])
    short = [textwrap.shorten(names[k].replace("_", " "), 16, placeholder="…") for k in chosen]
    side = max(1.5, 0.19 * len(chosen) + 0.3)
    figure = figure_of(2.0 + 1.15 * 2 * side, 1.3 + 1.12 * side * len(pairs))
    grid = figure.subplots(len(pairs), 2, squeeze=False, sharex=True, sharey=True)
    for row, ((language, k), matrices) in zip(grid, pairs.items(), strict=True):
        for axes, matrix, what in zip(row, matrices, ("zero-shot", shots_name(k)), strict=True):
            total = matrix.sum(axis=1, keepdims=True)
            shares = 100 * np.divide(matrix, total, out=np.zeros(matrix.shape), where=total > 0)[np.ix_(chosen, chosen)]
            image = axes.imshow(shares, cmap="viridis", vmin=0, vmax=100)
            if len(chosen) <= 8:
                for (i, j), value in np.ndenumerate(shares):
                    ink = "white" if value < 60 else "black"
                    axes.text(j, i, f"{value:.0f}", ha="center", va="center", fontsize=6, color=ink)
            axes.set_xticks(range(len(short)), short, rotation=90, fontsize=6)
            axes.set_yticks(range(len(short)), short, fontsize=6)
            tickless(axes)
            axes.set_title(f"{language}, {what}", fontsize=8)
    figure.colorbar(image, ax=grid.ravel().tolist(), label="share of the gold label (%)", fraction=0.04, pad=0.01)
    figure.supxlabel("predicted", fontsize=8)
    figure.supylabel("gold", fontsize=8)
    some = f" (the {len(chosen)} most frequent of {occur} labels)" if len(chosen) < occur else ""
    _title(figure, f"{title}: zero-shot against few-shot, over buckets and seeds{some}")
    return figure


def curves(lines: Mapping[str, Mapping[int, np.ndarray]], metric: str, title: str) -> Figure:
    """Draw the best dev score so far over epochs of target adapting: a panel per language, a line per K (FS Fig. 6).

    Args:
        lines: language → K → shape (runs, epochs): see `xclrun.analysis.fewshot.best_so_far`.
    """
    figure, grid = _grid(len(lines), 2.9, 2.2)
    shots = sorted({k for them in lines.values() for k in them})
    for axes, (language, by_shots) in zip(grid, lines.items(), strict=False):
        for k, values in by_shots.items():
            j, epochs = shots.index(k), np.arange(1, values.shape[1] + 1)
            mean = 100 * values.mean(axis=0)
            low, high = 100 * values.min(axis=0), 100 * values.max(axis=0)
            axes.fill_between(epochs, low, high, color=colour(j + 1), alpha=0.15, linewidth=0)
            (line,) = axes.plot(epochs, mean, color=colour(j + 1), marker=marker(j), markersize=3, markevery=5)
            tip(line, f"{language}, {shots_name(k)}: {mean[-1]:.2f} at the end, {len(values)} runs")
        axes.set_title(language, fontsize=9)
        plain(axes)
    _key(figure, [(shots_name(k), {"color": colour(j + 1), "marker": marker(j)}) for j, k in enumerate(shots)])
    figure.supxlabel("epochs of target adapting", fontsize=8)
    figure.supylabel(f"best dev {METRIC_NAMES[metric]} so far", fontsize=8)
    _title(figure, f"{title}: learning curves of target adapting, mean and range over buckets and seeds")
    return figure


def scatter(points: Mapping[str, Mapping[str, tuple[float, float]]], metric: str, title: str) -> Figure:
    """Draw gains (mean over K) against each factor of Table 3, a point per language.

    Args:
        points: name of the factor → language → (factor, gain as a fraction).
    """
    figure = figure_of(3.4 * len(points) + 0.5, 3.1)
    for j, (axes, (factor, them)) in enumerate(
        zip(figure.subplots(1, len(points), squeeze=False)[0], points.items(), strict=True)
    ):
        for language, (x, gain) in them.items():
            (point,) = axes.plot(x, 100 * gain, marker(j), color=colour(j + 1), markersize=4)
            tip(point, f"{language}: {x:.3g}, {100 * gain:.2f} points")
            axes.annotate(language, (x, 100 * gain), xytext=(3, 2), textcoords="offset points", fontsize=6.5)
        axes.axhline(0, color=GREY, linewidth=0.7, linestyle=":")
        if all(x == int(x) for x, _ in them.values()):
            axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlabel(factor, fontsize=8)
        axes.set_ylabel("few-shot gain (points)", fontsize=8)
        axes.margins(0.12)
        plain(axes)
    _title(figure, f"{title}: gain in {BY_NAME[metric].title}, mean over K, against what languages share with English")
    return figure


def _grid(panels: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure of equal panels, four to a row; those beyond ``panels`` are hidden."""
    columns = min(4, max(panels, 1))
    rows = math.ceil(panels / columns)
    figure = figure_of(max(4.2, width * columns + 0.6), height * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False).ravel().tolist()
    for axes in grid[panels:]:
        axes.set_visible(False)
    return figure, grid


def _key(figure: Figure, entries: Sequence[tuple[str, dict[str, str]]]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], label=name, markersize=4, **look) for name, look in entries]  # type: ignore[arg-type]
    figure.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)


def _title(figure: Figure, text: str) -> None:
    figure.suptitle(textwrap.fill(text, int(figure.get_size_inches()[0] * 13)), fontsize=10)
