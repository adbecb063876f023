"""What evaluation inside hops tells: learning curves over examples, AULTC, and what the choice of checkpoints did.

Only for runs with ``evaluate.every_examples``; AULTC is LL's, checkpoint selection is ED's (see
`xclrun.analysis.points`). Scores in percent, agreement as a share in percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.grouping import natural
from xclrun.analysis.points import Selected, learning_curve, selection, switches, unadapted_note
from xclrun.core.task import headline
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import (
    GREY,
    SIDES,
    colour,
    figure_of,
    first_orders,
    legend,
    marker,
    panel_grid,
    plain,
    tip,
    titled,
)
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Table, percent_cell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Measures of LL's Table 1, in its order, and F_m and I_m of the score matrix alone or of the curve alone.
EFFICIENCY = ("AULTC", "F_m_curve", "F_m", "I", "I_m_curve", "FP")


@part(StrategySection, place=90, title="Inside hops: learning curves and checkpoints")
def inside_hops(section: StrategySection) -> Iterator[Item]:
    summary = section.summary
    tables = [efficiency_table(summary, metric) for metric in section.comparison.metrics]
    there = [table for table in tables if table is not None]
    if not there:
        return
    yield from there
    for metric in section.comparison.metrics:
        selected = selected_checkpoints(summary, metric)
        draw = partial(example_curve_figure, summary, metric)
        yield Plot(section.file("example_curves", metric), "Learning curves over sentences seen", draw)
        draw = partial(selection_figure, summary, selected, metric)
        yield Plot(section.file("selection", metric), "Checkpoint selection", draw)
        table = checkpoint_table(summary, selected, metric)
        if table is not None:
            yield table


def efficiency_table(summary: Summary, metric: str) -> Table | None:
    """Return LL's measures of each strategy; None where no run was evaluated inside hops.

    Beside the published ones F_m and I of the score matrix, where nothing is read off a curve.
    """
    if not any(run.points for run in summary.comparison.runs):
        return None
    table = summary.measured(metric, EFFICIENCY, f"{headline(metric)}, learning efficiency and forgetting (LL)")
    return replace(table, notes=(*table.notes, *unadapted_note(summary.comparison.strategies)))


def selected_checkpoints(summary: Summary, metric: str) -> dict[str, Selected]:
    """Return strategy → what the choice of checkpoints did to the runs that enter its mean; only those with points."""
    found = {}
    for label, (runs, _) in compared(summary.comparison).items():
        of = selection(runs, metric, summary.comparison.languages)
        if of is not None:
            found[label] = of
    return found


def checkpoint_table(summary: Summary, found: Mapping[str, Selected], metric: str) -> Table | None:
    """Return a row for each strategy and language, and their mean: selected and oracle scores, spread, agreement."""
    rows, entering = [], compared(summary.comparison)
    for label, of in found.items():
        names = ("selected", "oracle", "selected_spread", "oracle_spread", "source", "own")
        arrays = [getattr(of, name) for name in names]
        lines = [(k, [array[j] for array in arrays]) for j, k in enumerate(of.languages)]
        lines.append(("mean", [_mean(array) for array in arrays]))
        for language, (picked, best, *others) in lines:
            runs = tuple(
                run.run_id
                for run in entering[label][0]
                if run.points and metric in run.metrics and language in (*run.languages, "mean")
            )
            cells = [percent_cell(value, runs) for value in (picked, best, best - picked, *others)]
            rows.append((label, language, *cells))
    if not rows:
        return None
    for language, floor in zip((*summary.comparison.languages, "mean"), summary.floors(metric), strict=False):
        rows.append((CONSTANT, language, floor, floor, *["–"] * 5))
    header = ("strategy", "language", "selected", "oracle", "oracle − selected", "spread of selected",
              "spread of oracle", "agreement: source dev", "agreement: own dev")  # fmt: skip
    notes = (
        "selected: test score at the evaluation point with the best dev score of the hop's training languages; oracle: "
        "at the one with the language's own best dev score; mean over hops and runs, percent (ED)",
        "spread: max − min over seeds of the same order, in points, mean over hops and orders; – with one seed",
        "agreement: share (%) of pairs of points whose test scores differ by at least 0.5 points in which dev changes "
        "in the same direction (ties: half); 50 is chance",
    )
    return Table(f"{headline(metric)}, checkpoint selection", header, tuple(rows), notes, left=2)


def example_curve_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw the mean score over all languages by sentences seen, a panel per order and a line per strategy.

    Mean over seeds and buckets; dotted: the ends of hops, above them what is learnt; shaded: what AULTC is the area of.
    None where there are no points.
    """
    curves: dict[str, dict[str, tuple[np.ndarray, np.ndarray]]] = {}
    ends: dict[str, tuple[Sequence[str], Sequence[float]]] = {}
    orders, number = first_orders(sorted(summary.comparison.orders, key=natural))
    for order in orders:
        for label, (runs, _) in compared(summary.comparison, order).items():
            lines = [
                (run, line)
                for run in runs
                if metric in run.metrics and (line := learning_curve(run, metric)) is not None
            ]
            same = [line for _, line in lines if np.array_equal(line[0], lines[0][1][0])]
            if same:
                curves.setdefault(order, {})[label] = same[0][0], 100 * np.mean([y for _, y in same], axis=0)
                if lines[0][0].stream in ("sequence", "mixture"):
                    ends.setdefault(order, (lines[0][0].elements, switches(lines[0][0]).tolist()))
    if not curves:
        return None
    labels = list(dict.fromkeys(label for of in curves.values() for label in of))
    figure, grid = panel_grid(len(curves), 3, (3.6, 2.5), (2.2, 1.0), sharey=True)
    for axes, order in zip(grid, sorted(curves, key=natural), strict=False):
        for label, (x, y) in curves[order].items():
            k = list(summary.comparison.strategies).index(label)
            every = max(1, len(x) // 12)
            (drawn,) = axes.plot(x, y, color=colour(k), marker=marker(k), markevery=every, markersize=4, linewidth=1.2)
            area = np.trapezoid(y, x) / x[-1]
            tip(drawn, f"{label}, {order}: AULTC {area:.2f}, last {y[-1]:.2f}")
            # What AULTC is the area of.
            axes.fill_between(x, 0, y, color=colour(k), alpha=0.06, linewidth=0, zorder=0)
        learnt, starts = ends.get(order, ((), ()))
        mark_switches(axes, learnt, starts, [x[-1] for x, _ in curves[order].values()])
        axes.set_ylim(bottom=0)
        axes.set_title(order, fontsize=9, pad=14 if learnt else None)
        axes.set_xlabel("sentences of the stream seen", fontsize=8)
        plain(axes)
    grid[0].set_ylabel(f"mean {summary.title(metric)}", fontsize=8)
    legend(figure, labels, summary.comparison.strategies)
    titled(
        figure,
        f"{summary.names}: {summary.title(metric)} over all languages by sentences seen (dotted: ends of hops; "
        f"shaded: AULTC{number})",
    )
    return figure


def mark_switches(axes: Axes, learnt: Sequence[str], ends: Sequence[float], lasts: Sequence[float]) -> None:
    """Mark the ends of hops by dotted lines, and write what each hop learns above its part.

    Args:
        learnt: of each hop.
        ends: where a hop ends and the next one begins, one fewer.
        lasts: where curves end.
    """
    for end in ends:
        axes.axvline(end, color=GREY, linewidth=0.7, linestyle=":", zorder=0)
    edges = [0.0, *ends, max(lasts)]
    for name, start, end in zip(learnt, edges[:-1], edges[1:], strict=True) if learnt else ():
        axes.text((start + end) / 2, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom",
                  fontsize=6, color=GREY)  # fmt: skip


def selection_figure(summary: Summary, found: Mapping[str, Selected], metric: str) -> Figure | None:
    """Draw selected against oracle scores, and the directional agreement of the two dev scores, by strategy."""
    if not found:
        return None
    figure = figure_of(max(6.5, 3.4 + 0.9 * len(found)), 3.9)
    scores, agreement = figure.subplots(1, 2)
    places = np.arange(len(found))
    series = (
        (scores, (("selected", "selected: dev of the hop's languages", 0, -0.1),
                  ("oracle", "oracle: dev of the language itself", 1, 0.1))),
        (agreement, (("source", "dev of the hop's languages", 0, -0.1), ("own", "dev of the language itself", 1, 0.1))),
    )  # fmt: skip
    for axes, pairs in series:
        for name, told, k, shift in pairs:
            values = [100 * _mean(getattr(of, name)) for of in found.values()]
            spreads = [
                100 * _mean(getattr(of, f"{name}_spread")) if axes is scores else math.nan for of in found.values()
            ]
            half = None if np.isnan(spreads).any() else np.array(spreads) / 2
            axes.errorbar(places + shift, values, yerr=half, fmt="none", ecolor=SIDES[k], elinewidth=1, capsize=2)
            (points,) = axes.plot(places + shift, values, marker(k), color=SIDES[k], markersize=6, label=told)
            tip(points, f"{told}: " + ", ".join(f"{label} {v:.2f}" for label, v in zip(found, values, strict=True)))
        axes.set_xticks(places, list(found), rotation=35, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.6, len(found) - 0.4)
        plain(axes)
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.3))
    agreement.axhline(50, color=GREY, linestyle=":", linewidth=0.8)
    scores.set_ylabel(f"mean {summary.title(metric)}", fontsize=8)
    agreement.set_ylabel("directional agreement (%)", fontsize=8)
    bars = "bars: spread over seeds; " if any(not np.isnan(of.selected_spread).all() for of in found.values()) else ""
    titled(figure, f"{summary.names}: checkpoint selection, {summary.title(metric)}; {bars}dotted: chance")
    return figure


def _mean(values: np.ndarray) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else math.nan
