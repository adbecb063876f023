"""Do strategies differ? Tests over replicates: an (order, seed, bucket) is a block that every strategy has run.

CCL: one-way ANOVA over strategies with language orders as samples, then Tukey's HSD on all pairs. Design-aware: the
same orders and seeds are blocks. METRICS.md, "Significance".
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ALPHA = 0.05
POWER = 0.8

Block = tuple[str, int, int | None]


@dataclass(frozen=True)
class Replicates:
    """One measure of several strategies in the same blocks.

    Attributes:
        strategies: labels of the rows.
        blocks: (order, seed, bucket) of the columns.
        values: shape (strategies, blocks), every one measured.
        languages: of each block, what its bucket was drawn from: bucket 3 of de is not bucket 3 of fr. Empty: all
            blocks have the same.

    Raises:
        ValueError: the shape does not fit the labels, or a value is missing: tests compare what all have finished.
    """

    strategies: tuple[str, ...]
    blocks: tuple[Block, ...]
    values: np.ndarray
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=float)
        if values.shape != (len(self.strategies), len(self.blocks)) or not np.isfinite(values).all():
            raise ValueError("replicates need one finite value for each strategy and block")
        if self.languages and len(self.languages) != len(self.blocks):
            raise ValueError("replicates need the languages of every block, or of none")
        object.__setattr__(self, "values", values)

    def by_order(self) -> Replicates:
        """Return the means over seeds and buckets: one block for each order, the paper's samples."""
        orders = tuple(dict.fromkeys(order for order, _, _ in self.blocks))
        of = np.array([orders.index(order) for order, _, _ in self.blocks])
        means = np.stack([self.values[:, of == k].mean(axis=1) for k in range(len(orders))], axis=1)
        return Replicates(self.strategies, tuple((order, -1, None) for order in orders), means)


@dataclass(frozen=True)
class Anova:
    """An analysis of variance: F, its degrees of freedom, p, and the share of variance explained (η², partial where
    there are blocks)."""

    f: float
    df: tuple[int, int]
    p: float
    eta_squared: float
    mean_square_error: float


