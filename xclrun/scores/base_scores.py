"""Compute base scores: predictions → counts per sentence → scores. docs/metrics.md, "Base scores".

A score is a function of k sums over sentences (`Metric.statistics`, `Metric.score`): accuracy is Σ hit / Σ 1, micro F1
is Σ 2 TP / Σ (2 TP + FP + FN). Macro F1 over single tags (``tag_macro``, as in the public CCL code) is the mean over
tags of each tag's F1, from two sums for each tag.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from xclrun.core.task import (
    BY_NAME,
    KEY_SCORE,
    SPAN,
    Metric,
    MetricsOfKeys,
    Scored,
    f1,
    ratio,
    statement_of,
)
from xclrun.core.task import (
    COLUMNS as OWN,
)
from xclrun.scores import answers, generated
from xclrun.store.predictions import arrow_type

if TYPE_CHECKING:
    import pyarrow as pa

# Columns of prediction rows (`xclrun.store.predictions`) that every metric needs, followed by columns for some metrics.
COLUMNS = ("split", "language", "example_id", "gold", "predicted", "tp", "fp", "fn")
TAG_COLUMNS = ("gold_tags", "predicted_tags")  # for ``tag_macro``
BELIEF_COLUMNS = ("log2_gold",)  # for the choice between an example's statements
ANSWER_COLUMNS = ("answer", "gold_answers")  # for metrics of answers
TEXT_COLUMN = "text"  # for the bootstrap over texts: the number of the text of a question or pair
# Columns of tasks that `_Rows` does not read as they are: metrics of answers, and the bootstrap, need some of them.
SPECIAL = {column.name for column in SPAN.columns}
# Similarity measures of answers, in the order of `Sentences.answers`.
LIKENESS = {"f1": answers.f1, "exact": answers.exact}
# Log-odds (in bits) are clipped at ±SURE: log2_gold cannot represent probabilities closer to 0 or 1.
SURE = 16.0

# Common name of all tags that are not in the training data.
UNSEEN = "?"

# Language → metric → score.
Scores = dict[str, dict[str, float]]


@dataclass(frozen=True)
class Counts:
    """Statistics of scores per sentence. A cell is one model tested on one language.

    Attributes:
        statistics: k statistics of each sentence and cell (`Metric.statistics`), shape (sentences, cells, k), float32:
            small integers, whose sums are exact, or fractions, such as F1 of an answer.
        score: takes sums over sentences, shape (..., k); returns scores, shape (...).
    """

    statistics: np.ndarray
    score: Callable[[Any], Any]

    @classmethod
    def of_accuracy(cls, right: ArrayLike) -> Counts:
        return cls(_stacked(right, 1), ratio)

    @classmethod
    def of_f1(cls, tp: ArrayLike, fp: ArrayLike, fn: ArrayLike) -> Counts:
        hits = 2 * _float(tp)
        return cls(_stacked(hits, hits + _float(fp) + _float(fn)), f1)

    @classmethod
    def side_by_side(cls, parts: Sequence[Counts]) -> Counts:
        """Concatenate cells of the same sentences. Zeros fill up parts with fewer statistics, such as fewer tags."""
        k = max(part.statistics.shape[-1] for part in parts)
        wide = [np.pad(part.statistics, ((0, 0), (0, 0), (0, k - part.statistics.shape[-1]))) for part in parts]
        return cls(np.concatenate(wide, axis=1), parts[0].score)

    def __len__(self) -> int:
        """Return the number of sentences."""
        return len(self.statistics)

    def cell(self, number: int) -> Counts:
        return replace(self, statistics=self.statistics[:, number : number + 1])

    def scores(self) -> np.ndarray:
        """Return the scores on all sentences, shape (cells,)."""
        return np.asarray(self.score(self._sums()))

    def resampled(self, drawn: np.ndarray) -> np.ndarray:
        """Return the scores of resamples, shape (samples, cells).

        ``drawn``: how often each resample contains each sentence, shape (samples, sentences).
        """
        sums = drawn @ self.statistics.reshape(len(self), -1)
        return np.asarray(self.score(sums.reshape(-1, *self.statistics.shape[1:])))

    def together(self, units: ArrayLike) -> Counts:
        """Sum the statistics over the sentences of each resampling unit; ``units``: index of each sentence's unit."""
        index = np.asarray(units)
        sums = np.zeros((int(index.max()) + 1, *self.statistics.shape[1:]), np.float32)
        np.add.at(sums, index, self.statistics)
        return replace(self, statistics=sums)

    def jackknife(self) -> np.ndarray:
        """Return the scores with each sentence left out in turn, shape (sentences, cells)."""
        return np.asarray(self.score(self._sums() - self.statistics))

    def _sums(self) -> np.ndarray:
        return np.asarray(self.statistics.sum(axis=0, dtype=float))


