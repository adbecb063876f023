"""Budgets of strategies, with marks for unequal ones, which make a comparison unfair."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from xclrun.analysis.aggregate import Comparison
from xclrun.analysis.record import RunRecord
from xclrun.report.part import Item, part
from xclrun.report.strategies import StrategySection
from xclrun.report.summary import ruled
from xclrun.report.tables import Cell, Table

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


# Columns of training, which is ``none`` for merged models.
TRAINING = ("trained per hop", "steps", "examples", "tokens")

# Budgets are unequal if they differ by more than this share of the baseline's.
TOLERANCE = 0.01


@part(StrategySection, place=110, title="Budgets")
def budgets(section: StrategySection) -> Iterator[Item]:
    yield budget_table(section.comparison, section.shared.trials, section.inference.baseline)


def budget_table(comparison: Comparison, tried: dict[tuple[str, str, str], int], baseline: str = "") -> Table:
    """Return mean budgets per run and numbers of tuning trials, compared with the baseline's or the first row's."""
    means = {
        label: [_mean(runs, column[0]) for column in COLUMNS.values()] for label, runs in comparison.strategies.items()
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
        "per run, mean over runs; parameters: all that the languages use after the last hop; memory: maximum size of "
        "the data stored from hop to hop in addition to parameters",
        "a hop shared by several runs counts in full for each; steps: optimiser updates; examples and tokens include "
        "replayed ones",
        "trials: number of settings of the strategy with finished runs in the outputs directory",
        *_merged(comparison),
        f"≠: differs from {base_label} by more than {TOLERANCE:.0%}, so the budgets are unequal",
    )
    return Table("Budgets", ("strategy", *units, "trials"), tuple(rows), notes, ruled=ruled(comparison, means))


def _merged(comparison: Comparison) -> Iterator[str]:
    """Explain the budgets of strategies that merge the models of other runs."""
    label_of = {run.run_id: label for label, runs in comparison.strategies.items() for run in runs}
    for label, runs in comparison.strategies.items():
        if names := dict.fromkeys(label_of.get(run.merged_from, run.merged_from) for run in runs if run.merged_from):
            yield f"{label}: no training; merges the trained models of {', '.join(names)}, whose budget is not included"


def _mean(runs: Sequence[RunRecord], name: str) -> float:
    values = [run.costs[name] for run in runs if name in run.costs]
    return float(np.mean(values)) if values else float("nan")


def _tried(comparison: Comparison, label: str, tried: dict[tuple[str, str, str], int]) -> int:
    return tried.get((comparison.dataset, comparison.model, comparison.strategies[label][0].strategy), 1)