@dataclass(frozen=True)
class Pair:
    """One comparison, a − b, of which a pair of strategies may be told apart.

    Attributes:
        difference: mean of a minus mean of b.
        low, high: 95 % interval of the difference; NaN where the test gives none.
        p: p-value of the test, adjusted where the test adjusts it.
        effect: standardised difference (d of the paired differences for paired tests); NaN where there is none.
        effect_low, effect_high: its 95 % interval.
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


def anova(data: Replicates) -> Anova:
    """One-way: strategies as groups, blocks as independent samples (the paper's, with `Replicates.by_order`)."""
    values = data.values
    k, n = values.shape
    between = n * ((values.mean(axis=1) - values.mean()) ** 2).sum()
    within = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum()
    return _anova(between, within, k - 1, k * (n - 1))


def blocked_anova(data: Replicates) -> Anova:
    """Two-way, strategy + block, without interaction: what blocks have in common is no error."""
    values = data.values
    k, n = values.shape
    of_strategy = values.mean(axis=1, keepdims=True)
    of_block = values.mean(axis=0, keepdims=True)
    between = n * ((of_strategy - values.mean()) ** 2).sum()
    error = ((values - of_strategy - of_block + values.mean()) ** 2).sum()
    return _anova(between, error, k - 1, (k - 1) * (n - 1))


def _anova(between: float, error: float, df_between: int, df_error: int) -> Anova:
    from scipy.stats import f as f_distribution

    # Differences that are rounding errors of equal values are none.
    between, error = (0.0 if ss < 1e-24 else float(ss) for ss in (between, error))
    eta = between / (between + error) if between + error else math.nan
    if df_between < 1 or df_error < 1:
        return Anova(math.nan, (df_between, df_error), math.nan, eta, math.nan)
    mse = error / df_error
    f = between / df_between / mse if mse else (math.inf if between else math.nan)
    p = float(f_distribution.sf(f, df_between, df_error)) if f == f else math.nan
    return Anova(f, (df_between, df_error), p, eta, mse)


def tukey(data: Replicates, fitted: Anova, alpha: float = ALPHA) -> list[Pair]:
    """Tukey's honestly significant difference on all pairs, with the error of ``fitted`` (one-way or blocked).

    p is adjusted for all pairs by the studentized range; intervals hold for all pairs together.
    """
    from scipy.stats import studentized_range

    k, n = data.values.shape
    df = fitted.df[1]
    means = data.values.mean(axis=1)
    pairs = list(combinations(range(k), 2))
    scale = math.sqrt(fitted.mean_square_error / n) if fitted.mean_square_error > 0 else math.nan
    differences = np.array([means[i] - means[j] for i, j in pairs])
    if scale != scale or df < 1:
        return [Pair(data.strategies[i], data.strategies[j], d, math.nan, math.nan, math.nan)
                for (i, j), d in zip(pairs, differences, strict=True)]  # fmt: skip
    p = np.atleast_1d(studentized_range.sf(np.abs(differences) / scale, k, df))
    half = _range_quantile(1 - alpha, k, df) * scale
    return [
        Pair(data.strategies[i], data.strategies[j], float(d), float(d - half), float(d + half), float(min(1, p_)))
        for (i, j), d, p_ in zip(pairs, differences, p, strict=True)
    ]


@lru_cache(maxsize=64)
def _range_quantile(confidence: float, groups: int, df: float) -> float:
    """Quantile of the studentized range: a search over double integrals, the same for every measure."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(confidence, groups, df))


def mixed_model(data: Replicates) -> list[Pair]:
    """Mixed model: strategy as fixed effect; order and seed as random effects; buckets nested in languages; Wald, Holm.

    Order and seed are crossed. What differs between sets of languages is one random effect (where it is not the order
    already), what differs between the buckets of one set another (METRICS.md, "Significance"). Pairs
    are NaN where the model cannot be fitted (one order and one seed, or nothing that varies).
    """
    from scipy.stats import norm

    k = len(data.strategies)
    fit = _fitted(data)
    found = []
    for i, j in combinations(range(k), 2):
        contrast = np.zeros(k)
        contrast[i], contrast[j] = 1, -1
        difference = float(data.values[i].mean() - data.values[j].mean())
        if fit is None:
            found.append(Pair(data.strategies[i], data.strategies[j], difference, math.nan, math.nan, math.nan))
            continue
        means, covariance = fit
        difference = float(contrast @ means)
        error = math.sqrt(max(float(contrast @ covariance @ contrast), 0.0))
        p = 2 * float(norm.sf(abs(difference) / error)) if error else math.nan
        half = 1.959963984540054 * error
        found.append(Pair(data.strategies[i], data.strategies[j], difference, difference - half, difference + half, p))
    return _with_holm(found)


def _fitted(data: Replicates) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the fixed effects, one mean for each strategy, and their covariance."""
    import statsmodels.api as sm

    k, n = data.values.shape
    varying = _random_effects(data)
    y = data.values.ravel()
    if not varying or np.ptp(data.values - data.values.mean(axis=0)) == 0 or k < 2:
        return None
    # In units of the spread: the optimiser's tolerances are made for values near 1.
    scale = float(y.std()) or 1.0
    fixed = np.kron(np.eye(k), np.ones((n, 1)))
    parts = [np.tile(_indicators(levels), (k, 1)) for levels in varying.values()]
    names = [[f"{name}{i}" for i in range(part.shape[1])] for name, part in zip(varying, parts, strict=True)]
    components = sm.regression.mixed_linear_model.VCSpec(list(varying), [[n] for n in names], [[p] for p in parts])
    with warnings.catch_warnings():
        # A component estimated at 0 lies on the boundary, which is an answer and no fault.
        warnings.simplefilter("ignore")
        try:
            model = sm.MixedLM(y / scale, fixed, groups=np.zeros(k * n), exog_vc=components)
            result = model.fit(reml=True)
        except (np.linalg.LinAlgError, ValueError):
            return None
    means, covariance = np.asarray(result.fe_params), np.asarray(result.cov_params())[:k, :k]
    if not np.isfinite(covariance).all():
        return None
    return means * scale, covariance * scale**2


def _random_effects(data: Replicates) -> dict[str, list[str]]:
    """Return factor → its level in each block, for the factors that vary and are no other one under a second name."""
    languages = data.languages or ("",) * len(data.blocks)
    factors = {
        "order": [order for order, _, _ in data.blocks],
        "languages": list(languages),
        "seed": [str(seed) for _, seed, _ in data.blocks],
        # Nested: a bucket is one only together with the languages that it was drawn from.
        "bucket": [f"{of}/{bucket}" for of, (_, _, bucket) in zip(languages, data.blocks, strict=True)],
    }
    found: dict[str, list[str]] = {}
    for name, levels in factors.items():
        same = any(len(set(zip(levels, other, strict=True))) == len(set(levels)) == len(set(other))
                   for other in found.values())  # fmt: skip
        if len(set(levels)) > 1 and not same:
            found[name] = levels
    return found


def _indicators(levels: Sequence[str]) -> np.ndarray:
    every = sorted(set(levels))
    return np.array([[float(level == one) for one in every] for level in levels])


def paired_t(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Paired t-test over blocks (LL), Holm over all pairs; effect: d_z with an interval from the noncentral t."""
    from scipy.stats import t as t_distribution

    n = len(data.blocks)
    found = []
    for a, b, d in _differences(data):
        mean, std = float(d.mean()), float(d.std(ddof=1)) if n > 1 else math.nan
        error = std / math.sqrt(n)
        if not error > 0:
            p = 1.0 if n > 1 and mean == 0 else math.nan
            found.append(Pair(a, b, mean, math.nan, math.nan, p))
            continue
        half = float(t_distribution.ppf(1 - alpha / 2, n - 1)) * error
        p = 2 * float(t_distribution.sf(abs(mean) / error, n - 1))
        low, high = _effect_interval(mean / error, n, alpha)
        found.append(Pair(a, b, mean, mean - half, mean + half, p, mean / std, low, high))
    return _with_holm(found)


def wilcoxon(data: Replicates) -> list[Pair]:
    """Wilcoxon's signed-rank test over blocks, exact for few pairs, Holm over all; effect: rank-biserial."""
    from scipy.stats import rankdata
    from scipy.stats import wilcoxon as signed_rank

    found = []
    for a, b, d in _differences(data):
        moved = d[d != 0]
        if len(moved) == 0:
            found.append(Pair(a, b, 0.0, math.nan, math.nan, 1.0, 0.0))
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ties make it approximate; that is in the documentation
            p = float(signed_rank(moved).pvalue)
        ranks = rankdata(np.abs(moved))
        effect = float((ranks * np.sign(moved)).sum() / ranks.sum())
        found.append(Pair(a, b, float(d.mean()), math.nan, math.nan, p, effect))
    return _with_holm(found)


def holm(p_values: ArrayLike) -> np.ndarray:
    """Holm's step-down adjustment: shape as given; NaN stays NaN and is no test."""
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


def smallest_p(replicates: int) -> float:
    """The smallest p that Wilcoxon's exact two-sided test can give with that many pairs: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - replicates))


def detectable_effect(replicates: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest |d_z| that a paired t-test finds with probability ``power``; NaN below two replicates."""
    if replicates < 2:
        return math.nan
    from scipy.optimize import brentq
    from scipy.stats import nct
    from scipy.stats import t as t_distribution

    df = replicates - 1
    critical = t_distribution.ppf(1 - alpha / 2, df)

    def missed(effect: float) -> float:
        shift = effect * math.sqrt(replicates)
        # scipy has no number for a lower tail that is as good as empty.
        return float(nct.sf(critical, df, shift) + np.nan_to_num(nct.cdf(-critical, df, shift))) - power

    high = 1.0
    while missed(high) < 0:
        high *= 2
    return float(brentq(missed, 0.0, high))


def power_warnings(replicates: int, comparisons: int, alpha: float = ALPHA) -> list[str]:
    """Say where the number of replicates cannot reach the level asked for, alone or after Holm's correction."""
    if replicates < 2:
        return [f"{replicates} replicate: no test is possible; run more orders or seeds"]
    least, told = smallest_p(replicates), []
    if least > alpha:
        told.append(f"Wilcoxon with {replicates} pairs cannot go below p = {least:.3g}: it can never reach {alpha:g}")
    elif least * comparisons > alpha:
        told.append(
            f"Wilcoxon with {replicates} pairs and Holm over {comparisons} comparisons cannot go below "
            f"p = {min(1.0, least * comparisons):.3g}"
        )
    effect = detectable_effect(replicates, alpha)
    told.append(
        f"with {replicates} replicates a paired t-test finds a difference of {effect:.2f} standard deviations or more "
        f"with {POWER:.0%} probability (before correction)"
    )
    return told


@dataclass(frozen=True)
class CriticalDifference:
    """Mean ranks over blocks (1 is best), and how far apart they must be (Friedman, Nemenyi; Demšar 2006).

    Attributes:
        strategies: best first.
        ranks: their mean ranks, shape (strategies,).
        critical: least significant difference of two mean ranks.
        p: of Friedman's test.
        groups: (first, last) of strategies that are not told apart; only those that are in no larger group.
    """

    strategies: tuple[str, ...]
    ranks: np.ndarray
    critical: float
    p: float
    groups: tuple[tuple[int, int], ...]


def critical_difference(data: Replicates, higher_is_better: bool, alpha: float = ALPHA) -> CriticalDifference:
    """Rank the strategies within each block, test by Friedman, and compare mean ranks by Nemenyi's difference."""
    from scipy.stats import chi2, rankdata

    k, n = data.values.shape
    ranks = rankdata(-data.values if higher_is_better else data.values, axis=0)
    means = ranks.mean(axis=1)
    spread = ((ranks - (k + 1) / 2) ** 2).sum()
    # With ties this is the corrected form, as scipy's.
    statistic = n * (k - 1) * n * ((means - (k + 1) / 2) ** 2).sum() / spread if spread else 0.0
    critical = _range_quantile(1 - alpha, k, math.inf) / math.sqrt(2) * math.sqrt(k * (k + 1) / (6 * n))
    order = np.argsort(means, kind="stable")
    sorted_ranks = means[order]
    groups: list[tuple[int, int]] = []
    for first in range(k):
        last = int(np.searchsorted(sorted_ranks, sorted_ranks[first] + critical, side="right")) - 1
        if last > first and not any(last <= end for _, end in groups):
            groups.append((first, last))
    names = tuple(data.strategies[i] for i in order)
    return CriticalDifference(names, sorted_ranks, critical, float(chi2.sf(statistic, k - 1)), tuple(groups))


def _differences(data: Replicates) -> list[tuple[str, str, np.ndarray]]:
    return [
        (data.strategies[i], data.strategies[j], data.values[i] - data.values[j])
        for i, j in combinations(range(len(data.strategies)), 2)
    ]


def _with_holm(pairs: Sequence[Pair]) -> list[Pair]:
    from dataclasses import replace

    adjusted = holm([pair.p for pair in pairs])
    return [replace(pair, p=float(p)) for pair, p in zip(pairs, adjusted, strict=True)]


def _effect_interval(t: float, n: int, alpha: float) -> tuple[float, float]:
    """Interval of d_z: the noncentralities under which the t that was found lies in a tail of α/2, over √n."""
    from scipy.optimize import brentq
    from scipy.stats import nct

    def solve(tail: float) -> Any:
        def distance(shift: float) -> float:
            return float(nct.sf(t, n - 1, shift)) - tail

        low, high = t - 5.0, t + 5.0
        for _ in range(60):
            if distance(low) < 0 < distance(high):
                return brentq(distance, low, high)
            width = high - low
            low, high = (low - width if distance(low) >= 0 else low), (high + width if distance(high) <= 0 else high)
        return math.nan

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return solve(alpha / 2) / math.sqrt(n), solve(1 - alpha / 2) / math.sqrt(n)
