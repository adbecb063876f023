"""What words a few-shot bucket shares with the source and with other buckets, and what its words do to predictions.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5, Figs. 3 and 4, Table 14. Words are taken
as written. Table 14 is ``lexical_overlap`` of the English training words and the words of all buckets of a language
and K together, in per mille (footnote 3): every one of its 198 numbers is a multiple of 1/29,606 (POS) or of 1/33,717
(NER), the numbers of distinct English words, which neither a mean over buckets nor a union in the denominator would
give.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.base_scores import confusion
from xclrun.analysis.fewshot.gains import ByLanguage

# Where a test word stands to a bucket: with this label, with other labels only, not at all.
PRESENCE = ("word with label", "word with another label", "word not in bucket")
COUNTS = ("words", "wrong before", "improved", "worsened")


@dataclass(frozen=True)
class Outcome:
    """What one run said of the target's test split, before and after adapting.

    Attributes:
        names: of the labels, by id.
        ids: of the sentences.
        lengths: labels of each sentence, shape (sentences,): 1 for classes, its words for tags.
        gold, before, after: label ids, sentence after sentence, shape (sum of lengths,); gold −1: never in training.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    lengths: np.ndarray
    gold: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def confusion(self, predicted: np.ndarray) -> np.ndarray:
        """Return how often each gold label (rows) was taken for each label (columns); unknown gold is left out."""
        return confusion(self.gold, predicted, len(self.names))


@dataclass(frozen=True)
class Words:
    """The words behind one few-shot run.

    Attributes:
        source: distinct words of the source's training split; empty without a source.
        bucket: distinct words of the bucket.
        pairs: distinct (word, tag) of the bucket; empty without tags.
        test: sentence id → the words of the target's test split.
    """

    source: frozenset[str]
    bucket: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    test: dict[str, tuple[str, ...]]


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


def improved_words(outcome: Outcome, words: Words) -> frozenset[str]:
    """Return the distinct test words that have an occurrence whose label was wrong zero-shot and is right now."""
    text = [word for i, n in zip(outcome.ids, outcome.lengths, strict=True) for word in words.test[i][:n]]
    improved = (outcome.before != outcome.gold) & (outcome.after == outcome.gold) & (outcome.gold >= 0)
    return frozenset(word for word, better in zip(text, improved.tolist(), strict=True) if better)


def bucket_influence(buckets: Sequence[Collection[str]], improved: Sequence[Collection[str]]) -> np.ndarray:
    """Return the Jaccard index of each bucket's words with each bucket's improved words, as FS Fig. 3.

    Args:
        buckets: the words of n buckets.
        improved: the words improved by adapting to each of them (`improved_words`).

    Returns:
        Shape (n, n), percent: row i is the softmax over j of the index of bucket i's words and the words improved by
        bucket j, so each row sums to 100. An index of two empty sets counts as 0.
    """
    index = np.array([[jaccard(words, others) for others in improved] for words in buckets])
    weights = np.exp(np.nan_to_num(index))
    return 100 * weights / weights.sum(axis=1, keepdims=True)


def jaccards(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → mean Jaccard index over all pairs of buckets; languages with one bucket are left out."""
    found: dict[int, dict[str, float]] = {}
    for (language, k), them in words.items():
        if len(them) > 1:
            matrix = jaccard_matrix([one.bucket for one in them])
            found.setdefault(k, {})[language] = float(matrix[np.triu_indices(len(them), k=1)].mean())
    return found


def overlaps(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → lexical overlap of all buckets of (language, K) with the source; NaN is left out."""
    found: dict[int, dict[str, float]] = {}
    for (language, k), them in words.items():
        share = lexical_overlap(them[0].source, frozenset().union(*(one.bucket for one in them)))
        if share == share:
            found.setdefault(k, {})[language] = share
    return found


def improvement(outcomes: Iterable[tuple[Outcome, Words]]) -> np.ndarray:
    """Return the counts of `improved_predictions` over runs (FS Fig. 4), shape (3, 4); tags alone have them."""
    total = np.zeros((len(PRESENCE), len(COUNTS)), dtype=int)
    for outcome, words in outcomes:
        text = [word for i, n in zip(outcome.ids, outcome.lengths, strict=True) for word in words.test[i][:n]]
        pairs = [(word, outcome.names[g] if g >= 0 else "?") for word, g in zip(text, outcome.gold, strict=True)]
        kinds: dict[tuple[str, str], int] = {}
        distinct = list(dict.fromkeys(pairs))
        kinds.update(zip(distinct, presence(distinct, words.pairs).tolist(), strict=True))
        where = np.array([kinds[pair] for pair in pairs], dtype=int)
        known = outcome.gold >= 0
        right = (outcome.before == outcome.gold) & known, (outcome.after == outcome.gold) & known
        total += improved_predictions(where, *right)
    return total
