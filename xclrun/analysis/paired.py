"""Two runs, sentence by sentence: is the difference of their final scores more than chance in the test sentences?

Paired bootstrap (Efron & Tibshirani 1993, ch. 16; Koehn 2004): each resample draws test sentences of every language
with replacement, as many as there are, and scores both runs on the same draw. The interval is the basic one; p is the
smallest level whose interval leaves 0 out, so that the two never disagree. They say nothing of other seeds or orders:
for those, `xclrun report` compares strategies over several runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.base_scores import Counts, Sentences
from xclrun.analysis.bootstrap import CONFIDENCE, Interval, bias, draws
from xclrun.core.task import Metric

RESAMPLES = 2000


@dataclass(frozen=True)
class PairedDifference:
    """The mean over languages of the second run's score minus the first's.

    Attributes:
        value: on the test sentences as they are.
        bias: mean over resamples minus ``value``.
        interval: 95 %, basic bootstrap (Davison & Hinkley 1997, eq. 5.6).
        p: two-sided; at most 0.05 where the interval leaves 0 out, and only there.
        sentences: that were drawn from, in all languages.
    """

    value: float
    bias: float
    interval: Interval
    p: float
    sentences: int


def cell(sentences: Sentences, metric: Metric, hop: int) -> Counts:
    """Return the counts of a metric after one hop, shape (sentences, 1); of statements, those of texts.

    Raises:
        ValueError: there are none.
    """
    own = sentences.counts(metric).cell(hop)
    units = sentences.units(metric)
    return own if units is None else own.together(units)


def paired_difference(one: Mapping[str, Counts], other: Mapping[str, Counts], seed: int = 42) -> PairedDifference:
    """Compare two runs by the counts of one cell each per language, shape (sentences, 1), sentence by sentence alike.

    Raises:
        ValueError: the languages, or numbers of sentences, or ways of scoring differ.
    """
    if not one or one.keys() != other.keys() or any(len(one[k].hits) != len(other[k].hits) for k in one):
        raise ValueError("the runs were tested on different sentences")
    if any((one[k].starts is None) != (other[k].starts is None) for k in one):
        raise ValueError("the runs were scored in different ways")
    drawn_differences, differences = [], []
    for language, first in one.items():
        second, n = other[language], len(first.hits)
        drawn = draws(n, seed, language, RESAMPLES, None)
        drawn_differences.append((second.resampled(drawn) - first.resampled(drawn))[:, 0])
        differences.append(second.scores()[0] - first.scores()[0])
    value = float(np.mean(differences))
    # Mirrored at the value: what a true difference may be, given that the value errs as the resamples do around it.
    resampled = np.mean(drawn_differences, axis=0)
    likely = np.sort(2 * value - resampled)
    tail = int((1 - CONFIDENCE) / 2 * (RESAMPLES + 1) + 1e-9)
    interval = Interval(float(likely[tail - 1]), float(likely[-tail]))
    beyond = min((likely <= 0).sum(), (likely >= 0).sum())
    sentences = sum(len(counts.hits) for counts in one.values())
    p = float(min(1.0, 2 * (beyond + 1) / (RESAMPLES + 1)))
    return PairedDifference(value, bias(resampled, value), interval, p, sentences)
