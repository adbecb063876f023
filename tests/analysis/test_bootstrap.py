from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.conftest import some
from xclrun.analysis.bootstrap import (
    basic,
    bca,
    bias,
    centred,
    draws,
    paired_p_value,
    percentile,
    standard_error_of_mean,
)
from xclrun.scores.base_scores import Counts


def span_counts(rng: np.random.Generator, *shape: int) -> tuple[np.ndarray, ...]:
    return tuple(rng.integers(0, 4, size=shape) for _ in range(3))


@pytest.mark.parametrize("size", [20, 50, None])
def test_resamples_equal_scoring_the_drawn_sentences_one_by_one(size: int | None) -> None:
    rng = np.random.default_rng(0)
    right, (tp, fp, fn) = rng.integers(0, 2, (30, 5)), span_counts(rng, 30, 5)
    drawn = draws(30, seed=7, language="de", resamples=20, size=size)
    assert drawn.sum(axis=1).tolist() == [20 if size == 20 else 30] * 20
    accuracy, micro = (of.resampled(drawn) for of in (Counts.of_accuracy(right), Counts.of_f1(tp, fp, fn)))
    for b, counts in enumerate(drawn.astype(int)):
        sentences = np.repeat(np.arange(30), counts)
        np.testing.assert_allclose(accuracy[b], right[sentences].mean(axis=0), rtol=1e-12)
        expected = 2 * tp[sentences].sum(0) / sum((2 * tp + fp + fn)[sentences])
        np.testing.assert_allclose(micro[b], expected, rtol=1e-12)


def test_span_f1_of_resamples_equals_seqeval() -> None:
    from seqeval.metrics import f1_score

    from xclrun.scores.spans import span_counts as count

    rng = np.random.default_rng(1)
    names = np.array(["O", "B-a", "I-a", "B-b", "I-b"])
    gold, result = ([names[rng.integers(0, 5, 8)].tolist() for _ in range(25)] for _ in range(2))
    tp, fp, fn = np.array([count(g, p) for g, p in zip(gold, result, strict=True)]).T[:, :, np.newaxis]
    drawn = draws(25, 0, "en", resamples=10, size=None)
    scores = Counts.of_f1(tp, fp, fn).resampled(drawn)[:, 0]
    for score, counts in some(zip(scores, drawn.astype(int), strict=True)):
        chosen = np.repeat(np.arange(25), counts)
        assert score == pytest.approx(f1_score([gold[i] for i in chosen], [result[i] for i in chosen]), abs=1e-12)


def test_the_draws_of_a_language_are_the_same_for_all_and_uniform() -> None:
    assert np.array_equal(draws(40, 1, "de"), draws(40, 1, "de"))
    for other in (draws(40, 2, "de"), draws(40, 1, "fr")):
        assert not np.array_equal(draws(40, 1, "de"), other)
    per_sentence = draws(40, 1, "de").sum(axis=0)
    assert stats.chisquare(per_sentence).pvalue > 0.001


def test_jackknife_leaves_out_one_sentence() -> None:
    rng = np.random.default_rng(2)
    counts = Counts.of_f1(*span_counts(rng, 12, 3))
    for k, left in enumerate(some(counts.jackknife())):
        keep = np.arange(12) != k
        np.testing.assert_allclose(left, Counts(counts.statistics[keep], counts.score).scores(), rtol=1e-6)


def test_percentile_basic_and_bca_equal_scipy() -> None:
    rng = np.random.default_rng(3)
    sample = rng.exponential(size=80)
    left = (sample.sum() - sample) / 79
    for method in ("percentile", "basic", "BCa"):
        theirs = stats.bootstrap((sample,), np.mean, n_resamples=999, method=method, random_state=rng)
        of, value = theirs.bootstrap_distribution, sample.mean()
        ours = {"percentile": percentile(of), "basic": basic(of, value), "BCa": bca(of, value, [left])}[method]
        assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), rel=1e-9)