def _stacked(*statistics: ArrayLike) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*statistics), axis=-1, dtype=np.float32, casting="unsafe")


def _float(counts: ArrayLike) -> np.ndarray:
    return np.asarray(counts, dtype=np.float32)


@dataclass(frozen=True)
class Sentences:
    """Predictions for the S test sentences of one language. A cell is the model after one hop of a run.

    Attributes:
        ids: sentence IDs, shape (S,).
        gold: class ids, shape (S,); −1 for a class that does not occur in training.
        predicted: class ids, shape (S, cells).
        spans: TP, FP and FN, each of shape (S, cells), over spans or words; None without tags.
        tags: for ``tag_macro``, tag ids of all words (see `_Rows`), shape (words, 1 + cells): the gold tag, then the
            tag that each cell predicts.
        log2_gold: log2 p(gold class), shape (S, cells).
        answers: F1 and exact match of the predicted answers, shape (2, S, cells).
        texts: number of the text that each question or pair belongs to, shape (S,).
        lengths: number of words of each sentence in ``tags``, shape (S,).
        metrics: metrics of the key's task, if keys have several tasks; otherwise empty, and all metrics apply.
        grouped: whether the examples are statements about texts (`xclrun.core.task.Task.grouped`).
        columns: column of the task (`xclrun.core.task.Task.columns`) → its values, shape (S, cells): float64, with NaN
            for missing values, or objects, with None, if the column has no numbers.
        statistics: metric → its statistics, shape (S, cells, k), if a run stored them (`Metric.stored`).
        key: the language or key, and
        reader: see `MetricsOfKeys`; both determine how texts are split and normalized.
    """

    ids: np.ndarray
    gold: np.ndarray
    predicted: np.ndarray
    spans: tuple[np.ndarray, ...] | None = None
    tags: np.ndarray | None = None
    log2_gold: np.ndarray | None = None
    answers: np.ndarray | None = None
    texts: np.ndarray | None = None
    lengths: np.ndarray | None = None
    metrics: tuple[Metric, ...] = ()
    grouped: bool = False
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    statistics: Mapping[str, np.ndarray] = field(default_factory=dict)
    key: str = ""
    reader: str = ""

    @property
    def right(self) -> np.ndarray:
        gold = self.gold[:, np.newaxis]
        return (self.predicted == gold) & (gold >= 0)

    def counts(self, metric: Metric) -> Counts:
        """Return the counts of a metric per sentence.

        Raises:
            ValueError: the metric has no counts for these sentences, or its plug-in is not loaded.
        """
        if metric.of is Scored.keys and self.metrics:
            return self.counts(self.metrics[0])
        if self.metrics and metric not in self.metrics:
            raise ValueError(f"the key's task has no {metric.title}")
        own = metric.statistics
        if metric.name in self.statistics:
            statistics = self.statistics[metric.name]
        else:
            statistics = self._default_statistics(metric.of) if own is None else own(self)
        return Counts(_float(statistics), metric.scores)

    def scores(self, metric: Metric) -> np.ndarray:
        """Return the scores of the cells, shape (cells,); NaN if the key's task lacks the metric."""
        if metric.of is not Scored.keys and self.metrics and metric not in self.metrics:
            return np.full(self.predicted.shape[1], np.nan)
        return self.counts(metric).scores()

    def _default_statistics(self, of: Scored) -> np.ndarray:
        """Return the statistics of an accuracy, or of F1 over spans or tags, shape (S, cells, k)."""
        if of is Scored.labels:
            return Counts.of_accuracy(self.right).statistics
        if of is Scored.spans and self.tags is not None:
            return self._statistics_of_tags(self.tags)
        if self.spans is None:
            raise ValueError("the predictions have no span counts")
        return Counts.of_f1(*self.spans).statistics

    def _statistics_of_tags(self, tags: np.ndarray) -> np.ndarray:
        assert self.lengths is not None
        names, words = np.unique(tags, return_inverse=True)
        gold, *predicted = words.reshape(tags.shape).T
        sentences, size = np.repeat(np.arange(len(self.ids)), self.lengths), max(1, len(names))

        def count(numbers: np.ndarray, chosen: np.ndarray | slice = slice(None)) -> np.ndarray:
            places = sentences[chosen] * size + numbers[chosen]
            return np.bincount(places, minlength=len(self.ids) * size).reshape(-1, size)

        expected = count(gold)
        pairs = [[2 * count(gold, gold == cell), expected + count(cell)] for cell in predicted]
        # (cells, 2, S, tags) → (S, cells, 2 · tags), a pair of columns for each tag.
        return np.array(pairs, dtype=np.float32).transpose(2, 0, 3, 1).reshape(len(self.ids), len(predicted), -1)

    def stacked(self, *statistics: ArrayLike) -> np.ndarray:
        """Stack k statistics, each of shape (S, cells) or (S, 1), or a number, to an array of shape (S, cells, k)."""
        return _stacked(*(np.broadcast_to(each, self.predicted.shape) for each in statistics))

    def answered(self, likeness: str) -> np.ndarray:
        """Return the statistics of F1 (``f1``) or exact match (``exact``) of the answers, shape (S, cells, 2)."""
        if self.answers is None:
            raise ValueError("the predictions have no answers")
        return self.stacked(self.answers[list(LIKENESS).index(likeness)], 1)

    def written(self, metric: str) -> np.ndarray:
        """Return the statistics of a metric of generated texts (`xclrun.scores.generated`), shape (S, cells, k)."""
        return generated.statistics(metric, self.columns, self.key, self.reader)

    @property
    def units(self) -> np.ndarray | None:
        """Index of each sentence's resampling unit, its text, shape (S,); None if the unit is a sentence.

        Predictions about one text are dependent, so whole texts are resampled: a constant answer is correct for a fixed
        share of a text's statements, and a difficult text makes all questions and hypotheses about it difficult.
        """
        if self.grouped:
            return np.unique([statement_of(name)[0] for name in self.ids.tolist()], return_inverse=True)[1]
        if self.texts is None:
            return None
        numbers, units = np.unique(self.texts, return_inverse=True)
        return units if len(numbers) < len(units) else None

    def examples(self, metric: Metric) -> str:
        """Return what the metric's examples are called if several of them are about one text."""
        if self.grouped:
            return "statements"
        first = self.metrics[0] if metric.of is Scored.keys and self.metrics else metric
        return "questions" if first.of is Scored.answers else "pairs"

    def choices(self) -> np.ndarray:
        """Return hits and totals of the choice accuracy over S statements, shape (S, cells, 2).

        Statements about one example share the ID up to the last ``#``; class 1 is true. An example counts if exactly
        one of its several statements is true. The hit is 1 if this statement has the highest P(true), 1/k in a k-way
        tie.
        """
        if self.log2_gold is None:
            raise ValueError("the predictions have no probabilities")
        gold = self.gold == 1
        _, group = np.unique([name.rpartition("#")[0] for name in self.ids.tolist()], return_inverse=True)
        size, true = np.bincount(group), np.bincount(group, weights=gold)
        with np.errstate(divide="ignore"):
            # Log-odds, log2(p / (1 − p)), preserve small differences of probabilities near 0 and 1.
            odds = self.log2_gold - np.log2(-np.expm1(np.log(2) * np.asarray(self.log2_gold, dtype=float)))
        belief = np.clip(np.where(gold[:, np.newaxis], odds, -odds), -SURE, SURE)
        best = np.full((len(size), belief.shape[1]), -np.inf)
        np.maximum.at(best, group, belief)
        first = belief == best[group]
        equal = np.zeros_like(best)
        np.add.at(equal, group, first)
        counted = (gold & (true == 1)[group] & (size > 1)[group])[:, np.newaxis]
        return self.stacked(np.where(counted & first, 1 / equal[group], 0), counted)


