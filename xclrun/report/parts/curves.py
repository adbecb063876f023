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
from xclrun.core.task import BY_NAME
from xclrun.report.heatmaps import heatmaps
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection, names_of
from xclrun.report.style import (
    GREY,
    MOST,
    PALE,
    colour,
    figure_of,
    first_orders,
    key,
    marker,
    metric_title,
    score_axis,
    score_label,
    short,
    tip,
    titled,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MATRICES = 6  # maximum number of orders with score matrices
ROWS = 6  # maximum number of strategies on a page
MARKED = 6  # with more runs in a panel, lines have no markers
LINES = 10  # with more runs in a panel, it shows their median and central 90 %
ACROSS = 22  # characters that fit along the height of a panel
FAINT = "#cfcfcf"  # of curves in the background

SharedX = Literal["col", "none"]
# (strategy, order) → runs.
Cells = dict[tuple[str, str], list[RunRecord]]


@part(StrategySection, place=70, title="Score matrices and learning curves", folded=True, runs_alone=True)
def score_matrices(section: StrategySection) -> Iterator[Item]:
    comparison = section.comparison
    yield (
        f"Score on each language (columns) after each hop (rows), in {section.units}; framed: the language just "
        "learned."
    )
    if len(comparison.orders) > MATRICES:
        yield f"Matrices of the first {MATRICES} of {len(comparison.orders)} orders."
    for metric in comparison.metrics:
        pages = learning_curve_pages(comparison, metric)
        name = section.file("learning_curves", metric)
        yield from _numbered(name, "Score by hop and language", pages, "CCL Fig. 7")
    for order, metric in product(comparison.orders[:MATRICES], comparison.metrics):
        entering = compared(comparison, order).items()
        having = {label: [run for run in runs if metric in run.metrics] for label, (runs, _) in entering}
        chosen = {k: runs for k, runs in having.items() if runs and len({r.languages for r in runs}) == 1}
        if chosen:
            title, name = f"{section.names}: {order}, mean over seeds", section.file("matrices", order, metric)
            yield Plot(name, "Score matrices", heatmaps, chosen, metric, title)


@part(StrategySection, place=80, title="Training", folded=True, runs_alone=True)
def training(section: StrategySection) -> Iterator[Item]:
    for quantity in ("loss", *section.comparison.metrics):
        pages = training_curve_pages(section.comparison, quantity)
        yield from _numbered(section.file("training_curves", quantity), "Training curves", pages)


def _numbered(name: str, caption: str, pages: Iterable[Callable[[], Figure]], paper: str = "") -> Iterator[Plot]:
    for k, page in enumerate(pages, start=1):
        yield Plot(name if k == 1 else f"{name}_{k}", caption, page, paper=paper)


def learning_curve_pages(comparison: Comparison, metric: str) -> list[Callable[[], Figure]]:
    """Return functions that draw the pages with the score on each language after each hop.

    Scores are averaged over seeds and buckets, for strategies that learn in sequence and runs that all strategies have
    finished (`xclrun.analysis.aggregate.compared`). The line of a language is dashed before its hop and solid after it,
    with a marker at the hop. With more than `MOST` languages, lines are gray, and two curves show the means over
    languages learned so far and over the others.
    """
    languages = comparison.languages
    chosen = (runs for order in comparison.orders for runs, _ in compared(comparison, order).values())
    common = {run.run_id for runs in chosen for run in runs}
    every = _cells(comparison, lambda run: run.stream == "sequence" and metric in run.metrics)
    cells = {key: [run for run in runs if run.run_id in common] for key, runs in every.items()}
    cells = {key: runs for key, runs in cells.items() if runs}
    kind = BY_NAME[metric].quantity
    means = {key: kind.scale * np.mean([run.scores[metric] for run in runs], axis=0) for key, runs in cells.items()}
    ends = score_axis(means.values(), kind, high=102)

    many = len(languages) > MOST

    def panel(axes: Axes, runs: list[RunRecord]) -> None:
        order = runs[0].languages
        score = kind.scale * np.mean([run.scores[metric] for run in runs], axis=0)
        axes.set_xlim(-0.05 * len(order), 1.05 * len(order))
        if many:
            _means(axes, score, order)
            return
        for j, language in enumerate(order):
            k, hop = languages.index(language), j + 1
            before, at, end = (f"{score[i, j]:.{kind.decimals - 1}f}" for i in (hop - 1, hop, -1))
            after, look = range(hop, len(order) + 1), f"-{marker(k)}"
            lines = [
                *axes.plot(range(hop + 1), score[: hop + 1, j], "--", color=colour(k), linewidth=0.9),
                *axes.plot(after, score[hop:, j], look, color=colour(k), linewidth=1.6, markersize=4.5, markevery=[0]),
            ]
            for line in lines:
                tip(line, f"{language}: {before} before its hop, {at} after it, {end} at the end")
        _uprights(axes, range(len(order) + 1), "#dddddd", 0.6)
        if axes.xaxis.get_visible():
            axes.set_xticks(range(len(order) + 1), ["0", *order], fontsize=7, rotation=0 if short(order) else 45)

    handles = [(language, {"color": colour(k), "marker": marker(k)}) for k, language in enumerate(languages)]
    if many:
        handles = [
            ("mean of learned languages", {"color": colour(1)}),
            ("mean of languages not yet learned", {"color": colour(2), "linestyle": "--"}),
            ("each language from its hop on", {"color": FAINT}),
        ]
    named, label = metric_title(metric, comparison.runs), score_label(metric, comparison.runs)
    title = f"{names_of(comparison)}: {named} on each language after each hop (dashed: not yet learned)"
    title += first_orders(comparison.orders)[1]
    if cells != every:
        title += "; mean over the runs that all strategies have finished"
    across = f"hop{'' if many else ': the language just learned'} (0: before fine-tuning)"
    # Columns share the x axis, because an order has the same hops under every strategy.
    look = partial(_page, title=title, panel=panel, handles=handles, axes=(across, label), sharex="col", ends=ends)
    return [partial(look, page) for page in _pages(cells)]


def _means(axes: Axes, score: np.ndarray, order: Sequence[str]) -> None:
    """Draw the mean over the languages learned so far and over the others, and each language in gray from its hop on.

    Args:
        score: as printed, shape (hops + 1, languages).
    """
    from matplotlib.collections import LineCollection

    hops = len(order)
    single = [np.column_stack([range(j + 1, hops + 1), score[j + 1 :, j]]) for j in range(hops)]
    axes.add_collection(LineCollection(single, colors=FAINT, linewidths=0.5, zorder=1))
    learned = [float(np.mean(score[i, :i])) for i in range(1, hops + 1)]
    unseen = [float(np.mean(score[i, i:])) for i in range(hops)]
    for start, values, look, name in ((1, learned, "-", "learned"), (0, unseen, "--", "not yet learned")):
        line = axes.plot(range(start, start + hops), values, look, color=colour(1 if start else 2), linewidth=1.8)[0]
        tip(line, f"mean of languages {name}: {values[0]:.1f} at first, {values[-1]:.1f} at the end")
    _uprights(axes, range(0, hops + 1, 10), "#dddddd", 0.6)
    if axes.xaxis.get_visible():
        axes.set_xticks(range(0, hops + 1, 10))
        axes.tick_params(axis="x", labelsize=7)


def training_curve_pages(comparison: Comparison, quantity: str) -> list[Callable[[], Figure]]:
    """Return functions that draw the pages with the training ``loss``, or a metric's dev score, over main steps.

    Each run has a line with a value after each epoch. With more than `LINES` runs, a panel shows their median and
    central 90 % instead. Dev scores are on the language learned in the hop; if a hop
    learns several languages, they are means.
    """
    cells = _cells(comparison, lambda run: any(math.isfinite(_value(run, point, quantity)) for point in run.curve))
    seeds = sorted({run.seed for runs in cells.values() for run in runs})
    values = {run.run_id: [_value(run, p, quantity) for p in run.curve] for runs in cells.values() for run in runs}
    every = [[value for run in runs for value in values[run.run_id]] for runs in cells.values()]
    ends = score_axis(every, BY_NAME[quantity].quantity, high=102) if quantity != "loss" else None
    bands = max(map(len, cells.values()), default=0) > LINES
    # Names of many languages would overlap: vertical lines show the hops instead.
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
            few, size = len(runs) <= MARKED, 1 if many else 2.5
            (line,) = axes.plot(
                x, y, color=colour(k), marker=marker(k) if few else "", markersize=size, linewidth=1 if few else 0.6
            )
            tip(line, run.run_id)
        names = runs[0].learnt
        upright = axes.get_xaxis_transform()
        _uprights(axes, starts[:-1].tolist(), *(("#dddddd", 0.4) if many else (PALE, 0.7)))
        rotated = not short(names)
        look: dict[str, Any] = {"ha": "left", "rotation": 40} if rotated else {"ha": "center"}
        for start, length, name in [] if many else zip(starts[:-1], lengths, names, strict=True):
            # Measuring the first name is enough if all names have the same height.
            look["in_layout"] = rotated or name == names[0]
            middle = start + length / 2
            axes.text(middle, 1.02, name, transform=upright, va="bottom", fontsize=6, color=GREY, **look)
        axes.tick_params(axis="x", labelsize=7)

    # If all panels of a column have the same hops, only the lowest panel shows the x axis.
    lengths_of = {(order, *_steps_of_hops(runs)) for (_, order), runs in cells.items()}
    sharex: SharedX = "col" if len(lengths_of) == len({order for _, order in cells}) else "none"
    named = label = "training loss"
    if quantity != "loss":
        named, label = (f"dev {text(quantity, comparison.runs)}" for text in (metric_title, score_label))
    handles = [(f"seed {seed}", {"color": colour(k), "marker": marker(k)}) for k, seed in enumerate(seeds)]
    if bands:
        handles = [("median of runs", {"color": colour(1)}), ("central 90 % of runs", {"color": FAINT})]
    language = "" if quantity == "loss" else " on the language being learned"
    title = f"{names_of(comparison)}: {named}{language} after each epoch{first_orders(comparison.orders)[1]}"
    across = f"main steps ({'vertical: start of a hop' if many else 'above: the language being learned'})"
    look = partial(_page, title=title, panel=panel, handles=handles, axes=(across, label), sharex=sharex, ends=ends,
                   above=not many)  # fmt: skip
    return [partial(look, page) for page in _pages(cells)]


def _band(axes: Axes, runs: Sequence[RunRecord], starts: np.ndarray, values: Mapping[str, Sequence[float]]) -> None:
    """Draw the median of runs at each epoch of each hop, and the central 90 %.

    Args:
        starts: main steps before each hop, shape (hops + 1,).
        values: run ID → its values at the points of its curve.
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
        # NaN interrupts the line between hops. Drawing all hops as one artist is faster.
        columns.append((math.nan,) * 4)
    x, low, middle, high = np.array(columns).T
    axes.fill_between(x, low, high, color=FAINT, linewidth=0)
    (line,) = axes.plot(x, middle, ".-", color=colour(1), linewidth=1, markersize=2)
    tip(line, f"median of {len(runs)} runs")


def _uprights(axes: Axes, places: Sequence[float], ink: str, width: float) -> None:
    """Draw vertical lines in the background as one artist, which is faster than a grid."""
    from matplotlib.collections import LineCollection

    lines = LineCollection(
        [[(x, 0), (x, 1)] for x in places],
        colors=ink, linewidths=width, zorder=0, transform=axes.get_xaxis_transform(),
    )  # fmt: skip
    axes.add_collection(lines, autolim=False)


def _cells(comparison: Comparison, has: Callable[[RunRecord], bool]) -> Cells:
    """Return (strategy, order) → the runs for which ``has`` is true, one for each seed and bucket."""
    cells: Cells = {}
    for label, runs in comparison.strategies.items():
        for order in first_orders(comparison.orders)[0]:
            if chosen := [run for run in combinations(runs, order).values() if has(run)]:
                cells[label, order] = chosen
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
    """Draw a page: strategies down, orders across, with a shared y axis and one legend.

    Args:
        axes: labels of the x and y axes.
        ends: limits of the y axis; None: automatic.
        above: leave room for names above the panels.
    """
    from matplotlib.lines import Line2D

    labels = list(dict.fromkeys(label for label, _ in cells))
    orders = sorted({order for _, order in cells}, key=natural)
    width, height = max(2.1, min(3.6, 11 / len(orders))), 1.75 if len(labels) > 1 else 2.4
    languages = next(iter(cells.values()))[0].languages
    figure = figure_of(max(5.0, 0.8 + width * len(orders)), 1.2 + height * len(labels))
    grid = figure.subplots(len(labels), len(orders), squeeze=False, sharex=sharex, sharey=True)
    if ends is not None:
        # Panels share their limits: set them once, before drawing, instead of adjusting all panels for each one.
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
        # Wrap a long name at its expansion.
        words = label if len(label) <= ACROSS else label.replace("+", " +")
        name = textwrap.fill(words, ACROSS, break_on_hyphens=False, break_long_words=False)
        grid[i, 0].set_ylabel(name, fontsize=8, fontweight="bold")
    key(figure, (Line2D([], [], label=name, linewidth=1.6, markersize=4.5, **look) for name, look in handles))
    titled(figure, title, *axes)
    return figure


def _steps_of_hops(runs: Sequence[RunRecord]) -> list[float]:
    """Return the steps of each hop, the maximum over runs."""
    longest = np.zeros(runs[0].hops)
    for run in runs:
        for point in run.curve:
            longest[point["hop"] - 1] = max(longest[point["hop"] - 1], point["step"])
    return longest.tolist()


def _value(run: RunRecord, point: dict[str, Any], quantity: str) -> float:
    """Return the value of a curve at one point; NaN if it was not measured."""
    if quantity == "loss":
        loss = point.get("loss")
        return math.nan if loss is None else float(loss)
    scores = [(point.get("dev") or {}).get(language, {}).get(quantity) for language in run.trains(point["hop"])]
    if any(score is None for score in scores):
        return math.nan
    # Most hops learn one language, and calling np.mean for each point dominates the time of a large study.
    return BY_NAME[quantity].quantity.scale * float(scores[0] if len(scores) == 1 else np.mean(scores))
