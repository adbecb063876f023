"""The paired bootstrap between two runs, against the textbook standard error of a paired difference."""

from __future__ import annotations

import numpy as np
import pytest

from xclrun.analysis.paired import cell, paired_difference
from xclrun.core.task import STATEMENT_ACCURACY, f1
from xclrun.scores.base_scores import Counts, Sentences


def right(*numbers: int, of: int) -> Counts:
    """Sentences of which those with these numbers are right."""
    return Counts.of_accuracy(np.isin(np.arange(of), numbers)[:, np.newaxis])


def test_the_interval_is_that_of_a_paired_difference() -> None:
    one = {"en": right(*range(60), of=100), "de": right(*range(50), of=400)}
    other = {"en": right(*range(5, 75), of=100), "de": right(*range(20, 90), of=400)}
    result = paired_difference(one, other)
    # Languages count alike, however many sentences they have.
    assert result.value == pytest.approx((10 / 100 + 20 / 400) / 2)
    assert result.sentences == 500
    assert 0 < abs(result.bias) < 0.002  # a difference of means has none but that of the resamples drawn
    # Of a difference d of +1, 0 and −1: its variance by hand, language by language.
    en = (20 / 100 - 0.1**2) / 100
    de = (60 / 400 - 0.05**2) / 400
    error = np.sqrt(en + de) / 2
    assert result.interval.high - result.interval.low == pytest.approx(2 * 1.96 * error, rel=0.06)
    assert result.interval.low < result.value < result.interval.high
    # Two-sided normal p of value / error = 3.1.
    assert 0.0005 < result.p < 0.006
    # The other way round it is the same difference.
    back = paired_difference(other, one)
    assert (back.value, back.p) == (-result.value, result.p)
    assert back.interval.low == pytest.approx(-result.interval.high)


def test_the_interval_is_basic_and_not_percentile() -> None:
    """Skewed resamples: one right answer more, of a score that few sentences have. The interval is mirrored."""
    one, other = {"en": right(of=40)}, {"en": right(0, of=40)}
    result = paired_difference(one, other)
    # Resamples hold the sentence 0, 1, 2, 3 … times (about Poisson): the percentile interval is [0, 3 / 40].
    assert result.interval.high == pytest.approx(2 / 40)
    assert result.interval.low == pytest.approx(-1 / 40)


def test_languages_are_drawn_independently() -> None:
    """Two languages with the same answers: their mean varies less than that of one language, by √2."""
    one, other = right(*range(60), of=100), right(*range(5, 75), of=100)
    single = paired_difference({"en": one}, {"en": other}).interval
    both = paired_difference({"en": one, "de": one}, {"en": other, "de": other}).interval
    assert (both.high - both.low) / (single.high - single.low) == pytest.approx(1 / np.sqrt(2), rel=0.08)


def test_p_and_the_interval_are_one_procedure() -> None:
    """Runs whose difference is near the edge of the 5 % level: each of the two says what the other says."""
    output = []
    for more in range(3, 16):
        one = {"en": right(*range(9), of=60), "de": right(*range(3), of=25)}
        other = {"en": right(*range(4, 9 + more), of=60), "de": right(*range(1, 4 + more % 3), of=25)}
        result = paired_difference(one, other)
        assert (result.p <= 0.05) == (not result.interval.low <= 0 <= result.interval.high), (more, result)
        output.append(result.p)
    assert sum(0.01 < p < 0.05 for p in output) > 1 < sum(0.05 < p < 0.2 for p in output)


def test_runs_that_are_right_on_the_same_sentences_are_alike() -> None:
    one = {"en": right(1, 2, 3, of=10)}
    result = paired_difference(one, one)
    assert (result.value, result.interval.reason) == (0, "all resamples are equal")
    assert np.isnan([result.interval.low, result.interval.high, result.p]).all()
    with pytest.raises(ValueError, match="different sentences"):
        paired_difference(one, {"en": right(1, of=11)})
    with pytest.raises(ValueError, match="different sentences"):
        paired_difference(one, {"de": right(1, of=10)})


def test_statements_about_one_text_are_drawn_together() -> None:
    ids = np.array([f"text{i}#{k}" for i in range(200) for k in (0, 1)])
    gold = np.tile([1, 0], 200)

    def counts(output: np.ndarray) -> dict[str, Counts]:
        return {"en": cell(Sentences(ids, gold, output[:, np.newaxis], grouped=True), STATEMENT_ACCURACY, 0)}

    # One is right about both statements of every text, the other wrong about both of 40.
    result = paired_difference(counts(gold), counts(np.where(np.arange(400) < 80, 1 - gold, gold)))
    assert result.value == pytest.approx(-0.2)
    assert result.sentences == 200
    assert result.interval.high - result.interval.low == pytest.approx(2 * 1.96 * np.sqrt(0.2 * 0.8 / 200), rel=0.06)
    # True of everything or false of everything: right about one of two, whatever is drawn.
    same = paired_difference(counts(np.ones_like(gold)), counts(np.zeros_like(gold)))
    assert (same.value, same.interval.reason) == (0, "all resamples are equal")


def test_runs_scored_in_different_ways_are_not_compared() -> None:
    """Macro F1 over tags has two statistics for each tag, micro F1 has two."""
    micro, hits = right(0, of=4), np.array([[2.0, 0], [0, 2], [0, 0], [2, 0]])
    macro = Counts(np.stack([hits, np.full((4, 2), 2.0)], axis=-1).reshape(4, 1, 4), f1)
    assert paired_difference({"en": macro}, {"en": macro}).value == 0
    with pytest.raises(ValueError, match="ways"):
        paired_difference({"en": micro}, {"en": macro})
