"""Results of evaluation inside hops: learning curves over examples, AULTC, and effects of checkpoint selection.

Needs runs with ``evaluate.every_examples``. AULTC follows LL, checkpoint selection follows ED (see
`xclrun.analysis.points`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.grouping import natural
from xclrun.analysis.points import Selected, learning_curve, least, selection, switches, unadapted_note
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME, headline
from xclrun.report.over_time import mean_curves
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import (
    GREY,
    SIDES,
    colour,
    ends_of_hops,
    figure_of,
    first_orders,
    legend,
    line,
    marker,
    panel_grid,
    plain,
    score_label,
    tip,
    titled,
)
from xclrun.report.summary import CONSTANT, Summary
from xclrun.report.tables import Table, percent_cell, quantity_cell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Measures of LL's Table 1, in the order of the table. F_m and I are computed from the score matrix, not the curve.
EFFICIENCY = ("AULTC", "F_m_curve", "F_m", "I", "I_m_curve", "FP")


@part(StrategySection, place=90, title="Inside hops: learning curves and checkpoints")
def inside_hops(section: StrategySection) -> Iterator[Item]:
    summary, metrics = section.summary, section.comparison.metrics
    if not any(run.points for run in summary.comparison.runs):
        return
    for metric in metrics:
        yield efficiency_table(summary, metric)
    for metric in metrics:
        selected = selected_checkpoints(summary, metric)
        curves = section.file("example_curves", metric)
        yield Plot(curves, "Learning curves over sentences seen", example_curve_figure, summary, metric)
        name = section.file("selection", metric)
        yield Plot(name, "Checkpoint selection", selection_figure, summary, selected, metric)
        yield checkpoint_table(summary, selected, metric)


def efficiency_table(summary: Summary, metric: str) -> Table:
    """Return LL's measures of each strategy."""
    table = summary.measured(metric, EFFICIENCY, f"{headline(metric)}, learning efficiency and forgetting (LL)")
    return replace(table, notes=(*table.notes, *unadapted_note(summary.comparison.strategies)))


def selected_checkpoints(summary: Summary, metric: str) -> dict[str, Selected]:
    """Return strategy → the effects of checkpoint selection on its runs with evaluation points."""
    chosen = {
        label: selection(runs, metric, summary.comparison.languages)
        for label, (runs, _) in compared(summary.comparison).items()
    }
    return {label: effects for label, effects in chosen.items() if effects is not None}


def checkpoint_table(summary: Summary, selected: Mapping[str, Selected], metric: str) -> Table | None:
    """Return selected and oracle scores, spread and agreement by strategy and language, and means over languages."""
    rows, entering, kind = [], compared(summary.comparison), BY_NAME[metric].quantity
    names = ("selected", "oracle", "selected_spread", "oracle_spread", "source", "target")
    for label, effects in selected.items():
        arrays = [getattr(effects, name) for name in names]
        lines = [(k, [array[j] for array in arrays]) for j, k in enumerate(effects.languages)]
        lines.append(("mean", [_mean(array) for array in arrays]))
        measured = [run for run in entering[label][0] if run.points and metric in run.metrics]
        for language, (picked, best, *further) in lines:
            runs = tuple(run.run_id for run in measured if language in (*run.languages, "mean"))
            cells = [quantity_cell(value, kind, runs) for value in (picked, best, best - picked, *further[:2])]
            cells += [percent_cell(value, runs) for value in further[2:]]
            rows.append((label, language, *cells))
    if not rows:
        return None
    for language, floor in zip((*summary.comparison.languages, "mean"), summary.floors(metric), strict=False):
        rows.append((CONSTANT, language, floor, floor, *["–"] * 5))
    header = ("strategy", "language", "selected", "oracle", "oracle − selected", "spread of selected",
              "spread of oracle", "agreement: source dev", "agreement: own dev")  # fmt: skip
    notes = (
        "selected: test score at the evaluation point with the best dev score on the hop's training languages; oracle: "
        "test score at the point with the best dev score on the language itself; "
        f"{kind.label}, mean over hops and runs (ED)",
        f"spread: max − min over seeds of the same order, in {kind.difference.unit}, mean over hops and orders; – with "
        "one seed",
        "agreement: share (%) of pairs of evaluation points in which dev and test scores change in the same direction; "
        f"ties count half, 50 is chance; only pairs whose test scores differ by at least {least(metric)}; source dev: "
        "the hop's training languages; own dev: the language itself",
    )
    return Table(f"{headline(metric)}, checkpoint selection", header, tuple(rows), notes, left=2)


