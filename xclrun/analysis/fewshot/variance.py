"""Variance components of few-shot scores: language, bucket nested in language, seed.

Model of the score of language i, bucket j of this language and seed k, with random effects:
y_ijk = μ + L_i + B_j(i) + S_k + (LS)_ik + e_ijk. For balanced data, the components follow from expected mean squares
(Searle, Casella & McCulloch 1992, ch. 4), for ``a`` languages, ``b`` buckets per language and ``n`` seeds:

    E MS_L  = σ²_e + n σ²_B + b σ²_LS + b n σ²_L        E MS_LS = σ²_e + b σ²_LS
    E MS_S  = σ²_e + b σ²_LS + a b σ²_S                 E MS_B  = σ²_e + n σ²_B
    E MS_e  = σ²_e

If no estimate is negative, the estimates equal those of REML. Their unit is squared scores.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

SOURCES = ("language", "bucket in language", "seed", "language × seed", "rest")


@dataclass(frozen=True)
class Component:
    """One source of variance.

    Attributes:
        source: one of `SOURCES`; with only one seed, ``bucket in language and rest``, which cannot be separated.
        variance: the estimated component, possibly negative; NaN if the data do not determine it.
        share: the variance divided by the sum of all components; negative components count as 0.
        p: p-value of the F test that the component is 0. The test needs two mean squares whose expectations differ only
            in this component; NaN otherwise.
    """

    source: str
    df: int
    mean_square: float
    variance: float
    share: float
    p: float


def nested_variance(values: ArrayLike) -> list[Component]:
    """Estimate the variance components of balanced scores.

    Args:
        values: scores, shape (languages, two or more buckets, seeds). Buckets are nested in languages and crossed with
            seeds. With one seed, bucket and rest cannot be separated.
    """
    from scipy.stats import f

    y = np.asarray(values, dtype=float)
    a, b, n = y.shape
    mean, l_means, s_means = y.mean(), y.mean(axis=(1, 2)), y.mean(axis=(0, 1))
    lb_means, ls_means = y.mean(axis=2), y.mean(axis=1)
    squares = {
        "L": b * n * ((l_means - mean) ** 2).sum(),
        "B": n * ((lb_means - l_means[:, None]) ** 2).sum(),
        "S": a * b * ((s_means - mean) ** 2).sum(),
        "LS": b * ((ls_means - l_means[:, None] - s_means + mean) ** 2).sum(),
        "e": ((y - lb_means[..., None] - ls_means[:, None, :] + l_means[:, None, None]) ** 2).sum(),
    }
    df = {"L": a - 1, "B": a * (b - 1), "S": n - 1, "LS": (a - 1) * (n - 1), "e": a * (b - 1) * (n - 1)}
    ms = {k: float(squares[k]) / df[k] if df[k] else math.nan for k in squares}

    def component(source: str, k: str, error: str = "", divisor: int = 1) -> tuple[str, int, float, float, float]:
        """Return the component (ms[k] − ms[error]) / divisor and its F test.

        If ``error`` is empty, return ms[k] as the component, without a test (p = NaN).
        """
        if not error:
            return source, df[k], ms[k], ms[k], math.nan
        testable = df[k] and df[error] and ms[error] > 0
        p = float(f.sf(ms[k] / ms[error], df[k], df[error])) if testable else math.nan
        return source, df[k], ms[k], (ms[k] - ms[error]) / divisor, p

    if n == 1:
        return _shared([component("language", "L", "B", b), component("bucket in language and rest", "B")])
    bucket, rest = component("bucket in language", "B", "e", n), component("rest", "e")
    if a == 1:
        return _shared([bucket, component("seed", "S", "e", b), rest])
    # No F test: there is no mean square whose expectation differs from E MS_L only in σ²_L.
    language = ("language", df["L"], ms["L"], (ms["L"] - ms["B"] - ms["LS"] + ms["e"]) / (b * n), math.nan)
    seed, both = component("seed", "S", "LS", a * b), component("language × seed", "LS", "e", b)
    return _shared([language, bucket, seed, both, rest])


def balanced(cells: dict[tuple[str, int, int], float]) -> tuple[np.ndarray, list[str], int]:
    """Select a balanced subset of scores; return its scores, its languages, and the number of excluded scores.

    The subset has the m most frequent seeds; m is chosen to retain the largest number of scores. Every language
    contributes the same number of buckets, the first ones that have all these seeds.

    Args:
        cells: (language, bucket, seed) → score.

    Returns:
        The scores have shape (languages, buckets, seeds), or (languages, 0, 0) if no subset is balanced.
    """
    seeds = sorted({s for _, _, s in cells}, key=lambda s: (-sum(1 for k in cells if k[2] == s), s))
    languages = sorted({language for language, _, _ in cells})

    def complete(language: str, chosen: list[int]) -> list[int]:
        """Return the buckets of a language that have all chosen seeds."""
        buckets = sorted({b for k, b, _ in cells if k == language})
        return [b for b in buckets if all((language, b, s) in cells for s in chosen)]

    best: tuple[int, list[int], int] = (0, [], 0)
    for count in range(1, len(seeds) + 1):
        buckets = min(len(complete(language, seeds[:count])) for language in languages)
        size = len(languages) * buckets * count
        if size > best[0]:
            best = (size, sorted(seeds[:count]), buckets)
    size, chosen, b = best
    values = [[[cells[k, bucket, s] for s in chosen] for bucket in complete(k, chosen)[:b]] for k in languages]
    return np.array(values, dtype=float).reshape(len(languages), b, len(chosen)), languages, len(cells) - size


def _shared(rows: list[tuple[str, int, float, float, float]]) -> list[Component]:
    total = sum(max(variance, 0.0) for _, _, _, variance, _ in rows if variance == variance) or math.nan
    # A NaN variance keeps a NaN share, since max(NaN, 0) is NaN.
    return [Component(name, df, ms, variance, max(variance, 0.0) / total, p) for name, df, ms, variance, p in rows]
