"""One-way ANOVA over strategies with orders as samples (CCL), two-way ANOVA with blocks, and Tukey's HSD.

The sums of squares are computed here: η² and Tukey's HSD need the mean square error, but scipy's `f_oneway` and
statsmodels' `AnovaRM` return only F and p. Error rates: docs/statistics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import ALPHA, EQUAL, FEW, Pair, untested


@dataclass(frozen=True)
class Anova:
    """Result of an ANOVA. With blocks, ``eta_squared`` is partial η². ``reason`` says why F is NaN, or is empty."""

    f: float
    df: tuple[int, int]
    p: float
    eta_squared: float
    mean_square_error: float
    reason: str = ""


def anova(data: Replicates) -> Anova:
    """Compare strategies by a one-way ANOVA with blocks as samples; for CCL's test, pass `Replicates.by_order`."""
    values = data.values
    k, n = values.shape
    between = n * ((values.mean(axis=1) - values.mean()) ** 2).sum()
    within = ((values - values.mean(axis=1, keepdims=True)) ** 2).sum()
    return _anova(between, within, k - 1, k * (n - 1), data.tolerance)


def blocked_anova(data: Replicates) -> Anova:
    """Compare strategies by a two-way ANOVA, strategy + block, without interaction."""
    values = data.values
    k, n = values.shape
    of_strategy = values.mean(axis=1, keepdims=True)
    of_block = values.mean(axis=0, keepdims=True)
    between = n * ((of_strategy - values.mean()) ** 2).sum()
    error = ((values - of_strategy - of_block + values.mean()) ** 2).sum()
    return _anova(between, error, k - 1, (k - 1) * (n - 1), data.tolerance)


def _anova(between: float, error: float, df_between: int, df_error: int, tolerance: float) -> Anova:
    from scipy.stats import f as f_distribution

    # Sums of squares within rounding error count as 0.
    rounding = max(df_between, df_error, 1) * tolerance**2
    between, error = (0.0 if ss <= rounding else float(ss) for ss in (between, error))
    eta = between / (between + error) if between + error else math.nan
    if df_between < 1 or df_error < 1 or not error:
        reason = FEW if df_error < 1 else EQUAL
        return Anova(math.nan, (df_between, df_error), math.nan, eta, math.nan, reason)
    mse = error / df_error
    f = between / df_between / mse
    return Anova(f, (df_between, df_error), float(f_distribution.sf(f, df_between, df_error)), eta, mse)


def tukey(data: Replicates, fitted: Anova, alpha: float = ALPHA) -> list[Pair]:
    """Test all pairs by Tukey's HSD with the mean square error of an ANOVA; p-values are adjusted for all pairs."""
    from scipy.stats import studentized_range

    if fitted.reason:
        return untested(data, fitted.reason)
    k, n = data.values.shape
    half = honest_difference(fitted, k, n, alpha)
    pairs = [(a, b, float(d.mean())) for a, b, d in data.differences()]
    ranges = np.abs([d for *_, d in pairs]) / math.sqrt(fitted.mean_square_error / n)
    p = np.atleast_1d(studentized_range.sf(ranges, k, fitted.df[1]))
    return [Pair(a, b, d, d - half, d + half, min(1.0, float(p_ab))) for (a, b, d), p_ab in zip(pairs, p, strict=True)]


def honest_difference(fitted: Anova, strategies: int, replicates: int, alpha: float = ALPHA) -> float:
    """Return Tukey's HSD: the smallest difference of two means with p below ``alpha``; NaN if F is NaN."""
    scale = math.sqrt(fitted.mean_square_error / replicates)
    return math.nan if fitted.reason else range_quantile(1 - alpha, strategies, fitted.df[1]) * scale


@lru_cache(maxsize=64)
def range_quantile(confidence: float, groups: int, df: float) -> float:
    """Return a quantile of the studentized range; cached, since computing it is slow."""
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(confidence, groups, df))