def example_curve_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw the mean score over all languages by sentences seen, a panel for each order, a line for each strategy.

    Mean over seeds and buckets; dotted: ends of hops, above them the learned languages; shaded: the area of AULTC.
    """
    orders, number = first_orders(sorted(summary.comparison.orders, key=natural))
    every = {order: mean_curves(summary, metric, order, learning_curve) for order in orders}
    panels = {order: curves for order, curves in every.items() if curves}
    if not panels:
        return None
    strategies = list(summary.comparison.strategies)
    figure, grid = panel_grid(len(panels), 3, (3.6, 2.5), (2.2, 1.0), sharey=True)
    for axes, (order, curves) in zip(grid, panels.items(), strict=False):
        for label, (x, score, _) in curves.items():
            k, y = strategies.index(label), BY_NAME[metric].quantity.scale * score
            text = f"{label}, {order}: AULTC {np.trapezoid(y, x) / x[-1]:.2f}, last {y[-1]:.2f}"
            line(axes, x, y, k, text, markevery=max(1, len(x) // 12), markersize=4, linewidth=1.2)
            axes.fill_between(x, 0, y, color=colour(k), alpha=0.06, linewidth=0, zorder=0)
        run = next((run for _, _, run in curves.values() if run.stream in ("sequence", "mixture")), None)
        learned, ends = ((), []) if run is None else (run.elements, switches(run).tolist())
        ends_of_hops(axes, ends)
        edges = [0.0, *ends, max(x[-1] for x, _, _ in curves.values())]
        for name, start, end in zip(learned, edges, edges[1:], strict=False):
            axes.text((start + end) / 2, 1.0, name, transform=axes.get_xaxis_transform(), ha="center", va="bottom",
                      fontsize=6, color=GREY)  # fmt: skip
        axes.set_ylim(bottom=0)
        axes.set_title(order, fontsize=9, pad=14 if learned else None)
        plain(axes, "sentences of the stream seen")
    grid[0].set_ylabel(f"mean {score_label(metric, summary.comparison.runs)}", fontsize=8)
    legend(figure, dict.fromkeys(label for curves in panels.values() for label in curves), strategies)
    title = f"{summary.names}: {summary.title(metric)} over all languages by sentences seen (dotted: ends of hops; "
    titled(figure, f"{title}shaded: AULTC{number})")
    return figure


def selection_figure(summary: Summary, selected: Mapping[str, Selected], metric: str) -> Figure | None:
    """Draw two panels by strategy: selected and oracle test scores; agreement of dev scores with test scores.

    Each panel has two series: for dev scores on the hop's training languages, and for dev scores on the tested
    language.
    """
    if not selected:
        return None
    figure = figure_of(max(6.5, 3.4 + 0.9 * len(selected)), 3.9)
    scores, agreement = figure.subplots(1, 2)
    places = np.arange(len(selected))
    series = (
        (scores, (("selected", "selected: dev of the hop's languages", 0, -0.1),
                  ("oracle", "oracle: dev of the language itself", 1, 0.1))),
        (agreement, (("source", "dev of the hop's languages", 0, -0.1), ("target", "dev of the language", 1, 0.1))),
    )  # fmt: skip
    for axes, pairs in series:
        for name, text, k, shift in pairs:
            scale = BY_NAME[metric].quantity.scale if axes is scores else SHARE.scale
            values = [scale * _mean(getattr(effects, name)) for effects in selected.values()]
            spreads = [
                scale * _mean(getattr(effects, f"{name}_spread")) if axes is scores else math.nan
                for effects in selected.values()
            ]
            half = None if np.isnan(spreads).any() else np.array(spreads) / 2
            axes.errorbar(places + shift, values, yerr=half, fmt="none", ecolor=SIDES[k], elinewidth=1, capsize=2)
            (points,) = axes.plot(places + shift, values, marker(k), color=SIDES[k], markersize=6, label=text)
            tip(points, f"{text}: " + ", ".join(f"{label} {v:.2f}" for label, v in zip(selected, values, strict=True)))
        axes.set_xticks(places, list(selected), rotation=35, ha="right", rotation_mode="anchor")
        axes.set_xlim(-0.6, len(selected) - 0.4)
        plain(axes)
        axes.legend(fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, 1.3))
    agreement.axhline(50, color=GREY, linestyle=":", linewidth=0.8)
    scores.set_ylabel(f"mean {score_label(metric, summary.comparison.runs)}", fontsize=8)
    agreement.set_ylabel("directional agreement (%)", fontsize=8)
    has_spread = any(not np.isnan(effects.selected_spread).all() for effects in selected.values())
    bars = "bars: spread over seeds; " if has_spread else ""
    titled(figure, f"{summary.names}: checkpoint selection, {summary.title(metric)}; {bars}dotted: chance")
    return figure


def _mean(values: np.ndarray) -> float:
    values = values[~np.isnan(values)]
    return float(values.mean()) if values.size else math.nan
