"""Mixed model of strategies over replicates: REML with Satterthwaite's degrees of freedom.

Model for strategy s, replicate o (an order) and block j in it (a seed): y = μ_s + O_o + (SO)_so + B_oj + e_soj, with μ
fixed and the other terms random. All strategies have the same blocks, so an orthonormal transform over the k strategies
splits the data into independent parts: the mean, and k − 1 contrasts, in which O and B cancel. In each part the
covariance of a replicate's blocks is a·I + b·J (J: all ones), with (a, b) = (σ²_e, σ²_SO) in a contrast and
(σ²_e + k σ²_B, σ²_SO + k σ²_O) in the mean. statsmodels' MixedLM lacks these degrees of freedom and fails to converge
if a variance is 0.

Satterthwaite (1946), following Giesbrecht & Burns (1985): ν = 2 v² / (g' C g), with v the variance of a difference, g
its gradient and C the inverse expected information, without the variances that are estimated as 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

# A variance below this share of the residual variance counts as 0.
BOUNDARY = 1e-6
# Largest change of −2 log likelihood per doubling of a variance at an optimum.
SLOPE = 1e-3
ITERATIONS = 1000


@dataclass(frozen=True)
class Fit:
    """A fitted model.

    Attributes:
        means: strategy means up to a common constant, shape (k,).
        error: standard error of the difference of two means.
        df: Satterthwaite's degrees of freedom for ``error``.
        variances: variances of the random terms: σ²_e, σ²_SO, σ²_B, σ²_O; NaN if not identified by the design.
        converged: whether the gradient is 0; components that point towards a negative variance are ignored.
    """

    means: np.ndarray
    error: float
    df: float
    variances: tuple[float, ...]
    converged: bool


def fit(values: ArrayLike, replicate: ArrayLike) -> Fit:
    """Fit the model to the values of k strategies.

    Args:
        values: finite values, shape (k, blocks) with k ≥ 2; the differences between strategies must vary.
        replicate: index of the replicate of each block, shape (blocks,); at least two replicates.
    """
    from scipy.linalg import helmert
    from scipy.optimize import minimize

    y = np.asarray(values, dtype=float)
    replicate = np.asarray(replicate)
    k, sizes = len(y), np.bincount(replicate)
    # Scale the values, since the optimizer's tolerances suit values near 1.
    scale = float((y - y.mean(axis=1, keepdims=True)).std())
    rows = helmert(k, full=True) @ (y / scale)
    mean, contrasts = _Part.split(rows[:1], replicate, sizes), _Part.split(rows[1:], replicate, sizes)
    # With one block per replicate, only σ²_SO + σ²_e and σ²_B + σ²_O are identified.
    at = np.array([0, 1, 2, 3] if sizes.max() > 1 else [0, 3])
    to_contrasts = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])[:, at]
    to_mean = np.array([[1.0, 0, k, 0], [0, 1, 0, k]])[:, at]

    def deviance(theta: np.ndarray) -> tuple[float, np.ndarray]:
        of_contrasts, slope_contrasts = contrasts.deviance(*(to_contrasts @ theta))
        of_mean, slope_mean = mean.deviance(*(to_mean @ theta))
        return of_contrasts + of_mean, to_contrasts.T @ slope_contrasts + to_mean.T @ slope_mean

    # In units of mean squares, each variance is of order 1, which suits the optimizer.
    units = np.concatenate([contrasts.moments(), np.maximum(mean.moments() / k, 0.1 * contrasts.moments()[0])])[at]

    def scaled(x: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = deviance(units * x)
        return value, units * slope

    optimum = minimize(
        scaled, np.ones(len(at)), jac=True, method="L-BFGS-B", bounds=[(1e-4, None)] + [(0.0, None)] * (len(at) - 1),
        options={"ftol": 1e-14, "gtol": 1e-8, "maxiter": ITERATIONS},
    )  # fmt: skip
    theta = units * optimum.x
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
    means = np.stack([y[:, replicate == o].mean(axis=1) for o in range(len(sizes))], axis=1)
    variances = np.full(4, np.nan)
    variances[at] = np.where(free, theta, 0.0) * scale**2
    return Fit(
        means @ weights / weights.sum(), float(np.sqrt(variance)) * scale, 2 * variance**2 / spread,
        tuple(map(float, variances)), flat,
    )  # fmt: skip


@dataclass(frozen=True)
class _Part:
    """One part of the data: rows with separate means and covariance a·I + b·J within a replicate.

    Attributes:
        rows: number of rows.
        sizes: number of blocks of each replicate, shape (replicates,).
        means: mean of each row and replicate, shape (rows, replicates).
        within: sum of squares within replicates, over all rows.
    """

    rows: int
    sizes: np.ndarray
    means: np.ndarray
    within: float

    @classmethod
    def split(cls, rows: np.ndarray, replicate: np.ndarray, sizes: np.ndarray) -> _Part:
        means = np.stack([rows[:, replicate == o].mean(axis=1) for o in range(len(sizes))], axis=1)
        return cls(len(rows), sizes, means, float(((rows - means[:, replicate]) ** 2).sum()))

    def moments(self) -> np.ndarray:
        """Return positive starting values of (a, b) from mean squares."""
        spare, size = self.sizes.sum() - len(self.sizes), self.sizes.mean()
        centred = self.means - self.means.mean(axis=1, keepdims=True)
        between = (centred**2).sum() / (self.rows * (len(self.sizes) - 1))
        a = self.within / (self.rows * spare) if spare else between * size
        return np.maximum([a, max(between - a / size, 0.1 * a)], 1e-12)

    def weights(self, a: float, b: float) -> np.ndarray:
        """Return the inverse variances of the replicates' means, shape (replicates,)."""
        return self.sizes / (a + self.sizes * b)

    def deviance(self, a: float, b: float) -> tuple[float, np.ndarray]:
        """Return −2 log restricted likelihood up to a constant, and its gradient by (a, b)."""
        w, spare = self.weights(a, b), self.sizes.sum() - len(self.sizes)
        eigenvalues, total = self.sizes / w, w.sum()
        off = (self.means - (self.means @ w / total)[:, None]) ** 2
        value = self.rows * (spare * np.log(a) + np.log(eigenvalues).sum() + np.log(total)) + self.within / a
        by = (self.rows * (1 - w / total) - w * off.sum(axis=0)) / eigenvalues
        slope_a = self.rows * spare / a - self.within / a**2 + by.sum()
        return float(value + (off @ w).sum()), np.array([slope_a, (self.sizes * by).sum()])

    def information(self, a: float, b: float) -> np.ndarray:
        """Return the expected information on (a, b), shape (2, 2): ½ tr(P V_i P V_j).

        P is REML's projection matrix, and V_i the derivative of the covariance with respect to a or b.
        """
        w, spare = self.weights(a, b), self.sizes.sum() - len(self.sizes)
        along = w / np.sqrt(self.sizes)
        projected = np.diag(w / self.sizes) - np.outer(along, along) / w.sum()
        squared = projected * projected.T
        by = np.stack([np.ones(len(w)), self.sizes.astype(float)])
        traces = by @ squared @ by.T
        traces[0, 0] += spare / a**2
        return np.asarray(self.rows * traces / 2)
