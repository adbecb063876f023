"""Budgets of strategies, and final performance by cost. Unequal budgets make a comparison unfair and are marked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import Comparison
from xclrun.analysis.finished import tuned_name
from xclrun.analysis.record import RunRecord
from xclrun.report.part import Item, Plot, part
from xclrun.report.strategies import StrategySection
from xclrun.report.style import (
    COLOURS,
    GREY,
    PALE,
    colour,
    legend,
    marker,
    panel_grid,
    places,
    plain,
    tip,
    titled,
    upward,
)
from xclrun.report.summary import Summary, ruled
from xclrun.report.tables import Cell, Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

# Column → (its name in `xclrun.analysis.record.COSTS`, unit, divisor, digits).
COLUMNS = {
    "parameters": ("parameters", "M", 1e6, 2),
    "trained per hop": ("trained", "M", 1e6, 2),
    "memory": ("memory", "kB", 1e3, 1),
    "steps": ("updates", "", 1, 0),
    "examples": ("examples", "", 1, 0),
    "tokens": ("tokens", "k", 1e3, 0),
    "time": ("seconds", "min", 60, 1),
}


# Columns with a panel in the Pareto figure, and the minimum number of strategies in the figure.
PANELS = ("memory", "parameters", "time")
FEWEST = 5

# Columns about training; models without training show ``none``.
TRAINING = ("trained per hop", "steps", "examples", "tokens")

# Costs of a merge that include training the models that were merged. Parameters and memory of the source runs are not
# needed after the merge.
SUMMED = ("updates", "examples", "tokens", "seconds")

# Run ID → costs of the run (`xclrun.analysis.record.COSTS`).
Costs = Mapping[str, Mapping[str, float]]

# Budgets are unequal if they differ by more than this share of the baseline's budget.
TOLERANCE = 0.01


@part(StrategySection, place=110, title="Budgets")
def budgets(section: StrategySection) -> Iterator[Item]:
    costs = costs_with_sources(section.comparison.runs, section.shared.sources.pool or section.shared.records)
    yield budget_table(section.comparison, section.shared.trials, section.inference.baseline, costs)
    merges = any(run.merged_from for run in section.comparison.runs)
    for metric in section.comparison.metrics:
        caption = "Final performance against memory, parameters and training time, with the Pareto front"
        caption += "; the time of a merge includes training its models" if merges else ""
        if len(section.comparison.strategies) > len(COLOURS):
            caption += "; strategies that another one dominates in FP and all costs are grey"
        yield Plot(section.file("pareto", metric), caption, pareto_figure, section.summary, metric, costs)


def budget_table(
    comparison: Comparison,
    tried: dict[tuple[str, str, str], int],
    baseline: str = "",
    costs: Costs | None = None,
) -> Table:
    """Return mean budgets per run and numbers of tuning trials; mark differences from the baseline (or first row).

    Args:
        costs: costs of the runs (`costs_with_sources`); None: computed from the runs of the comparison.
    """
    costs = costs_with_sources(comparison.runs, comparison.runs) if costs is None else costs
    means = {
        label: [_mean(runs, column[0], costs) for column in COLUMNS.values()]
        for label, runs in comparison.strategies.items()
    }
    base_label = baseline if baseline in means else next(iter(means))
    first, first_tried = means[base_label], _tried(comparison, base_label, tried)
    rows = []
    for label, values in means.items():
        ids = tuple(run.run_id for run in comparison.strategies[label])
        cells: list[str] = []
        for (name, value), (_, _, divisor, digits), base in zip(
            zip(COLUMNS, values, strict=True), COLUMNS.values(), first, strict=True
        ):
            # Time depends on the machine and does not count as a budget.
            unequal = name != "time" and np.isfinite([value, base]).all() and abs(value - base) > TOLERANCE * abs(base)
            number = "none" if name in TRAINING and value == 0 else f"{value / divisor:,.{digits}f}"
            cells.append(Cell("–" if np.isnan(value) else f"{number}{' ≠' if unequal else ''}", value, ids))
        trials = _tried(comparison, label, tried)
        cells.append(Cell(f"{trials}{' ≠' if trials != first_tried else ''}", trials))
        rows.append((label, *cells))
    units = [f"{name} ({unit})" if unit else name for name, (_, unit, _, _) in COLUMNS.items()]
    notes = (
        "budgets are per run, averaged over runs; parameters: number of parameters that all languages together use "
        "after the last hop; memory: maximum size of the data stored between hops in addition to parameters, "
        "with 8 bytes per sentence",
        "a hop shared by several runs counts in full for each run; steps: optimizer updates; examples and tokens "
        "include replayed examples",
        "trials: number of different configurations of the strategy that have finished runs in the outputs directory, "
        "or that xclrun model merge compared on dev data",
        *_merged(comparison, costs),
        f"≠: differs from {base_label} by more than {100 * TOLERANCE:.0f} %, so the budgets are unequal",
    )
    return Table("Budgets", ("strategy", *units, "trials"), tuple(rows), notes, ruled=ruled(comparison, means))


def pareto_figure(summary: Summary, metric: str, costs_of: Costs | None = None) -> Figure | None:
    """Draw FP by cost, a point for each strategy; the line connects the Pareto front of the ranked strategies.

    ``costs_of``: see `budget_table`. The time of merged models includes the training of the source models. With more
    strategies than colours, ranked strategies that another ranked strategy dominates in all panels are grey, and only
    tooltips name them.
    """
    from matplotlib.ticker import LogLocator, SymmetricalLogLocator

    comparison = summary.comparison
    labels = [k for k in summary.complete if not math.isnan(summary.value(k, metric, "FP"))]
    if costs_of is None:
        costs_of = costs_with_sources(comparison.runs, comparison.runs)
    costs = {name: _complete(comparison, labels, COLUMNS[name][0], costs_of) for name in PANELS}
    labels = [label for label in labels if all(label in cost for cost in costs.values())]
    if len(labels) < FEWEST:
        return None
    factor, shown, label_of_axis = upward(metric, "FP")
    points = {
        name: {k: (costs[name][k] / COLUMNS[name][2], factor * summary.value(k, metric, "FP")) for k in labels}
        for name in PANELS
    }
    fronts = {name: pareto_front([points[name][k] for k in labels if summary.is_ranked(k)]) for name in PANELS}
    ranked = {
        k: [points[name][k][0] for name in PANELS] + [-points[PANELS[0]][k][1]] for k in labels if summary.is_ranked(k)
    }
    grey = dominated(ranked) if len(labels) > len(COLOURS) else set()
    named = [label for label in labels if label not in grey]
    figure, grid = panel_grid(len(PANELS), 3, (2.6, max(3.0, 0.17 * len(named))), (1.9, 0.5), sharey=True)
    for axes, name in zip(grid, PANELS, strict=True):
        unit = COLUMNS[name][1]
        axes.plot(*zip(*fronts[name], strict=True), color=GREY, linewidth=0.9, linestyle=":", zorder=0)
        for label, k in places(labels, comparison.strategies).items():
            cost, score = points[name][label]
            if label in grey:
                # A collection: `save` enlarges only covered lines.
                point: Artist = axes.scatter(cost, score, 25, color=PALE, zorder=2)
            else:
                (point,) = axes.plot(cost, score, marker(k), color=colour(k), markersize=7, zorder=3)
            tip(point, f"{label}: {cost:,.4g} {unit}, {shown} {score:.2f}")
        # A logarithmic axis cannot show strategies without memory (0).
        axes.set_xscale("symlog" if name == "memory" else "log")
        if name == "memory":
            few_ticks = SymmetricalLogLocator(base=10, linthresh=2)
            few_ticks.set_params(numticks=4)
            axes.xaxis.set_major_locator(few_ticks)
        else:
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        # Format ticks as plain text, because only such text stays text in SVG files.
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.xaxis.set_minor_formatter("")
        plain(axes, f"{name} ({unit})")
    grid[0].set_ylabel(label_of_axis, fontsize=8)
    legend(figure, named, comparison.strategies)
    remark = "; grey: dominated" if grey else ""
    titled(
        figure, f"{summary.names}: {summary.title(metric)} by cost (top left is better; dotted: Pareto front{remark})"
    )
    return figure


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the Pareto front: the points (cost, score) above all points of equal or lower cost, sorted by cost."""
    front: list[tuple[float, float]] = []
    for cost, score in sorted(points, key=lambda point: (point[0], -point[1])):
        if not front or score > front[-1][1]:
            front.append((cost, score))
    return front


