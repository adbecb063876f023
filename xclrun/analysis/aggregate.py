"""Many runs → one table in long form: meta-metrics per order, and averaged over orders and seeds.

A value is the mean over orders of the means over the runs of each order; where one of the runs does not have it, it is
``n/a`` with the reason, never the mean of the others. docs/metrics.md, "From the score matrix".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.grouping import grouped, natural, strategy_labels
from xclrun.analysis.measures import MEASURES, Absent, Measure, Measured, explain, headlines, measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import REFERENCE_MODELS, References, is_control, is_reference
from xclrun.analysis.replicates import TIE, crossed, given_references
from xclrun.analysis.significance import crossed_error
from xclrun.core.task import BY_NAME, METRICS, short_name

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    "dataset", "model", "strategy", "order", "metric", "measure", "language",
    "value", "std", "ci_low", "ci_high", "n", "status", "task", "ci_given",
)  # fmt: skip
MEAN = "mean"
CONFIDENCE = 0.95

# Prefix of the status of unequal numbers of runs (after the status of an interim mean).
UNBALANCED = "unbalanced: "

NOTHING_SHARED = "n/a: needs an (order, seed, bucket) that all strategies have finished"

# Measures of supplementary metrics.
BESIDE = ("FP",)

# Default baseline, first in tables.
BASELINE = "naive"


@dataclass(frozen=True)
class Comparison:
    """The finished runs of one dataset and model by the label of their strategy: the content of one table."""

    dataset: str
    model: str
    strategies: dict[str, list[RunRecord]]

    @property
    def runs(self) -> list[RunRecord]:
        """All runs, strategy after strategy."""
        return [run for runs in self.strategies.values() for run in runs]

    @cached_property
    def orders(self) -> list[str]:
        """Names of the orders, in natural order."""
        return sorted({run.order for run in self.runs}, key=natural)

    @cached_property
    def metrics(self) -> list[str]:
        """Names of the metrics with separate tables, in the order of tables."""
        scored = {metric for run in self.runs for metric in run.metrics}
        return [metric.name for metric in METRICS if metric.name in scored]

    @cached_property
    def headlines(self) -> list[Measure]:
        """The measures of its tables: those that exist for a stream of its runs."""
        return [one for one in headlines() if any(run.stream in one.streams for run in self.runs)]

    @cached_property
    def beside(self) -> list[str]:
        """Names of the supplementary metrics, without separate tables."""
        # Where keys have several tasks, a metric exists for some keys only, so it has no mean over all.
        scored = {metric for run in self.runs for metric in run.scores if not run.metric_of}
        return [name for name in BY_NAME if name in scored and name not in self.metrics]

    @cached_property
    def languages(self) -> list[str]:
        """All languages, in the sequence of the first order."""
        ordered = sorted(self.runs, key=lambda r: natural(r.order))
        return list(dict.fromkeys(language for run in ordered for language in run.languages))


def comparisons(records: Iterable[RunRecord]) -> list[Comparison]:
    """Return the finished runs, each run id once, by dataset, model and strategy label; all sorted."""
    finished = {r.run_id: r for r in records if r.finished}
    runs = sorted(finished.values(), key=lambda r: (natural(r.order), r.seed, r.bucket or 0, r.run_id))
    labels = strategy_labels(runs)
    pairs = sorted(grouped(runs, lambda r: (r.dataset, r.model)).items())
    return [
        Comparison(dataset, model, dict(sorted(grouped(group, lambda r: labels[r.run_id]).items(), key=_strategy_rank)))
        for (dataset, model), group in pairs
    ]


def summarise(records: Iterable[RunRecord], unpaired: bool = False) -> pd.DataFrame:
    """Average the meta-metrics of finished runs; values are fractions.

    For each dataset, model, strategy label, order (first ``mean``, over orders and seeds), metric and measure: one row
    with an empty ``language`` for the aggregate, then one per language for F, T, T0 and FP; only FP for supplementary
    metrics. A run ID counts once. In ``mean``, runs of one seed with the same languages in two orders of different
    names count once, and so do those of a strategy that does not depend on the order (``lang_spec_ft``,
    ``multilingual``).

    Returns:
        Columns `COLUMNS`.
        ``value``: mean over ``n`` runs, within each order first, so that every order counts the same; for a language,
        over the orders in which it is defined (transfer not for the first, forgetting not for the last).
        ``std``: sample standard deviation over runs (n − 1), weighted likewise.
        ``ci_low``, ``ci_high``: 95 % t interval with the means of orders as samples (for a single order, its runs); NaN
        for a single sample, or equal ones.
        ``status``: ``ok``; ``unbalanced: …`` where orders have unequal numbers of runs; ``n/a: …`` with the reason; or
        ``interim: 3 of 6 runs`` (and ``; unbalanced: …``) where only some (order, seed, bucket) combinations have been
        finished by all strategies: the value is over those, so that strategies stay comparable. With ``unpaired`` it is
        over all runs of the strategy.
        ``task``: the short name of ``metric``, the former name of this column, until the next version.
    """
    import pandas as pd

    records = list(records)
    references = References(records)
    rows: list[tuple[Any, ...]] = []
    for comparison in comparisons(records):
        for metric in (*comparison.metrics, *comparison.beside):
            beside = metric in comparison.beside
            names = BESIDE if beside else MEASURES.keys()
            runs = [run for run in comparison.runs if metric in (run.scores if beside else run.metrics)]
            measured = {run.run_id: measure(run, metric, references.scores(run, metric), names) for run in runs}
            rows += _metric_rows(comparison, metric, measured, unpaired, names)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("value", "std", "ci_low", "ci_high"), float) | {"n": int})


def combinations(runs: Iterable[RunRecord], order: str = MEAN) -> dict[tuple[Any, ...], RunRecord]:
    """Return (seed, bucket, languages) → run for the distinct measurements of a strategy.

    The languages are empty within one order, and for streams that do not depend on the order.
    """
    distinct: dict[tuple[Any, ...], RunRecord] = {}
    for run in runs:
        if order in (MEAN, run.order):
            distinct.setdefault((run.seed, run.bucket, run.path if order == MEAN else ()), run)
    return distinct


def missing_combinations(comparison: Comparison, order: str = MEAN) -> dict[str, list[tuple[Any, ...]]]:
    """Return label → `combinations` that other strategies have and this one lacks.

    A strategy that depends on the order is compared with the others that do; one that does not, with their seeds and
    buckets. An order that a strategy never ran is missing only in ``mean``.
    """
    have = {label: combinations(runs, order) for label, runs in comparison.strategies.items()}
    ordered = {key for label, keys in have.items() if _is_ordered(comparison, label) for key in keys}
    every = ordered or set().union(*have.values())
    missing = {}
    for label, keys in have.items():
        if _is_ordered(comparison, label):
            missing[label] = ordered - keys.keys()
        else:
            # Runs from several sources count as one here.
            missing[label] = {(*key[:2], ()) for key in every} - {(*key[:2], ()) for key in keys}
    return {label: sorted(lacking, key=str) for label, lacking in missing.items() if have[label]}


def mean_over_orders(runs: Sequence[RunRecord], values: ArrayLike) -> np.ndarray:
    """Average values of runs, shape (runs, ...), within each order first. Shape (...)."""
    return np.asarray(np.average(np.asarray(values, dtype=float), axis=0, weights=_weights(orders_of(runs))))


def orders_of(runs: Iterable[RunRecord]) -> list[tuple[str, ...]]:
    """Return the order of each run as languages; empty where a strategy does not depend on it."""
    return [run.path for run in runs]


def _weights(orders: Sequence[tuple[str, ...]]) -> np.ndarray | None:
    """Return weights with the same sum for each order; None where all are equal."""
    counts = Counter(orders)
    return None if len(set(counts.values())) < 2 else np.array([1 / (len(counts) * counts[order]) for order in orders])


def compared(
    comparison: Comparison, order: str = MEAN, unpaired: bool = False
) -> dict[str, tuple[list[RunRecord], int]]:
    """Return label → the runs that enter its mean, and their number were every combination finished.

    A combination (order, seed, bucket) enters if every strategy with runs in this order has finished it. Strategies
    that do not depend on the order (``lang_spec_ft``, ``multilingual``) follow the others: they enter with the seeds
    and buckets of these, exclude none, and always count as complete.
    """
    have = {label: combinations(runs, order) for label, runs in comparison.strategies.items()}
    have = {label: runs for label, runs in have.items() if runs}
    ordered = [label for label in have if _is_ordered(comparison, label)]
    whole = {key for label in ordered for key in have[label]}
    common = whole.intersection(*(have[label].keys() for label in ordered))
    shared = {key[:2] for key in common}
    entering = {}
    for label, runs in have.items():
        if label in ordered:
            entering[label] = [run for key, run in runs.items() if unpaired or key in common], len(whole)
        else:
            chosen = [run for key, run in runs.items() if unpaired or not ordered or key[:2] in shared]
            entering[label] = chosen, len(chosen)
    return entering


def _metric_rows(
    comparison: Comparison, metric: str, measured: dict[str, Measured], unpaired: bool, names: Collection[str]
) -> Iterable[tuple[Any, ...]]:
    orders = [MEAN, *comparison.orders]
    entering = {order: compared(comparison, order, unpaired) for order in orders}
    for label, runs in comparison.strategies.items():
        for order in orders:
            if label not in entering[order]:
                continue
            chosen, whole = entering[order][label]
            nothing_shared = not chosen
            scored = [r for r in chosen or combinations(runs, order).values() if r.run_id in measured]
            for name, language in _keys(scored, comparison.languages, names):
                head = (comparison.dataset, comparison.model, label, order, metric, name, language)
                if nothing_shared:
                    yield (*head, *([math.nan] * 4), 0, NOTHING_SHARED, short_name(metric), "")
                    continue
                values = [measured[run.run_id].get((name, language)) for run in scored]
                *results, ci_given = _average(MEASURES[name], values, scored, whole - len(chosen))
                yield (*head, *results, short_name(metric), ci_given)


def _keys(runs: Sequence[RunRecord], languages: Sequence[str], names: Collection[str]) -> Iterable[tuple[str, str]]:
    """Yield (measure, language) of the rows of some runs."""
    if not runs:
        return
    tested = [language for language in languages if any(language in run.languages for run in runs)]
    if len({run.languages for run in runs}) == 1:
        tested = list(runs[0].languages)
    for name in (name for name in MEASURES if name in names):
        yield name, ""
        if MEASURES[name].by_language is not None and runs[0].stream in MEASURES[name].streams:
            yield from ((name, language) for language in tested)


def _average(
    one: Measure, values: Sequence[float | Absent | None], runs: Sequence[RunRecord], lacking: int
) -> tuple[float, float, float, float, int, str, str]:
    """Return value, std, ci_low, ci_high, n, status and ci_given of one row, from the values of its runs."""
    nan = math.nan
    pairs = [(v, run) for v, run in zip(values, runs, strict=True) if v is not None]
    defined = [(v, run) for v, run in pairs if not (isinstance(v, Absent) and v.by_definition)] or pairs
    absents = [v for v, _ in defined if isinstance(v, Absent)]
    if absents:
        return nan, nan, nan, nan, 0, f"n/a: {explain(absents)}", ""
    numbers, of = np.array([v for v, _ in defined], dtype=float), orders_of(run for _, run in defined)
    weights, n = _weights(of), len(numbers)
    mean = float(np.average(numbers, weights=weights))
    status = _status(f"interim: {len(values)} of {len(values) + lacking} runs" if lacking else "", of, weights)
    if n < 2:
        return mean, nan, nan, nan, n, status, ""
    share = 1 / n if weights is None else (weights**2).sum()
    std = math.sqrt(float(np.average((numbers - mean) ** 2, weights=weights)) / (1 - share))
    samples = numbers
    if len(set(of)) > 1:
        samples = np.array([numbers[[o == order for o in of]].mean() for order in dict.fromkeys(of)])
    # Equal samples have no interval, rather than one of width 0.
    equal = np.ptp(samples) <= TIE * max(1.0, float(np.abs(samples).max()))
    blocks = [(" ".join(run.path), run.seed, run.bucket) for _, run in defined]
    cells = crossed(blocks) if one.shared else None
    if cells is not None and np.ptp(numbers) > TIE:
        error, df = map(float, crossed_error(numbers[cells]))
    elif equal:
        return mean, std, nan, nan, n, status, ""
    else:
        error, df = float(samples.std(ddof=1)) / math.sqrt(len(samples)), len(samples) - 1
    low, high = mean - (half := _t_quantile(df) * error), mean + half
    if one.unit == "%":
        low, high = max(0.0, low), min(1.0, high)
    return mean, std, low, high, n, status, given_references(blocks) if one.shared else ""


def _status(interim: str, orders: Sequence[tuple[str, ...]], weights: np.ndarray | None) -> str:
    if weights is None:
        return interim or "ok"
    runs = " and ".join(map(str, Counter(orders).values()))
    return "; ".join(filter(None, (interim, f"{UNBALANCED}orders have {runs} runs and count the same")))


@lru_cache(maxsize=1024)
def _t_quantile(df: float) -> float:
    """Return the two-sided quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + CONFIDENCE / 2))


def _is_ordered(comparison: Comparison, label: str) -> bool:
    return comparison.strategies[label][0].stream in ("sequence", "mixture", "growing")


def _strategy_rank(item: tuple[str, list[RunRecord]]) -> tuple[int, bool, list[tuple[bool, int, str]]]:
    """Sort key of tables: the baseline first, then reference models, last controls that never saw the texts."""
    first = item[1][0]
    name = first.strategy.partition("+")[0]
    last = 1 + REFERENCE_MODELS.index(name) if is_reference(first) else 0
    last += (1 + len(REFERENCE_MODELS)) * is_control(first)
    return (last, first.strategy != BASELINE, natural(item[0]))
