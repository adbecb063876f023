"""Compare our ranking of strategies with the CCL paper's, in the orders of languages that both have run.

A published value is the mean of Tables 10 to 12 over those orders. How well a ranking can be known at all is shown by
the paper's own orders: each against the mean of the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from xclrun.analysis.aggregate import Comparison, compared
from xclrun.analysis.correlation import Correlation, correlate, even
from xclrun.analysis.record import RunRecord
from xclrun.analysis.resampling import Resampled
from xclrun.config.files import load_yaml, packaged
from xclrun.report.published import Published, ccl_tables, labels_of
from xclrun.report.summary import Summary

# The tables that show each order by itself.
BY_ORDER = ("10", "11", "12")
# A perfect ranking of four comes by chance in one of twelve cases, in one direction or the other; of five in one of 60.
FEWEST = 5
MEASURES = ("F", "T", "T0", "FP")


@dataclass(frozen=True)
class Agreement:
    """One measure of one metric, of the strategies that have it on both sides.

    Attributes:
        metric, measure: which.
        models: names of the strategies in the paper's tables.
        found: rank correlation of the paper's means with ours.
        bias: mean of Spearman's coefficient over bootstrap resamples of our test sentences minus that of our means.
        low, high: percentiles 2.5 and 97.5 of Spearman's coefficient over these resamples; NaN without predictions.
        within: Spearman's coefficient of each order of the paper with the mean of its other orders.
    """

    metric: str
    measure: str
    models: tuple[str, ...]
    found: Correlation
    bias: float
    low: float
    high: float
    within: tuple[float, ...]


@cache
def paper_orders() -> dict[tuple[str, ...], str]:
    """Return languages in order → the paper's name of the order."""
    names = dict.fromkeys(row.order for table in BY_ORDER for row in ccl_tables()[table])
    return {tuple(load_yaml(packaged("conf") / "order" / f"{name}.yaml")["languages"]): name for name in names}


def behind(comparison: Comparison) -> list[RunRecord]:
    """Return the runs that our means over orders and seeds are over, each once."""
    return list({run.run_id: run for runs, _ in compared(comparison).values() for run in runs}.values())


def shared_orders(comparison: Comparison) -> list[str]:
    """Return the paper's names of the orders that our means are over; none where one of them is not the paper's."""
    ours = {run.languages for run in behind(comparison) if run.stream == "sequence"}
    known = paper_orders()
    return sorted(known[order] for order in ours) if ours <= known.keys() else []


def over_orders(orders: Sequence[str]) -> list[Published]:
    """Return the means of Tables 10 to 12 over orders, of what is printed for each of them."""
    by_order: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in (row for table in BY_ORDER for row in ccl_tables()[table]):
        by_order.setdefault((row.model, row.metric, row.measure), {})[row.order] = row.value
    return [
        Published("10 to 12", model, "mean", metric, measure, "", sum(own[o] for o in orders) / len(orders), "percent")
        for (model, metric, measure), own in by_order.items()
        if orders and own.keys() >= {*orders}
    ]


def agreements(summary: Summary, resampled: Mapping[str, Resampled]) -> list[Agreement]:
    """Return the agreement of each measure that at least `FEWEST` strategies have on both sides; none where the orders
    are not the paper's.

    Args:
        resampled: metric → its bootstrap, if there is one.
    """
    rows = over_orders(shared_orders(summary.comparison))
    labels = labels_of(summary, {row.model for row in rows})
    found = []
    for metric, measure in product(summary.comparison.metrics, MEASURES):
        both = {
            row.model: (row.value, ours)
            for row in rows
            if (row.metric, row.measure) == (metric, measure)
            and row.model in labels
            and not math.isnan(ours := summary.value(labels[row.model], metric, measure))
        }
        if len(both) >= FEWEST:
            published, ours = np.array(list(both.values())).T
            names = [labels[model] for model in both]
            mean, low, high = _over_resamples(published, names, measure, resampled.get(metric))
            within, correlation = _within(metric, measure, list(both)), correlate(published, ours)
            bias = mean - correlation.spearman
            found.append(Agreement(metric, measure, tuple(both), correlation, bias, low, high, within))
    return found


def _over_resamples(
    published: np.ndarray, labels: Sequence[str], measure: str, resampled: Resampled | None
) -> tuple[float, float, float]:
    """Return mean and percentiles of Spearman's coefficient over resamples; NaN where a strategy has no resamples."""
    draws = [] if resampled is None else [resampled.of_strategy(label, measure) for label in labels]
    known = [draw for draw in draws if draw is not None]
    if len(known) < len(labels):
        return math.nan, math.nan, math.nan
    each = _spearman(published, np.stack(known, axis=1))
    low, high = np.percentile(each, [2.5, 97.5])
    return float(each.mean()), float(low), float(high)


def _spearman(one: np.ndarray, many: np.ndarray) -> np.ndarray:
    """Return Spearman's coefficient of one row, shape (n,), with each of many, shape (rows, n)."""
    from scipy.stats import rankdata

    middle = (len(one) + 1) / 2
    a, b = rankdata(even(one)) - middle, rankdata(even(many), axis=1) - middle
    return np.asarray((b @ a) / np.sqrt((a @ a) * (b * b).sum(axis=1)))


def _within(metric: str, measure: str, models: Sequence[str]) -> tuple[float, ...]:
    """Return Spearman's coefficient of each order of the paper with the mean of its others, over some strategies."""
    by_order = [
        {row.model: row.value for row in over_orders([name]) if (row.metric, row.measure) == (metric, measure)}
        for name in paper_orders().values()
    ]
    values = np.array([[values[model] for model in models] for values in by_order])
    others = [np.delete(values, k, axis=0).mean(axis=0) for k in range(len(values))]
    return tuple(float(_spearman(one, other[np.newaxis])[0]) for one, other in zip(values, others, strict=True))
