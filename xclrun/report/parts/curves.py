"""Score matrices, and curves over hops and training steps: a panel for each strategy (rows) and order (columns)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from xclrun.analysis.aggregate import Comparison, combinations, compared
from xclrun.analysis.grouping import natural
from xclrun.analysis.record import RunRecord
from xclrun.report.heatmaps import heatmaps
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection, names_of
from xclrun.report.style import (
    GREY,
    MOST,
    axis_of,
    colour,
    figure_of,
    first_orders,
    key,
    marker,
    metric_title,
    short,
    tip,
    titled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Orders whose score matrices are drawn: more would fill pages that nobody reads.
MATRICES = 6

# Strategies on one page; the rest continues further pages.
ROWS = 6

# Runs in a panel, up to which each line has markers.
MARKED = 6
# Runs in a panel, up to which each has its line; of more, the median and the middle nine tenths.
LINES = 10
ACROSS = 22  # letters of a name that fit along the height of a panel

FAINT = "#cfcfcf"  # of curves behind others

SharedX = Literal["col", "none"]
# (strategy, order) → its runs.
Cells = dict[tuple[str, str], list[RunRecord]]


@part(StrategySection, place=70, title="Score matrices and learning curves", folded=True, runs_alone=True)
def score_matrices(section: StrategySection) -> Iterator[Item]:
    comparison = section.comparison
    yield "Score on each language (columns) after each hop (rows), in percent; framed: the language just learned."
    if len(comparison.orders) > MATRICES:
        yield f"Matrices of the first {MATRICES} of {len(comparison.orders)} orders."
    for metric in comparison.metrics:
        pages = learning_curve_pages(comparison, metric)
        yield from _numbered(section.file("learning_curves", metric), "Score by hop and language (CCL Fig. 7)", pages)
    for order, metric in product(comparison.orders[:MATRICES], comparison.metrics):
        entering = compared(comparison, order).items()
        having = {label: [run for run in runs if metric in run.metrics] for label, (runs, _) in entering}
        chosen = {k: runs for k, runs in having.items() if runs and len({r.languages for r in runs}) == 1}
        if chosen:
            title, name = f"{section.names}: {order}, mean over seeds", section.file("matrices", order, metric)
            yield Plot(name, "Score matrices", heatmaps, chosen, metric, title)


@part(StrategySection, place=80, title="Training", folded=True, runs_alone=True)
def training(section: StrategySection) -> Iterator[Item]:
    for what in ("loss", *section.comparison.metrics):
        pages = training_curve_pages(section.comparison, what)
        yield from _numbered(section.file("training_curves", what), "Training curves", pages)


def _numbered(name: str, caption: str, pages: Iterable[Callable[[], Figure]]) -> Iterator[Plot]:
    for k, page in enumerate(pages, start=1):
        yield Plot(name if k == 1 else f"{name}_{k}", caption, page)


def learning_curve_pages(comparison: Comparison, metric: str) -> list[Callable[[], Figure]]:
    """Return what draws each page of the scores on each language after each hop, mean over seeds and buckets.

    The runs are those of score matrices and tables: those that all strategies have finished
    (`xclrun.analysis.aggregate.compared`). Dashed before the language's own hop, solid after it; a marker at the hop
    itself. Of more than `MOST` languages: their means, over those learned so far and those yet to be learned, in front
    of their curves in grey. Strategies that are no sequence of hops have no curve.
    """
    languages = comparison.languages
    chosen = (runs for order in comparison.orders for runs, _ in compared(comparison, order).values())
    common = {run.run_id for runs in chosen for run in runs}
    every = _cells(comparison, lambda run: run.stream == "sequence" and metric in run.metrics)
    cells = {key: [run for run in runs if run.run_id in common] for key, runs in every.items()}
    cells = {key: runs for key, runs in cells.items() if runs}
    ends = axis_of(
        [100 * np.mean([run.scores[metric] for run in runs], axis=0) for runs in cells.values()], low=0, high=102
    )

    many = len(languages) > MOST

    def panel(axes: Axes, runs: list[RunRecord]) -> None:
        order = runs[0].languages
        score = 100 * np.mean([run.scores[metric] for run in runs], axis=0)
        axes.set_xlim(-0.05 * len(order), 1.05 * len(order))
        if many:
            _means(axes, score, order)
            return
        for j, language in enumerate(order):
            k, own = languages.index(language), j + 1
            before, at, end = (f"{score[i, j]:.1f}" for i in (own - 1, own, -1))
            after, look = range(own, len(order) + 1), f"-{marker(k)}"
            drawn = [
                *axes.plot(range(own + 1), score[: own + 1, j], "--", color=colour(k), linewidth=0.9),
                *axes.plot(after, score[own:, j], look, color=colour(k), linewidth=1.6, markersize=4.5, markevery=[0]),
            ]
            for line in drawn:
                tip(line, f"{language}: {before} before its hop, {at} after it, {end} at the end")
        _uprights(axes, range(len(order) + 1), "#dddddd", 0.6)
        if axes.xaxis.get_visible():
            axes.set_xticks(range(len(order) + 1), ["0", *order], fontsize=7, rotation=0 if short(order) else 45)

    handles = [(language, {"color": colour(k), "marker": marker(k)}) for k, language in enumerate(languages)]
    if many:
        handles = [
            ("mean of those learned", {"color": colour(1)}),
            ("mean of those not yet learned", {"color": colour(2), "linestyle": "--"}),
            ("each language from its hop on", {"color": FAINT}),
        ]
    named = metric_title(metric, comparison.runs)
    title = f"{names_of(comparison)}: {named} on each language after each hop (dashed: not yet learned)"
    title += first_orders(comparison.orders)[1]
    if cells != every:
        title += "; mean over the runs that all strategies have finished"
    across = f"hop{'' if many else ': the language just learnt'} (0: before fine-tuning)"
    # An order has the same hops under every strategy.
    look = partial(_page, title=title, panel=panel, handles=handles, axes=(across, named), sharex="col", ends=ends)
    return [partial(look, page) for page in _pages(cells)]


def _means(axes: Axes, score: np.ndarray, order: Sequence[str]) -> None:
    """Draw the mean over the languages learned so far, and that over the others; behind them each from its hop on.

    Args:
        score: in percent, shape (hops + 1, languages).
    """
    from matplotlib.collections import LineCollection

    hops = len(order)
    own = [np.column_stack([range(j + 1, hops + 1), score[j + 1 :, j]]) for j in range(hops)]
    axes.add_collection(LineCollection(own, colors=FAINT, linewidths=0.5, zorder=1))
    learnt = [float(np.mean(score[i, :i])) for i in range(1, hops + 1)]
    others = [float(np.mean(score[i, i:])) for i in range(hops)]
    for start, values, look, what in ((1, learnt, "-", "learned"), (0, others, "--", "not yet learned")):
        line = axes.plot(range(start, start + hops), values, look, color=colour(1 if start else 2), linewidth=1.8)[0]
        tip(line, f"mean of those {what}: {values[0]:.1f} at first, {values[-1]:.1f} at the end")
    _uprights(axes, range(0, hops + 1, 10), "#dddddd", 0.6)
    if axes.xaxis.get_visible():
        axes.set_xticks(range(0, hops + 1, 10))
        axes.tick_params(axis="x", labelsize=7)


def training_curve_pages(comparison: Comparison, what: str) -> list[Callable[[], Figure]]:
    """Return what draws each page of the training loss (``what="loss"``) or a metric's dev score over main steps.

    A line for each run, its value after each epoch; of more than `LINES` runs in a panel the median, and the range of
    nine tenths. The dev score is that on the language learned in the hop (of several: their mean).
    """
    cells = _cells(comparison, lambda run: any(math.isfinite(_value(run, point, what)) for point in run.curve))
    seeds = sorted({run.seed for runs in cells.values() for run in runs})
    values = {run.run_id: [_value(run, p, what) for p in run.curve] for runs in cells.values() for run in runs}
    every = [[value for run in runs for value in values[run.run_id]] for runs in cells.values()]
    ends = axis_of(every, high=102) if what != "loss" else None
    bands = max(map(len, cells.values()), default=0) > LINES
    # The names of many languages would hide one another: upright lines show the hops alone.
    many = any(len(run.learnt) > MOST for runs in cells.values() for run in runs)

    def panel(axes: Axes, runs: list[RunRecord]) -> None:
        lengths = _steps_of_hops(runs)
        starts = np.cumsum([0, *lengths])
        axes.set_xlim(0, 1.02 * starts[-1] or 1)
        if bands:
            _band(axes, runs, starts, values)
        for run in [] if bands else runs:
            k = seeds.index(run.seed)
            x = np.array([starts[p["hop"] - 1] + p["step"] for p in run.curve], dtype=float)
            y, hops = np.array(values[run.run_id]), [p["hop"] for p in run.curve]
            breaks = np.flatnonzero(np.diff(hops)) + 1  # no line from one hop's last epoch to the next one's first
            x, y = np.insert(x, breaks, np.nan), np.insert(y, breaks, np.nan)
            # Of many lines the markers would hide one another.
            few, size = len(runs) <= MARKED, 1 if many else 2.5
            (line,) = axes.plot(
                x, y, color=colour(k), marker=marker(k) if few else "", markersize=size, linewidth=1 if few else 0.6
            )
            tip(line, run.run_id)
        names = runs[0].learnt
        upright = axes.get_xaxis_transform()
        _uprights(axes, starts[:-1].tolist(), *(("#dddddd", 0.4) if many else ("#bbbbbb", 0.7)))
        rotated = not short(names)
        look: dict[str, Any] = {"ha": "left", "rotation": 40} if rotated else {"ha": "center"}
        for start, length, name in [] if many else zip(starts[:-1], lengths, names, strict=True):
            # Where all are as high as the first, the layout need not measure them all.
            look["in_layout"] = rotated or name == names[0]
            middle = start + length / 2
            axes.text(middle, 1.02, name, transform=upright, va="bottom", fontsize=6, color=GREY, **look)
        axes.tick_params(axis="x", labelsize=7)

    # Where a column's panels have the same hops, the lowest shows them for all.
    lengths_of = {(order, *_steps_of_hops(runs)) for (_, order), runs in cells.items()}
    sharex: SharedX = "col" if len(lengths_of) == len({order for _, order in cells}) else "none"
    ylabel = "training loss" if what == "loss" else f"dev {metric_title(what, comparison.runs)}"
    handles = [(f"seed {seed}", {"color": colour(k), "marker": marker(k)}) for k, seed in enumerate(seeds)]
    if bands:
        handles = [("median of runs", {"color": colour(1)}), ("nine tenths of runs", {"color": FAINT})]
    title = (
        f"{names_of(comparison)}: {ylabel}{'' if what == 'loss' else ' on the language being learned'} after each epoch"
    )
    title += first_orders(comparison.orders)[1]
    across = f"main steps ({'upright: where a hop begins' if many else 'above: the language being learned'})"
    look = partial(_page, title=title, panel=panel, handles=handles, axes=(across, ylabel), sharex=sharex, ends=ends,
                   above=not many)  # fmt: skip
    return [partial(look, page) for page in _pages(cells)]


def _band(axes: Axes, runs: Sequence[RunRecord], starts: np.ndarray, values: Mapping[str, Sequence[float]]) -> None:
    """Draw the median of runs at each epoch of each hop, and behind it the range of nine tenths.

    Args:
        runs: an epoch is of those that have it.
        starts: main steps before each hop, shape (hops + 1,).
        values: run id → what its curve shows, at each of its points.
    """
    by_epoch: dict[int, dict[int, list[tuple[float, float]]]] = {}
    for run in runs:
        for point, value in zip(run.curve, values[run.run_id], strict=True):
            if math.isfinite(value):
                by_epoch.setdefault(point["hop"], {}).setdefault(point["epoch"], []).append((value, point["step"]))
    columns: list[tuple[float, ...]] = []
    for hop, epochs in sorted(by_epoch.items()):
        for _, points in sorted(epochs.items()):
            y, steps = zip(*points, strict=True)
            columns.append((starts[hop - 1] + max(steps), *np.quantile(y, [0.05, 0.5, 0.95])))
        # No line from one hop's last epoch to the next one's first. All hops at once: artists are what takes time.
        columns.append((math.nan,) * 4)
    x, low, middle, high = np.array(columns).T
    axes.fill_between(x, low, high, color=FAINT, linewidth=0)
    (line,) = axes.plot(x, middle, ".-", color=colour(1), linewidth=1, markersize=2)
    tip(line, f"median of {len(runs)} runs")


def _uprights(axes: Axes, places: Sequence[float], ink: str, width: float) -> None:
    """Draw a line behind all else at each place across, as high as the panel: one artist, where a grid has many."""
    from matplotlib.collections import LineCollection

    lines = LineCollection(
        [[(x, 0), (x, 1)] for x in places],
        colors=ink, linewidths=width, zorder=0, transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.add_collection(lines, autolim=False)


def _cells(comparison: Comparison, has: Callable[[RunRecord], bool]) -> Cells:
    """Return (strategy label, order) → the runs that ``has`` a curve, each (seed, bucket) once."""
    cells: Cells = {}
    for label, runs in comparison.strategies.items():
        for order in first_orders(comparison.orders)[0]:
            if having := [run for run in combinations(runs, order).values() if has(run)]:
                cells[label, order] = having
    return cells


def _pages(cells: Cells) -> Iterator[Cells]:
    labels = list(dict.fromkeys(label for label, _ in cells))
    for k in range(0, len(labels), ROWS):
        page = labels[k : k + ROWS]
        yield {key: runs for key, runs in cells.items() if key[0] in page}


def _page(
    cells: Cells,
    title: str,
    panel: Callable[[Axes, list[RunRecord]], None],
    handles: Sequence[tuple[str, dict[str, Any]]],
    axes: tuple[str, str],
    sharex: SharedX,
    ends: tuple[float, float] | None,
    above: bool = False,
) -> Figure:
    """Draw one page: a grid of panels with shared y axis, strategies down and orders across, and one legend.

    Args:
        axes: names of the x and y axes.
        ends: of the y axis; None: chosen by matplotlib.
        above: whether panels have the names of languages above them.
    """
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(label for label, _ in cells))
    orders = sorted({order for _, order in cells}, key=natural)
    width, height = max(2.1, min(3.6, 11 / len(orders))), 1.75 if len(labels) > 1 else 2.4
    languages = next(iter(cells.values()))[0].languages
    figure = figure_of(max(5.0, 0.8 + width * len(orders)), 1.2 + height * len(labels))
    grid = figure.subplots(len(labels), len(orders), squeeze=False, sharex=sharex, sharey=True)
    if ends is not None:
        # Once for all and before anything is drawn: each panel would set, and fit, those of all others.
        grid[0, 0].set_ylim(*ends)
    for i, label in enumerate(labels):
        for j, order in enumerate(orders):
            ax = grid[i, j]
            ax.spines[["top", "right"]].set_visible(False)
            # An axis that another panel shows is hidden: axes take most of the time of a large figure.
            ax.yaxis.set_visible(j == 0)
            ax.tick_params(axis="y", labelsize=7)
            lowest = [name for name in labels if (name, order) in cells][-1]
            if (label, order) in cells:
                ax.xaxis.set_visible(sharex == "none" or label == lowest)
                ax.tick_params(axis="x", labelbottom=True)
                panel(ax, cells[label, order])
            else:
                ax.xaxis.set_visible(False)
                ax.text(0.5, 0.5, "not run", ha="center", va="center", color=GREY, transform=ax.transAxes)
            if i == 0:
                room = 0 if not above else 10 if short(languages) else 24
                ax.set_title(textwrap.fill(order, int(13 * width)), fontsize=9, pad=4 + room)
        # A name that is longer than its panel is high continues a second line, where its expansion begins.
        words = label if len(label) <= ACROSS else label.replace("+", " +")
        name = textwrap.fill(words, ACROSS, break_on_hyphens=False, break_long_words=False)
        grid[i, 0].set_ylabel(name, fontsize=8, fontweight="bold")
    key(figure, (Line2D([], [], label=name, linewidth=1.6, markersize=4.5, **look) for name, look in handles))
    titled(figure, title, *axes)
    return figure


def _steps_of_hops(runs: Sequence[RunRecord]) -> list[float]:
    """Return the main steps of each hop: the most that any of the runs took."""
    longest = np.zeros(runs[0].hops)
    for run in runs:
        for point in run.curve:
            longest[point["hop"] - 1] = max(longest[point["hop"] - 1], point["step"])
    return longest.tolist()


def _value(run: RunRecord, point: dict[str, Any], what: str) -> float:
    """Return what a curve shows at one point; NaN where it was not measured."""
    if what == "loss":
        loss = point.get("loss")
        return math.nan if loss is None else float(loss)
    scores = [(point.get("dev") or {}).get(language, {}).get(what) for language in run.trains(point["hop"])]
    if any(score is None for score in scores):
        return math.nan
    # A study has very many single scores, and a mean takes longer than all else here.
    return 100 * float(scores[0] if len(scores) == 1 else np.mean(scores))