def dominated(costs: Mapping[str, Sequence[float]]) -> set[str]:
    """Return the labels for which another label has no higher cost anywhere and a lower cost somewhere."""
    return {
        label
        for label, own in costs.items()
        if any(
            all(x <= y for x, y in zip(other, own, strict=True)) and list(other) != list(own)
            for other in costs.values()
        )
    }


def costs_with_sources(runs: Sequence[RunRecord], pool: Sequence[RunRecord]) -> dict[str, dict[str, float]]:
    """Return the costs of runs; those of a merge include the costs (`SUMMED`) of training the models that were merged.

    Args:
        pool: records of the source runs. The costs of a merge whose source is missing, or lacks a cost, are unknown.
    """
    known = {run.run_id: run.costs for run in (*pool, *runs)}
    costs = {run.run_id: dict(run.costs) for run in runs}
    for run in (run for run in runs if run.merged_from):
        source, own = known.get(run.merged_from, {}), costs[run.run_id]
        for name in SUMMED:
            cost = own.pop(name, None)
            if cost is not None and name in source:
                own[name] = cost + source[name]
    return costs


def _complete(comparison: Comparison, labels: Sequence[str], name: str, costs: Costs) -> Mapping[str, float]:
    """Return label → mean cost; labels with a run of unknown cost are omitted."""
    values = {label: [costs[run.run_id].get(name) for run in comparison.strategies[label]] for label in labels}
    return {
        label: float(np.mean([cost for cost in of if cost is not None]))
        for label, of in values.items()
        if None not in of
    }


def _merged(comparison: Comparison, costs: Costs) -> Iterator[str]:
    """Explain the budgets of strategies that merge the models of other runs."""
    label_of = {run.run_id: label for label, runs in comparison.strategies.items() for run in runs}
    merges: dict[tuple[str, bool], list[str]] = {}
    for label, runs in comparison.strategies.items():
        if names := dict.fromkeys(label_of.get(run.merged_from, run.merged_from) for run in runs if run.merged_from):
            unknown = any("updates" in run.costs and "updates" not in costs[run.run_id] for run in runs)
            merges.setdefault((", ".join(names), unknown), []).append(label)
    for (source, unknown), labels in merges.items():
        of = f"{', '.join(labels)}: merged without training from models of {source}"
        if unknown:
            yield f"{of}, whose runs are missing here, so steps, examples, tokens and time are unknown"
        else:
            yield f"{of}; steps, examples, tokens and time include the training of these models"


def _mean(runs: Sequence[RunRecord], name: str, costs: Costs) -> float:
    values = [costs[run.run_id][name] for run in runs if name in costs[run.run_id]]
    return float(np.mean(values)) if values else float("nan")


def _tried(comparison: Comparison, label: str, tried: dict[tuple[str, str, str], int]) -> int:
    return tried.get((comparison.dataset, comparison.model, tuned_name(comparison.strategies[label][0])), 1)
