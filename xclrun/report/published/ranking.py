"""Compare our ranking of strategies with the CCL paper's ranking, over the orders that both studies have.

A published value is the mean of Tables 10 to 12 over these orders. Each of the paper's orders is also compared with the
mean of its other orders, which shows how stable a ranking is.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from xclrun.analysis.aggregate import Comparison, compared, incomplete
from xclrun.analysis.correlation import Correlation, correlate, rounded
from xclrun.analysis.record import RunRecord
from xclrun.analysis.resampling import Resampled
from xclrun.config.files import load_yaml, packaged
from xclrun.report.published import Published, ccl_tables, labels_of
from xclrun.report.summary import Summary

# The paper's tables of scores by order.
BY_ORDER = ("10", "11", "12")
# Minimum number of strategies: random rankings of four are equal or reversed in 1 of 12 cases, of five in 1 of 60.
FEWEST = 5
MEASURES = ("F", "T", "T0", "FP")


@dataclass(frozen=True)
class Agreement:
    """Agreement on one measure over the strategies of both studies.

    Attributes:
        models: names of the strategies in the paper's tables.
        ours: rank correlation of our means with the paper's.
        bias: mean of Spearman's coefficient over bootstrap resamples of our test sentences, minus the
            coefficient in ``ours``.
        low, high: percentiles 2.5 and 97.5 of Spearman's coefficient over these resamples; NaN without predictions.
        within: Spearman's coefficient of each order of the paper with the mean of its other orders.
    """

    metric: str
    measure: str
    models: tuple[str, ...]
    ours: Correlation
    bias: float
    low: float
    high: float
    within: tuple[float, ...]


@cache
def paper_orders() -> dict[tuple[str, ...], str]:
    """Return languages in order → the paper's name of the order."""
    names = dict.fromkeys(row.order for table in BY_ORDER for row in ccl_tables()[table])
    return {tuple(load_yaml(packaged("conf") / "order" / f"{name}.yaml")["languages"]): name for name in names}


def behind(comparison: Comparison, strategies: Container[str] | None = None) -> list[RunRecord]:
    """Return the runs behind our means over orders and seeds, of some strategies or of all complete ones."""
    means = {label: runs for label, (runs, _) in compared(comparison).items()}
    if strategies is None:
        strategies = means.keys() - incomplete(comparison)
    runs = (run for label, of in means.items() if label in strategies for run in of)
    return list({run.run_id: run for run in runs}.values())


def shared_orders(comparison: Comparison) -> list[str]:
    """Return the paper's names of the orders behind our means; empty if the paper lacks any of these orders."""
    ours = {run.languages for run in behind(comparison) if run.stream == "sequence"}
    theirs = paper_orders()
    return sorted(theirs[order] for order in ours) if ours <= theirs.keys() else []


def over_orders(orders: Sequence[str]) -> list[Published]:
    """Return means over these orders in Tables 10 to 12, for measures that are printed for each of these orders."""
    by_order: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in (row for table in BY_ORDER for row in ccl_tables()[table]):
        by_order.setdefault((row.model, row.metric, row.measure), {})[row.order] = row.value
    return [
        Published(
            "10 to 12", model, "mean", metric, measure, "", sum(values[o] for o in orders) / len(orders), "percent"
        )
        for (model, metric, measure), values in by_order.items()
        if orders and values.keys() >= {*orders}
    ]


def agreements(summary: Summary, resampled: Mapping[str, Resampled]) -> list[Agreement]:
    """Return the agreement on each measure that at least `FEWEST` strategies have in both studies.

    Empty if our runs have orders that the paper lacks.
    """
    rows = over_orders(shared_orders(summary.comparison))
    labels = labels_of(summary, {row.model for row in rows})
    ranks = []
    for metric, measure in product(summary.comparison.metrics, MEASURES):
        both = {
            row.model: (row.value, ours)
            for row in rows
            if (row.metric, row.measure) == (metric, measure)
            and row.model in labels
            and labels[row.model] in summary.complete
            and not math.isnan(ours := summary.value(labels[row.model], metric, measure))
        }
        if len(both) >= FEWEST:
            published, ours = np.array(list(both.values())).T
            names = [labels[model] for model in both]
            mean, low, high = _over_resamples(published, names, measure, resampled.get(metric))
            within, correlation = _within(metric, measure, list(both)), correlate(published, ours)
            bias = mean - correlation.spearman
            ranks.append(Agreement(metric, measure, tuple(both), correlation, bias, low, high, within))
    return ranks


def _over_resamples(
    published: np.ndarray, labels: Sequence[str], measure: str, resampled: Resampled | None
) -> tuple[float, float, float]:
    """Return mean and percentiles of Spearman's coefficient over resamples; NaN if a strategy has no resamples."""
    draws = [] if resampled is None else [resampled.of_strategy(label, measure) for label in labels]
    available = [draw for draw in draws if draw is not None]
    if len(available) < len(labels):
        return math.nan, math.nan, math.nan
    each = _spearman(published, np.stack(available, axis=1))
    low, high = np.percentile(each, [2.5, 97.5])
    return float(each.mean()), float(low), float(high)


def _spearman(row: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return Spearman's coefficient of a row, shape (n,), with each of ``rows``, shape (k, n)."""
    from scipy.stats import rankdata

    middle = (len(row) + 1) / 2
    a, b = rankdata(rounded(row)) - middle, rankdata(rounded(rows), axis=1) - middle
    return np.asarray((b @ a) / np.sqrt((a @ a) * (b * b).sum(axis=1)))


def _within(metric: str, measure: str, models: Sequence[str]) -> tuple[float, ...]:
    """Return Spearman's coefficient of each order of the paper with the mean of its other orders."""
    by_order = [
        {row.model: row.value for row in over_orders([name]) if (row.metric, row.measure) == (metric, measure)}
        for name in paper_orders().values()
    ]
    values = np.array([[values[model] for model in models] for values in by_order])
    means = [np.delete(values, k, axis=0).mean(axis=0) for k in range(len(values))]
    return tuple(float(_spearman(row, mean[np.newaxis])[0]) for row, mean in zip(values, means, strict=True))
