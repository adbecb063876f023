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

# Key for the mean over all K, next to the keys K = 1, 2, 4, …
ALL = 0
FACTORS = {"lexical_overlap": "lexical overlap", "wals_features": "shared WALS features"}

# Language → value.
ByLanguage = Mapping[str, float]


@dataclass(frozen=True)
class Association:
    """Correlation of few-shot gains with one factor, over languages.

    Attributes:
        factor: key of `FACTORS`.
        gains: the K whose gains are correlated, or `ALL`.
        overlap: the K whose buckets define the lexical overlap, or `ALL`; None for other factors.
    """

    factor: str
    gains: int
    overlap: int | None
    correlation: Correlation


def with_mean(values: Mapping[int, ByLanguage]) -> dict[int, ByLanguage]:
    """Return ``values`` (K → language → value) with an additional entry `ALL`: each language's mean over K.

    Languages without a value for every K are excluded from `ALL`.
    """
    by_shots = {k: by_language for k, by_language in values.items() if k != ALL}
    complete = set.intersection(*map(set, by_shots.values())) if by_shots else set()
    means = {k: float(np.mean([by_language[k] for by_language in by_shots.values()])) for k in sorted(complete)}
    return by_shots | {ALL: means}


def mean_gains(scores: pd.DataFrame, strategy: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score. The entry `ALL` is the mean over K.

    ``scores`` comes from `xclrun.analysis.fewshot.scores.over_buckets`.
    """
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
        gains, overlap: K (or `ALL`) → language → value. Each K of the gains is combined with each K of the overlap.
        features: language → number of shared features; languages without known features are missing.
    """

    def correlated(gained: ByLanguage, factor: ByLanguage) -> Correlation:
        both = sorted(gained.keys() & factor.keys())
        return correlate([gained[language] for language in both], [factor[language] for language in both])

    result = []
    for k, gained in gains.items():
        result += [Association("lexical_overlap", k, o, correlated(gained, shares)) for o, shares in overlap.items()]
        result.append(Association("wals_features", k, None, correlated(gained, features)))
    return result
