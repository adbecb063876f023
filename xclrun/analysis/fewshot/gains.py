"""Few-shot gains of languages against what they have in common with the source (FS §5, Table 3).

FS = "A Closer Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021). A gain is the few-shot score minus the
zero-shot score: a difference of fractions.
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

# Beside a K: the mean over all K.
ALL = 0
FACTORS = {"lexical_overlap": "lexical overlap", "wals_features": "shared WALS features"}

# A number of each language.
ByLanguage = Mapping[str, float]


@dataclass(frozen=True)
class Association:
    """Few-shot gains against one factor.

    Attributes:
        factor: key of `FACTORS`.
        gains: K of the gains, ALL: their mean over K.
        overlap: K of the buckets whose lexical overlap it is, ALL: mean over K; None for other factors.
        found: the correlation over languages.
    """

    factor: str
    gains: int
    overlap: int | None
    found: Correlation


def with_mean(values: Mapping[int, ByLanguage]) -> dict[int, ByLanguage]:
    """Add under ALL the mean over K of each language that has every K; what stood there is lost."""
    given = {k: them for k, them in values.items() if k != ALL}
    whole = set.intersection(*map(set, given.values())) if given else set()
    return given | {
        ALL: {language: float(np.mean([v[language] for v in given.values()])) for language in sorted(whole)}
    }


def mean_gains(own: pd.DataFrame, strategy: str) -> dict[int, ByLanguage]:
    """Return K → language → few-shot score minus zero-shot score; under ALL the mean over K."""
    found: dict[int, dict[str, float]] = {}
    for row in own[(own["strategy"] == strategy) & (own["shots"] > 0)].itertuples(index=False):
        if math.isfinite(row.mean - row.zero_shot):
            found.setdefault(row.shots, {})[row.language] = row.mean - row.zero_shot
    return with_mean(found)


def associations(
    gains: Mapping[int, ByLanguage], overlap: Mapping[int, ByLanguage], features: ByLanguage
) -> list[Association]:
    """Correlate gains with lexical overlap and with the number of features that a language shares with the source.

    Args:
        gains, overlap: K (or ALL) → language → value; every K of gains is set against every K of overlap.
        features: language → count; a language that is missing has no known features.
    """
    result = []
    for k, gained in gains.items():
        for o, shares in overlap.items():
            both = sorted(gained.keys() & shares.keys())
            found = correlate([gained[c] for c in both], [shares[c] for c in both])
            result.append(Association("lexical_overlap", k, o, found))
        both = sorted(gained.keys() & features.keys())
        found = correlate([gained[c] for c in both], [features[c] for c in both])
        result.append(Association("wals_features", k, None, found))
    return result
