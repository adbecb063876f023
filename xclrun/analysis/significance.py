"""Tests of pairs of strategies over replicates. docs/metrics.md, "Significance"."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.replicates import Replicates

ALPHA = 0.05
FEW = "needs two replicates or more"
EQUAL = "all differences are equal"
EQUAL_MEANS = "the means of orders and of seeds do not vary"
# Minimum number of replicates for d_z and ranks: the smallest p of ranks of two is 0.5.
FEWEST = 3
FEW_RANKS = "needs three replicates or more"
# Sample skew of the differences above which a t-test's p-value is printed with that of the sign-flip test.
SKEWED = 1.5
# Minimum number of orders for the mixed model: with fewer, it rejects too often (docs/metrics.md).
MIXED_ORDERS = 4


@dataclass(frozen=True)
class Pair:
    """Test of one pair of strategies, a − b; NaN for results that the test does not compute.

    Attributes:
        difference: mean of a minus mean of b, with 95 % interval ``low`` to ``high``.
        p: p-value; adjusted for multiple comparisons if the test says so.
        effect: standardized difference (d_z for paired tests), with its 95 % interval.
        reason: why p is NaN; otherwise empty.
        n: number of replicates.
        error, df: standard error of ``difference`` and degrees of freedom; NaN if the test has no t statistic.
        differences: a − b of each replicate, of a paired t-test.
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
    n: int = 0
    error: float = math.nan
    df: float = math.nan
    differences: tuple[float, ...] = field(default=(), compare=False, repr=False)

    def interval(self, comparisons: int, alpha: float = ALPHA) -> tuple[float, float]:
        """Return the interval at level 1 − α / ``comparisons`` (Bonferroni): all such intervals hold with 1 − α."""
        from scipy.special import stdtrit

        half = float(stdtrit(self.df, 1 - alpha / comparisons / 2)) * self.error
        return self.difference - half, self.difference + half

    def equivalence(self, margin: float) -> float:
        """Return p of two one-sided t-tests (TOST) of |true difference| < ``margin``; NaN if p is NaN."""
        from scipy.special import stdtr

        if math.isnan(self.p):
            return math.nan
        return float(stdtr(self.df, (abs(self.difference) - margin) / self.error))

    @property
    def skew(self) -> float:
        """The sample skew of ``differences``; NaN for fewer than three."""
        from scipy.stats import skew

        return float(skew(self.differences, bias=False)) if len(self.differences) > 2 else math.nan

    def sign_flip(self) -> float:
        """Return p of the two-sided sign-flip test of ``differences``, exact for up to 13 (else 9,999 draws)."""
        from scipy.stats import permutation_test

        return float(
            permutation_test(
                (np.array(self.differences),), np.mean, permutation_type="samples", vectorized=True,
                n_resamples=9999, rng=np.random.default_rng(0),
            ).pvalue
        )  # fmt: skip


def not_compared(a: str, b: str, reason: str) -> Pair:
    """Return a pair without a difference."""
    return Pair(a, b, math.nan, math.nan, math.nan, math.nan, reason=reason)


def untested(data: Replicates, reason: str) -> list[Pair]:
    """Return the differences of all pairs without p-values."""
    return [_without_p(a, b, d, reason) for a, b, d in data.differences()]


def _without_p(a: str, b: str, differences: np.ndarray, reason: str) -> Pair:
    return Pair(a, b, float(differences.mean()), math.nan, math.nan, math.nan, reason=reason, n=len(differences))


