"""The contract of metrics: scores follow from sums over sentences, so the bootstrap can resample sentences.

By default, a metric is tested with made-up predictions of two classes, spans, answers and texts.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from xclrun.core.task import BY_NAME, Metric, check_metric_names
from xclrun.scores.base_scores import Sentences
from xclrun.testing.suite import Check, bound, expect, expect_equal, run_all

GROUPS = 20  # groups of statements
GROUP = 3  # statements of a group, of which one is true
CELLS = 4


@dataclass(frozen=True)
class MetricCase:
    """A metric under test.

    Attributes:
        sentences: predictions of several cells.
        correct: as ``sentences``, with correct predictions in all cells.
    """

    metric: Metric
    sentences: Sentences
    correct: Sentences

    def statistics(self, sentences: Sentences | None = None) -> np.ndarray:
        """Return the statistics of sentences, shape (S, cells, k)."""
        chosen = self.sentences if sentences is None else sentences
        return np.asarray(chosen.counts(self.metric).statistics)


def example_sentences() -> tuple[Sentences, Sentences]:
    """Return made-up predictions, and correct predictions for the same sentences."""
    numbers, size = np.random.default_rng(11), GROUPS * GROUP
    gold = np.tile([1, 0, 0], GROUPS)
    predicted = np.where(numbers.uniform(size=(size, CELLS)) < 0.3, 1 - gold[:, None], gold[:, None])
    predicted[:, 0] = 1 - gold
    log2_gold = np.log2(numbers.uniform(0.5, 0.99, size=(size, CELLS)))
    log2_gold = np.where(predicted == gold[:, None], log2_gold, np.log2(1 - 2**log2_gold))
    wrong = predicted != gold[:, None]
    spans = (2 - wrong, 1 * wrong, 1 * wrong)
    likeness = np.stack([np.where(wrong, 0.4, 1.0), ~wrong])
    ids = np.array([f"text-{i}#{j}" for i in range(GROUPS) for j in range(GROUP)])
    right, texts = np.zeros_like(wrong), _texts(wrong, gold)
    sentences = Sentences(ids, gold, predicted, spans, None, log2_gold, likeness, columns=texts)
    correct = replace(
        sentences,
        predicted=np.broadcast_to(gold[:, None], predicted.shape).copy(),
        spans=(2 - right, 1 * right, 1 * right),
        log2_gold=np.where(right, 0.0, -1e-3),
        answers=np.ones_like(likeness),
        columns=_texts(right, gold),
    )
    return sentences, correct


def _texts(wrong: np.ndarray, gold: np.ndarray) -> dict[str, np.ndarray]:
    """Return columns of generated texts (`xclrun.scores.generated`), each of shape (S, cells)."""

    def objects(value: Any) -> np.ndarray:
        column = np.empty(wrong.shape, object)
        for row, cell in np.ndindex(wrong.shape):
            column[row, cell] = value(row, bool(wrong[row, cell]))
        return column

    texts = [f"the weather in city {row} is fine" for row in range(len(wrong))]
    log2 = np.array([[-30.0, -20.0], [-20.0, -30.0]])
    return {
        "generated": objects(lambda row, missed: f"rain in {row}" if missed else texts[row]),
        "ended": 1.0 - wrong,
        "references": objects(lambda row, _: [texts[row], f"fine weather in city {row}"]),
        "log2_reference": np.where(wrong, -50.0, -1.0),
        "reference_bytes": np.array([[len(text.encode())] * wrong.shape[1] for text in texts], float),
        "reference_pieces": np.full(wrong.shape, 7.0),
        "choices": objects(lambda row, _: ["rain", "fine"]),
        "choice_log2": objects(lambda row, missed: log2[gold[row] if missed else 1 - gold[row]].tolist()),
        "right_choice": objects(lambda row, _: int(gold[row])),
    }


def _mapped(sentences: Sentences, function: Any) -> Sentences:
    """Apply a function of (name, array) to the arrays of sentences."""
    changed: dict[str, Any] = {}
    for field in fields(sentences):
        value = getattr(sentences, field.name)
        if isinstance(value, np.ndarray):
            changed[field.name] = function(field.name, value)
        elif field.name == "spans" and value is not None:
            changed[field.name] = tuple(function("spans", part) for part in value)
        elif field.name == "columns":
            changed[field.name] = {name: function("columns", column) for name, column in value.items()}
    return replace(sentences, **changed)


def _in_order(sentences: Sentences, order: np.ndarray) -> Sentences:
    return _mapped(sentences, lambda name, array: array[:, order] if name == "answers" else array[order])


def _one_cell(sentences: Sentences, cell: int) -> Sentences:
    per_sentence = ("ids", "gold", "texts", "lengths")
    return _mapped(sentences, lambda name, array: array if name in per_sentence else array[..., cell : cell + 1])


def has_usable_names(case: MetricCase) -> None:
    """``name`` and ``short`` can be names of files and curves, and ``title`` describes the metric."""
    check_metric_names(case.metric)
    expect(case.metric.title.strip(), "an empty title")


def counts_every_sentence(case: MetricCase) -> None:
    """``statistics`` has the shape (sentences, cells, k), and all values are finite."""
    found = case.statistics()
    expect_equal(found.shape[:2], case.sentences.predicted.shape, "first two dimensions")
    expect_equal(found.ndim, 3, "number of dimensions")
    expect(np.isfinite(found).all(), f"{int((~np.isfinite(found)).sum())} values that are not finite")


def counts_cells_separately(case: MetricCase) -> None:
    """The statistics of a cell (the model after a hop) do not depend on the other cells."""
    together = case.statistics()
    for cell in range(together.shape[1]):
        alone = case.statistics(_one_cell(case.sentences, cell))
        expect(np.array_equal(alone[:, 0], together[:, cell]), f"other statistics of cell {cell} alone")


def ignores_the_order_of_sentences(case: MetricCase) -> None:
    """Sentences in another order have the same statistics in that order."""
    order = np.random.default_rng(5).permutation(len(case.sentences.ids))
    found = case.statistics(_in_order(case.sentences, order))
    expect(np.array_equal(found, case.statistics()[order]), "other statistics")


def changes_nothing(case: MetricCase) -> None:
    """Computing a metric twice gives equal values, and changes neither its input nor a global random generator."""
    before = _mapped(case.sentences, lambda name, array: array.copy())
    generator = repr(np.random.get_state())  # noqa: NPY002
    expect(np.array_equal(case.statistics(), case.statistics()), "other statistics in the second computation")
    expect(repr(np.random.get_state()) == generator, "a global generator was used")  # noqa: NPY002
    for field in fields(before):
        pairs = [np.asarray(getattr(s, field.name), dtype=object) for s in (before, case.sentences)]
        expect(repr(pairs[0].tolist()) == repr(pairs[1].tolist()), f"a changed {field.name}")


def scores_sums_of_any_shape(case: MetricCase) -> None:
    """``score`` maps sums of shape (…, k) to scores of shape (…), each as if it were alone."""
    drawn = np.random.default_rng(3).integers(0, 3, size=(5, len(case.sentences.ids)))
    statistics = case.statistics()
    sums = np.einsum("rs,sck->rck", drawn, statistics.astype(float))
    found = np.asarray(case.metric.scores(sums))
    expect_equal(found.shape, sums.shape[:2], "shape")
    alone = [[float(case.metric.scores(cell)) for cell in sample] for sample in sums]
    expect(np.allclose(found, alone, rtol=1e-12, equal_nan=True), "other scores of each sum alone")


def scores_are_in_bounds(case: MetricCase) -> None:
    """Scores with the unit ``%`` are fractions from 0 to 1."""
    for sentences in (case.sentences, case.correct):
        scores = sentences.scores(case.metric)
        if case.metric.unit == "%":
            expect(np.all(np.isnan(scores) | ((scores >= 0) & (scores <= 1))), f"scores {scores.tolist()}")


def prefers_correct_predictions(case: MetricCase) -> None:
    """Correct predictions are at least as good as others, in the direction ``higher_is_better``."""
    good, others = (case.metric.goodness(s.scores(case.metric)) for s in (case.correct, case.sentences))
    expect(
        np.nanmin(good) >= np.nanmax(others) - 1e-12, f"goodness {good.max():.4g} of correct ones, {others.max():.4g}"
    )


def is_defined_or_nan_without_data(case: MetricCase) -> None:
    """Sums of 0, as of a test set without the sentences that count, give NaN or a number, without a warning."""
    sums = np.zeros((2, case.statistics().shape[-1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expect_equal(np.asarray(case.metric.scores(sums)).shape, (2,), "shape")


METRIC_CONTRACT = (
    has_usable_names,
    counts_every_sentence,
    counts_cells_separately,
    ignores_the_order_of_sentences,
    changes_nothing,
    scores_sums_of_any_shape,
    scores_are_in_bounds,
    prefers_correct_predictions,
    is_defined_or_nan_without_data,
)


def metric_checks(
    metric: Metric | str, sentences: Sentences | None = None, correct: Sentences | None = None
) -> list[Check]:
    """Return the checks of a metric, or of a registered metric's name, for ``pytest.mark.parametrize``.

    Args:
        sentences: predictions of several cells; None: made-up predictions (`example_sentences`).
        correct: correct predictions for the same sentences, in all cells.
    """
    found = BY_NAME[metric] if isinstance(metric, str) else metric
    made_up = example_sentences()
    return bound(
        f"metric '{found.name}'", METRIC_CONTRACT, MetricCase(found, sentences or made_up[0], correct or made_up[1])
    )


def check_metric(metric: Metric | str, sentences: Sentences | None = None, correct: Sentences | None = None) -> None:
    """Run `metric_checks`.

    Raises:
        ContractError: a line per failed check.
    """
    run_all(metric_checks(metric, sentences, correct))
