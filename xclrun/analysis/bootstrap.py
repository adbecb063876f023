"""Bootstrap of scores and measures over per-sentence counts. CCL App. C.3; docs/metrics.md, "Bootstrap".

A base score is a ratio of two sums over sentences (`xclrun.scores.base_scores`). Two matrix products, (B, sentences)
· (sentences, cells), therefore give all scores of a language in all B resamples. All cells, orders and strategies share
the draws of a language, so comparisons are paired. Sums of small integers are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.replicates import TIE
from xclrun.core.identity import derive

# As in the CCL paper.
RESAMPLES = 600
SENTENCES = 600

# Kind of interval → its description in tables.
INTERVALS = {
    "centred": "95 % centred interval: the percentile interval shifted by −bias",
    "percentile": "95 % percentile interval; for F, which contains a maximum, it can exclude the value from the data",
    "basic": "95 % basic interval: the percentile interval mirrored at the value; it can exclude the value itself",
    "bca": "95 % BCa interval",
    "paper": "interval of the CCL paper: bootstrap mean ± t·s/√B for each order, averaged over orders; it shows the "
    "standard error of the bootstrap mean and is not a confidence interval for the score",
}

# Measure → its default kind of interval, chosen by simulation (docs/metrics.md).
DEFAULTS = {"F": "centred", "T": "basic", "T0": "centred", "FP": "centred"}


def default_interval(measure: str) -> str:
    return DEFAULTS.get(measure, "centred")


def draws(
    sentences: int, seed: int, language: str, resamples: int = RESAMPLES, size: int | None = SENTENCES
) -> np.ndarray:
    """Draw how often each resample contains each sentence: shape (resamples, sentences), float32.

    Args:
        sentences: size of the test set.
        seed, language: determine the draws.
        size: sentences per resample, at most the size of the test set. None means the size of the test set (``full``).
    """
    rng = np.random.default_rng(derive(seed, "bootstrap", language))
    n = sentences if size is None else min(size, sentences)
    drawn = rng.integers(sentences, size=(resamples, n))
    drawn += sentences * np.arange(resamples)[:, np.newaxis]
    counts = np.bincount(drawn.ravel(), minlength=resamples * sentences)
    return counts.reshape(resamples, sentences).astype(np.float32)


CONFIDENCE = 0.95
# Reason of a missing interval.
NO_SPREAD = "all resamples are equal"
# Tables note smaller test sets.
SMALL = 30


@dataclass(frozen=True)
class Interval:
    """An interval of any kind.

    Attributes:
        reason: why the ends are NaN; otherwise empty.
        kind: name of the kind if it is not the requested one; otherwise empty.
    """

    low: float
    high: float
    reason: str = ""
    kind: str = ""


def bias(values: ArrayLike, observed: float) -> float:
    """Return the mean of the resampled values, shape (resamples,), minus the value from the data."""
    return float(np.asarray(values, dtype=float).mean()) - observed


def centred(values: ArrayLike, observed: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the percentile interval shifted by −bias, which contains the value from the data.

    F contains a maximum over noisy scores, so its value is biased upwards. Resampling adds noise, which biases the
    resamples upwards once more: the percentile interval can lie entirely above the value. Shifting the interval removes
    only this second bias; `basic` also corrects the bias of the value.

    Args:
        values: the statistic in each resample, shape (resamples,).
        observed: the statistic on the whole sample.
    """
    shift, plain = bias(values, observed), percentile(values, confidence)
    return Interval(plain.low - shift, plain.high - shift)


