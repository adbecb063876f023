"""Gains over zero-shot; and words: what buckets share with the source and each other, what they do to predictions.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021), Table 14, Fig. 4.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.fewshot import Outcome, Words, rows
from xclrun.analysis.gains import ByLanguage, with_mean
from xclrun.analysis.lexical import COUNTS, PRESENCE, improved_predictions, jaccard_matrix, lexical_overlap, presence

if TYPE_CHECKING:
    import pandas as pd


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


def mean_gains(own: pd.DataFrame, strategy: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score; under ALL the mean over K."""
    found: dict[int, dict[str, float]] = {}
    for row in rows(own[(own["strategy"] == strategy) & (own["shots"] > 0)]):
        if math.isfinite(row.mean - row.zero_shot):
            found.setdefault(row.shots, {})[row.language] = row.mean - row.zero_shot
    return with_mean(found)
