"""Bootstrap of scores and meta-metrics by sums over per-sentence counts. CCL App. C.3; docs/metrics.md, "Bootstrap".

A resample draws each sentence some number of times, and a base score is a ratio of two sums over sentences
(`xclrun.analysis.base_scores`); so all scores of a language in all resamples are two matrix products, (B, sentences) ·
(sentences, cells), and nothing is scored again. The draws of a language serve all its cells, orders and strategies,
which makes every comparison a paired one. Sums are of small integers: exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.base_scores import Counts
from xclrun.core.identity import derive

# The paper's: 600 resamples of 600 sentences.
RESAMPLES = 600
SENTENCES = 600

# Kinds of interval → their description in tables.
INTERVALS = {
    "centred": "95 % centred interval: the percentile interval shifted by −bias",
    "percentile": "95 % percentile interval; for F, which contains a maximum, it can exclude the value",
    "basic": "95 % basic interval: the percentile interval mirrored at the value; it can exclude the value",
    "bca": "95 % BCa interval",
    "paper": "interval of the CCL paper, bootstrap mean ± t·s/√B for each order, then averaged over orders: it is the "
    "standard error of the bootstrap mean, not an interval for the score",
}

# Measure → its default kind, chosen by simulation (docs/statistics.md).
DEFAULTS = {"F": "centred", "T": "basic", "T0": "centred", "FP": "centred"}


def default_interval(measure: str) -> str:
    """Return the default kind of interval of a measure."""
    return DEFAULTS.get(measure, "centred")


# Cells that are resampled at once: bounds the memory, changes no number.
CHUNK = 1024


def draws(
    sentences: int, seed: int, language: str, resamples: int = RESAMPLES, size: int | None = SENTENCES
) -> np.ndarray:
    """How often each resample of a language has each sentence: shape (resamples, sentences), float32.

    Args:
        sentences: size of the test set.
        seed, language: the same draws for the same two.
        size: sentences in a resample (n = 600 in the paper), but never more than the test set has: that would claim
            evidence that is not there; None: as many as the test set has (``full``).
    """
    rng = np.random.default_rng(derive(seed, "bootstrap", language))
    n = sentences if size is None else min(size, sentences)
    drawn = rng.integers(sentences, size=(resamples, n))
    drawn += sentences * np.arange(resamples)[:, np.newaxis]
    counts = np.bincount(drawn.ravel(), minlength=resamples * sentences)
    return counts.reshape(resamples, sentences).astype(np.float32)


def resample_languages(
    counts: Mapping[str, Counts], seed: int, resamples: int = RESAMPLES, size: int | None = SENTENCES
) -> Iterator[tuple[str, np.ndarray]]:
    """Yield (language, scores of its cells in every resample), shape (resamples, cells)."""
    for language, theirs in counts.items():
        drawn = draws(len(theirs.hits), seed, language, resamples, size)
        cells = theirs.hits.shape[1]
        found = np.empty((resamples, cells))
        for start in range(0, cells, CHUNK):
            part = slice(start, start + CHUNK)
            totals = None if theirs.totals is None else theirs.totals[:, part]
            found[:, part] = Counts(theirs.hits[:, part], totals).resampled(drawn)
        yield language, found


# Intervals.

CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """An interval, of any kind.

    Attributes:
        low, high: its ends; NaN if there is none.
        reason: why there is none; empty if there is one.
    """

    low: float
    high: float
    reason: str = ""


def bias(values: ArrayLike, observed: float) -> float:
    """Mean of the resampled values, shape (resamples,), minus the value from the data."""
    return float(np.asarray(values, dtype=float).mean()) - observed


def centred(values: ArrayLike, observed: float, confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval shifted by −bias, so it lies around the value from the data.

    F holds a maximum over noisy scores, which resampling raises once more: the plain percentile interval can lie
    wholly above the value. But the value itself lies above the truth for the same reason: see `basic`.

    Args:
        values: the statistic in each resample, shape (resamples,).
        observed: the statistic on the whole sample.
    """
    shift, plain = bias(values, observed), percentile(values, confidence)
    return Interval(plain.low - shift, plain.high - shift)


