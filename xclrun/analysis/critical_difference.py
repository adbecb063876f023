"""Mean ranks of strategies over replicates: Friedman's test and Nemenyi's critical difference (Demšar 2006)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from xclrun.analysis.anova import range_quantile
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, tied


@dataclass(frozen=True)
class CriticalDifference:
    """Mean ranks over blocks (1 is best).

    Attributes:
        strategies: best first.
        ranks: mean ranks of ``strategies``, shape (strategies,).
        critical: critical difference of two mean ranks.
        p: p of Friedman's test; NaN if all ranks are equal.
        groups: maximal groups of strategies that are not significantly different, as (first, last) index.
    """

    strategies: tuple[str, ...]
    ranks: np.ndarray
    critical: float
    p: float
    groups: tuple[tuple[int, int], ...]


def critical_difference(data: Replicates, higher_is_better: bool, alpha: float = ALPHA) -> CriticalDifference:
    """Rank the strategies within each replicate; apply Friedman's test and Nemenyi's critical difference.

    Computes Friedman's statistic, since scipy's `friedmanchisquare` needs at least three strategies.
    """
    from scipy.stats import chi2, rankdata

    k, n = data.values.shape
    equal = np.apply_along_axis(tied, 0, data.values, data.tolerance)
    ranks = rankdata(-equal if higher_is_better else equal, axis=0)
    means = ranks.mean(axis=1)
    spread = ((ranks - (k + 1) / 2) ** 2).sum()
    # With correction for ties, as in scipy.
    statistic = n * (k - 1) * n * ((means - (k + 1) / 2) ** 2).sum() / spread if spread else math.nan
    critical = range_quantile(1 - alpha, k, math.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    order = np.argsort(means, kind="stable")
    sorted_ranks = means[order]
    groups: list[tuple[int, int]] = []
    for first in range(k):
        last = int(np.searchsorted(sorted_ranks, sorted_ranks[first] + critical, side="right")) - 1
        if last > first and not any(last <= end for _, end in groups):
            groups.append((first, last))
    names = tuple(data.strategies[i] for i in order)
    return CriticalDifference(names, sorted_ranks, critical, float(chi2.sf(statistic, k - 1)), tuple(groups))
