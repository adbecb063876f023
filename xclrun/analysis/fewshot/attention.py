"""Attention of [CLS] before and after target adapting (FS Table 5).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5.

A summary has one row per word of a language's test split: ``hop``, ``language``, ``word``, ``count`` (occurrences) and
``attention``: the share of [CLS]'s attention in the last layer on the word's subwords, averaged over heads and
occurrences. On request, a run stores it as ``attention.parquet`` next to its predictions.
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
    """Change of the attention of [CLS] to a word; shares in [0, 1].

    ``in_bucket``: whether the word is in the bucket; None where the bucket's words are unknown.
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
    """Return the words of a language by the change of attention from hop ``before`` to ``after``, largest first.

    Args:
        summary: rows as described above; several rows of a word and hop are averaged by count.
        least: rarer words are left out.
        bucket: words of the bucket.

    Raises:
        ValueError: a column is missing, an attention is outside [0, 1], or a hop has no rows of the language.
    """
    missing = [name for name in COLUMNS if name not in summary.columns]
    if missing:
        raise ValueError(f"an attention summary needs {', '.join(missing)}")
    rows = summary[summary["language"] == language]
    if not rows["attention"].astype(float).between(0, 1).all():
        raise ValueError("an attention summary holds shares from 0 to 1")
    hops: dict[int, dict[str, tuple[int, float]]] = {}
    for hop in (before, after):
        of_hop = rows[rows["hop"] == hop]
        if of_hop.empty:
            raise ValueError(f"the attention summary has no rows of {language} after hop {hop}")
        weighted = of_hop.assign(mass=of_hop["count"] * of_hop["attention"])
        total = weighted.groupby("word", observed=True)[["count", "mass"]].sum()
        hops[hop] = {
            str(word): (int(n), float(m / n)) for word, n, m in total.itertuples() if np.isfinite(m) and n >= least
        }
    changes = []
    for word in hops[before].keys() & hops[after].keys():
        (_, old), (count, new) = hops[before][word], hops[after][word]
        changes.append(Change(word, count, old, new, None if bucket is None else word in bucket))
    return sorted(changes, key=lambda change: (-change.change, change.word))