@dataclass(frozen=True)
class Predictions:
    """Class names of a run (``labels``), and language → predictions for its test sentences after each hop."""

    labels: tuple[str, ...]
    sentences: Mapping[str, Sentences]

    def matrix(self, metric: Metric, languages: Sequence[str]) -> np.ndarray:
        """Return the score matrix R, shape (hops + 1, number of languages); column j is ``languages[j]``."""
        if missing := [language for language in languages if language not in self.sentences]:
            raise ValueError(f"no predictions for language '{missing[0]}'")
        return np.stack([self.sentences[language].scores(metric) for language in languages], axis=-1)

    def confusion(self, hop: int, language: str | None = None) -> np.ndarray:
        """Return the confusion matrix after a hop, of one language or of all languages together."""
        matrix = np.zeros((len(self.labels), len(self.labels)), dtype=int)
        for key, sentences in self.sentences.items():
            if language in (None, key):
                matrix += confusion(sentences.gold, sentences.predicted[:, hop], len(self.labels))
        return matrix


def confusion(gold: np.ndarray, predicted: np.ndarray, labels: int) -> np.ndarray:
    """Count the predicted labels (columns) for each gold label (rows), shape (labels, labels); excludes gold −1."""
    matrix = np.zeros((labels, labels), dtype=int)
    np.add.at(matrix, (gold[gold >= 0], predicted[gold >= 0]), 1)
    return matrix


