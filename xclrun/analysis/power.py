"""Power of tests with few replicates, and the variance components of a pilot that predict it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from xclrun.analysis.replicates import TIE
from xclrun.analysis.significance import ALPHA

POWER = 0.8
# Largest number of orders that `Components.orders_for` tries.
MOST_ORDERS = 200
# Number of quantiles of the effect of seeds over which power is averaged.
NODES = 50


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


@dataclass(frozen=True)
class Components:
    """Variance components of the differences of two strategies, in squared score units; negative estimates are 0.

    Attributes:
        order: variance over orders; includes that over seeds and runs if these are NaN.
        seed, residual: variance over seeds, and of single runs; NaN with fewer than two seeds.
        orders, seeds: size of the pilot.
    """

    order: float
    seed: float
    residual: float
    orders: int
    seeds: int

    @classmethod
    def of(cls, differences: ArrayLike) -> Components:
        """Estimate the components by the analysis of variance of crossed random factors (Searle et al. 1992, ch. 4).

        Args:
            differences: a − b, shape (orders, seeds), at least two orders.
        """
        table = np.asarray(differences, dtype=float)
        a, b = table.shape
        of_orders, of_seeds = table.mean(axis=1), table.mean(axis=0)
        if b < 2:
            return cls(float(of_orders.var(ddof=1)), math.nan, math.nan, a, b)
        residuals = table - of_orders[:, np.newaxis] - of_seeds + table.mean()
        residual = float((residuals**2).sum()) / ((a - 1) * (b - 1))
        order, seed = float(of_orders.var(ddof=1)) - residual / b, float(of_seeds.var(ddof=1)) - residual / a
        return cls(max(0.0, order), max(0.0, seed), residual, a, b)

    @property
    def varies(self) -> bool:
        """Whether the pilot has any variance; otherwise it predicts nothing."""
        return bool(np.nansum([self.order, self.seed, self.residual]) > TIE**2)

    def power(self, effect: float, orders: int, seeds: int, comparisons: int = 1) -> float:
        """Return the probability that a paired t-test over orders detects a difference at `ALPHA` / ``comparisons``.

        This is Holm's first step, so Holm's correction detects at least as much.

        Args:
            effect: true difference, in score units.
            orders: number of orders, at least 2. The pilot varies.
            seeds: seeds of each order; the pilot's number if that is one.
        """
        from scipy.special import nctdtr, ndtri, stdtrit

        of_run, of_seed = (
            (0.0, 0.0) if math.isnan(self.residual) else (self.residual / seeds, math.sqrt(self.seed / seeds))
        )
        error = max(math.sqrt((self.order + of_run) / orders), abs(effect) * 1e-3, TIE)
        # All orders have the same seeds, whose effect on the mean more orders do not reduce: average over it.
        shifts = of_seed * ndtri((np.arange(NODES) + 0.5) / NODES) if of_seed else np.zeros(1)
        critical = stdtrit(orders - 1, 1 - ALPHA / comparisons / 2)
        return float(1 - nctdtr(orders - 1, np.clip((abs(effect) + shifts) / error, -30, 1000), critical).mean())

    def orders_for(self, effect: float, seeds: int, comparisons: int = 1) -> int | None:
        """Return the smallest number of orders with a power of `POWER`; None if `MOST_ORDERS` do not suffice."""
        numbers = range(2, MOST_ORDERS + 1)
        return next((n for n in numbers if self.power(effect, n, seeds, comparisons) >= POWER), None)
