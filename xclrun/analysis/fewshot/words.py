"""Words that few-shot buckets share with the source and with each other, and their effect on predictions.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5, Figs. 3 and 4, Table 14. Words are not
normalised. Table 14 is ``lexical_overlap`` of the English training words and the words of all buckets of a language and
K together, in per mille (footnote 3): each of its 198 numbers is a multiple of 1/29,606 (POS) or 1/33,717 (NER), the
numbers of distinct English words, which excludes a mean over buckets, or a union in the denominator.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from xclrun.analysis.base_scores import confusion
from xclrun.analysis.fewshot.gains import ByLanguage

# Presence of a test word in a bucket: with this label, with other labels only, not at all.
PRESENCE = ("word with label", "word with another label", "word not in bucket")
COUNTS = ("words", "wrong before", "improved", "worsened")


@dataclass(frozen=True)
class Outcome:
    """Predictions of one run for the target's test split, before and after adapting.

    Attributes:
        names: of the labels, by id.
        ids: of the sentences.
        lengths: number of labels of each sentence, shape (sentences,): 1 for classes, its words for tags.
        gold, before, after: label ids, sentence after sentence, shape (sum of lengths,); gold −1: never in training.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    lengths: np.ndarray
    gold: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def confusion(self, predicted: np.ndarray) -> np.ndarray:
        """Count the predicted labels (columns) of each gold label (rows), without unknown gold labels."""
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
    """Return the Jaccard index of all pairs of n vocabularies, shape (n, n); 1 on the diagonal."""
    matrix = np.ones((len(vocabularies), len(vocabularies)))
    for i, j in combinations(range(len(vocabularies)), 2):
        matrix[i, j] = matrix[j, i] = jaccard(vocabularies[i], vocabularies[j])
    return matrix


def presence(pairs: Iterable[tuple[str, str]], bucket: Collection[tuple[str, str]]) -> np.ndarray:
    """Return the index into `PRESENCE` of each (word, gold label) for the (word, label) pairs of a bucket."""
    words, known = {word for word, _ in bucket}, set(bucket)
    return np.array([0 if pair in known else 1 if pair[0] in words else 2 for pair in pairs], dtype=int)


def improved_predictions(where: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Count the effect of adapting on test words, by their presence in the bucket (FS Fig. 4).

    Args:
        where: index into `PRESENCE`, shape (W,).
        before, after: whether the word's label is right before and after adapting, shape (W,).

    Returns:
        Counts, shape (3, 4): rows as `PRESENCE`, columns as `COUNTS`. Improved: wrong before and right after.
    """
    before, after = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    marks = (np.ones_like(before), ~before, ~before & after, before & ~after)
    return np.stack([np.bincount(where[mark], minlength=len(PRESENCE)) for mark in marks], axis=1)


def improved_words(outcome: Outcome, words: Words) -> frozenset[str]:
    """Return the distinct test words with an occurrence whose label is wrong before adapting and right after."""
    text = _tested_words(outcome, words)
    improved = (outcome.before != outcome.gold) & (outcome.after == outcome.gold) & (outcome.gold >= 0)
    return frozenset(word for word, better in zip(text, improved.tolist(), strict=True) if better)


def bucket_influence(buckets: Sequence[Collection[str]], improved: Sequence[Collection[str]]) -> np.ndarray:
    """Return the Jaccard index of each bucket's words with each bucket's improved words (FS Fig. 3).

    Args:
        buckets: the words of n buckets.
        improved: the words improved by adapting to each of them (`improved_words`).

    Returns:
        Shape (n, n), percent: row i is the softmax over j of the index of bucket i's words and the words improved by
        bucket j, so each row sums to 100. An index of two empty sets counts as 0.
    """
    index = np.array([[jaccard(words, better) for better in improved] for words in buckets])
    weights = np.exp(np.nan_to_num(index))
    return 100 * weights / weights.sum(axis=1, keepdims=True)


def jaccards(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → mean Jaccard index over all pairs of buckets; languages with one bucket are left out."""
    means: dict[int, dict[str, float]] = {}
    for (language, k), buckets in words.items():
        if len(buckets) > 1:
            matrix = jaccard_matrix([one.bucket for one in buckets])
            means.setdefault(k, {})[language] = float(matrix[np.triu_indices(len(buckets), k=1)].mean())
    return means


def overlaps(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → lexical overlap of all buckets of (language, K) with the source; NaN is left out."""
    shares: dict[int, dict[str, float]] = {}
    for (language, k), buckets in words.items():
        share = lexical_overlap(buckets[0].source, frozenset().union(*(one.bucket for one in buckets)))
        if share == share:
            shares.setdefault(k, {})[language] = share
    return shares


def improvement(outcomes: Iterable[tuple[Outcome, Words]]) -> np.ndarray:
    """Return the counts of `improved_predictions` over runs on tagged data (FS Fig. 4), shape (3, 4)."""
    total = np.zeros((len(PRESENCE), len(COUNTS)), dtype=int)
    for outcome, words in outcomes:
        labels = (outcome.names[number] if number >= 0 else "?" for number in outcome.gold)
        pairs = list(zip(_tested_words(outcome, words), labels, strict=True))
        distinct = list(dict.fromkeys(pairs))
        kinds = dict(zip(distinct, presence(distinct, words.pairs).tolist(), strict=True))
        where = np.array([kinds[pair] for pair in pairs], dtype=int)
        known = outcome.gold >= 0
        right = (outcome.before == outcome.gold) & known, (outcome.after == outcome.gold) & known
        total += improved_predictions(where, *right)
    return total


def _tested_words(outcome: Outcome, words: Words) -> list[str]:
    """Return the test words in the order of the labels."""
    return [word for i, n in zip(outcome.ids, outcome.lengths, strict=True) for word in words.test[i][:n]]
