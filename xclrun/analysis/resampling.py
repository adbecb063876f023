"""A comparison as the tests and the bootstrap take it: replicates of a measure, and its values in every resample."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.aggregate import Comparison, compared, mean_over_orders, orders_of
from xclrun.analysis.base_scores import Counts, Predictions, Sentences
from xclrun.analysis.bootstrap import (
    CHUNK,
    RESAMPLES,
    SENTENCES,
    Interval,
    bias,
    default_interval,
    draws,
    interval,
    mean_of_intervals,
    standard_error_of_mean,
)
from xclrun.analysis.measures import MEASURES, Measured, Scores, headlines, measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.replicates import Replicates
from xclrun.core.task import BY_NAME

# Scores the cells of a language in every sample, given their counts: shape (samples, cells).
Score = Callable[[str, Counts], np.ndarray]
# (id of a reference run, hop, column) → the score there in every sample, shape (samples,).
Cells = dict[tuple[str, int, int], np.ndarray]


def replicates(comparison: Comparison, references: References, metric: str) -> dict[str, Replicates]:
    """Return the headline measures of the strategies that depend on the order, in the blocks that all have finished.

    A strategy for which a measure is not available is left out of it; a measure of fewer than two strategies is left
    out.
    """
    measured: dict[str, dict[tuple[str, int, int | None], Measured]] = {}
    for label, (runs, _) in compared(comparison).items():
        # Of a strategy that lacks the metric in some runs no block is known to be complete.
        if runs and runs[0].stream in ("sequence", "growing") and all(metric in run.metrics for run in runs):
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
        metric: name of a base score (`xclrun.core.task.METRICS`).
        seed: of the draws.
        resamples, size: B and n (None: as many as the test set has).

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
        missing = [run.run_id for run in self.runs if run.run_id not in predictions]
        if missing:
            raise ValueError(f"no predictions of {missing[0]}")
        if BY_NAME[metric].span_f1 and len(ways := {run.slot_f1 for run in self.runs}) > 1:
            raise ValueError(f"runs were scored in different ways ({' and '.join(sorted(ways))})")
        tested = {k: self._tested(k, predictions) for k in comparison.languages}
        self._sentences = {k: them for k, them in tested.items() if them}
        # Runs that an earlier version evaluated may not say which pairs are of one text.
        units = {k: (of.units(BY_NAME[metric]) for of in them.values()) for k, them in self._sentences.items()}
        self._units = {
            k: own for k, of in units.items() if (own := next((u for u in of if u is not None), None)) is not None
        }
        self._draw: Callable[[str, int], np.ndarray] = lambda language, n: draws(n, seed, language, resamples, size)
        self._drawn: dict[str, np.ndarray] = {}
        self._compared = {
            label: [run for run in runs if metric in run.metrics] for label, (runs, _) in compared(comparison).items()
        }
        self._of_runs: dict[tuple[str, str], list[np.ndarray | None]] = {}
        self._alone: Cells = {}
        # Columns of a cell's counts: macro F1 over tags has one for each tag.
        tags = [of.tags for them in tested.values() for of in them.values() if of.tags is not None]
        self._columns = max((1 + int(of.max(initial=0)) for of in tags if BY_NAME[metric].span_f1), default=1)
        self._whole = self._on_all_sentences()

    @property
    def draws_texts(self) -> bool:
        """Whether what is drawn are texts, each with all that is asked or said about it (`Sentences.units`)."""
        return bool(self._units)

    def _tested(self, language: str, predictions: Mapping[str, Predictions]) -> dict[str, Sentences]:
        """Return run id → what the run said of the sentences of one language."""
        runs = (run for run in self.runs if language in run.languages)
        parts = {run.run_id: predictions[run.run_id].sentences[language] for run in runs}
        first = next(iter(parts.values()), None)
        for part in parts.values():
            if first is not None and part.ids is not first.ids and not np.array_equal(part.ids, first.ids):
                raise ValueError(f"runs were tested on different sentences of {language}")
        return parts

    def _counts(self, language: str, runs: Sequence[RunRecord]) -> Counts:
        """Put the cells of runs on one language beside each other, run after run."""
        own = Counts.side_by_side([self._sentences[language][run.run_id].counts(BY_NAME[self.metric]) for run in runs])
        return own.together(self._units[language]) if language in self._units else own

    def _matrices(self, runs: Sequence[RunRecord], score: Score) -> dict[str, np.ndarray]:
        """Return run id → its score matrix in every sample, shape (samples, hops + 1, N).

        Args:
            runs: so few that their matrices fit the memory.
            score: of a language and counts: the scores of its cells in every sample, shape (samples, cells).
        """
        columns: dict[str, dict[str, np.ndarray]] = {run.run_id: {} for run in runs}
        for language in self._sentences:
            if own := [run for run in runs if language in run.languages]:
                scores, at = score(language, self._counts(language, own)), 0
                for run in own:
                    columns[run.run_id][language] = scores[:, at : at + run.hops + 1]
                    at += run.hops + 1
        return {run.run_id: np.stack([columns[run.run_id][k] for k in run.languages], axis=-1) for run in runs}

    def _resample(self, language: str, counts: Counts) -> np.ndarray:
        if language not in self._drawn:
            self._drawn[language] = self._draw(language, len(counts.hits))
        return counts.resampled(self._drawn[language])

    def _values(
        self, runs: Sequence[RunRecord], names: Sequence[str], score: Score, alone: Cells
    ) -> dict[str, list[np.ndarray | None]]:
        """Return measure → its values in every sample for each run: a few runs at a time, so that memory has room.

        Args:
            alone: holds the cells that M is made of, which serve many runs.
        """
        values: dict[str, list[np.ndarray | None]] = {name: [] for name in names}
        for few in self._few(runs):
            wanted: dict[str, set[tuple[int, int]]] = {}
            for run in few if any(MEASURES[name].reference for name in names) else ():
                for cell in self.references.cells(run, self.metric):
                    if cell is not None and (cell[0].run_id, *cell[1:]) not in alone:
                        wanted.setdefault(cell[0].run_id, set()).add(cell[1:])
            for others in self._few([run for run in self.runs if run.run_id in wanted]):
                for run_id, matrix in self._matrices(others, score).items():
                    alone |= {(run_id, i, j): matrix[:, i, j].copy() for i, j in wanted[run_id]}
            matrices = self._matrices(few, score)
            for run in few:
                for name in names:
                    values[name].append(self._measure(run, name, matrices[run.run_id], alone))
        return values

    def of_run(self, run: RunRecord, name: str) -> np.ndarray | None:
        """Return a measure of a run in every resample, shape (B,); None where the run does not have it."""
        return self._values([run], [name], self._resample, self._alone)[name][0]

    def _measure(self, run: RunRecord, name: str, R: np.ndarray, alone: Cells) -> np.ndarray | None:
        one = MEASURES[name]
        # Columns of R that enter it; none where there are too few languages, or where it is of something else.
        entering = np.any(one.needs(len(run.languages)), axis=0)
        if run.stream not in one.streams or not entering.any():
            return None
        M = np.full((*R.shape[:-2], R.shape[-1]), np.nan)
        for j, cell in enumerate(self.references.cells(run, self.metric) if one.reference else ()):
            if cell is not None and (cell[0].run_id, *cell[1:]) in alone:
                M[..., j] = alone[cell[0].run_id, cell[1], cell[2]]
            elif entering[j]:
                return None
        return np.asarray(one.formula(Scores(R, M, run, self.metric)))

    def of_strategy(self, label: str, name: str) -> np.ndarray | None:
        """Return the mean over the runs that enter the table, in every resample, shape (B,)."""
        return _mean(self._compared.get(label, []), self._values_of_runs(label, name))

    def _values_of_runs(self, label: str, name: str) -> list[np.ndarray | None]:
        """Return a measure of each run that enters the table, in every resample; each of shape (B,)."""
        if (label, name) not in self._of_runs:
            names = {name, *(one.name for one in headlines())}
            values = self._values(self._compared.get(label, []), [*names], self._resample, self._alone)
            self._of_runs |= {(label, other): of for other, of in values.items()}
        return self._of_runs[label, name]

    def _on_all_sentences(self) -> tuple[dict[str, np.ndarray], Cells]:
        """Each run's score matrix on all sentences, shape (1, hops + 1, N), and what M is made of."""
        matrices: dict[str, np.ndarray] = {}
        for few in self._few(self.runs):
            matrices |= self._matrices(few, lambda _, counts: counts.scores()[np.newaxis])
        cells = {
            (run.run_id, i, j): matrices[run.run_id][:, i, j]
            for run in self.runs
            if run.stream == "independent"
            for i in range(run.hops + 1)
            for j in range(len(run.languages))
        }
        return matrices, cells

    def estimate(self, label: str, name: str, kind: str | None = None, order: str | None = None) -> Estimate | None:
        """Return a strategy's mean, its bootstrap bias and its 95 % interval; None where it does not have the measure.

        Args:
            kind: of the interval, of `xclrun.analysis.bootstrap.INTERVALS`; None: the measure's default.
            order: name of the order whose runs are averaged; None: all orders.
        """
        pairs = zip(self._compared.get(label, []), self._values_of_runs(label, name), strict=True)
        chosen = [(run, of) for run, of in pairs if order in (None, run.order)]
        runs = [run for run, _ in chosen]
        matrices, alone = self._whole
        values = _mean(runs, [of for _, of in chosen])
        observed = _mean(runs, [self._measure(run, name, matrices[run.run_id], alone) for run in runs])
        if values is None or observed is None:
            return None
        value, kind = float(observed[0]), kind or default_interval(name)
        if kind == "paper":
            groups = [[pair for pair in chosen if pair[0].path == path] for path in dict.fromkeys(orders_of(runs))]
            means = [_mean([run for run, _ in own], [of for _, of in own]) for own in groups]
            found = mean_of_intervals([standard_error_of_mean(of) for of in means if of is not None])
        else:
            is_score = MEASURES[name].unit == "%"
            found = interval(kind, values, value, lambda: self._jackknife(runs, name), is_score)
        return Estimate(value, bias(values, value), found)

    def _few(self, runs: Sequence[RunRecord]) -> Iterator[list[RunRecord]]:
        """Yield runs in groups whose cells are resampled at once."""
        some: list[RunRecord] = []
        columns = 0
        for run in runs:
            own = (run.hops + 1) * self._columns
            if some and columns + own > CHUNK:
                yield some
                some, columns = [], 0
            some.append(run)
            columns += own
        if some:
            yield some

    def _jackknife(self, runs: list[RunRecord], name: str) -> list[np.ndarray]:
        """Return for each language the mean over runs with each of its sentences left out."""
        parts = []
        for language in self._sentences:
            n = len(self._counts(language, [next(run for run in self.runs if language in run.languages)]).hits)

            def left(other: str, counts: Counts, language: str = language, n: int = n) -> np.ndarray:
                if other == language:
                    return counts.jackknife()
                scores = counts.scores()
                return np.broadcast_to(scores, (n, len(scores)))

            values = self._values(runs, [name], left, {})[name]
            parts.append(mean_over_orders(runs, np.array(values, dtype=float)))
        return parts


def _mean(runs: list[RunRecord], values: list[np.ndarray | None]) -> np.ndarray | None:
    known = bool(values) and all(value is not None for value in values)
    return mean_over_orders(runs, np.array(values, dtype=float)) if known else None
