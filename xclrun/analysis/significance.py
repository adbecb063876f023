"""Do strategies differ? Tests over replicates. docs/metrics.md, "Significance".

A replicate is an order: strategies interact with orders, so seeds of one order are no further evidence about other
orders, and are averaged first (`Replicates.averaged`). Every strategy has run every replicate: replicates are blocks.
CCL: one-way ANOVA over strategies with orders as samples, then Tukey's HSD on all pairs. How often each test rejects
where strategies do not differ is simulated by ``python -m benchmarks.statistics`` and printed in docs/statistics.md.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

ALPHA = 0.05
POWER = 0.8
# What differs by no more is equal: scores are of order 1, and their rounding errors a few times 1e-16.
TIE = 1e-12

FEW = "needs two replicates or more"
EQUAL = "all differences are equal"

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

    @property
    def kind(self) -> str:
        """What a replicate is: ``order``; ``languages`` or ``bucket`` of few-shot runs; ``seed`` of a single order."""
        buckets = {bucket for _, _, bucket in self.blocks}
        if buckets != {None} and len(set(self.languages)) > 1:
            return "languages"
        if len({order for order, _, _ in self.blocks}) > 1:
            return "order"
        return "bucket" if len(buckets) > 1 else "seed"

    @property
    def tolerance(self) -> float:
        """Differences up to this are rounding errors: `TIE`, or that share of the largest value."""
        return TIE * max(1.0, float(np.abs(self.values).max(initial=0.0)))

    def averaged(self) -> Replicates:
        """Return one block for each replicate, the mean over what is inside it."""
        return self._means(self.kind)

    def by_order(self) -> Replicates:
        """Return the means over seeds and buckets: one block for each order, the paper's samples."""
        return self._means("order")

    def levels(self, kind: str | None = None) -> list[str | int | None]:
        """Return the replicate of each block."""
        named = {"order": 0, "seed": 1, "bucket": 2}
        kind = kind or self.kind
        return list(self.languages) if kind == "languages" else [block[named[kind]] for block in self.blocks]

    def _means(self, kind: str) -> Replicates:
        levels = self.levels(kind)
        distinct = list(dict.fromkeys(levels))
        of = np.array([distinct.index(level) for level in levels])
        # In a language every bucket counts the same, however many seeds it has.
        inside = [(of[j], bucket if kind == "languages" else j) for j, (_, _, bucket) in enumerate(self.blocks)]
        counts = Counter(inside)
        weights = np.array([1 / counts[one] for one in inside])
        means = [np.average(self.values[:, of == k], axis=1, weights=weights[of == k]) for k in range(len(distinct))]
        order = self.blocks[0][0]
        blocks: list[Block] = [
            (order, -1, int(level)) if kind == "bucket" and level is not None
            else (order, int(level or 0), None) if kind == "seed" else (str(level), -1, None)
            for level in distinct
        ]  # fmt: skip
        return Replicates(self.strategies, tuple(blocks), np.stack(means, axis=1))


@dataclass(frozen=True)
class Anova:
    """An analysis of variance: F, its degrees of freedom, p, and the share of variance explained (η², partial where
    there are blocks). Where there is none, ``reason`` says why."""

    f: float
    df: tuple[int, int]
    p: float
    eta_squared: float
    mean_square_error: float
    reason: str = ""


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


def anova(data: Replicates) -> Anova:
    """One-way: strategies as groups, blocks as independent samples (the paper's, with `Replicates.by_order`)."""
    values = data.values
    k, n = values.shape
    between = n * ((values.mean(axis=1) - values.mean()) ** 2).sum()
    within = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum()
    return _anova(between, within, k - 1, k * (n - 1), data.tolerance)


def blocked_anova(data: Replicates) -> Anova:
    """Two-way, strategy + block, without interaction: what blocks have in common is no error."""
    values = data.values
    k, n = values.shape
    of_strategy = values.mean(axis=1, keepdims=True)
    of_block = values.mean(axis=0, keepdims=True)
    between = n * ((of_strategy - values.mean()) ** 2).sum()
    error = ((values - of_strategy - of_block + values.mean()) ** 2).sum()
    return _anova(between, error, k - 1, (k - 1) * (n - 1), data.tolerance)


def _anova(between: float, error: float, df_between: int, df_error: int, tolerance: float) -> Anova:
    from scipy.stats import f as f_distribution

    # Mean squares of rounding errors are none.
    none = max(df_between, df_error, 1) * tolerance**2
    between, error = (0.0 if ss <= none else float(ss) for ss in (between, error))
    eta = between / (between + error) if between + error else math.nan
    if df_between < 1 or df_error < 1 or not error:
        reason = FEW if df_error < 1 else EQUAL
        return Anova(math.nan, (df_between, df_error), math.nan, eta, math.nan, reason)
    mse = error / df_error
    f = between / df_between / mse
    return Anova(f, (df_between, df_error), float(f_distribution.sf(f, df_between, df_error)), eta, mse)


def tukey(data: Replicates, fitted: Anova, alpha: float = ALPHA) -> list[Pair]:
    """Tukey's honestly significant difference on all pairs, with the error of ``fitted`` (one-way or blocked).

    p is adjusted for all pairs by the studentized range; intervals hold for all pairs together.
    """
    from scipy.stats import studentized_range

    k, n = data.values.shape
    means = data.values.mean(axis=1)
    pairs = list(combinations(range(k), 2))
    differences = np.array([means[i] - means[j] for i, j in pairs])
    if fitted.reason:
        return [_untested(data, i, j, fitted.reason) for i, j in pairs]
    scale = math.sqrt(fitted.mean_square_error / n)
    p = np.atleast_1d(studentized_range.sf(np.abs(differences) / scale, k, fitted.df[1]))
    half = honest_difference(fitted, k, n, alpha)
    return [
        Pair(data.strategies[i], data.strategies[j], float(d), float(d - half), float(d + half), float(min(1, p_)))
        for (i, j), d, p_ in zip(pairs, differences, p, strict=True)
    ]


