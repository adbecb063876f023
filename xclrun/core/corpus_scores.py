"""Corpus scores from sums over sentences: chrF and BLEU, equal to sacrebleu's. docs/metrics.md, "Base scores".

The last sum is the number of sentences with a generated text: without one, scores are NaN, whereas the score of empty
texts is 0, as in sacrebleu.
"""

from __future__ import annotations

import math
from typing import Any

# Longest character n-grams of chrF, and the weight of recall: chrF2 (Popović 2015, 2016).
CHARACTERS, BETA = 6, 2
# Longest word n-grams of BLEU (Papineni et al. 2002).
WORDS = 4
# Number of sums of chrF: n-grams of the generated text, of the reference, and common n-grams, of each order; sentences.
CHRF_SUMS = 3 * CHARACTERS + 1
# Number of sums of BLEU: words of the generated text and of the reference; common and generated n-grams; sentences.
BLEU_SUMS = 2 + 2 * WORDS + 1


def chrf(sums: Any) -> Any:
    """Return chrF2 in [0, 1], shape (...), from an array of sums, shape (..., `CHRF_SUMS`).

    Precision and recall are means over the orders for which both sides have n-grams.
    """
    generated, reference, common = (sums[..., i : CHRF_SUMS - 1 : 3].astype(float) for i in range(3))
    both = (generated > 0) & (reference > 0)
    orders = both.sum(axis=-1).clip(1)
    generated[~both] = reference[~both] = math.inf
    precision, recall = ((common / total).sum(axis=-1) / orders for total in (generated, reference))
    weighted = BETA**2 * precision + recall
    return _defined((1 + BETA**2) * precision * recall / (weighted + (weighted == 0)), sums)


def bleu(sums: Any) -> Any:
    """Return BLEU in [0, 1], shape (...), from an array of sums, shape (..., `BLEU_SUMS`).

    Precisions of 0 are smoothed as in NIST's mteval (sacrebleu's ``exp``): the k-th one is 1 / (2^k total).
    """
    length, reference = sums[..., 0], sums[..., 1]
    common, totals = sums[..., 2 : 2 + WORDS], sums[..., 2 + WORDS : 2 + 2 * WORDS]
    # Without n-grams of an order, or without common n-grams, BLEU is 0.
    valid = (totals > 0).all(axis=-1) & (common > 0).any(axis=-1)
    smoothed = common + (common == 0) / 2.0 ** (common == 0).cumsum(axis=-1)
    precision = (smoothed / (totals + (totals == 0))).prod(axis=-1) ** (1 / WORDS)
    penalty = math.e ** ((length < reference) * (1 - reference / (length + (length == 0))))
    return _defined(valid * penalty * precision, sums)


def _defined(score: Any, sums: Any) -> Any:
    """Return scores, NaN where the last sum, the number of sentences, is 0."""
    sentences = sums[..., -1:].astype(float)
    sentences[sentences == 0] = math.nan
    return score * (sentences / sentences)[..., 0]
