"""Attention of [CLS] before and after target adaptation ("A Closer Look at Few-Shot Crosslingual Transfer", Table 5).

A run's ``attention.parquet`` has one row per hop and word of a language's test split, with ``count`` (occurrences) and
``attention``: the share of [CLS]'s last-layer attention on the word, averaged over heads and occurrences.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("hop", "language", "word", "count", "attention")


@dataclass(frozen=True)
class Change:
    """Attention of [CLS] to a word before and after adaptation, as shares from 0 to 1.

    ``in_bucket`` says whether the bucket contains the word; None if the words of the bucket are unknown.
    """

    word: str
    count: int
    before: float
    after: float
    in_bucket: bool | None = None

    @property
    def change(self) -> float:
        return self.after - self.before


def attention_changes(
    summary: pd.DataFrame,
    language: str,
    before: int,
    after: int,
    least: int = 1,
    bucket: Collection[str] | None = None,
) -> list[Change]:
    """Return how the attention to each word of a language changes from hop ``before`` to hop ``after``.

    The word with the largest increase comes first.

    Args:
        summary: rows of ``attention.parquet``; several rows of a word in a hop are averaged, weighted by ``count``.
        least: minimum count of a word in each of the two hops; other words are omitted.
        bucket: words of the bucket; None if they are unknown.
    """
    rows = summary[summary["language"] == language]
    hops: dict[int, dict[str, tuple[int, float]]] = {}
    for hop in (before, after):
        words = rows[rows["hop"] == hop]
        words = words.assign(mass=words["count"] * words["attention"])
        total = words.groupby("word", observed=True)[["count", "mass"]].sum()
        hops[hop] = {
            str(word): (int(n), float(m / n)) for word, n, m in total.itertuples() if np.isfinite(m) and n >= least
        }
    changes = [
        Change(word, hops[after][word][0], old, hops[after][word][1], None if bucket is None else word in bucket)
        for word, (_, old) in hops[before].items()
        if word in hops[after]
    ]
    return sorted(changes, key=lambda change: (-change.change, change.word))
