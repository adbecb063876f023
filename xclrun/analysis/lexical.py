"""What words a few-shot bucket shares with the source and with other buckets, and what its words do to predictions.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5, Figs. 3 and 4, Table 14. Words are taken
as written. Table 14 is ``lexical_overlap`` of the English training words and the words of all buckets of a language
and K together, in per mille: every one of its 198 numbers is a multiple of 1/29,606 (POS) or of 1/33,717 (NER), the
numbers of distinct English words, which neither a mean over buckets nor a union in the denominator would give.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np

# Where a test word stands to a bucket: with this label, with other labels only, not at all.
PRESENCE = ("word with label", "word with another label", "word not in bucket")
COUNTS = ("words", "wrong before", "improved", "worsened")


def lexical_overlap(source: Iterable[str], target: Iterable[str]) -> float:
    """Share of the source's distinct words that the target has too, |V_L ∩ V_S| / |V_S|; NaN for an empty source."""
    known, asked = set(source), set(target)
    return len(known & asked) / len(known) if known else math.nan


def jaccard(one: Iterable[str], other: Iterable[str]) -> float:
    """Jaccard index of two vocabularies, |A ∩ B| / |A ∪ B|; NaN where both are empty."""
    a, b = set(one), set(other)
    return len(a & b) / len(a | b) if a | b else math.nan


def jaccard_matrix(vocabularies: Sequence[Collection[str]]) -> np.ndarray:
    """Jaccard index of every two of n vocabularies, shape (n, n); 1 on the diagonal."""
    n = len(vocabularies)
    matrix = np.ones((n, n))
    for i in range(n):
        for j in range(i):
            matrix[i, j] = matrix[j, i] = jaccard(vocabularies[i], vocabularies[j])
    return matrix


def presence(pairs: Iterable[tuple[str, str]], bucket: Collection[tuple[str, str]]) -> np.ndarray:
    """Return the index into `PRESENCE` of each (word, gold label), given the (word, label) pairs of a bucket."""
    words, known = {word for word, _ in bucket}, set(bucket)
    return np.array([0 if pair in known else 1 if pair[0] in words else 2 for pair in pairs], dtype=int)


def improved_predictions(where: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Count what adapting did to test words, by their presence in the bucket (FS Fig. 4).

    Args:
        where: index into `PRESENCE`, shape (W,).
        before, after: whether the word's label was right zero-shot, and is right after adapting, shape (W,).

    Returns:
        Counts, shape (3, 4): rows as `PRESENCE`, columns as `COUNTS`. Improved: wrong before and right after.
    """
    before, after = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    marks = (np.ones_like(before), ~before, ~before & after, before & ~after)
    return np.stack([np.bincount(where[mark], minlength=len(PRESENCE)) for mark in marks], axis=1)
