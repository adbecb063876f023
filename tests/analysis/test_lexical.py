from __future__ import annotations

import math

import numpy as np
import pytest

from xclrun.analysis.fewshot.words import improved_predictions, jaccard, jaccard_matrix, lexical_overlap, presence


def test_overlap_is_a_share_of_the_source() -> None:
    assert lexical_overlap(["a", "b", "b", "c"], ["b", "d"]) == pytest.approx(1 / 3)
    assert lexical_overlap(["a", "b"], []) == 0
    assert math.isnan(lexical_overlap([], ["a"]))


def test_jaccard_is_a_share_of_the_union() -> None:
    assert jaccard("abc", "cd") == pytest.approx(1 / 4)
    assert math.isnan(jaccard([], []))
    found = jaccard_matrix([{"a", "b"}, {"b"}, {"c"}])
    np.testing.assert_allclose(found, [[1, 0.5, 0], [0.5, 1, 0], [0, 0, 1]])


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
