"""Scores of statements, by hand and against scikit-learn: rates, F1 of true, choices between statements, the floor."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score

from xclrun.core.task import BESIDE_STATEMENTS, BY_NAME, STATEMENT_TRUTH, MetricsOfKeys, described, restored
from xclrun.scores.base_scores import Sentences, of_points

from .test_base_scores import row, rows_of


def scored(gold: list[int], called: list[int], name: str, ids: list[str] | None = None) -> float:
    ids = ids or [f"{i}#0" for i in range(len(gold))]
    probability = np.where(np.array(gold) == np.array(called), 0.9, 0.1)[:, np.newaxis]
    them = Sentences(np.array(ids), np.array(gold), np.array(called)[:, np.newaxis], log2_gold=np.log2(probability))
    return float(them.scores(BY_NAME[name])[0])


def test_rates_and_f1_are_those_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    gold, called = rng.integers(0, 2, 200).tolist(), rng.integers(0, 2, 200).tolist()
    assert scored(gold, called, "true_f1") == pytest.approx(f1_score(gold, called))
    assert scored(gold, called, "true_rate") == pytest.approx(recall_score(gold, called))
    assert scored(gold, called, "false_rate") == pytest.approx(recall_score(gold, called, pos_label=0))
    assert scored(gold, called, "balanced_accuracy") == pytest.approx(balanced_accuracy_score(gold, called))


def test_a_constant_answer_scores_the_share_of_the_more_frequent_class() -> None:
    # Whatever the model says: three false statements for each true one, and more true ones than false.
    for gold, floor in (([1, 0, 0, 0] * 5, 0.75), ([1, 1, 0], 2 / 3), ([1, 0], 0.5)):
        for called in (gold, [0] * len(gold), [1] * len(gold)):
            assert scored(gold, called, "constant_accuracy") == pytest.approx(floor)


def test_a_rate_of_a_class_that_is_not_there_is_not_known() -> None:
    assert math.isnan(scored([0, 0], [0, 1], "true_rate"))
    assert math.isnan(scored([0, 0], [0, 1], "balanced_accuracy"))
    assert scored([0, 0], [0, 1], "false_rate") == 0.5


def statements(ids: list[str], gold: np.ndarray, log2_gold: np.ndarray) -> Sentences:
    return Sentences(np.array(ids), gold, np.zeros_like(log2_gold, dtype=int), log2_gold=log2_gold)


def chosen(beliefs: dict[str, tuple[int, float]]) -> tuple[list[float], list[float]]:
    """Statement → truth and P(true); return whether it was chosen, and whether it could be."""
    gold = np.array([truth for truth, _ in beliefs.values()])
    p_true = np.array([p for _, p in beliefs.values()])
    log2_gold = np.log2(np.where(gold == 1, p_true, 1 - p_true)).astype(np.float32)
    hits, totals = statements(list(beliefs), gold, log2_gold[:, np.newaxis]).choices()[:, 0].T.tolist()
    return hits, totals


def test_the_choice_is_between_the_statements_of_one_example() -> None:
    hits, totals = chosen({
        "a#0": (1, 0.3), "a#1": (0, 0.2), "a#2": (0, 0.1),  # all are called false, and the true one is chosen
        "b#1": (0, 0.9), "b#0": (1, 0.8),  # both are called true, and the wrong one is chosen
        "c/1#0": (1, 0.5), "c/1#1": (0, 0.5), "c/1#2": (0, 0.5), "c/1#3": (0, 0.1),  # three are equal
        "d#0": (1, 0.9),  # no choice
        "e#0": (0, 0.9), "e#1": (0, 0.1),  # no true one
        "f#0": (1, 0.9), "f#1": (1, 0.1),  # two true ones
    })  # fmt: skip
    assert hits == pytest.approx([1, 0, 0, 0, 0, 1 / 3, *[0] * 8])
    assert totals == [1, 0, 0, 0, 1, 1, *[0] * 8]


def test_near_certainty_is_compared_as_far_as_log_probabilities_tell() -> None:
    # Both would be 1.0 as float32.
    assert chosen({"a#0": (1, 1 - 1e-4), "a#1": (0, 1 - 3e-5)})[0] == [0, 0]
    assert chosen({"a#0": (1, 1 - 3e-5), "a#1": (0, 1 - 1e-4)})[0] == [1, 0]
    # A model that is certain of everything has chosen nothing: log2 p of the true statement is 0, of the false one −40.
    hits = statements(["a#0", "a#1"], np.array([1, 0]), np.array([[0.0], [-40.0]])).choices()[..., 0]
    assert hits[:, 0].tolist() == [0.5, 0]


def test_choice_accuracy_is_the_mean_over_examples() -> None:
    ids = ["a#0", "a#1", "b#0", "b#1", "c#0"]
    assert scored([1, 0, 1, 0, 1], [1, 0, 0, 1, 1], "choice_accuracy", ids) == 0.5
    assert math.isnan(scored([1, 1], [1, 0], "choice_accuracy"))


def test_points_have_all_scores_of_statements() -> None:
    made = [row("pos", f"x#{k}", (int(k == 0), 0), None) | {"log2_gold": -0.5} for k in range(4)]
    result = of_points(rows_of(*made), MetricsOfKeys(STATEMENT_TRUTH.measured(tagged=False)))[1]["test"]["pos"]
    assert result["statement_accuracy"] == result["constant_accuracy"] == 0.75
    assert result["true_rate"] == result["true_f1"] == 0
    # P(true): of the true one 0.71, of the others 0.29.
    assert result["choice_accuracy"] == 1
    assert set(result) == {"statement_accuracy", *(metric.name for metric in BESIDE_STATEMENTS)}


def test_scores_beside_do_not_select_and_survive_a_manifest() -> None:
    assert [metric.name for metric in STATEMENT_TRUTH.metrics(tagged=False)] == ["statement_accuracy"]
    content = json.loads(json.dumps(described(STATEMENT_TRUTH)))
    assert restored(content) == STATEMENT_TRUTH
