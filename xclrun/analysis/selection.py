"""Checkpoint selection after the fact: what a score would be had another rule chosen the evaluation point.

Every function takes the dev and test scores of the P evaluation points of one hop in N languages, shape (..., P, N),
fractions. Source: "Don't Use English Dev" §4 and §7 (ED); docs/checkpoints.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

# Differences of test scores below this are no evidence that one checkpoint is better than another (ED §4).
LEAST = 0.005


def selected(dev: ArrayLike, test: ArrayLike, sources: Sequence[int]) -> np.ndarray:
    """Test scores at the point with the best mean dev score of the hop's training languages, ``sources``.

    Of equal points the first counts; one without a dev score of each of them is never chosen. Shape (..., N); NaN where
    no point can be.
    """
    return _at_best(np.asarray(dev, dtype=float)[..., list(sources)].mean(axis=-1)[..., None], test)


def oracle(dev: ArrayLike, test: ArrayLike) -> np.ndarray:
    """Test score of each language at the point with its own best dev score, of those that have one. Shape (..., N)."""
    return _at_best(np.asarray(dev, dtype=float), test)


def _at_best(dev: np.ndarray, test: ArrayLike) -> np.ndarray:
    """Return test scores at the best point of ``dev``, shape (..., P, N) or (..., P, 1) for all languages: (..., N)."""
    # NaN, a score that was not measured, would be the largest of all.
    best = np.where(np.isnan(dev), -np.inf, dev).argmax(axis=-2, keepdims=True)
    at = np.take_along_axis(np.asarray(test, dtype=float), best, axis=-2)
    return np.where(np.isnan(dev).all(axis=-2), np.nan, at[..., 0, :])


def directional_agreement(dev: ArrayLike, test: ArrayLike) -> float:
    """Share of all pairs of points in which dev of a rises and falls with test of b, where |Δ test| ≥ 0.005.

    ``dev`` and ``test`` are scores of languages a and b at the P points, shape (P,). Ties in dev count as half, pairs
    that lack a score not at all; NaN where no pair differs enough.
    """
    a, b = np.asarray(dev, dtype=float), np.asarray(test, dtype=float)
    first, second = np.triu_indices(len(a), k=1)
    change_dev, change_test = a[second] - a[first], b[second] - b[first]
    # Scores are multiples of 1/n: a difference of exactly 0.005 must not be lost to rounding.
    apart = (np.abs(change_test) >= LEAST - 1e-12) & ~np.isnan(change_dev)
    if not apart.any():
        return float("nan")
    agrees = np.sign(change_dev[apart]) * np.sign(change_test[apart])
    return float(np.mean((agrees + 1) / 2))