def honest_difference(fitted: Anova, strategies: int, replicates: int, alpha: float = ALPHA) -> float:
    """How far the means of two strategies must be apart for Tukey's p to be below ``alpha``; NaN without an error."""
    scale = math.sqrt(fitted.mean_square_error / replicates)
    return math.nan if fitted.reason else _range_quantile(1 - alpha, strategies, fitted.df[1]) * scale


@lru_cache(maxsize=64)
def _range_quantile(confidence: float, groups: int, df: float) -> float:
    """Quantile of the studentized range: a search over double integrals, the same for every measure."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(confidence, groups, df))


def _untested(data: Replicates, i: int, j: int, reason: str) -> Pair:
    difference = float(data.values[i].mean() - data.values[j].mean())
    return Pair(data.strategies[i], data.strategies[j], difference, math.nan, math.nan, math.nan, reason=reason)


def mixed_model(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Mixed model of all blocks: strategy fixed; replicate, strategy × replicate and block in a replicate random.

    t with Satterthwaite's degrees of freedom, Holm over all pairs; see `xclrun.analysis.mixed`. No p where the fit did
    not converge.
    """
    from scipy.stats import t as t_distribution

    from xclrun.analysis.mixed import fit

    k = len(data.strategies)
    pairs = list(combinations(range(k), 2))
    levels = data.levels()
    distinct = list(dict.fromkeys(levels))
    differences = data.values - data.values[0]
    if len(distinct) < 2:
        return [_untested(data, i, j, FEW) for i, j in pairs]
    if (np.ptp(differences, axis=1) <= data.tolerance).all():
        return [_untested(data, i, j, EQUAL) for i, j in pairs]
    replicate = np.array([distinct.index(level) for level in levels])
    averaged = data.averaged()
    within = differences - (averaged.values - averaged.values[0])[:, replicate]
    if np.abs(within).max() <= data.tolerance:
        # Seeds that change nothing between strategies: there is no variance within replicates to estimate.
        data, replicate = averaged, np.arange(len(distinct))
    fitted = fit(data.values, replicate)
    if not fitted.converged:
        return [_untested(data, i, j, "the mixed model did not converge") for i, j in pairs]
    found = []
    half = float(t_distribution.ppf(1 - alpha / 2, fitted.df)) * fitted.error
    for i, j in pairs:
        d = float(fitted.means[i] - fitted.means[j])
        p = 2 * float(t_distribution.sf(abs(d) / fitted.error, fitted.df))
        found.append(Pair(data.strategies[i], data.strategies[j], d, d - half, d + half, p))
    return _with_holm(found)


def paired_t(data: Replicates, alpha: float = ALPHA) -> list[Pair]:
    """Paired t-test over replicates (LL), Holm over all pairs; effect: d_z with an interval from the noncentral t.

    None where all differences of a pair are equal: they then have no standard deviation.
    """
    from scipy.stats import t as t_distribution

    n = len(data.blocks)
    found = []
    for a, b, d in _differences(data):
        mean, std = float(d.mean()), float(d.std(ddof=1)) if n > 1 else math.nan
        error = std / math.sqrt(n)
        if n < 2 or np.ptp(d) <= data.tolerance:
            found.append(Pair(a, b, mean, math.nan, math.nan, math.nan, reason=FEW if n < 2 else EQUAL))
            continue
        half = float(t_distribution.ppf(1 - alpha / 2, n - 1)) * error
        p = 2 * float(t_distribution.sf(abs(mean) / error, n - 1))
        low, high = _effect_interval(mean / error, n, alpha)
        found.append(Pair(a, b, mean, mean - half, mean + half, p, mean / std, low, high))
    return _with_holm(found)


def wilcoxon(data: Replicates) -> list[Pair]:
    """Wilcoxon's signed-rank test over replicates, exact for few pairs, Holm over all; effect: rank-biserial.

    What is equal to `TIE` is tied.
    """
    from scipy.stats import rankdata
    from scipy.stats import wilcoxon as signed_rank

    if len(data.blocks) < 2:
        return [_untested(data, i, j, FEW) for i, j in combinations(range(len(data.strategies)), 2)]
    found = []
    for a, b, d in _differences(data):
        moved = d[np.abs(d) > data.tolerance]
        moved = np.sign(moved) * _tied(np.abs(moved), data.tolerance)
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


def _tied(values: np.ndarray, tolerance: float) -> np.ndarray:
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


def smallest_p(replicates: int) -> float:
    """The smallest p that Wilcoxon's exact two-sided test can give with that many pairs: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - replicates))


def detectable_effect(replicates: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """The smallest |d_z| that a paired t-test finds with probability ``power``; NaN below two replicates.

    Own lines: statsmodels' search stops at the sixth digit, and its import takes longer than all tests of a report.
    """
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
    """Rank the strategies within each replicate, test by Friedman, and compare mean ranks by Nemenyi's difference.

    What is equal to `TIE` is tied.
    """
    from scipy.stats import chi2, rankdata

    k, n = data.values.shape
    equal = np.apply_along_axis(_tied, 0, data.values, data.tolerance)
    ranks = rankdata(-equal if higher_is_better else equal, axis=0)
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