class Alignment:
    """Find the rows of each language's test sentences; the result is cached for tables with the same sentences."""

    def __init__(self) -> None:
        self._columns: list[pa.ChunkedArray] | None = None
        self._rows: dict[str, tuple[np.ndarray, np.ndarray]] = {}

    def rows(self, table: pa.Table) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return language → (IDs, row indices) of its test sentences, sorted by ID, each of shape (sentences,)."""
        columns = [table[name].cast("string") for name in COLUMNS[:3]]
        if self._columns is None or not all(a.equals(b) for a, b in zip(columns, self._columns, strict=True)):
            split, languages, ids = (column.to_numpy().astype(str) for column in columns)
            self._columns, self._rows = columns, {}
            for language in np.unique(languages[split == "test"]):
                rows = np.flatnonzero((languages == language) & (split == "test"))
                rows = rows[np.argsort(ids[rows])]
                if (ids[rows][1:] == ids[rows][:-1]).any():
                    raise ValueError(f"language '{language}' has an example twice")
                self._rows[str(language)] = ids[rows], rows
        return self._rows


def of_hops(
    tables: Iterable[pa.Table],
    alignment: Alignment | None = None,
    tags: Sequence[str] | None = None,
    reader: str = "",
) -> dict[str, Sentences]:
    """Return language → predictions for its test sentences, sorted by ID.

    Args:
        tables: prediction rows of each hop.
        alignment: cache of row positions, for runs on the same sentences.
        tags: names of the tag ids, to compute ``tag_macro``; None for micro F1 over spans.
        reader: see `MetricsOfKeys`.
    """
    alignment, hops = alignment or Alignment(), []
    for table in tables:
        rows = _Rows.of_table(table, tags, reader)
        hops.append({language: rows.cell(ids, chosen) for language, (ids, chosen) in alignment.rows(table).items()})
    sentences = {}
    for language in dict.fromkeys(chain.from_iterable(hops)):
        cells = [hop[language] for hop in hops if language in hop]
        first = cells[0]
        same = (c.ids is first.ids or np.array_equal(c.ids, first.ids) for c in cells)
        if len(cells) < len(hops) or not all(same) or not all(np.array_equal(c.gold, first.gold) for c in cells):
            raise ValueError(f"hops were tested on different sentences of {language}")
        spans = _joined([c.spans for c in cells])
        sentences[language] = replace(
            first,
            predicted=_joined([c.predicted for c in cells]),
            spans=None if spans is None else tuple(spans),
            tags=_joined([first.tags, *(None if c.tags is None else c.tags[:, 1:] for c in cells[1:])]),
            log2_gold=_joined([c.log2_gold for c in cells]),
            answers=_joined([c.answers for c in cells]),
            columns={name: _joined([c.columns[name] for c in cells]) for name in first.columns},
        )
    return sentences


def _joined(parts: Sequence[Any]) -> Any:
    return None if any(part is None for part in parts) else np.concatenate(parts, axis=-1)


def with_metrics(sentences: Mapping[str, Sentences], metrics: MetricsOfKeys) -> dict[str, Sentences]:
    """Set what `Sentences` of each key have from the run: `Sentences.metrics` only if keys have several tasks."""
    named = {key: replace(of_key, key=key, reader=metrics.reader) for key, of_key in sentences.items()}
    return {
        key: replace(of_key, metrics=metrics.by_key.get(key, ()), grouped=metrics.groups(key))
        for key, of_key in named.items()
    }


def of_hop(table: pa.Table, metrics: MetricsOfKeys, tags: Sequence[str] | None = None) -> Scores:
    """Return language → metric → score of one hop's prediction rows on the test split; ``tags`` as in `of_hops`."""
    sentences = with_metrics(of_hops([table], tags=tags, reader=metrics.reader), metrics)
    return {key: _by_metric(of_key, metrics.of(key)) for key, of_key in sentences.items()}


