"""Does this strategy differ from that one? Tests of all pairs over replicates. docs/metrics.md, "Significance".

Analyses of variance and Tukey's test of all pairs are in `xclrun.analysis.anova`. How often each test rejects where
strategies do not differ is simulated by ``python -m benchmarks.statistics`` and printed in docs/statistics.md.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.replicates import Replicates

ALPHA = 0.05
FEW = "needs two replicates or more"
EQUAL = "all differences are equal"


@dataclass(frozen=True)
class Pair:
    """Test of one pair of strategies, a − b.

    Attributes:
        difference: mean of a minus mean of b.
        low, high: 95 % interval of the difference; NaN where the test gives none.
        p: p-value of the test, adjusted where the test adjusts it.
        effect: standardised difference (d of the paired differences for paired tests); NaN where there is none.
        effect_low, effect_high: its 95 % interval.
        reason: why there is no p; empty where there is one.
    """

    a: str
    b: str
    difference: float
    low: float
    high: float
    p: float
    effect: float = math.nan
    effect_low: float = math.nan
    effect_high: float = math.nan
    reason: str = ""


def untested(data: Replicates, reason: str) -> list[Pair]:
    """Return the differences of all pairs without a test of any, for this reason."""
    return [_without_p(a, b, d, reason) for a, b, d in data.differences()]


def _without_p(a: str, b: str, differences: np.ndarray, reason: str) -> Pair:
    return Pair(a, b, float(differences.mean()), math.nan, math.nan, math.nan, reason=reason)


def mixed_model(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Mixed model of all blocks: strategy fixed; replicate, strategy × replicate and block in a replicate random.

    t with Satterthwaite's degrees of freedom, Holm over all pairs; see `xclrun.analysis.mixed`. No p where the fit did
    not converge.
    """
    from scipy.stats import t as t_distribution

    from xclrun.analysis.mixed import fit

    levels = data.levels()
    distinct = list(dict.fromkeys(levels))
    differences = data.values - data.values[0]
    if len(distinct) < 2:
        return untested(data, FEW)
    if (np.ptp(differences, axis=1) <= data.tolerance).all():
        return untested(data, EQUAL)
    replicate = np.array([distinct.index(level) for level in levels])
    averaged = data.averaged()
    within = differences - (averaged.values - averaged.values[0])[:, replicate]
    if np.abs(within).max() <= data.tolerance:
        # Seeds that change nothing between strategies: there is no variance within replicates to estimate.
        data, replicate = averaged, np.arange(len(distinct))
    fitted = fit(data.values, replicate)
    if not fitted.converged:
        return untested(data, "the mixed model did not converge")
    pairs = []
    half = float(t_distribution.ppf(1 - alpha / 2, fitted.df)) * fitted.error
    for (a, mean_a), (b, mean_b) in combinations(zip(data.strategies, fitted.means.tolist(), strict=True), 2):
        d = mean_a - mean_b
        pairs.append(Pair(a, b, d, d - half, d + half, 2 * float(t_distribution.sf(abs(d) / fitted.error, fitted.df))))
    return with_holm(pairs)


def paired_t(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Paired t-test over replicates (LL), Holm over all pairs; effect: d_z with an interval from the noncentral t.

    None where all differences of a pair are equal: they then have no standard deviation.
    """
    from scipy.special import nctdtrinc
    from scipy.stats import t as t_distribution

    n = len(data.blocks)
    if n < 2:
        return untested(data, FEW)
    pairs = []
    for a, b, d in data.differences():
        if np.ptp(d) <= data.tolerance:
            pairs.append(_without_p(a, b, d, EQUAL))
            continue
        mean, std = float(d.mean()), float(d.std(ddof=1))
        error = std / math.sqrt(n)
        half = float(t_distribution.ppf(1 - alpha / 2, n - 1)) * error
        p = 2 * float(t_distribution.sf(abs(mean) / error, n - 1))
        # The noncentralities under which the t that was found lies in a tail of α/2, over √n.
        low, high = nctdtrinc(n - 1, [1 - alpha / 2, alpha / 2], mean / error) / math.sqrt(n)
        pairs.append(Pair(a, b, mean, mean - half, mean + half, p, mean / std, float(low), float(high)))
    return with_holm(pairs)


def wilcoxon(data: Replicates) -> list[Pair]:
    """Wilcoxon's signed-rank test over replicates, exact for few pairs, Holm over all; effect: rank-biserial.

    What is equal to `xclrun.analysis.replicates.TIE` is tied.
    """
    from scipy.stats import rankdata
    from scipy.stats import wilcoxon as signed_rank

    if len(data.blocks) < 2:
        return untested(data, FEW)
    pairs = []
    for a, b, d in data.differences():
        moved = d[np.abs(d) > data.tolerance]
        moved = np.sign(moved) * tied(np.abs(moved), data.tolerance)
        if len(moved) == 0:
            pairs.append(Pair(a, b, 0.0, math.nan, math.nan, 1.0, 0.0))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ties make it approximate; that is in the documentation
            p = float(signed_rank(moved).pvalue)
        ranks = rankdata(np.abs(moved))
        effect = float((ranks * np.sign(moved)).sum() / ranks.sum())
        pairs.append(Pair(a, b, float(d.mean()), math.nan, math.nan, p, effect))
    return with_holm(pairs)


def tied(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the values, shape (n,), where those that follow each other within ``tolerance`` are made equal."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.concatenate([[True], np.diff(ascending) > tolerance])[: len(values)]
    equal = np.empty_like(ascending)
    equal[order] = ascending[first][np.cumsum(first) - 1]
    return equal


def holm(p_values: ArrayLike) -> np.ndarray:
    """Holm's step-down adjustment: shape as given; NaN stays NaN and is no test.

    Own lines, since that of statsmodels collects garbage at each call, which takes longer than all tests of a report.
    """
    p = np.asarray(p_values, dtype=float)
    adjusted = np.full_like(p, np.nan)
    tested = np.flatnonzero(np.isfinite(p))
    order = tested[np.argsort(p[tested], kind="stable")]
    steps = p[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps)) if len(order) else steps
    return adjusted


def p_matrix(strategies: Sequence[str], pairs: Sequence[Pair]) -> np.ndarray:
    """Put p-values of pairs into a symmetric matrix, shape (strategies, strategies); NaN on the diagonal."""
    matrix = np.full((len(strategies), len(strategies)), np.nan)
    at = {name: k for k, name in enumerate(strategies)}
    for pair in pairs:
        matrix[at[pair.a], at[pair.b]] = matrix[at[pair.b], at[pair.a]] = pair.p
    return matrix


def with_holm(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the pairs with their p-values adjusted (`holm`)."""
    adjusted = holm([pair.p for pair in pairs])
    return [replace(pair, p=float(p)) for pair, p in zip(pairs, adjusted, strict=True)]