def percentile(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval with the central share ``confidence`` of the resampled values, shape (resamples,)."""
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.asarray(values, dtype=float), [tail, 100 - tail])
    return Interval(float(low), float(high))


def basic(values: ArrayLike, observed: float, confidence: float = CONFIDENCE) -> Interval:
    """Return the percentile interval mirrored at the value from the data (Davison & Hinkley 1997, eq. 5.6).

    This interval corrects the bias of the value, so it can exclude the value itself. Arguments as in `centred`.
    """
    plain = percentile(values, confidence)
    return Interval(2 * observed - plain.high, 2 * observed - plain.low)


def bca(values: ArrayLike, observed: float, jackknife: Sequence[ArrayLike], confidence: float = CONFIDENCE) -> Interval:
    """Return the bias-corrected and accelerated interval (Efron 1987).

    Its ends are NaN if the resamples are equal or all lie on one side of ``observed``. Implemented here because
    scipy's `bootstrap` cannot share resamples between statistics.

    Args:
        values, observed: see `centred`.
        jackknife: for each language's test set, the statistic with each sentence left out in turn.
    """
    from scipy.special import ndtr, ndtri

    resampled = np.asarray(values, dtype=float)
    below = ((resampled < observed).mean() + (resampled <= observed).mean()) / 2
    influence = [(len(j) - 1) * (j.mean() - j) for j in (np.asarray(part, dtype=float) for part in jackknife)]
    cubes = sum((u**3).sum() / len(u) ** 3 for u in influence)
    squares = sum((u**2).sum() / len(u) ** 2 for u in influence)
    if np.ptp(resampled) == 0 or squares <= 0:
        return Interval(np.nan, np.nan, "BCa needs resamples that differ")
    if not 0 < below < 1:
        side = "above" if below == 0 else "below"
        return Interval(np.nan, np.nan, f"BCa needs resamples on both sides of the value; all lie {side} it")
    acceleration = cubes / (6 * squares**1.5)
    correction = ndtri(below)
    tail = (1 - confidence) / 2
    ends = []
    for z in (ndtri(tail), ndtri(1 - tail)):
        shifted = correction + z
        ends.append(ndtr(correction + shifted / (1 - acceleration * shifted)))
    low, high = np.percentile(resampled, 100 * np.array(ends))
    return Interval(float(low), float(high))


def standard_error_of_mean(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """Return the interval of the CCL paper, mean ± t · s / √B: the precision of the bootstrap mean over B resamples.

    s is the standard deviation of the resampled values, t a quantile of the t distribution. The interval shrinks as B
    grows, whatever the size of the test set. So it is not a confidence interval of the score.
    """
    from scipy.special import stdtrit

    resampled = np.asarray(values, dtype=float)
    b = len(resampled)
    half = float(stdtrit(b - 1, 0.5 + confidence / 2)) * resampled.std(ddof=1) / np.sqrt(b)
    return Interval(resampled.mean() - half, resampled.mean() + half)


def mean_of_intervals(intervals: Sequence[Interval]) -> Interval:
    """Average the lower ends and the upper ends of intervals over orders (CCL App. C.3)."""
    low, high = np.mean([(part.low, part.high) for part in intervals], axis=0)
    return Interval(float(low), float(high))


def interval(
    kind: str,
    values: ArrayLike,
    observed: float,
    jackknife: Callable[[], Sequence[ArrayLike]],
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Interval:
    """Compute an interval of any kind except ``paper``, which needs the orders one by one.

    Args:
        kind: ``centred``, ``percentile``, ``basic`` or ``bca``.
        values, observed: see `centred`.
        jackknife: computes the argument ``jackknife`` of `bca`; called only for ``kind="bca"``.
        bounds: smallest and largest possible value, to which the interval is clipped.
    """
    compute = {
        "centred": lambda: centred(values, observed),
        "percentile": lambda: percentile(values),
        "basic": lambda: basic(values, observed),
        "bca": lambda: bca(values, observed, jackknife()),
    }
    computed = compute[kind]()
    low, high = np.clip([computed.low, computed.high], *bounds)
    return Interval(float(low), float(high), computed.reason)


def without_spread(values: ArrayLike) -> bool:
    """Whether all resampled values, shape (resamples,), are equal, so that they give no interval."""
    return bool(np.ptp(np.asarray(values, dtype=float)) <= TIE)


def wilson(value: int, sizes: Sequence[int]) -> Interval:
    """Return Wilson's 95 % interval for the mean of several accuracies that are all 0 or all 1.

    Its number of trials is the one for which a proportion has the variance of this mean: k² / Σ 1/n for k test sets.

    Args:
        value: 0 or 1.
        sizes: number of sentences n of each test set, shape (k,).
    """
    from statsmodels.stats.proportion import proportion_confint

    trials = len(sizes) ** 2 / sum(1 / n for n in sizes)
    low, high = proportion_confint(value * trials, trials, 1 - CONFIDENCE, method="wilson")
    # The value itself is an end, which rounding must not exclude.
    return Interval(min(float(low), value), max(float(high), value), kind="Wilson")


def paired_p_value(differences: ArrayLike) -> float:
    """Return the two-sided p of a paired bootstrap: twice the smaller share of differences on one side of 0.

    Ties (`TIE`) count half on each side; NaN if all differences are equal. Adding one to the counts avoids p = 0.
    """
    values = np.asarray(differences, dtype=float)
    if np.ptp(values) <= TIE:
        return float("nan")
    above = (values > TIE).sum() + (np.abs(values) <= TIE).sum() / 2
    return float(min(1.0, 2 * (min(above, len(values) - above) + 1) / (len(values) + 1)))
