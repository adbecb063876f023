"""Mixed model of strategies over replicates, by restricted maximum likelihood, with Satterthwaite's degrees of freedom.

y of strategy s, replicate o (an order) and block j in it (a seed): μ_s + O_o + (SO)_so + B_oj + e_soj; μ is fixed, the
others are random. All strategies have run the same blocks. So an orthonormal transform over the k strategies splits
the data into independent parts: their mean, and k − 1 contrasts, in which O and B cancel. Within each part the
covariance of a replicate's n_o blocks is a·I + b·J, with (a, b) = (σ²_e, σ²_SO) in a contrast and (σ²_e + k σ²_B,
σ²_SO + k σ²_O) in the mean. The likelihood and its information are sums over replicates, without a matrix of all
observations. This replaces statsmodels' MixedLM, which has no degrees of freedom and does not converge in up to half
of such fits, wherever a variance is 0 (`tests/analysis/test_significance.py` compares the two where it does).

Satterthwaite (1946), as Giesbrecht & Burns (1985): ν = 2 v² / (g' C g), v the variance of a difference, g its gradient
and C the inverse of the expected information. Variances that are estimated as 0 are left out of C.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# A variance below this share of the residual's counts as 0.
BOUNDARY = 1e-6
# −2 log likelihood may rise by this much per doubling of a variance: flat enough to be the optimum.
SLOPE = 1e-3
ITERATIONS = 1000


@dataclass(frozen=True)
class Fit:
    """What comparing two strategies needs of a fitted model.

    Attributes:
        means: of the strategies, up to a constant that all share, shape (k,).
        error: standard error of the difference of two of them.
        df: Satterthwaite's degrees of freedom of that error.
        variances: σ²_e, σ²_SO, σ²_B, σ²_O; NaN where the design cannot tell them from another one.
        converged: whether this is an optimum: the slope is flat, and downhill only towards a variance below 0.
    """

    means: np.ndarray
    error: float
    df: float
    variances: tuple[float, ...]
    converged: bool


def fit(values: ArrayLike, replicate: ArrayLike) -> Fit:
    """Fit the model.

    Args:
        values: shape (k, blocks), k ≥ 2 strategies, every one measured; not all differences are equal.
        replicate: number of the replicate of each block, shape (blocks,), from 0 on; at least two replicates.
    """
    from scipy.linalg import helmert
    from scipy.optimize import minimize

    y = np.asarray(values, dtype=float)
    of = np.asarray(replicate)
    k, sizes = len(y), np.bincount(of)
    # In units of the spread: the optimiser's tolerances are made for values near 1.
    scale = float((y - y.mean(axis=1, keepdims=True)).std())
    rows = helmert(k, full=True) @ (y / scale)
    mean, contrasts = _Part.of(rows[:1], of, sizes), _Part.of(rows[1:], of, sizes)
    nested = sizes.max() > 1
    # One block each: σ²_SO and σ²_e come as a sum, and so do σ²_B and σ²_O.
    at = np.array([0, 1, 2, 3] if nested else [0, 3])
    to_contrasts = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])[:, at]
    to_mean = np.array([[1.0, 0, k, 0], [0, 1, 0, k]])[:, at]

    def deviance(theta: np.ndarray) -> tuple[float, np.ndarray]:
        one, slope_one = contrasts.deviance(*(to_contrasts @ theta))
        other, slope_other = mean.deviance(*(to_mean @ theta))
        return one + other, to_contrasts.T @ slope_one + to_mean.T @ slope_other

    # In units of estimates from mean squares, so that each variance is of order 1 for the optimiser.
    units = np.concatenate([contrasts.moments(), np.maximum(mean.moments() / k, 0.1 * contrasts.moments()[0])])[at]

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = deviance(units * x)
        return value, units * slope

    least = 1e-4
    found = minimize(
        scaled, np.ones(len(at)), jac=True, method="L-BFGS-B", bounds=[(least, None)] + [(0.0, None)] * (len(at) - 1),
        options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": ITERATIONS},
    )  # fmt: skip
    theta = units * found.x
    free = theta > BOUNDARY * theta[0]
    slope = deviance(theta)[1]
    flat = bool((np.abs(slope * theta) < SLOPE).all() and (slope[~free] * units[~free] > -SLOPE).all())
    weights = contrasts.weights(*(to_contrasts @ theta))
    information = (
        to_contrasts.T @ contrasts.information(*(to_contrasts @ theta)) @ to_contrasts
        + to_mean.T @ mean.information(*(to_mean @ theta)) @ to_mean
    )[np.ix_(free, free)]
    # Variance of a difference, 2 / Σ w, and its gradient.
    variance = 2 / weights.sum()
    per_eigenvalue = variance / weights.sum() * weights**2 / sizes
    gradient = (to_contrasts.T @ np.array([per_eigenvalue.sum(), (per_eigenvalue * sizes).sum()]))[free]
    spread = float(gradient @ np.linalg.pinv(information) @ gradient)
    of_replicates = np.stack([y[:, of == o].mean(axis=1) for o in range(len(sizes))], axis=1)
    variances = np.full(4, np.nan)
    variances[at] = np.where(free, theta, 0.0) * scale**2
    return Fit(
        of_replicates @ weights / weights.sum(), float(np.sqrt(variance)) * scale, 2 * variance**2 / spread,
        tuple(map(float, variances)), flat,
    )  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """Rows of one part of the data, each with its own mean and covariance a·I + b·J within a replicate.

    Attributes:
        rows: how many.
        sizes: blocks of each replicate, shape (O,).
        means: of each row and replicate, shape (rows, O).
        within: sum of squares within replicates, over all rows.
    """

    rows: int
    sizes: np.ndarray
    means: np.ndarray
    within: float

    @classmethod
    def of(cls, rows: np.ndarray, of: np.ndarray, sizes: np.ndarray) -> _Part:
        means = np.stack([rows[:, of == o].mean(axis=1) for o in range(len(sizes))], axis=1)
        return cls(len(rows), sizes, means, float(((rows - means[:, of]) ** 2).sum()))

    def moments(self) -> np.ndarray:
        """Return starting values of (a, b) from mean squares: above 0, as far as anything varies."""
        spare, size = self.sizes.sum() - len(self.sizes), self.sizes.mean()
        centred = self.means - self.means.mean(axis=1, keepdims=True)
        between = (centred**2).sum() / (self.rows * (len(self.sizes) - 1))
        a = self.within / (self.rows * spare) if spare else between * size
        return np.maximum([a, max(between - a / size, 0.1 * a)], 1e-12)

    def weights(self, a: float, b: float) -> np.ndarray:
        """Inverse variances of a replicate's mean, shape (O,)."""
        return self.sizes / (a + self.sizes * b)

    def deviance(self, a: float, b: float) -> tuple[float, np.ndarray]:
        """−2 log restricted likelihood but for a constant, and its gradient by (a, b)."""
        w, spare = self.weights(a, b), self.sizes.sum() - len(self.sizes)
        eigenvalues, total = self.sizes / w, w.sum()
        off = (self.means - (self.means @ w / total)[:, None]) ** 2
        value = self.rows * (spare * np.log(a) + np.log(eigenvalues).sum() + np.log(total)) + self.within / a
        by = (self.rows * (1 - w / total) - w * off.sum(axis=0)) / eigenvalues
        slope_a = self.rows * spare / a - self.within / a**2 + by.sum()
        return float(value + (off @ w).sum()), np.array([slope_a, (self.sizes * by).sum()])

    def information(self, a: float, b: float) -> np.ndarray:
        """Expected information on (a, b), ½ tr(P Vi P Vj), shape (2, 2)."""
        w, spare = self.weights(a, b), self.sizes.sum() - len(self.sizes)
        along = w / np.sqrt(self.sizes)
        projected = np.diag(w / self.sizes) - np.outer(along, along) / w.sum()
        squared = projected * projected.T
        by = np.stack([np.ones(len(w)), self.sizes.astype(float)])
        found = by @ squared @ by.T
        found[0, 0] += spare / a**2
        return np.asarray(self.rows * found / 2)
