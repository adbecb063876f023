"""Power of tests with few replicates: the smallest possible p, and the smallest detectable effect."""

from __future__ import annotations

import math

from xclrun.analysis.significance import ALPHA

POWER = 0.8


def smallest_p(replicates: int) -> float:
    """Return the smallest p of Wilcoxon's exact two-sided test: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - replicates))


def detectable_effect(replicates: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the smallest |d_z| that a paired t-test detects with probability ``power``; NaN below two replicates.

    The noncentral t gives it exactly, but for rejections of the wrong sign (less than one in a million); statsmodels'
    `TTestPower` deviates by up to 3e-6.
    """
    if replicates < 2:
        return math.nan
    from scipy.special import nctdtrinc, stdtrit

    # The noncentrality under which t stays below its critical value with probability 1 − power.
    df = replicates - 1
    return float(nctdtrinc(df, 1 - power, stdtrit(df, 1 - alpha / 2))) / math.sqrt(replicates)


def power_warnings(replicates: int, comparisons: int, alpha: float = ALPHA) -> list[str]:
    """Return warnings where the number of replicates cannot reach the level, alone or after Holm's correction."""
    if replicates < 2:
        return [f"{replicates} replicate: no test is possible; run more orders or seeds"]
    least, limits = smallest_p(replicates), []
    if least > alpha:
        limits.append(f"Wilcoxon with {replicates} pairs cannot go below p = {least:.3g}: it can never reach {alpha:g}")
    elif least * comparisons > alpha:
        limits.append(
            f"Wilcoxon with {replicates} pairs and Holm over {comparisons} comparisons cannot go below "
            f"p = {min(1.0, least * comparisons):.3g}"
        )
    effect = detectable_effect(replicates, alpha)
    limits.append(
        f"with {replicates} replicates a paired t-test has {POWER:.0%} power for differences of at least {effect:.2f} "
        "standard deviations (before correction)"
    )
    return limits
