"""A comparison as the tests and the bootstrap take it: replicates of a measure, and its values in every resample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.aggregate import Comparison, compared, mean_over_orders
from xclrun.analysis.base_scores import Counts, Predictions
from xclrun.analysis.bootstrap import (
    RESAMPLES,
    SENTENCES,
    Interval,
    basic,
    bca,
    bias,
    centred,
    percentile,
    resample_languages,
)
from xclrun.analysis.bootstrap import standard_error_of_mean as paper
from xclrun.analysis.measures import MEASURES, Measured, Scores, headlines, measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.replicates import Replicates
from xclrun.core.task import BY_NAME


def replicates(comparison: Comparison, references: References, metric: str) -> dict[str, Replicates]:
    """Return the headline measures of the strategies that learn in sequence, in the blocks that all have finished.

    A strategy for which a measure is not available is left out of it; a measure of fewer than two strategies is left
    out.
    """
    measured: dict[str, dict[tuple[str, int, int | None], Measured]] = {}
    for label, (runs, _) in compared(comparison).items():
        # Of a strategy that lacks the metric in some runs no block is known to be complete.
        if runs and runs[0].stream == "sequence" and all(metric in run.metrics for run in runs):
            measured[label] = {
                (" → ".join(run.languages), run.seed, run.bucket): measure(run, metric, references.scores(run, metric))
                for run in runs
            }
    of = {" → ".join(run.languages): "+".join(sorted(run.languages)) for run in comparison.runs}
    names = {" → ".join(run.languages): run.order for run in comparison.runs}
    tested = {}
    for name in (one.name for one in headlines()):
        found = {label: {block: values[name, ""] for block, values in them.items()} for label, them in measured.items()}
        found = {k: values for k, values in found.items() if all(isinstance(v, float) for v in values.values())}
        if len(found) > 1:
            blocks = list(next(iter(found.values())))
            table = np.array([[values[block] for block in blocks] for values in found.values()])
            labelled = tuple((names[o], seed, bucket) for o, seed, bucket in blocks)
            tested[name] = Replicates(tuple(found), labelled, table, tuple(of[o] for o, _, _ in blocks))
    return tested


@dataclass(frozen=True)
class Estimate:
    """What the bootstrap says of one number.

    Attributes:
        value: from the data: all test sentences, once each.
        bias: mean of the resamples minus ``value``.
        interval: 95 % interval.
    """

    value: float
    bias: float
    interval: Interval


class Resampled:
    """Meta-metrics of the runs of a comparison in every bootstrap resample, paired over runs.

    Args:
        comparison: its runs.
        references: gives M.
        predictions: of every run of the comparison, by run id.
        metric: name of a base score (`xclrun.core.task.METRICS`); F1 over spans is micro.
        seed: of the draws.
        resamples, size: B and n (None: as many as the test set has).

    Raises:
        ValueError: predictions are missing, or runs were tested on different sentences.
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
        missing = [run.run_id for run in self.runs if run.run_id not in predictions]
        if missing:
            raise ValueError(f"no predictions of {missing[0]}")
        self._counts = {k: self._language(k, predictions) for k in comparison.languages}
        self._matrices = self._split(dict(resample_languages(self._counts, seed, resamples, size)))
        self._whole = {k: counts.scores()[np.newaxis] for k, counts in self._counts.items()}
        self._compared = {
            label: [run for run in runs if metric in run.metrics] for label, (runs, _) in compared(comparison).items()
        }
        self._of_strategies: dict[tuple[str, str], np.ndarray | None] = {}

    def _language(self, language: str, predictions: Mapping[str, Predictions]) -> Counts:
        """Put the cells of all runs on one language beside each other, run after run."""
        parts = [predictions[run.run_id].sentences[language] for run in self.runs if language in run.languages]
        if any(part.ids is not parts[0].ids and not np.array_equal(part.ids, parts[0].ids) for part in parts[1:]):
            raise ValueError(f"runs were tested on different sentences of {language}")
        counts = [part.counts(BY_NAME[self.metric]) for part in parts]
        totals = [of.totals for of in counts if of.totals is not None]
        own = Counts(
            np.concatenate([of.hits for of in counts], axis=1), np.concatenate(totals, axis=1) if totals else None
        )
        units = parts[0].units(BY_NAME[self.metric])
        return own if units is None else own.together(units)

    def _split(self, scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return run id → its score matrix in every resample, shape (B, hops + 1, N)."""
        found: dict[str, list[np.ndarray]] = {run.run_id: [] for run in self.runs}
        at = dict.fromkeys(scores, 0)
        for run in self.runs:
            for language in run.languages:
                found[run.run_id].append(scores[language][:, at[language] : at[language] + run.hops + 1])
                at[language] += run.hops + 1
        return {run_id: np.stack(columns, axis=-1) for run_id, columns in found.items()}

    def of_run(self, run: RunRecord, name: str) -> np.ndarray | None:
        """Return a measure of a run in every resample, shape (B,); None where the run does not have it."""
        return self._measure(run, name, _from(self._matrices))

    def _measure(self, run: RunRecord, name: str, matrix: Callable[[RunRecord], np.ndarray]) -> np.ndarray | None:
        R, one = matrix(run), MEASURES[name]
        # Columns of R that enter it; none where there are too few languages, or where it is of something else.
        entering = np.any(one.needs(len(run.languages)), axis=0)
        if run.stream not in one.streams or not entering.any():
            return None
        M = np.full((*R.shape[:-2], R.shape[-1]), np.nan)
        for j, cell in enumerate(self.references.cells(run, self.metric) if one.reference else ()):
            if cell is not None and cell[0].run_id in self._matrices:
                M[..., j] = matrix(cell[0])[..., cell[1], cell[2]]
            elif entering[j]:
                return None
        return np.asarray(one.formula(Scores(R, M, run, self.metric)))

    def of_strategy(self, label: str, name: str) -> np.ndarray | None:
        """Return the mean over the runs that enter the table, in every resample, shape (B,)."""
        key = (label, name)
        if key not in self._of_strategies:
            runs = self._compared.get(label, [])
            self._of_strategies[key] = _mean(runs, [self.of_run(run, name) for run in runs])
        return self._of_strategies[key]

    def estimate(self, label: str, name: str, kind: str = "basic") -> Estimate | None:
        """Return a strategy's mean, its bootstrap bias and its 95 % interval; None where it does not have the measure.

        Args:
            kind: of the interval: ``basic``, ``centred``, ``percentile``, ``bca`` or ``paper``.
        """
        values, runs = self.of_strategy(label, name), self._compared.get(label, [])
        whole = _from(self._split(self._whole))
        observed = _mean(runs, [self._measure(run, name, whole) for run in runs])
        if values is None or observed is None:
            return None
        value = float(observed[0])
        intervals: dict[str, Callable[[], Interval]] = {
            "basic": lambda: basic(values, value),
            "centred": lambda: centred(values, value),
            "percentile": lambda: percentile(values),
            "bca": lambda: bca(values, value, self._jackknife(label, name)),
            "paper": lambda: paper(values),
        }
        return Estimate(value, bias(values, value), intervals[kind]())

    def _jackknife(self, label: str, name: str) -> list[np.ndarray]:
        """Return for each language a strategy's mean with each of its sentences left out."""
        runs, parts = self._compared.get(label, []), []
        for language, counts in self._counts.items():
            left = counts.jackknife()
            shown = {
                k: left if k == language else np.broadcast_to(v, (len(left), v.shape[1]))
                for k, v in self._whole.items()
            }
            stacks = self._split(shown)
            values = [self._measure(run, name, _from(stacks)) for run in runs]
            parts.append(mean_over_orders(runs, np.array(values, dtype=float)))
        return parts


def _mean(runs: list[RunRecord], values: list[np.ndarray | None]) -> np.ndarray | None:
    known = bool(values) and all(value is not None for value in values)
    return mean_over_orders(runs, np.array(values, dtype=float)) if known else None


def _from(matrices: Mapping[str, np.ndarray]) -> Callable[[RunRecord], np.ndarray]:
    return lambda run: matrices[run.run_id]