def test_bca_of_several_samples_equals_scipy() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.exponential(size=60), rng.gamma(2.0, size=40)

    def difference(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
        return x.mean(axis=axis) - y.mean(axis=axis)

    theirs = stats.bootstrap((a, b), difference, n_resamples=999, method="BCa", random_state=rng)
    left = [(a.sum() - a) / 59 - b.mean(), a.mean() - (b.sum() - b) / 39]
    ours = bca(theirs.bootstrap_distribution, a.mean() - b.mean(), left)
    assert (ours.low, ours.high) == pytest.approx(tuple(theirs.confidence_interval), rel=1e-9)


def test_where_bca_cannot_be_computed_it_says_so_and_is_no_other_kind() -> None:
    same = bca(np.full(50, 0.5), 0.5, [np.full(10, 0.5)])
    above = bca(np.linspace(1, 2, 50), 0.5, [np.linspace(0, 1, 10)])
    for result, reason in ((same, "that differ"), (above, "on both sides of the value; all lie above it")):
        assert np.isnan([result.low, result.high]).all()
        assert reason in result.reason


def test_the_centred_interval_lies_around_the_value_as_wide_as_the_percentile_interval() -> None:
    values = np.random.default_rng(7).gamma(2.0, size=500)
    value = values.min() - 1  # all resamples lie above it, as those of a maximum may
    result, plain = centred(values, value), percentile(values)
    assert result.low < value < result.high
    assert result.high - result.low == pytest.approx(plain.high - plain.low)
    assert bias(values, value) == pytest.approx(plain.low - result.low) == pytest.approx(values.mean() - value)
    without = centred(values, values.mean())
    assert (without.low, without.high) == pytest.approx((plain.low, plain.high))


def test_the_papers_form_shrinks_with_resamples_and_says_what_it_is() -> None:
    rng = np.random.default_rng(5)
    few, many = rng.normal(0.9, 0.01, 100), rng.normal(0.9, 0.01, 10000)
    expected = stats.t.interval(0.95, 99, few.mean(), stats.sem(few))
    result = standard_error_of_mean(few)
    assert (result.low, result.high) == pytest.approx(expected)
    wide = percentile(many)
    narrow = standard_error_of_mean(many)
    assert narrow.high - narrow.low < 0.03 * (wide.high - wide.low)


def test_paired_p_values() -> None:
    assert paired_p_value(np.r_[np.ones(998), 2]) == pytest.approx(0.002)
    # Rounding errors are ties, and count half on each side.
    assert paired_p_value(np.r_[np.full(500, 1e-15), 0.5]) == paired_p_value(np.r_[np.zeros(500), 0.5])
    assert math.isnan(paired_p_value(np.full(999, 0.3) + np.linspace(0, 1e-14, 999)))
    assert paired_p_value(np.linspace(-1, 1, 1000)) == 1.0
    rng = np.random.default_rng(9)
    under_null = [paired_p_value(rng.normal(rng.normal(), 1, 400)) for _ in range(2000)]
    assert 0.03 < np.mean(np.array(under_null) < 0.05) < 0.07


def test_intervals_contain_the_truth_as_often_as_they_say() -> None:
    """Micro F1 of a known population, whose sentences are drawn anew for each trial."""
    rng = np.random.default_rng(11)
    trials, n = 500, 300
    # Expected TP, FP, FN per sentence, through a quality that differs between sentences.
    truth_of = {"tp": 1.5, "fp": 0.3, "fn": 0.4}
    truth = 2 * truth_of["tp"] / (2 * truth_of["tp"] + truth_of["fp"] + truth_of["fn"])
    hits = np.zeros(4)
    drawn = draws(n, 0, "en", resamples=300, size=None)
    for _ in range(trials):
        tp, fp, fn = (rng.poisson(mean, size=(n, 1)) for mean in truth_of.values())
        counts = Counts.of_f1(tp, fp, fn)
        values, value = counts.resampled(drawn)[:, 0], counts.scores()[0]
        result = basic(values, value), centred(values, value), percentile(values), bca(values, value, [
            counts.jackknife()[:, 0]
        ])  # fmt: skip
        hits += [interval.low <= truth <= interval.high for interval in result]
    assert ((hits / trials > 0.925) & (hits / trials < 0.975)).all(), hits / trials
