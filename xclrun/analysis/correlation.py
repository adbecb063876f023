"""Rank and linear correlations: ours with published numbers, and few-shot gains with what languages have in common.

FS = "A Closer Look at Few-Shot Crosslingual Transfer" §5. docs/metrics.md, "Significance".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Up to so many pairs Spearman's p-value is exact; the approximation by Student's t says 0 of any perfect order.
FEW = 7


@dataclass(frozen=True)
class Correlation:
    """Spearman's and Pearson's coefficients of n pairs, and their two-sided p-values; NaN where undefined."""

    spearman: float
    spearman_p: float
    pearson: float
    pearson_p: float
    n: int


def correlate(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Correlate the pairs in which both are measured. Undefined below three pairs, or where one side is constant."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    both = np.isfinite(a) & np.isfinite(b)
    linear_a, linear_b = a[both], b[both]
    a, b = even(linear_a), even(linear_b)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(math.nan, math.nan, math.nan, math.nan, len(a))
    from scipy.stats import pearsonr, spearmanr

    rank, linear = spearmanr(a, b), pearsonr(linear_a, linear_b)
    p = _exact(a, b) if len(a) <= FEW else float(rank.pvalue)
    return Correlation(float(rank.statistic), p, float(linear.statistic), float(linear.pvalue), len(a))


def even(values: np.ndarray) -> np.ndarray:
    """Return values as they are ranked: what differs in the last bits of a sum is equal, whoever added it up."""
    return np.round(values, 9)


def _exact(a: np.ndarray, b: np.ndarray) -> float:
    """Return the two-sided p-value of Spearman's coefficient over all pairings: three pairs cannot go below 1/3."""
    from scipy.stats import permutation_test, rankdata

    of = rankdata(b)
    found = permutation_test(
        (rankdata(a),),
        lambda ranks, axis=-1: (ranks * of).sum(axis=axis),  # rises with the coefficient
        permutation_type="pairings",
        vectorized=True,
        n_resamples=math.inf,
    )
    return float(found.pvalue)


def shared_features(one: Mapping[str, str], other: Mapping[str, str]) -> int:
    """Number of WALS features that both languages have and on which they agree (FS §5); an empty value is unknown."""
    return sum(1 for key, value in one.items() if value and other.get(key) == value)
