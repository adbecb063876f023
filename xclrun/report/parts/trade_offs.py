"""Trade-offs between measures, and the dependence of results on the stream."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis import formulas
from xclrun.analysis.aggregate import compared, mean_over_orders
from xclrun.analysis.grouping import config_settings, content_settings
from xclrun.analysis.measures import MEASURES, Scores, quantity
from xclrun.analysis.reference import References
from xclrun.core.task import BY_NAME
from xclrun.core.terminal import many
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import (
    GREY,
    MOST,
    SIDES,
    WIDEST,
    colour,
    figure_of,
    key,
    legend,
    line,
    marker,
    panel_grid,
    places,
    plain,
    side_by_side,
    tip,
    titled,
    upward,
)
from xclrun.report.summary import Summary

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Panels of CCL Figs. 4 and 6: measures on the y axis and the x axis.
PANELS = (("FP", "F"), ("FP", "T"), ("T", "F"), ("T0", "F"))
# Panels of CCL's Figs. 3 and 9.
HOP_PANELS = ("F", "T", "T0", "FP")

# Panels of zero-shot gains: x axis → function that returns the mean gain at each position. The first is CCL Fig. 8.
GENERALISATION = {
    "languages seen (mean gain over unseen languages)": formulas.generalisation_by_seen,
    "distance: hops until the language is learned": formulas.generalisation_by_distance,
}

DOTS = 100  # with more runs, a box has no dots
SHIFTS = (-0.19, 0.19)  # of one-hop and multi-hop from the middle of a strategy
BOXED = 5  # with fewer runs, there are only dots


@part(StrategySection, place=30, title="Trade-offs")
def trade_offs(section: StrategySection) -> Iterator[Item]:
    yield "Top right is better. Bars: standard deviation over runs."
    for metric in section.comparison.metrics:
        caption, name = "FP against −F, FP against T, T against −F, T0 against −F", section.file("trade_offs", metric)
        yield Plot(name, caption, trade_off_figure, section.summary, metric, paper="CCL Figs. 4 and 6")


@part(StrategySection, place=32, title="Transfer along the stream", folded=True)
def along_the_stream(section: StrategySection) -> Iterator[Item]:
    summary, references = section.summary, section.shared.references
    for metric in section.comparison.metrics:
        caption, name = "Zero-shot transfer by languages seen and by distance", section.file("distances", metric)
        yield Plot(name, caption, distance_figure, summary, metric, paper="CCL Fig. 8")
        caption, name = "Forgetting and transfer, one-hop against multi-hop", section.file("one_hop", metric)
        yield Plot(name, caption, one_hop_figure, summary, references, metric, paper="CCL Figs. 3 and 9")
        caption, name = "Replay by memory size", section.file("memory", metric)
        yield Plot(name, caption, memory_figure, summary, metric, paper="CCL Table 17")


def trade_off_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw the pairs of `PANELS`, a point for each strategy (CCL Figs. 4, 6): mean ± standard deviation over runs.

    Panels are shown if some strategy has both measures, and the figure if at least two strategies have F.
    """
    comparison = summary.comparison
    labels = [k for k in summary.complete if not math.isnan(summary.value(k, metric, "F"))]
    if len(labels) < 2:
        return None
    pairs = [pair for pair in PANELS if any(_both(summary, k, metric, pair) for k in labels)]
    figure, grid = panel_grid(len(pairs), len(PANELS), (2.85, 2.6), (1.8, 0.5))
    for axes, pair in zip(grid, pairs, strict=False):
        for label, k in places(labels, comparison.strategies).items():
            if not _both(summary, label, metric, pair):
                continue
            # The top right is better in every panel.
            drawn = [upward(metric, name) for name in pair]
            up, across = (
                factor * summary.value(label, metric, name) for (factor, _, _), name in zip(drawn, pair, strict=True)
            )
            spreads = [
                abs(factor) * summary.std(label, metric, name) for (factor, _, _), name in zip(drawn, pair, strict=True)
            ]
            bars = [None if math.isnan(spread) else spread for spread in spreads]
            axes.errorbar(
                across, up, yerr=bars[0], xerr=bars[1], fmt="none", ecolor=colour(k), elinewidth=0.7, alpha=0.5
            )
            (point,) = axes.plot(across, up, marker(k), color=colour(k), markersize=7)
            tip(point, f"{label}: {drawn[1][1]} {across:.2f}, {drawn[0][1]} {up:.2f}")
        plain(axes, *(upward(metric, name)[2] for name in reversed(pair)))
    legend(figure, labels, comparison.strategies)
    titled(figure, f"{summary.names}: {summary.title(metric)}, trade-offs between measures (top right is better)")
    return figure