def of_points(
    table: pa.Table, metrics: MetricsOfKeys, tags: Sequence[str] | None = None
) -> dict[int, dict[str, Scores]]:
    """Return step → split → language → metric → score of the evaluation points inside one hop."""
    rows, steps = _Rows.of_table(table, tags, metrics.reader), table["step"].to_numpy()
    splits, languages, ids = (table[name].cast("string").to_numpy().astype(str) for name in COLUMNS[:3])
    scores: dict[int, dict[str, Scores]] = {}
    for step in np.unique(steps):
        for split in np.unique(splits[steps == step]):
            inside = (steps == step) & (splits == split)
            for language in map(str, np.unique(languages[inside])):
                chosen = np.flatnonzero(inside & (languages == language))
                cell = with_metrics({language: rows.cell(ids[chosen], chosen)}, metrics)[language]
                by_language = scores.setdefault(int(step), {}).setdefault(str(split), {})
                by_language[language] = _by_metric(cell, metrics.of(language))
    return scores


def of_split(
    columns: Mapping[str, Sequence[Any]],
    metrics: Sequence[Metric],
    tags: Sequence[str] | None = None,
    reader: str = "",
) -> dict[str, float]:
    """Return metric → score on one split of one language, from columns of predictions.

    Args:
        metrics: metrics of the language. If the first is `KEY_SCORE`, the others are the metrics of the key's task.
        tags, reader: see `of_hops`.
    """
    import pyarrow as pa

    types = dict.fromkeys(COLUMNS[3:], pa.int64()) | dict.fromkeys(TAG_COLUMNS, pa.list_(pa.int64()))
    own = {name: arrow_type(column) for name, column in OWN.items() if name in columns and name not in SPECIAL}
    types |= own
    names = [name for name in (*COLUMNS, *TAG_COLUMNS, *ANSWER_COLUMNS, *own) if name in columns]
    table = pa.table({name: pa.array(columns[name], types.get(name)) for name in names})
    ids = np.asarray(columns["example_id"])
    sentences = _Rows.of_table(table, tags, reader).cell(ids, np.arange(len(ids)))
    sentences = replace(sentences, key=str(next(iter(columns.get("language", ())), "")), reader=reader)
    if metrics[0].of is Scored.keys:
        sentences = replace(sentences, metrics=tuple(metrics[1:]))
    return _by_metric(sentences, metrics)


def _by_metric(sentences: Sentences, metrics: Iterable[Metric]) -> dict[str, float]:
    return {metric.name: float(sentences.scores(metric)[0]) for metric in metrics}


