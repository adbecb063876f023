"""Words that few-shot buckets share with the source and with each other, and their effect on predictions.

Source: FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5, Figs. 3 and 4, Table 14. Words are
not normalized. Table 14 reports `lexical_overlap` in per mille: the source is the English training words, the target is
the words of all buckets of one language and K. This definition is inferred: all numbers of Table 14 are multiples of
1/29,606 (POS) or 1/33,717 (NER), and these are the numbers of distinct English words.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, compress

import numpy as np

from xclrun.analysis.fewshot.gains import ByLanguage
from xclrun.scores.base_scores import confusion

# Presence of a test word in a bucket: with its gold label, only with other labels, or absent.
PRESENCE = ("word with label", "word with another label", "word not in bucket")
COUNTS = ("words", "wrong before", "improved", "worsened")


@dataclass(frozen=True)
class Outcome:
    """Predictions of one run for the target's test split, before and after adaptation.

    Attributes:
        names: label names, by label id.
        ids: sentence IDs.
        lengths: number of labels of each sentence, shape (sentences,): 1 for classes, the number of words for tags.
        gold, before, after: label ids of all sentences, shape (sum of lengths,). ``gold`` is −1 for a label that is not
            in the training data.
    """

    names: tuple[str, ...]
    ids: tuple[str, ...]
    lengths: np.ndarray
    gold: np.ndarray
    before: np.ndarray
    after: np.ndarray

    def confusion(self, predicted: np.ndarray) -> np.ndarray:
        return confusion(self.gold, predicted, len(self.names))


@dataclass(frozen=True)
class Words:
    """The words of a few-shot run's data.

    Attributes:
        source: distinct words of the source's training split; empty without a source.
        bucket: distinct words of the bucket.
        pairs: distinct (word, tag) of the bucket; empty without tags.
        test: sentence ID → words, for the target's test split.
    """

    source: frozenset[str]
    bucket: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    test: dict[str, tuple[str, ...]]


def lexical_overlap(source: Iterable[str], target: Iterable[str]) -> float:
    """Return the share of the source's distinct words that occur in the target; NaN for an empty source."""
    v_s, v_l = set(source), set(target)
    return len(v_s & v_l) / len(v_s) if v_s else math.nan


def jaccard(a: Collection[str], b: Collection[str]) -> float:
    """Return the Jaccard index of two vocabularies, |A ∩ B| / |A ∪ B|; NaN if both are empty."""
    a, b = set(a), set(b)
    return len(a & b) / len(a | b) if a | b else math.nan


def presence(pairs: Iterable[tuple[str, str]], bucket: Collection[tuple[str, str]]) -> np.ndarray:
    """Return the index into `PRESENCE` of each test word.

    Args:
        pairs: (word, gold label) of each test word.
        bucket: (word, label) pairs of the bucket.
    """
    words = {word for word, _ in bucket}
    return np.array([0 if pair in bucket else 1 if pair[0] in words else 2 for pair in pairs], dtype=int)


def improved_predictions(where: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Count the effect of adaptation on W test words, by their presence in the bucket (FS Fig. 4).

    Args:
        where: index into `PRESENCE`, shape (W,).
        before, after: whether the predicted label is correct before and after adaptation, shape (W,).

    Returns:
        Shape (3, 4): rows as `PRESENCE`, columns as `COUNTS`.
    """
    before, after = np.asarray(before, dtype=bool), np.asarray(after, dtype=bool)
    marks = (np.ones_like(before), ~before, ~before & after, before & ~after)
    return np.stack([np.bincount(where[mark], minlength=len(PRESENCE)) for mark in marks], axis=1)


def improved_words(outcome: Outcome, words: Words) -> frozenset[str]:
    """Return the distinct test words for which adaptation corrects at least one prediction."""
    improved = (outcome.before != outcome.gold) & (outcome.after == outcome.gold) & (outcome.gold >= 0)
    return frozenset(compress(_tested_words(outcome, words), improved.tolist()))


def bucket_influence(buckets: Sequence[Collection[str]], improved: Sequence[Collection[str]]) -> np.ndarray:
    """Compare the words of n buckets with the `improved_words` after adaptation to each bucket (FS Fig. 3).

    Returns:
        Shape (n, n), in percent. Row i is the softmax over j of the Jaccard index of two sets: the words of bucket i,
        and the words improved by bucket j.
    """
    index = np.array([[jaccard(words, better) for better in improved] for words in buckets])
    weights = np.exp(np.nan_to_num(index))
    return 100 * weights / weights.sum(axis=1, keepdims=True)


def jaccards(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → mean Jaccard index over all pairs of buckets, for languages with several buckets."""
    means: dict[int, dict[str, float]] = {}
    for (language, k), buckets in words.items():
        if len(buckets) > 1:
            pairs = combinations([bucket.bucket for bucket in buckets], 2)
            means.setdefault(k, {})[language] = float(np.mean([jaccard(*pair) for pair in pairs]))
    return means


def overlaps(words: Mapping[tuple[str, int], Sequence[Words]]) -> Mapping[int, ByLanguage]:
    """Return K → language → `lexical_overlap` of the source with all buckets of this K, if there is a source."""
    shares: dict[int, dict[str, float]] = {}
    for (language, k), buckets in words.items():
        if source := buckets[0].source:
            target = frozenset().union(*(bucket.bucket for bucket in buckets))
            shares.setdefault(k, {})[language] = lexical_overlap(source, target)
    return shares


def improvement(outcomes: Iterable[tuple[Outcome, Words]]) -> np.ndarray:
    """Add up the counts of `improved_predictions` over runs on tagged data, shape (3, 4)."""
    total = np.zeros((len(PRESENCE), len(COUNTS)), dtype=int)
    for outcome, words in outcomes:
        labels = (outcome.names[number] if number >= 0 else "?" for number in outcome.gold)
        where = presence(zip(_tested_words(outcome, words), labels, strict=True), words.pairs)
        in_training = outcome.gold >= 0
        before, after = ((predicted == outcome.gold) & in_training for predicted in (outcome.before, outcome.after))
        total += improved_predictions(where, before, after)
    return total


def _tested_words(outcome: Outcome, words: Words) -> list[str]:
    return [word for i, n in zip(outcome.ids, outcome.lengths, strict=True) for word in words.test[i][:n]]