def _both(summary: Summary, label: str, metric: str, pair: tuple[str, str]) -> bool:
    return not any(math.isnan(summary.value(label, metric, name)) for name in pair)


def distance_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw zero-shot gain over hop 0, a line for each strategy, in the panels of `GENERALISATION`.

    One panel is by number of languages seen, as CCL's Fig. 8, and one by distance in hops. Gains are averaged over the
    runs of each order, then over orders; bars: standard deviation over runs.
    """
    lines = {}
    for label, (runs, _) in compared(summary.comparison).items():
        runs = [run for run in runs if metric in run.metrics and run.stream == "sequence"]
        if runs and len({len(run.languages) for run in runs}) == 1 and len(runs[0].languages) > 1:
            lines[label] = runs
    if not lines:
        return None
    goodness, difference = BY_NAME[metric].goodness, BY_NAME[metric].difference
    figure, grid = panel_grid(len(GENERALISATION), 2, (3.6, 3.0), (1.9, 0.5), sharey=True)
    for axes, (across, gain_of) in zip(grid, GENERALISATION.items(), strict=True):
        longest = 0
        for label, k in places(lines, summary.comparison.strategies).items():
            gains = difference.scale * np.array([gain_of(goodness(run.scores[metric])) for run in lines[label]])
            mean, n = mean_over_orders(lines[label], gains), len(gains)
            longest = max(longest, len(mean))
            hops = np.arange(1, len(mean) + 1)
            std = gains.std(axis=0, ddof=1) if n > 1 else np.full(len(mean), math.nan)
            values = zip(hops, mean, std, strict=True)
            text = ", ".join(f"{m:.2f}{'' if math.isnan(s) else f' ± {s:.2f}'} at {hop}" for hop, m, s in values)
            line(axes, hops, mean, k, f"{label}, {many(n, 'run')}: {text}", markersize=5, linewidth=1.3)
            if n > 1:
                axes.errorbar(hops, mean, std, fmt="none", ecolor=colour(k), elinewidth=0.7, capsize=2, alpha=0.6)
        axes.axhline(0, color=GREY, linewidth=0.7, linestyle=":")
        axes.set_xticks(range(1, longest + 1) if longest <= MOST else [1, *range(5, longest + 1, 5)])
        plain(axes, across)
    grid[0].set_ylabel(f"gain over hop 0 ({difference.unit})", fontsize=8)
    legend(figure, lines, summary.comparison.strategies)
    counts = [len(runs) for runs in lines.values()]
    n_runs = f"{min(counts)} to {max(counts)}" if len(set(counts)) > 1 else f"{counts[0]}"
    over = "a single run of each strategy" if max(counts) == 1 else f"mean ± standard deviation over n = {n_runs} runs"
    titled(figure, f"{summary.names}: zero-shot transfer, {summary.title(metric)}, {over}")
    return figure


def one_hop_figure(summary: Summary, references: References, metric: str) -> Figure | None:
    """Draw the distribution over runs of F, T, T0 and FP after the first two hops and after the whole stream.

    The paper calls the first two hops "one-hop", because they have one transition between languages, and the whole
    stream "multi-hop" (CCL Figs. 3 and 9). Boxes show quartiles, whiskers reach all runs, and up to `DOTS` runs are
    drawn as dots.
    """
    # Measure → strategy → values of the prefixes and of the whole streams, shape (2, runs).
    samples: dict[str, dict[str, np.ndarray]] = {}
    for label, (runs, _) in compared(summary.comparison).items():
        runs = [r for r in runs if metric in r.metrics and r.stream == "sequence" and len(r.languages) > 2]
        whole = [Scores.of(run.scores[metric], references.scores(run, metric), run, metric) for run in runs]
        sides = [[replace(scores, R=formulas.one_hop(scores.R), M=scores.M[:2]) for scores in whole], whole]
        for name in HOP_PANELS if runs else ():
            scale = quantity(metric, name).scale
            values = scale * np.array([[float(MEASURES[name].value(scores)) for scores in side] for side in sides])
            if np.isfinite(values).all():
                samples.setdefault(name, {})[label] = values
    samples = {name: samples[name] for name in HOP_PANELS if name in samples}
    if not samples:
        return None
    width = max(0.62 * len(next(iter(samples.values()))), 2.6)
    # As many panels per row as keep names legible at the usual page width.
    across = next((n for n in (4, 2) if n * width <= WIDEST), 1)
    figure, grid = panel_grid(len(samples), min(len(samples), across), (width, 3.0), (0.6, 0.6))
    for axes, (name, values_of) in zip(grid, samples.items(), strict=False):
        for side, (look, hops) in enumerate(zip(SIDES, ("one-hop", "multi-hop"), strict=True)):
            for k, (label, values) in enumerate(values_of.items()):
                place, scores = k + SHIFTS[side], values[side].tolist()
                artists: list[Artist] = []
                if len(scores) >= BOXED:
                    box = axes.boxplot(
                        scores, positions=[place], widths=0.32, whis=(0, 100), manage_ticks=False, patch_artist=True,
                        boxprops={"facecolor": look, "alpha": 0.35, "edgecolor": look}, medianprops={"color": look},
                        whiskerprops={"color": look}, capprops={"color": look},
                    )  # fmt: skip
                    artists += [*box["boxes"], *box["medians"]]
                # More dots would overlap, and take most of the page.
                if len(scores) <= DOTS:
                    size = 3 if artists else 6
                    artists += axes.plot(place + side_by_side(scores, 0.3), scores, ".", color=look, markersize=size)
                extent = f"{min(scores):.2f} to {max(scores):.2f}"
                for artist in artists:
                    tip(artist, f"{label}, {hops}: median {np.median(scores):.2f}, {extent}")
        labels = list(values_of)
        upright = 0.08 * max(map(len, labels)) * len(labels) < width
        turned: dict[str, Any] = {} if upright else {"rotation": 35, "ha": "right", "rotation_mode": "anchor"}
        axes.set_xticks(range(len(labels)), labels, fontsize=8, **turned)
        axes.set_xlim(-0.6, len(labels) - 0.4)
        # The dots of both sides stand on ticks; the name is between them.
        axes.set_xticks([k + shift for k in range(len(labels)) for shift in SHIFTS], minor=True)
        kind = quantity(metric, name)
        better = "higher" if kind.higher_is_better else "lower"
        axes.set_title(f"{MEASURES[name].title} ({better} is better)", fontsize=9)
        plain(axes, up=f"{name} ({kind.unit})")
        axes.tick_params(axis="x", which="major", length=0)
        axes.grid(visible=False, axis="x")
        axes.grid(visible=True, axis="x", which="minor", color="#e4e4e4", linewidth=0.6)
    from matplotlib.patches import Patch

    handles = [
        Patch(facecolor=c, alpha=0.5, label=name)
        for c, name in zip(SIDES, ("one-hop: first two languages", "multi-hop: whole stream"), strict=True)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    titled(figure, f"{summary.names}: {summary.title(metric)}, one-hop and multi-hop")
    return figure


def memory_figure(summary: Summary, metric: str) -> Figure | None:
    """Draw F, T, T0 and FP of replay by memory size (CCL Table 17), with naive as a horizontal line.

    Settings that differ in more than the memory size have separate lines.
    """
    lines: dict[object, dict[int, str]] = {}
    naive = []
    for label, runs in summary.comparison.strategies.items():
        memory = runs[0].config.get("strategy", {}).get("memory")
        if runs[0].strategy == "er" and isinstance(memory, int):
            further = [item for item in config_settings(runs[0]) if item[0] != "strategy.memory"]
            lines.setdefault((*further, *content_settings(runs[0])), {})[memory] = label
        naive += [label] if runs[0].strategy == "naive" else []
    if len({size for sizes in lines.values() for size in sizes}) < 2:
        return None
    figure = figure_of(9.6 if len(lines) == 1 else 11.6, 2.9)
    for axes, name in zip(figure.subplots(1, 4), HOP_PANELS, strict=True):
        kind = quantity(metric, name)
        for sizes in lines.values():
            x = sorted(sizes)
            k = list(summary.comparison.strategies).index(sizes[x[0]])
            y = [kind.scale * summary.value(sizes[size], metric, name) for size in x]
            rest = re.sub(r"memory=\d+, |(, )?memory=\d+", "", sizes[x[0]]).replace("()", "")
            name_of_line = textwrap.fill("er" if len(lines) == 1 else rest, 26)
            text = ", ".join(f"{sizes[size]}: {value:.2f}" for size, value in zip(x, y, strict=True))
            line(axes, x, y, k, text, label=name_of_line, markersize=4)
        for k, label in enumerate(naive):
            look = ("--", ":", "-.")[k % 3]
            axes.axhline(kind.scale * summary.value(label, metric, name), color=GREY, linestyle=look, label=label)
        axes.set_title(f"{name} ({kind.unit})", fontsize=9)
        plain(axes, "memory (sentences)")
    key(figure, figure.axes[0].get_legend_handles_labels()[0])
    titled(figure, f"{summary.names}: {summary.title(metric)} of replay by size of memory")
    return figure
