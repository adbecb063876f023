from __future__ import annotations

import math

import numpy as np
import pytest

from xclrun.analysis.fewshot.words import (
    Outcome,
    Words,
    bucket_influence,
    improved_predictions,
    improved_words,
    jaccard,
    jaccards,
    lexical_overlap,
    presence,
)


def test_overlap_is_a_share_of_the_source() -> None:
    assert lexical_overlap(["a", "b", "b", "c"], ["b", "d"]) == pytest.approx(1 / 3)
    assert lexical_overlap(["a", "b"], []) == 0
    assert math.isnan(lexical_overlap([], ["a"]))


def test_jaccard_is_a_share_of_the_union() -> None:
    assert jaccard("abc", "cd") == pytest.approx(1 / 4)
    assert math.isnan(jaccard([], []))
    vocabularies = [Words(frozenset(), frozenset(words), frozenset(), {}) for words in ("ab", "b", "c")]
    assert jaccards({("de", 1): vocabularies, ("fr", 1): vocabularies[:1]}) == {1: {"de": pytest.approx(0.5 / 3)}}


def test_improved_predictions_by_presence_in_the_bucket() -> None:
    bucket = {("run", "VERB"), ("the", "DET")}
    pairs = [("run", "VERB"), ("run", "NOUN"), ("sun", "NOUN"), ("sun", "NOUN"), ("the", "DET")]
    where = presence(pairs, bucket)
    assert where.tolist() == [0, 1, 2, 2, 0]
    before = [False, False, False, True, True]
    after = [True, False, True, False, True]
    # words, wrong before, improved, worsened
    np.testing.assert_array_equal(
        improved_predictions(where, np.array(before), np.array(after)), [[2, 1, 1, 0], [1, 1, 0, 0], [2, 1, 1, 1]]
    )


def test_words_are_improved_where_a_wrong_label_becomes_right() -> None:
    words = Words(frozenset(), frozenset(), frozenset(), {"x": ("a", "b", "a"), "y": ("c", "d", "e")})
    outcome = Outcome(("A", "B"), ("x", "y"), np.array([3, 2]), np.array([0, 0, 0, -1, 1]),
                      before=np.array([1, 0, 0, 1, 1]), after=np.array([0, 0, 1, -1, 0]))  # fmt: skip
    # "a" is improved once and worsened once; the label of "c" is unknown, "d" is worsened, "e" was cut off.
    assert improved_words(outcome, words) == {"a"}


def test_the_influence_of_buckets_is_a_softmax_over_each_row() -> None:
    result = bucket_influence([{"a", "b"}, {"c"}], [{"a", "b"}, {"b", "c"}])
    index = np.array([[1, 1 / 3], [0, 1 / 2]])
    np.testing.assert_allclose(result, 100 * np.exp(index) / np.exp(index).sum(axis=1, keepdims=True))
    np.testing.assert_allclose(result.sum(axis=1), 100)
    assert np.isfinite(bucket_influence([set(), {"a"}], [set(), set()])).all()