@dataclass(frozen=True)
class _Rows:
    """Prediction rows as arrays.

    ``tags``: gold and predicted tag of each word; ``ends``: index after the last word of each sentence. A tag id is the
    rank of its name, which fixes the order of summation in macro F1; all unseen tags share the id of `UNSEEN`.
    """

    gold: np.ndarray
    predicted: np.ndarray
    spans: tuple[np.ndarray, ...] | None
    log2_gold: np.ndarray | None
    answers: np.ndarray | None
    texts: np.ndarray | None
    tags: np.ndarray | None = None
    ends: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def of_table(cls, table: pa.Table, names: Sequence[str] | None, reader: str) -> _Rows:
        import pyarrow.compute as pc

        def filled(name: str, missing: float = -1) -> np.ndarray:
            # With −1, an example without a label counts as wrong, like an example with an unseen label.
            column = table[name]
            return np.asarray((pc.fill_null(column, missing) if column.null_count else column).to_numpy())

        rows = cls(
            filled("gold"),
            filled("predicted"),
            None if table["tp"].null_count else (filled("tp"), filled("fp"), filled("fn")),
            filled(BELIEF_COLUMNS[0], np.nan) if BELIEF_COLUMNS[0] in table.column_names else None,
            _likeness(table, reader) if ANSWER_COLUMNS[0] in table.column_names else None,
            filled(TEXT_COLUMN) if TEXT_COLUMN in table.column_names else None,
            columns={name: values_of(table[name]) for name in table.column_names if name in OWN.keys() - SPECIAL},
        )
        if names is None or table["gold_tags"].null_count:
            return rows
        gold, predicted = (pc.list_flatten(table[name]).to_numpy() for name in TAG_COLUMNS)
        # The id −1, an unseen tag, indexes the last name: UNSEEN.
        rank = np.argsort(np.argsort(np.array([*names, UNSEEN]), kind="stable"))
        tags = rank[np.stack([gold, predicted], axis=1)].astype(np.int16)
        return replace(rows, tags=tags, ends=np.cumsum(pc.list_value_length(table["gold_tags"]).to_numpy()))

    def cell(self, ids: np.ndarray, rows: np.ndarray) -> Sentences:
        """Return the predictions of one cell, from the rows at the indices ``rows`` with the sentence IDs ``ids``."""
        # Keys without questions or pairs have no texts.
        texts = None if self.texts is None or (self.texts[rows] < 0).all() else self.texts[rows]
        tags = lengths = None
        if self.tags is not None and self.ends is not None:
            lengths = np.diff(self.ends, prepend=0)[rows]
            words = np.repeat(self.ends[rows] - np.cumsum(lengths), lengths) + np.arange(lengths.sum())
            tags = self.tags[words]
        return Sentences(
            ids,
            self.gold[rows],
            self.predicted[rows, np.newaxis],
            None if self.spans is None else tuple(column[rows, np.newaxis] for column in self.spans),
            tags,
            None if self.log2_gold is None else self.log2_gold[rows, np.newaxis],
            None if self.answers is None else self.answers[:, rows, np.newaxis],
            texts,
            lengths,
            columns={name: column[rows, np.newaxis] for name, column in self.columns.items()},
        )


def values_of(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return the values of a column as float64, with NaN for nulls; as objects if they are no numbers."""
    import pyarrow as pa

    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.cast(pa.float64()).to_numpy(zero_copy_only=False))
    values = np.empty(len(column), object)
    for i, value in enumerate(column.to_pylist()):
        values[i] = value
    return values


def _likeness(table: pa.Table, reader: str) -> np.ndarray:
    """Return F1 and exact match of each row, shape (2, rows) float32; NaN without an answer."""
    rules: dict[str, str] = {}
    scores = []
    for key, answer, gold in zip(*(table[name].to_pylist() for name in ("language", *ANSWER_COLUMNS)), strict=True):
        if answer is None or gold is None:
            scores.append([np.nan] * len(LIKENESS))
            continue
        rule = rules.setdefault(key, answers.rule_of(key, reader))
        scores.append([answers.best(score, answer, gold, rule) for score in LIKENESS.values()])
    return np.array(scores, np.float32).reshape(-1, len(LIKENESS)).T


def selection_score(scores: dict[str, dict[str, float]]) -> float:
    """Return the score that selects the best epoch: the mean over each language's metrics, then over languages.

    Higher is better: scores of metrics of which lower is better are negated. ``scores``: language → metric → dev score.
    """
    by_key = [
        [BY_NAME[name].goodness(value) for name, value in metrics.items() if name != KEY_SCORE.name]
        for metrics in scores.values()
    ]
    return math.fsum(value / len(values) for values in by_key for value in values) / len(by_key)
