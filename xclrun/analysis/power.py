"""Power of tests with few replicates."""

from __future__ import annotations

import math

from xclrun.analysis.significance import ALPHA

POWER = 0.8


def smallest_p(replicates: int) -> float:
    """Return the smallest p of Wilcoxon's exact two-sided test with n replicates: 2 / 2^n."""
    return min(1.0, 2.0 ** (1 - replicates))


def detectable_effect(replicates: int, alpha: float = ALPHA, power: float = POWER) -> float:
    """Return the smallest effect |d_z| that a paired t-test detects with probability ``power``.

    NaN if there are fewer than two replicates.

    Inverts the noncentral t distribution, since statsmodels' `TTestPower` deviates by up to 3e-6.
    """
    if replicates < 2:
        return math.nan
    from scipy.special import nctdtrinc, stdtrit

    # The noncentrality for which t is below its critical value with probability 1 − power.
    df = replicates - 1
    return float(nctdtrinc(df, 1 - power, stdtrit(df, 1 - alpha / 2))) / math.sqrt(replicates)


def power_warnings(replicates: int, comparisons: int, alpha: float = ALPHA) -> list[str]:
    """Return warnings about the smallest p-value and the smallest detectable effect with this number of replicates."""
    if replicates < 2:
        return [f"{replicates} replicate: tests need at least two; run more orders or seeds"]
    least, limits = smallest_p(replicates), []
    if least > alpha:
        limits.append(
            f"Wilcoxon's test with {replicates} pairs cannot reach p = {alpha:g}: its smallest p is {least:.3g}"
        )
    elif least * comparisons > alpha:
        limits.append(
            f"the smallest p of Wilcoxon's test with {replicates} pairs is {min(1.0, least * comparisons):.3g} after "
            f"Holm's correction over {comparisons} comparisons"
        )
    effect = detectable_effect(replicates, alpha)
    limits.append(
        f"with {replicates} replicates, a paired t-test has {100 * POWER:.0f} % power if the true difference is "
        f"{effect:.2f} standard deviations of the differences (before correction)"
    )
    return limits
