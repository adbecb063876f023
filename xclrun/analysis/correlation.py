"""Rank and linear correlations. docs/metrics.md, "Significance"."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# Up to this number of pairs, Spearman's p is exact, since scipy's t approximation gives p = 0 for equal rankings.
FEW = 7


@dataclass(frozen=True)
class Correlation:
    """Spearman's and Pearson's coefficients of n pairs, and their two-sided p-values; NaN if undefined."""

    spearman: float
    spearman_p: float
    pearson: float
    pearson_p: float
    n: int


def correlate(x: ArrayLike, y: ArrayLike) -> Correlation:
    """Correlate the pairs without NaN; undefined for fewer than three pairs or a constant variable."""
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    both = np.isfinite(a) & np.isfinite(b)
    linear_a, linear_b = a[both], b[both]
    a, b = rounded(linear_a), rounded(linear_b)
    if len(a) < 3 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return Correlation(math.nan, math.nan, math.nan, math.nan, len(a))
    from scipy.stats import pearsonr, spearmanr

    rank, linear = spearmanr(a, b), pearsonr(linear_a, linear_b)
    p = _exact(a, b) if len(a) <= FEW else float(rank.pvalue)
    return Correlation(float(rank.statistic), p, float(linear.statistic), float(linear.pvalue), len(a))


def rounded(values: np.ndarray) -> np.ndarray:
    """Round values for ranking, so that values that differ only by floating-point error are ties."""
    return np.round(values, 9)


def _exact(a: np.ndarray, b: np.ndarray) -> float:
    """Return the exact two-sided p of Spearman's coefficient over all pairings."""
    from scipy.stats import permutation_test, rankdata

    ranks_b = rankdata(b)
    test = permutation_test(
        (rankdata(a),),
        lambda ranks, axis=-1: (ranks * ranks_b).sum(axis=axis),  # increases with the coefficient
        permutation_type="pairings",
        vectorized=True,
        n_resamples=math.inf,
    )
    return float(test.pvalue)


def shared_features(a: Mapping[str, str], b: Mapping[str, str]) -> int:
    """Count the WALS features with equal values in two languages (FS §5); an empty value never counts as equal."""
    return sum(1 for key, value in a.items() if value and b.get(key) == value)