def percentile(values: ArrayLike, confidence: float = CONFIDENCE) -> Interval:
    """The middle ``confidence`` of the resampled values, shape (resamples,)."""
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.asarray(values, dtype=float), [tail, 100 - tail])
    return Interval(float(low), float(high))


def basic(values: ArrayLike, observed: float, confidence: float = CONFIDENCE) -> Interval:
    """The percentile interval mirrored at the value from the data (Davison & Hinkley 1997, eq. 5.6).

    It takes the error of the value to be as the resamples' around it: where these lie above it, so does it above the
    truth. So it lies around the value less its bias, and may leave out the value itself.

    Args:
        values: the statistic in each resample, shape (resamples,).
        observed: the statistic on the whole sample.
    """
    plain = percentile(values, confidence)
    return Interval(2 * observed - plain.high, 2 * observed - plain.low)


def bca(values: ArrayLike, observed: float, jackknife: Sequence[ArrayLike], confidence: float = CONFIDENCE) -> Interval:
    """Bias-corrected and accelerated interval (Efron 1987), for statistics of one or several samples.

    Args:
        values: the statistic in each resample, shape (resamples,).
        observed: the statistic on the whole sample.
        jackknife: for each sample (each language's test set) the statistic with one of its sentences left out.

    Where all resamples lie on one side of ``observed``, or nothing varies, there is no such interval: its ends are
    NaN and ``reason`` says why.
    """
    from scipy.special import ndtr, ndtri

    resampled = np.asarray(values, dtype=float)
    below = ((resampled < observed).mean() + (resampled <= observed).mean()) / 2
    influence = [(len(left) - 1) * (left.mean() - left) for left in (np.asarray(j, dtype=float) for j in jackknife)]
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
    """The paper's form, mean ± t · s / √B: how well B resamples know their own mean.

    It is no interval for the score: it shrinks with every further resample, whatever the size of the test set.
    """
    from scipy.special import stdtrit

    resampled = np.asarray(values, dtype=float)
    b = len(resampled)
    half = float(stdtrit(b - 1, 0.5 + confidence / 2)) * resampled.std(ddof=1) / np.sqrt(b)
    return Interval(resampled.mean() - half, resampled.mean() + half)


def mean_of_intervals(intervals: Sequence[Interval]) -> Interval:
    """Average the ends of intervals, as the CCL paper averages those of its orders."""
    low, high = np.mean([(one.low, one.high) for one in intervals], axis=0)
    return Interval(float(low), float(high))


def interval(
    kind: str,
    values: ArrayLike,
    observed: float,
    jackknife: Callable[[], Sequence[ArrayLike]],
    is_score: bool = False,
) -> Interval:
    """Compute an interval of any kind except ``paper``, which needs the orders one by one.

    Args:
        kind: ``centred``, ``percentile``, ``basic`` or ``bca``.
        values: the statistic in each resample, shape (resamples,).
        observed: the statistic on the whole sample.
        jackknife: computes the argument of `bca`; called for that kind only.
        is_score: the statistic is in [0, 1], so the interval is clipped to it.
    """
    compute = {
        "centred": lambda: centred(values, observed),
        "percentile": lambda: percentile(values),
        "basic": lambda: basic(values, observed),
        "bca": lambda: bca(values, observed, jackknife()),
    }
    found = compute[kind]()
    if not is_score:
        return found
    low, high = np.clip([found.low, found.high], 0, 1)
    return Interval(float(low), float(high), found.reason)


def paired_p_value(differences: ArrayLike) -> float:
    """Two-sided p-value of a paired bootstrap: twice the smaller share of resampled differences on one side of 0.

    Zeros count half on each side, and one is added to both counts, so that p is never 0.
    """
    found = np.asarray(differences, dtype=float)
    above = (found > 0).sum() + (found == 0).sum() / 2
    return float(min(1.0, 2 * (min(above, len(found) - above) + 1) / (len(found) + 1)))
