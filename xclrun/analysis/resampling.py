"""Measures of a comparison for tests (`measured`) and for the bootstrap (`Resampled`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from xclrun.analysis.aggregate import Comparison, combinations, compared, mean_over_orders
from xclrun.analysis.bootstrap import (
    NO_SPREAD,
    RESAMPLES,
    SENTENCES,
    Interval,
    bias,
    default_interval,
    draws,
    interval,
    mean_of_intervals,
    standard_error_of_mean,
    wilson,
    without_spread,
)
from xclrun.analysis.measures import MEASURES, Absent, Scores, explain, headlines, measure, quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.replicates import TIE, Key, Measured
from xclrun.core.task import BY_NAME
from xclrun.scores.base_scores import Counts, Predictions, Sentences

# Statistics of cells per resampling step; limits memory and does not affect results.
CHUNK = 2048

# (language, counts) → scores of the cells in each sample, shape (samples, cells).
Score = Callable[[str, Counts], np.ndarray]
# (reference run, hop, column) → score in each sample, shape (samples,).
Cells = dict[tuple[str, int, int], np.ndarray]


# Streams whose measures depend on the order.
ORDERED = ("sequence", "growing")


def measured(comparison: Comparison, references: References, metric: str) -> dict[str, Measured]:
    """Return measure → its values of the order-dependent strategies, for each headline measure with two of them.

    A strategy is included if the measure is defined for its stream. It has a value, or the reason why it has none, for
    each combination of order, seed and bucket that it has finished.
    """
    runs_of = {
        label: {(" → ".join(run.languages), run.seed, run.bucket): run for run in combinations(runs).values()}
        for label, runs in comparison.strategies.items()
        if runs[0].stream in ORDERED
    }
    values: dict[str, dict[str, dict[Key, float | str]]] = {entry.name: {} for entry in headlines()}
    for label, runs in runs_of.items():
        for name in values:
            if any(run.stream in MEASURES[name].streams for run in runs.values()):
                values[name][label] = {}
        for key, run in runs.items():
            if metric in run.metrics:
                of_run = measure(run, metric, references.scores(run, metric), list(values))
                for name in (name for name in values if label in values[name]):
                    value = of_run[name, ""]
                    values[name][label][key] = explain([value]) if isinstance(value, Absent) else value
    languages = {" → ".join(run.languages): "+".join(sorted(run.languages)) for run in comparison.runs}
    orders = {" → ".join(run.languages): run.order for run in comparison.runs}
    merged = {label for label, runs in comparison.strategies.items() if runs[0].merged_from}
    hops = trained_hops(runs_of)
    return {name: Measured(rows, orders, languages, merged, hops) for name, rows in values.items() if len(rows) > 1}


def trained_hops(runs: Mapping[str, Mapping[Key, RunRecord]]) -> dict[str, dict[Key, frozenset[str]]]:
    """Return strategy → block → keys of its trained hops in the store.

    If a record lacks these keys (trackers may have older records), orders that begin with the same two languages or
    more count as sharing these hops of one strategy.
    """
    known = all(run.trained for of in runs.values() for run in of.values())

    def keys(label: str, run: RunRecord) -> frozenset[str]:
        path = run.elements
        prefixes = (f"{label} {run.seed} {run.bucket} {path[:n]}" for n in range(2, len(path) + 1))
        return frozenset(run.trained if known else prefixes)

    return {label: {key: keys(label, run) for key, run in of.items()} for label, of in runs.items()}


@dataclass(frozen=True)
class Estimate:
    """The value on all test sentences, its bootstrap bias (mean of resamples − value), and a 95 % interval."""

    value: float
    bias: float
    interval: Interval


class Resampled:
    """Measures of the runs of a comparison in each bootstrap resample, paired over runs.

    Args:
        predictions: run ID → predictions, for every run of the comparison.
        seed: seed of the draws.
        resamples: number of resamples, B.
        size: sentences per resample; None means the size of the test set.

    Raises:
        ValueError: predictions are missing, or runs were tested on different sentences or scored in different ways.
    """

    def __init__(
        self,
        comparison: Comparison,
        references: References,
        predictions: Mapping[str, Predictions],
        metric: str,
        seed: int = 42,
        resamples: int = RESAMPLES,
        size: int | None = SENTENCES,
    ) -> None:
        self.comparison, self.references, self.metric, self.size = comparison, references, metric, size
        self.runs = [run for run in comparison.runs if metric in run.metrics]
        if missing := [run.run_id for run in self.runs if run.run_id not in predictions]:
            raise ValueError(f"no predictions of {missing[0]}")
        if BY_NAME[metric].span_f1 and len(ways := {run.slot_f1 for run in self.runs}) > 1:
            raise ValueError(f"runs were scored in different ways ({' and '.join(sorted(ways))})")
        # Language → run ID → sentences.
        self._sentences = {k: by_run for k in comparison.languages if (by_run := self._tested(k, predictions))}
        first = {k: next(iter(by_run.values())) for k, by_run in self._sentences.items()}
        self._units = {k: index for k, sentences in first.items() if (index := sentences.units) is not None}
        # What is resampled together with its text, such as ``statements``; empty if sentences are resampled.
        self.with_texts = tuple(dict.fromkeys(first[k].examples(BY_NAME[metric]) for k in self._units))
        self._draw: Callable[[str, int], np.ndarray] = lambda language, n: draws(n, seed, language, resamples, size)
        self._drawn: dict[str, np.ndarray] = {}
        self._compared = {
            label: [run for run in runs if metric in run.metrics] for label, (runs, _) in compared(comparison).items()
        }
        self._of_runs: dict[tuple[str, str], list[np.ndarray | None]] = {}
        self._alone: Cells = {}
        # Number of statistics of a cell.
        counted = (sentences.counts(BY_NAME[metric]) for sentences in first.values())
        self._columns = max((counts.statistics.shape[-1] for counts in counted), default=1)
        self._whole = self._on_all_sentences()

    @cached_property
    def tested(self) -> dict[str, int]:
        """Language → number of resampled sentences or texts."""
        first = {language: next(iter(by_run.values())) for language, by_run in self._sentences.items()}
        return {
            language: int(self._units[language].max()) + 1 if language in self._units else len(sentences.ids)
            for language, sentences in first.items()
        }

    def _tested(self, language: str, predictions: Mapping[str, Predictions]) -> dict[str, Sentences]:
        runs = (run for run in self.runs if language in run.languages)
        by_run = {run.run_id: predictions[run.run_id].sentences[language] for run in runs}
        first = next(iter(by_run.values()), None)
        for sentences in by_run.values():
            if first is not None and sentences.ids is not first.ids and not np.array_equal(sentences.ids, first.ids):
                raise ValueError(f"runs were tested on different sentences of {language}")
        return by_run

    def _counts(self, language: str, runs: Sequence[RunRecord]) -> Counts:
        metric = BY_NAME[self.metric]
        counts = Counts.side_by_side([self._sentences[language][run.run_id].counts(metric) for run in runs])
        return counts.together(self._units[language]) if language in self._units else counts

    def _matrices(self, runs: Sequence[RunRecord], score: Score) -> dict[str, np.ndarray]:
        """Return run ID → score matrix in each sample, shape (samples, hops + 1, N)."""
        columns: dict[str, dict[str, np.ndarray]] = {run.run_id: {} for run in runs}
        for language in self._sentences:
            if tested := [run for run in runs if language in run.languages]:
                ends = np.cumsum([run.hops + 1 for run in tested])
                scores = np.split(score(language, self._counts(language, tested)), ends[:-1], axis=1)
                for run, of_run in zip(tested, scores, strict=True):
                    columns[run.run_id][language] = of_run
        return {run.run_id: np.stack([columns[run.run_id][k] for k in run.languages], axis=-1) for run in runs}

    def _resample(self, language: str, counts: Counts) -> np.ndarray:
        if language not in self._drawn:
            self._drawn[language] = self._draw(language, len(counts))
        return counts.resampled(self._drawn[language])

    def _values(
        self, runs: Sequence[RunRecord], names: Sequence[str], score: Score, alone: Cells
    ) -> dict[str, list[np.ndarray | None]]:
        """Return measure → values of each run in each sample; ``alone`` caches the cells of reference runs (M)."""
        values: dict[str, list[np.ndarray | None]] = {name: [] for name in names}
        for batch in self._batches(runs):
            missing: dict[str, set[tuple[int, int]]] = {}
            for run in batch if any(MEASURES[name].reference for name in names) else ():
                for cell in self.references.cells(run, self.metric):
                    if cell is not None and (cell[0].run_id, *cell[1:]) not in alone:
                        missing.setdefault(cell[0].run_id, set()).add(cell[1:])
            for references in self._batches([run for run in self.runs if run.run_id in missing]):
                for run_id, matrix in self._matrices(references, score).items():
                    alone |= {(run_id, i, j): matrix[:, i, j].copy() for i, j in missing[run_id]}
            matrices = self._matrices(batch, score)
            for run in batch:
                for name in names:
                    values[name].append(self._measure(run, name, matrices[run.run_id], alone))
        return values

    def of_run(self, run: RunRecord, name: str) -> np.ndarray | None:
        """Return a measure of a run in each resample, shape (B,); None if the run has no value."""
        return self._values([run], [name], self._resample, self._alone)[name][0]

    def _measure(self, run: RunRecord, name: str, R: np.ndarray, alone: Cells) -> np.ndarray | None:
        entry = MEASURES[name]
        # The columns of R that the measure uses: none if there are too few languages, or if it does not use R.
        entering = np.any(entry.needs(len(run.languages)), axis=0)
        if run.stream not in entry.streams or not entering.any():
            return None
        M = np.full((*R.shape[:-2], R.shape[-1]), np.nan)
        for j, cell in enumerate(self.references.cells(run, self.metric) if entry.reference else ()):
            if cell is not None and (cell[0].run_id, *cell[1:]) in alone:
                M[..., j] = alone[cell[0].run_id, cell[1], cell[2]]
            elif entering[j]:
                return None
        return np.asarray(entry.value(Scores.of(R, M, run, self.metric)))

    def of_strategy(self, label: str, name: str) -> np.ndarray | None:
        """Return the mean of a measure over a strategy's runs in each resample, shape (B,).

        Only the runs selected by `compared` enter the mean.
        """
        return _mean(self._compared.get(label, []), self._values_of_runs(label, name))

    def difference(self, a: str, b: str, name: str) -> np.ndarray | None:
        """Return the difference of two strategies' means (`of_strategy`) in each resample, shape (B,).

        None if a strategy has no value, or if the strategies have different orders, seeds or buckets.
        """
        blocks = [{(run.path, run.seed, run.bucket) for run in self._compared.get(label, [])} for label in (a, b)]
        draws = [self.of_strategy(label, name) for label in (a, b)]
        return None if blocks[0] != blocks[1] or draws[0] is None or draws[1] is None else draws[0] - draws[1]

    def _values_of_runs(self, label: str, name: str) -> list[np.ndarray | None]:
        if (label, name) not in self._of_runs:
            names = {name, *(entry.name for entry in headlines())}
            values = self._values(self._compared.get(label, []), [*names], self._resample, self._alone)
            self._of_runs |= {(label, computed): by_run for computed, by_run in values.items()}
        return self._of_runs[label, name]

    def _on_all_sentences(self) -> tuple[dict[str, np.ndarray], Cells]:
        """Return each run's score matrix on all sentences, shape (1, hops + 1, N), and the reference cells."""
        matrices: dict[str, np.ndarray] = {}
        for batch in self._batches(self.runs):
            matrices |= self._matrices(batch, lambda _, counts: counts.scores()[np.newaxis])
        cells = {
            (run.run_id, i, j): matrices[run.run_id][:, i, j]
            for run in self.runs
            if run.stream == "independent"
            for i in range(run.hops + 1)
            for j in range(len(run.languages))
        }
        return matrices, cells

    def estimate(self, label: str, name: str, kind: str | None = None, order: str | None = None) -> Estimate | None:
        """Return a strategy's mean, its bootstrap bias and its 95 % interval; None if the strategy lacks the measure.

        Args:
            kind: key of `INTERVALS`; None means the measure's default.
            order: average only the runs in this order; None means all runs.
        """
        pairs = zip(self._compared.get(label, []), self._values_of_runs(label, name), strict=True)
        chosen = [(run, resampled) for run, resampled in pairs if order in (None, run.order)]
        runs = [run for run, _ in chosen]
        matrices, alone = self._whole
        values = _mean(runs, [resampled for _, resampled in chosen])
        observed = _mean(runs, [self._measure(run, name, matrices[run.run_id], alone) for run in runs])
        if values is None or observed is None:
            return None
        value, kind = float(observed[0]), kind or default_interval(name)
        if kind == "paper":
            groups = [
                [pair for pair in chosen if pair[0].path == path] for path in dict.fromkeys(run.path for run in runs)
            ]
            means = [_mean([run for run, _ in group], [resampled for _, resampled in group]) for group in groups]
            ends = mean_of_intervals([standard_error_of_mean(mean) for mean in means if mean is not None])
            if any(mean is None or without_spread(mean) for mean in means):
                ends = Interval(np.nan, np.nan, f"{NO_SPREAD}{' for an order' if len(means) > 1 else ''}")
        elif np.isnan(values).any():
            ends = Interval(np.nan, np.nan, "undefined for some resamples")
        elif without_spread(values):
            ends = self._without_spread(runs, name, value)
        else:
            bounds = quantity(self.metric, name).bounds
            ends = interval(kind, values, value, lambda: self._jackknife(runs, name), bounds)
        return Estimate(value, bias(values, value), ends)

    def _without_spread(self, runs: Sequence[RunRecord], name: str, value: float) -> Interval:
        """Return the interval of a measure with the same value in all resamples: Wilson's for an accuracy of 0 or 1."""
        if not (BY_NAME[self.metric].accuracy and name == "FP" and min(value, 1 - value) <= TIE):
            return Interval(np.nan, np.nan, NO_SPREAD)
        languages = dict.fromkeys(language for run in runs for language in run.languages)
        limit = np.inf if self.size is None else self.size
        return wilson(round(value), [int(min(self.tested[language], limit)) for language in languages])

    def _batches(self, runs: Sequence[RunRecord]) -> Iterator[list[RunRecord]]:
        """Yield groups of runs with at most `CHUNK` statistics of cells, to limit memory."""
        batch: list[RunRecord] = []
        columns = 0
        for run in runs:
            added = (run.hops + 1) * self._columns
            if batch and columns + added > CHUNK:
                yield batch
                batch, columns = [], 0
            batch.append(run)
            columns += added
        if batch:
            yield batch

    def _jackknife(self, runs: list[RunRecord], name: str) -> list[np.ndarray]:
        """Return, for each language, the mean over runs with each sentence of this language left out in turn."""
        parts = []
        for language in self._sentences:
            n = len(self._counts(language, [next(run for run in self.runs if language in run.languages)]))

            def scores(scored: str, counts: Counts, language: str = language, n: int = n) -> np.ndarray:
                if scored == language:
                    return counts.jackknife()
                unchanged = counts.scores()
                return np.broadcast_to(unchanged, (n, len(unchanged)))

            values = self._values(runs, [name], scores, {})[name]
            parts.append(mean_over_orders(runs, np.array(values, dtype=float)))
        return parts


def _mean(runs: list[RunRecord], values: list[np.ndarray | None]) -> np.ndarray | None:
    """Return the mean over runs; None without runs, or if a run has no values."""
    complete = bool(values) and all(value is not None for value in values)
    return mean_over_orders(runs, np.array(values, dtype=float)) if complete else None
