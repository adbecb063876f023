"""What [CLS] looks at before and after target adapting (FS Table 5).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5.

A summary is one row per word of a language's test split: ``hop``, ``language``, ``word``, ``count`` (occurrences) and
``attention``: the share of [CLS]'s attention in the last layer that goes to the word's pieces, mean over heads and
over occurrences. A run that was asked for it keeps it as ``attention.parquet`` beside its predictions.
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
    """How the attention of [CLS] to a word changed; shares in [0, 1].

    ``in_bucket`` says whether the word stands in the bucket; None where the bucket's words are not known.
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
        summary: rows as described above; of several rows of a word and hop the mean by count is taken.
        least: words that occur less often are left out.
        bucket: words of the bucket.

    Raises:
        ValueError: a column is missing, an attention lies outside [0, 1], or a hop has no rows of the language.
    """
    missing = [name for name in COLUMNS if name not in summary.columns]
    if missing:
        raise ValueError(f"an attention summary needs {', '.join(missing)}")
    own = summary[summary["language"] == language]
    weights = own["attention"].to_numpy(dtype=float)
    if not ((weights >= 0) & (weights <= 1)).all():
        raise ValueError("an attention summary holds shares from 0 to 1")
    found: dict[int, dict[str, tuple[int, float]]] = {}
    for hop in (before, after):
        rows = own[own["hop"] == hop]
        if rows.empty:
            raise ValueError(f"the attention summary has no rows of {language} after hop {hop}")
        total = (
            rows.assign(mass=rows["count"] * rows["attention"]).groupby("word", observed=True)[["count", "mass"]].sum()
        )
        found[hop] = {
            str(word): (int(n), float(m / n)) for word, n, m in total.itertuples() if np.isfinite(m) and n >= least
        }
    both = found[before].keys() & found[after].keys()
    changes = [
        Change(word, found[after][word][0], found[before][word][1], found[after][word][1],
               None if bucket is None else word in bucket)
        for word in both
    ]  # fmt: skip
    return sorted(changes, key=lambda c: (-c.change, c.word))
