"""Average the measures of runs, per order and over orders, into one table in long form.

A value is averaged over the runs of each order, then over orders. If a run lacks the measure, the average is NaN and
its status gives the reason. docs/metrics.md, "Means over runs".
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.columns import SUMMARY
from xclrun.analysis.grouping import config_settings, grouped, natural, strategy_labels
from xclrun.analysis.measures import MEASURES, Absent, Measure, Measured, explain, headlines, measure, quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import REFERENCE_MODELS, References, is_control, is_reference
from xclrun.analysis.replicates import TIE, crossed, given_references, most_shared
from xclrun.analysis.significance import crossed_error
from xclrun.core.task import BY_NAME, short_name

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = tuple(SUMMARY)
MEAN = "mean"
CONFIDENCE = 0.95

# Status prefix of averages over orders that have different numbers of runs.
UNBALANCED = "unbalanced: "

NOTHING_SHARED = "n/a: has no seed and bucket of the other strategies"

# Supplementary metrics (`Comparison.supplementary`) have only these measures.
SUPPLEMENTARY = ("FP",)

# Default baseline, first in tables.
BASELINE = "naive"


@dataclass(frozen=True)
class Comparison:
    """The finished runs of one dataset and model, grouped by strategy label: the content of one table."""

    dataset: str
    model: str
    strategies: dict[str, list[RunRecord]]

    @property
    def runs(self) -> list[RunRecord]:
        return [run for runs in self.strategies.values() for run in runs]

    @cached_property
    def orders(self) -> list[str]:
        return sorted({run.order for run in self.runs}, key=natural)

    @cached_property
    def metrics(self) -> list[str]:
        """The metrics that have their own tables, in the order of the tables."""
        scored = {metric for run in self.runs for metric in run.metrics}
        return [name for name in BY_NAME if name in scored]

    @cached_property
    def headlines(self) -> list[Measure]:
        """The headline measures that are defined for at least one run."""
        return [measure for measure in headlines() if any(run.stream in measure.streams for run in self.runs)]

    @cached_property
    def supplementary(self) -> list[str]:
        """The metrics that do not have their own tables."""
        # If keys have several tasks, a metric exists only for some keys, so its mean over all keys is undefined.
        scored = {metric for run in self.runs for metric in run.scores if not run.metric_of}
        return [name for name in BY_NAME if name in scored and name not in self.metrics]

    @cached_property
    def languages(self) -> list[str]:
        """All languages: first those of the first order, in its sequence, then those that only other orders contain."""
        ordered = sorted(self.runs, key=lambda r: natural(r.order))
        return list(dict.fromkeys(language for run in ordered for language in run.languages))


def comparisons(records: Iterable[RunRecord]) -> list[Comparison]:
    """Group the finished runs by dataset, model and strategy label; each run ID counts once."""
    finished = {r.run_id: r for r in records if r.finished}
    runs = sorted(finished.values(), key=lambda r: (natural(r.order), r.seed, r.bucket or 0, r.run_id))
    labels = strategy_labels(runs)
    pairs = sorted(grouped(runs, lambda r: (r.dataset, r.model)).items())
    return [
        Comparison(dataset, model, dict(sorted(grouped(group, lambda r: labels[r.run_id]).items(), key=_strategy_rank)))
        for (dataset, model), group in pairs
    ]


def without_finished_run(comparison: Comparison, records: Iterable[RunRecord]) -> dict[str, RunRecord]:
    """Return label → an unfinished run, for each strategy of a comparison's dataset and model without finished runs.

    The same strategy with other settings counts as another strategy.
    """
    have = {(run.strategy, config_settings(run)) for run in comparison.runs}
    lacking = [
        run for run in records
        if not run.finished and (run.dataset, run.model) == (comparison.dataset, comparison.model)
        and (run.strategy, config_settings(run)) not in have
    ]  # fmt: skip
    labels = strategy_labels([*comparison.runs, *lacking])
    return {labels[run.run_id]: run for run in lacking if labels[run.run_id] not in comparison.strategies}


def summarise(
    records: Iterable[RunRecord], unpaired: bool = False, references: Iterable[RunRecord] = ()
) -> pd.DataFrame:
    """Average the measures of finished runs; values are fractions.

    Each (dataset, model, strategy label, order, metric, measure) has an aggregate row with an empty ``language``,
    followed by a row per language if the measure has values per language. Rows of the order ``mean`` average over
    orders and seeds. Of several runs of a strategy with the same combination (see `combinations`), only one counts.
    Supplementary metrics have FP only.

    Args:
        unpaired: average all runs of each strategy, not only the combinations that strategies share (see `compared`).
        references: further reference runs for transfer, which get no rows.

    Returns:
        Columns `COLUMNS`.
        ``value``: mean over ``n`` runs, first within each order, then over orders. For a language, only orders in
        which the language has a value count.
        ``std``: sample standard deviation over runs (n − 1), with equal weights of orders.
        ``ci_low``, ``ci_high``: 95 % t interval over the means of orders or, with a single order, over its runs; NaN
        for fewer than two different values.
        ``status``: ``ok``, ``unbalanced: …``, ``n/a: …``, or ``interim: 3 of 6 runs`` if the mean covers only some of
        the combinations that at least one strategy has finished.
        ``task``: the short name of ``metric``.
        ``ci_given``: caveat of the interval (`given_references`), or empty.
    """
    import pandas as pd

    records = list(records)
    rows: list[tuple[Any, ...]] = []
    for comparison, metric, names, measured in _measured(records, references):
        rows += _metric_rows(comparison, metric, measured, unpaired, names)
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    return frame.astype(dict.fromkeys(("value", "std", "ci_low", "ci_high"), float) | {"n": int})


def measures_of_runs(
    records: Iterable[RunRecord], references: Iterable[RunRecord] = ()
) -> Iterator[tuple[RunRecord, dict[str, Any]]]:
    """Yield each value that `summarise` averages, as the run and the columns of `xclrun.analysis.columns`."""
    for comparison, metric, _, measured in _measured(list(records), references):
        for run in comparison.runs:
            for (name, language), value in measured.get(run.run_id, {}).items():
                number, status = (math.nan, f"n/a: {explain([value])}") if isinstance(value, Absent) else (value, "ok")
                yield run, {
                    "metric": metric, "measure": name, "language": language, "value": number, "status": status,
                }  # fmt: skip


def _measured(
    records: Sequence[RunRecord], references: Iterable[RunRecord]
) -> Iterator[tuple[Comparison, str, Collection[str], dict[str, Measured]]]:
    """Yield each comparison and metric with the names of its measures, and run ID → measures."""
    lookup = References([*records, *references])
    for comparison in comparisons(records):
        for metric in (*comparison.metrics, *comparison.supplementary):
            supplementary = metric in comparison.supplementary
            names = SUPPLEMENTARY if supplementary else MEASURES.keys()
            runs = [run for run in comparison.runs if metric in (run.scores if supplementary else run.metrics)]
            measured = {run.run_id: measure(run, metric, lookup.scores(run, metric), names) for run in runs}
            yield comparison, metric, names, measured


def combinations(runs: Iterable[RunRecord], order: str = MEAN) -> dict[tuple[Any, ...], RunRecord]:
    """Return (seed, bucket, languages) → run, with one run of a strategy for each combination.

    ``languages`` is the sequence of the run's order. It is empty if ``order`` is a single order, and for streams that
    do not depend on the order.
    """
    distinct: dict[tuple[Any, ...], RunRecord] = {}
    for run in runs:
        if order in (MEAN, run.order):
            distinct.setdefault((run.seed, run.bucket, run.path if order == MEAN else ()), run)
    return distinct


def missing_combinations(comparison: Comparison, order: str = MEAN) -> dict[str, list[tuple[Any, ...]]]:
    """Return label → the `combinations` that another strategy has finished but the labeled strategy has not.

    A strategy that does not depend on the order needs only the seeds and buckets of the other strategies. Strategies
    without a run in ``order`` are skipped.
    """
    have = {label: combinations(runs, order) for label, runs in comparison.strategies.items()}
    ordered = {key for label, keys in have.items() if _is_ordered(comparison, label) for key in keys}
    every = ordered or set().union(*have.values())
    missing = {}
    for label, keys in have.items():
        if _is_ordered(comparison, label):
            missing[label] = ordered - keys.keys()
        else:
            missing[label] = {(*key[:2], ()) for key in every} - {(*key[:2], ()) for key in keys}
    return {label: sorted(lacking, key=str) for label, lacking in missing.items() if have[label]}


def mean_over_orders(runs: Sequence[RunRecord], values: ArrayLike) -> np.ndarray:
    """Average the values of runs, shape (runs, ...), first within each order, then over orders; return shape (...)."""
    return np.asarray(np.average(np.asarray(values, dtype=float), axis=0, weights=_weights([run.path for run in runs])))


def _weights(orders: Sequence[tuple[str, ...]]) -> np.ndarray | None:
    """Return weights of runs that give each order the same total weight; None if all weights are equal."""
    counts = Counter(orders)
    return None if len(set(counts.values())) < 2 else np.array([1 / (len(counts) * counts[order]) for order in orders])


def compared(
    comparison: Comparison, order: str = MEAN, unpaired: bool = False
) -> dict[str, tuple[list[RunRecord], int]]:
    """Return label → (runs that enter the strategy's mean, number of such runs once all combinations have finished).

    A combination (order, seed, bucket) enters if every complete strategy has finished it. Strategies that lack many
    combinations are not complete (`incomplete`): they enter with all their own runs. Strategies that do not depend on
    the order (``lang_spec_ft``, ``multilingual``) enter with the seeds and buckets of these combinations; they never
    exclude a combination and always count as complete.
    """
    have, whole, common = _shared(comparison, order)
    shared = {key[:2] for key in common}
    entering = {}
    for label, runs in have.items():
        if _is_ordered(comparison, label):
            own = unpaired or not common or not runs.keys() >= common
            entering[label] = [run for key, run in runs.items() if own or key in common], len(whole)
        else:
            chosen = [run for key, run in runs.items() if unpaired or not shared or key[:2] in shared]
            entering[label] = chosen, len(chosen)
    return entering


def incomplete(comparison: Comparison, order: str = MEAN) -> set[str]:
    """Return the strategies whose means are over their own runs, so that their means are not compared with others.

    These strategies lack combinations that most others have finished. If no two strategies share a combination, all
    strategies are incomplete.
    """
    have, _, common = _shared(comparison, order)
    ordered = {label: runs for label, runs in have.items() if _is_ordered(comparison, label)}
    return {label for label, runs in ordered.items() if not (common and runs.keys() >= common)}


def _shared(
    comparison: Comparison, order: str
) -> tuple[dict[str, dict[tuple[Any, ...], RunRecord]], set[tuple[Any, ...]], AbstractSet[tuple[Any, ...]]]:
    """Return label → its `combinations`, those of at least one ordered strategy, and those that complete ones share.

    The complete strategies are the group that keeps most runs (`most_shared`). Merged models need no training of their
    own, so they never exclude a combination.
    """
    have = {label: combinations(runs, order) for label, runs in comparison.strategies.items()}
    have = {label: runs for label, runs in have.items() if runs}
    ordered = {label: runs.keys() for label, runs in have.items() if _is_ordered(comparison, label)}
    trained = {k: keys for k, keys in ordered.items() if not comparison.strategies[k][0].merged_from} or ordered
    common = most_shared(trained, fewest=min(2, len(trained)))
    return have, {key for keys in ordered.values() for key in keys}, common


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
            scored = [r for r in chosen or combinations(runs, order).values() if r.run_id in measured]
            for name, language in _keys(scored, comparison.languages, names):
                head = (comparison.dataset, comparison.model, label, order, metric, name, language)
                if not chosen:
                    yield (*head, *([math.nan] * 4), 0, NOTHING_SHARED, short_name(metric), "")
                    continue
                values = [measured[run.run_id].get((name, language)) for run in scored]
                *results, ci_given = _average(
                    MEASURES[name], values, scored, whole - len(chosen), quantity(metric, name).bounds
                )
                yield (*head, *results, short_name(metric), ci_given)


def _keys(runs: Sequence[RunRecord], languages: Sequence[str], names: Collection[str]) -> Iterable[tuple[str, str]]:
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
    definition: Measure,
    values: Sequence[float | Absent | None],
    runs: Sequence[RunRecord],
    lacking: int,
    bounds: tuple[float, float],
) -> tuple[float, float, float, float, int, str, str]:
    """Return value, std, ci_low, ci_high, n, status and ci_given of one row, from the values of its runs."""
    nan = math.nan
    pairs = [(v, run) for v, run in zip(values, runs, strict=True) if v is not None]
    defined = [(v, run) for v, run in pairs if not (isinstance(v, Absent) and v.by_definition)] or pairs
    absents = [v for v, _ in defined if isinstance(v, Absent)]
    if absents:
        return nan, nan, nan, nan, 0, f"n/a: {explain(absents)}", ""
    numbers, orders = np.array([v for v, _ in defined], dtype=float), [run.path for _, run in defined]
    weights, n = _weights(orders), len(numbers)
    mean = float(np.average(numbers, weights=weights))
    notes = [f"interim: {len(values)} of {len(values) + lacking} runs"] if lacking else []
    if weights is not None:
        counts = " and ".join(map(str, Counter(orders).values()))
        notes.append(f"{UNBALANCED}orders have {counts} runs and equal weights")
    status = "; ".join(notes) or "ok"
    if n < 2:
        return mean, nan, nan, nan, n, status, ""
    share = 1 / n if weights is None else (weights**2).sum()
    std = math.sqrt(float(np.average((numbers - mean) ** 2, weights=weights)) / (1 - share))
    samples = numbers
    if len(set(orders)) > 1:
        samples = np.array([numbers[[o == order for o in orders]].mean() for order in dict.fromkeys(orders)])
    # Equal samples would give an interval of width 0, so no interval is given.
    equal = bool(np.ptp(samples) <= TIE * max(1.0, float(np.abs(samples).max())))
    blocks = [(" ".join(run.path), run.seed, run.bucket) for _, run in defined]
    cells = crossed(blocks) if definition.shared else None
    if cells is not None and np.ptp(numbers) > TIE:
        error, df = map(float, crossed_error(numbers[cells]))
        equal = error <= TIE
    else:
        error, df = float(samples.std(ddof=1)) / math.sqrt(len(samples)), len(samples) - 1
    if equal:
        return mean, std, nan, nan, n, status, ""
    low, high = mean - (half := _t_quantile(df) * error), mean + half
    least, most = bounds
    low, high = max(least, low), min(most, high)
    return mean, std, low, high, n, status, given_references(blocks) if definition.shared else ""


@lru_cache(maxsize=1024)
def _t_quantile(df: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(df, 0.5 + CONFIDENCE / 2))


def _is_ordered(comparison: Comparison, label: str) -> bool:
    return comparison.strategies[label][0].stream in ("sequence", "mixture", "growing")


def _strategy_rank(item: tuple[str, list[RunRecord]]) -> tuple[int, bool, list[tuple[bool, int, str]]]:
    """Sort key of tables: the baseline first, then strategies, reference models, and controls."""
    first = item[1][0]
    name = first.strategy.partition("+")[0]
    last = 1 + REFERENCE_MODELS.index(name) if is_reference(first) else 0
    last += (1 + len(REFERENCE_MODELS)) * is_control(first)
    return (last, first.strategy != BASELINE, natural(item[0]))
