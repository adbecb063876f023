"""Paired bootstrap test of two runs over test sentences (Efron & Tibshirani 1993, ch. 16; Koehn 2004).

Each resample draws the test sentences of every language with replacement and scores both runs on the same draw. The
interval is the basic bootstrap interval; p is the smallest α whose 1 − α interval excludes 0. The result applies only
to these two runs, not to other seeds or orders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.bootstrap import CONFIDENCE, NO_SPREAD, Interval, bias, draws, without_spread
from xclrun.analysis.replicates import TIE
from xclrun.core.task import Metric
from xclrun.scores.base_scores import Counts, Sentences

RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """Difference of two runs: the second run's score minus the first run's, averaged over languages.

    Attributes:
        value: the difference on all test sentences.
        bias: mean difference over resamples minus ``value``.
        interval: 95 % basic bootstrap interval (Davison & Hinkley 1997, eq. 5.6).
        p: two-sided p-value; at most 0.05 if and only if the interval excludes 0; NaN if the interval has a
            ``reason``.
        sentences: number of resampled units in all languages.
    """

    value: float
    bias: float
    interval: Interval
    p: float
    sentences: int


def cell(sentences: Sentences, metric: Metric, hop: int) -> Counts:
    """Return the counts of a metric after one hop for each resampling unit (`Sentences.units`), shape (units, 1)."""
    counts = sentences.counts(metric).cell(hop)
    units = sentences.units
    return counts if units is None else counts.together(units)


def paired_difference(a: Mapping[str, Counts], b: Mapping[str, Counts], seed: int = 42) -> PairedDifference:
    """Compare two runs on the same test sentences: the score of ``b`` minus the score of ``a``.

    Args:
        a, b: language → counts of a run, from `cell`.

    Raises:
        ValueError: the languages, the numbers of sentences or the scoring differ.
    """
    if not a or a.keys() != b.keys() or any(len(a[k]) != len(b[k]) for k in a):
        raise ValueError("the runs were tested on different sentences")
    # Macro F1 has two statistics for each tag, micro F1 has two.
    if any((a[k].statistics.shape[-1] == 2) != (b[k].statistics.shape[-1] == 2) for k in a):
        raise ValueError("the runs were scored in different ways")
    drawn_differences, differences = [], []
    for language, first in a.items():
        second, n = b[language], len(first)
        drawn = draws(n, seed, language, RESAMPLES, None)
        drawn_differences.append((second.resampled(drawn) - first.resampled(drawn))[:, 0])
        differences.append(second.scores()[0] - first.scores()[0])
    value = float(np.mean(differences))
    # Mirrored at the value, as in the basic interval.
    resampled = np.mean(drawn_differences, axis=0)
    likely = np.sort(2 * value - resampled)
    tail = int((1 - CONFIDENCE) / 2 * (RESAMPLES + 1) + 1e-9)
    interval = Interval(float(likely[tail - 1]), float(likely[-tail]))
    beyond = min((likely <= TIE).sum(), (likely >= -TIE).sum())
    sentences = sum(map(len, a.values()))
    p = float(min(1.0, 2 * (beyond + 1) / (RESAMPLES + 1)))
    if without_spread(resampled):
        interval, p = Interval(np.nan, np.nan, NO_SPREAD), np.nan
    return PairedDifference(value, bias(resampled, value), interval, p, sentences)