def mixed_model(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Test all pairs by a mixed model (`xclrun.analysis.mixed`), with Holm's correction over all pairs."""
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
        # Average within replicates, where differences do not vary: this variance cannot be estimated.
        data, replicate = averaged, np.arange(len(distinct))
    fitted = fit(data.values, replicate)
    if not fitted.converged:
        return untested(data, "the mixed model did not converge")
    means = zip(data.strategies, fitted.means.tolist(), strict=True)
    return with_holm(
        [
            _t_pair(a, b, mean_a - mean_b, fitted.error, fitted.df, alpha)
            for (a, mean_a), (b, mean_b) in combinations(means, 2)
        ]
    )


def paired_t(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Test all pairs by paired t-tests over replicates (LL), with Holm's correction over all pairs."""
    return with_holm([t_test(a, b, d, data.tolerance, alpha) for a, b, d in data.differences()])


def t_test(a: str, b: str, differences: np.ndarray, tolerance: float, alpha: float = ALPHA) -> Pair:
    """Test one pair by a paired t-test, without correction; the effect is d_z, with a noncentral t interval.

    Two replicates give no effect.

    Args:
        differences: a − b of each replicate, shape (n,).
        tolerance: differences that vary by at most this much count as equal and are not tested.
    """
    from scipy.special import nctdtrinc

    n = len(differences)
    if n < 2:
        return _without_p(a, b, differences, FEW)
    if np.ptp(differences) <= tolerance:
        return _without_p(a, b, differences, EQUAL)
    mean, std = float(differences.mean()), float(differences.std(ddof=1))
    error = std / math.sqrt(n)
    tested = replace(_t_pair(a, b, mean, error, n - 1, alpha), n=n, differences=tuple(differences.tolist()))
    if n < FEWEST:
        return tested
    # Noncentralities, divided by √n, for which the observed t has a tail probability of α/2.
    low, high = nctdtrinc(n - 1, [1 - alpha / 2, alpha / 2], mean / error) / math.sqrt(n)
    return replace(tested, effect=mean / std, effect_low=float(low), effect_high=float(high))


def crossed_test(
    a: str, b: str, differences: np.ndarray, cells: np.ndarray, tolerance: float, alpha: float = ALPHA
) -> Pair:
    """Test one pair with orders and seeds as crossed random factors (`crossed_error`), without correction.

    Args:
        differences: a − b of each block, shape (blocks,).
        cells: index of the block of each order and seed (`xclrun.analysis.replicates.crossed`).
        tolerance: see `t_test`.
    """
    if np.ptp(differences) <= tolerance:
        return _without_p(a, b, differences, EQUAL)
    error, df = map(float, crossed_error(differences[cells]))
    if error <= tolerance:
        return _without_p(a, b, differences, EQUAL_MEANS)
    return _t_pair(a, b, float(differences.mean()), error, df, alpha)


def crossed_error(values: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard error of the mean of an orders × seeds table, and its degrees of freedom.

    Var(mean) = (MS_order + MS_seed − MS_residual) / (ab), but at least MS_order / (ab) and at least MS_seed / (ab). The
    degrees of freedom are Satterthwaite's, but at least the smaller of a − 1 and b − 1.

    Args:
        values: shape (..., a orders, b seeds), both at least 2.
    """
    table = np.asarray(values, dtype=float)
    a, b = table.shape[-2:]
    order, seed = table.mean(axis=-1, keepdims=True), table.mean(axis=-2, keepdims=True)
    residuals = table - order - seed + table.mean(axis=(-2, -1), keepdims=True)
    of_order = b * order[..., 0].var(axis=-1, ddof=1)
    of_seed = a * seed[..., 0, :].var(axis=-1, ddof=1)
    residual = (residuals**2).sum(axis=(-2, -1)) / ((a - 1) * (b - 1))
    square = np.maximum(of_order + of_seed - residual, np.maximum(of_order, of_seed))
    spread = of_order**2 / (a - 1) + of_seed**2 / (b - 1) + residual**2 / ((a - 1) * (b - 1))
    with np.errstate(invalid="ignore"):
        df = (of_order + of_seed - residual) ** 2 / spread
    return np.sqrt(square / (a * b)), np.maximum(df, min(a, b) - 1)


def _t_pair(a: str, b: str, mean: float, error: float, df: float, alpha: float) -> Pair:
    from scipy.stats import t as t_distribution

    half = float(t_distribution.ppf(1 - alpha / 2, df)) * error
    p = 2 * float(t_distribution.sf(abs(mean) / error, df))
    return Pair(a, b, mean, mean - half, mean + half, p, error=error, df=df)


def wilcoxon(data: Replicates) -> list[Pair]:
    """Test all pairs by Wilcoxon's signed-rank test over replicates, with Holm's correction over all pairs.

    p is exact for few replicates without ties. The effect is the rank-biserial correlation.
    """
    from scipy.stats import rankdata
    from scipy.stats import wilcoxon as signed_rank

    if len(data.blocks) < 2:
        return untested(data, FEW)
    pairs = []
    for a, b, d in data.differences():
        if np.ptp(d) <= data.tolerance:
            pairs.append(_without_p(a, b, d, EQUAL))
            continue
        if len(d) < FEWEST:
            pairs.append(_without_p(a, b, d, FEW_RANKS))
            continue
        moved = d[np.abs(d) > data.tolerance]
        moved = np.sign(moved) * tied(np.abs(moved), data.tolerance)
        with warnings.catch_warnings():
            # Ignore scipy's warning that the test is approximate with ties.
            warnings.simplefilter("ignore")
            p = float(signed_rank(moved).pvalue)
        ranks = rankdata(np.abs(moved))
        effect = float((ranks * np.sign(moved)).sum() / ranks.sum())
        pairs.append(Pair(a, b, float(d.mean()), math.nan, math.nan, p, effect))
    return with_holm(pairs)


def tied(values: np.ndarray, tolerance: float) -> np.ndarray:
    """Return the values, shape (n,), with ties for values that differ by at most ``tolerance``."""
    order = np.argsort(values, kind="stable")
    ascending = values[order]
    first = np.concatenate([[True], np.diff(ascending) > tolerance])[: len(values)]
    equal = np.empty_like(ascending)
    equal[order] = ascending[first][np.cumsum(first) - 1]
    return equal


def holm(p_values: ArrayLike, count_missing: bool = False) -> np.ndarray:
    """Adjust p-values by Holm's step-down method; shape (n,).

    Args:
        p_values: NaN remains NaN.
        count_missing: count NaN as comparisons, for a family that is fixed before the data are seen.
    """
    # Not statsmodels' `multipletests`, which collects garbage at each call.
    adjusted = np.array(p_values, dtype=float)
    tested = np.isfinite(adjusted)
    (counted,) = np.nonzero(tested | (count_missing and tested.any()))
    order = counted[np.argsort(np.where(tested, adjusted, 1.0)[counted])]
    steps = np.where(tested, adjusted, 1.0)[order] * np.arange(len(order), 0, -1)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    adjusted[~tested] = np.nan
    return adjusted


def p_matrix(strategies: Sequence[str], pairs: Sequence[Pair]) -> np.ndarray:
    """Return the symmetric matrix of p-values, shape (strategies, strategies); NaN on the diagonal."""
    matrix = np.full((len(strategies), len(strategies)), np.nan)
    at = {name: k for k, name in enumerate(strategies)}
    for pair in pairs:
        matrix[at[pair.a], at[pair.b]] = matrix[at[pair.b], at[pair.a]] = pair.p
    return matrix


def with_holm(pairs: Sequence[Pair]) -> list[Pair]:
    adjusted = holm([pair.p for pair in pairs])
    return [replace(pair, p=float(p)) for pair, p in zip(pairs, adjusted, strict=True)]
