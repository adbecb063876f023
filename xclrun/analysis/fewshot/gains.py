"""Correlation of few-shot gains with the similarity of languages to the source.

Source: "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021) §5, Table 3. A gain is the few-shot score
minus the zero-shot score, both fractions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.correlation import Correlation, correlate

if TYPE_CHECKING:
    import pandas as pd

# In place of K: the mean over all K.
ALL = 0
FACTORS = {"lexical_overlap": "lexical overlap", "wals_features": "shared WALS features"}

# Language → value.
ByLanguage = Mapping[str, float]


@dataclass(frozen=True)
class Association:
    """Correlation over languages of few-shot gains with one factor.

    Attributes:
        factor: key of `FACTORS`.
        gains: K of the gains, or `ALL`.
        overlap: K of the buckets for lexical overlap, or `ALL`; None for other factors.
    """

    factor: str
    gains: int
    overlap: int | None
    correlation: Correlation


def with_mean(values: Mapping[int, ByLanguage]) -> dict[int, ByLanguage]:
    """Set the entry `ALL` to the mean over K, for the languages that have every K."""
    by_shots = {k: by_language for k, by_language in values.items() if k != ALL}
    complete = set.intersection(*map(set, by_shots.values())) if by_shots else set()
    means = {k: float(np.mean([by_language[k] for by_language in by_shots.values()])) for k in sorted(complete)}
    return by_shots | {ALL: means}


def mean_gains(scores: pd.DataFrame, strategy: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score; `ALL`: the mean over K."""
    gains: dict[int, dict[str, float]] = {}
    for row in scores[(scores["strategy"] == strategy) & (scores["shots"] > 0)].itertuples(index=False):
        if math.isfinite(row.mean - row.zero_shot):
            gains.setdefault(row.shots, {})[row.language] = row.mean - row.zero_shot
    return with_mean(gains)


def associations(
    gains: Mapping[int, ByLanguage], overlap: Mapping[int, ByLanguage], features: ByLanguage
) -> list[Association]:
    """Correlate gains with lexical overlap, and with the number of WALS features shared with the source.

    Args:
        gains, overlap: K (or `ALL`) → language → value; gains at every K are correlated with overlap at every K.
        features: language → count, for languages with known features.
    """

    def correlated(gained: ByLanguage, factor: ByLanguage) -> Correlation:
        both = sorted(gained.keys() & factor.keys())
        return correlate([gained[language] for language in both], [factor[language] for language in both])

    result = []
    for k, gained in gains.items():
        result += [Association("lexical_overlap", k, o, correlated(gained, shares)) for o, shares in overlap.items()]
        result.append(Association("wals_features", k, None, correlated(gained, features)))
    return result
