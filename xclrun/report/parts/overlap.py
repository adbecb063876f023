"""Gradient overlap over steps (LL §5, Fig. 5), of embeddings and of the other parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import compared
from xclrun.analysis.grouping import natural
from xclrun.analysis.overlap import Overlap, overlap, smoothed
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import axis_of, ends_of_hops, figure_of, legend, line, plain, titled
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell, Table, percent_cell

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PARTS = ("embeddings", "rest")
POINTS = 200  # maximum on a line: with more steps, each point is a mean


@part(StrategySection, place=96, title="Gradient overlap", folded=True)
def gradient_overlap(section: StrategySection) -> Iterator[Item]:
    overlaps = of_strategies(section.summary, section.shared.gradients.get("overlap", {}))
    if overlaps:
        yield overlap_table(overlaps)
    for order in sorted(overlaps, key=natural):
        caption, data = "Gradient overlap over steps", (section.summary, order, overlaps[order])
        yield Plot(section.file("overlap", order), caption, overlap_figure, *data, paper="LL Fig. 5")


# Order → strategy → part → runs.
Overlaps = Mapping[str, Mapping[str, Mapping[str, list[Overlap]]]]


def of_strategies(summary: Summary, counts: Mapping[str, pd.DataFrame]) -> Overlaps:
    overlaps: dict[str, dict[str, dict[str, list[Overlap]]]] = {}
    for order in summary.comparison.orders:
        for label, (runs, _) in compared(summary.comparison, order).items():
            if of_runs := [counts[run.run_id] for run in runs if run.run_id in counts]:
                by_part = {name: [overlap(frame, name) for frame in of_runs] for name in PARTS}
                overlaps.setdefault(order, {})[label] = by_part
    return overlaps


def overlap_table(overlaps: Overlaps) -> Table:
    """Return the overlap within hops and at switches, with a row for each order, strategy and part of the model."""
    rows = []
    for order in sorted(overlaps, key=natural):
        for label, parts in overlaps[order].items():
            for name, runs in parts.items():
                means = np.mean([[np.nanmean(run.nonzero), np.nanmean(run.both)] for run in runs], axis=0).tolist()
                shares = np.mean([[run.within(), run.at_switches()] for run in runs], axis=0).tolist()
                counts = (Cell(f"{value:,.0f}", value) for value in means)
                rows.append((order, label, name, str(len(runs)), *counts, *map(percent_cell, shares)))
    header = ("order", "strategy", "part", "runs", "with a gradient", "also before",
              "share within hops", "share at switches")  # fmt: skip
    notes = (
        "with a gradient: number of parameters with a non-zero gradient at a main step; gradients are recorded before "
        "they are modified by the strategy or clipped; also before: number of parameters with a non-zero gradient at "
        "this step and at the previous step; means over steps and runs",
        "share (%): parameters with a gradient in both steps, divided by parameters with a gradient in at least one "
        "step; at switches: the last step of a hop and the first step of the next",
    )
    return Table("Gradient overlap of consecutive steps", header, tuple(rows), notes, left=3)


def overlap_figure(summary: Summary, order: str, overlaps: Mapping[str, Mapping[str, list[Overlap]]]) -> Figure:
    """Draw the gradient overlap (%) at main steps, averaged over runs, with a panel for each part of the model."""
    figure = figure_of(7.6, 4.6)
    grid = figure.subplots(len(PARTS), 1, sharex=True)
    for axes, name in zip(grid, PARTS, strict=True):
        for label, parts in overlaps.items():
            runs = [run for run in parts[name] if len(run.share) == len(parts[name][0].share)]
            k = list(summary.comparison.strategies).index(label)
            values = 100 * np.mean([run.share for run in runs], axis=0)
            y = smoothed(values, len(values) // POINTS)
            within, at_switches = percent_cell(runs[0].within()), percent_cell(runs[0].at_switches())
            text = f"{label}: within hops {within}, at switches {at_switches}"
            line(axes, np.arange(1, len(y) + 1), y, k, text, marker="", linewidth=1)
            ends_of_hops(axes, np.flatnonzero(runs[0].first) + 0.5)
        # Nearly all dense weights have a gradient at every step; the axis must not magnify small differences.
        axes.set_ylim(*axis_of([axes.dataLim.intervaly]))
        plain(axes, "main steps of the stream" if axes is grid[-1] else "", f"{name}: overlap (%)")
    legend(figure, overlaps, summary.comparison.strategies)
    titled(figure, f"{summary.names}, {order}: parameters with a gradient in consecutive steps (dotted: ends of hops)")
    return figure
