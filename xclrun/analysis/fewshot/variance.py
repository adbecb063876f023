"""Variance components of few-shot scores: language, bucket nested in language, seed.

Model of a score with language l, bucket b of that language and seed s, all random:
y_lbs = μ + L_l + B_b(l) + S_s + (LS)_ls + e_lbs. For balanced data the components follow from expected mean squares
(Searle, Casella & McCulloch 1992, ch. 4), with a languages, b buckets in each, n seeds:

    E MS_L  = σ²_e + n σ²_B + b σ²_LS + b n σ²_L        E MS_LS = σ²_e + b σ²_LS
    E MS_S  = σ²_e + b σ²_LS + a b σ²_S                 E MS_B  = σ²_e + n σ²_B
    E MS_e  = σ²_e

Where no estimate is negative, these equal the estimates of restricted maximum likelihood. Unit: squared scores.
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
        source: as in `SOURCES`, or ``bucket in language and rest`` if there is one seed.
        df: degrees of freedom of its mean square.
        mean_square: NaN if there are no degrees of freedom.
        variance: the estimated component, possibly negative; NaN where the data do not determine it.
        share: of the sum of all components, negative ones counted as 0.
        p: of the F test that the component is 0, if two mean squares differ only in it; else NaN.
    """

    source: str
    df: int
    mean_square: float
    variance: float
    share: float
    p: float


def nested_variance(values: ArrayLike) -> list[Component]:
    """Estimate the components of balanced data.

    Args:
        values: scores, shape (languages, two or more buckets, seeds). Bucket b of one language is unrelated to bucket b
            of another; seeds are the same in all. With one language there are no components between languages; with one
            seed, bucket and rest cannot be separated.
    """
    y = np.asarray(values, dtype=float)
    a, b, n = y.shape
    mean, of_l, of_s = y.mean(), y.mean(axis=(1, 2)), y.mean(axis=(0, 1))
    of_lb, of_ls = y.mean(axis=2), y.mean(axis=1)
    squares = {
        "L": b * n * ((of_l - mean) ** 2).sum(),
        "B": n * ((of_lb - of_l[:, None]) ** 2).sum(),
        "S": a * b * ((of_s - mean) ** 2).sum(),
        "LS": b * ((of_ls - of_l[:, None] - of_s + mean) ** 2).sum(),
        "e": ((y - of_lb[..., None] - of_ls[:, None, :] + of_l[:, None, None]) ** 2).sum(),
    }
    df = {"L": a - 1, "B": a * (b - 1), "S": n - 1, "LS": (a - 1) * (n - 1), "e": a * (b - 1) * (n - 1)}
    ms = {k: float(squares[k]) / df[k] if df[k] else math.nan for k in squares}

    def component(source: str, of: str, error: str = "", divisor: int = 1) -> tuple[str, int, float, float, float]:
        """Return the excess of a mean square over its error, and its F test; without error, the mean square."""
        if not error:
            return source, df[of], ms[of], ms[of], math.nan
        return source, df[of], ms[of], (ms[of] - ms[error]) / divisor, _p(ms[of], df[of], ms[error], df[error])

    if n == 1:
        return _shared([component("language", "L", "B", b), component("bucket in language and rest", "B")])
    bucket, rest = component("bucket in language", "B", "e", n), component("rest", "e")
    if a == 1:
        return _shared([bucket, component("seed", "S", "e", b), rest])
    # No mean square differs from that of languages only in their component.
    language = ("language", df["L"], ms["L"], (ms["L"] - ms["B"] - ms["LS"] + ms["e"]) / (b * n), math.nan)
    seed, both = component("seed", "S", "LS", a * b), component("language × seed", "LS", "e", b)
    return _shared([language, bucket, seed, both, rest])


def balanced(cells: dict[tuple[str, int, int], float]) -> tuple[np.ndarray, list[str], int]:
    """Return the largest balanced part of scores by (language, bucket, seed), its languages, and the number left out.

    Of all sets of the most frequent seeds, the one that retains most scores is chosen. Each language contributes its
    first buckets, as many as the language with fewest has. The shape is (languages, 0, 0) if nothing is balanced.
    """
    seeds = sorted({s for _, _, s in cells}, key=lambda s: (-sum(1 for k in cells if k[2] == s), s))
    languages = sorted({language for language, _, _ in cells})
    best: tuple[int, list[int], int] = (0, [], 0)
    for count in range(1, len(seeds) + 1):
        buckets = min(len(_whole(cells, language, seeds[:count])) for language in languages)
        kept = len(languages) * buckets * count
        if kept > best[0]:
            best = (kept, sorted(seeds[:count]), buckets)
    kept, chosen, b = best
    values = [[[cells[k, bucket, s] for s in chosen] for bucket in _whole(cells, k, chosen)[:b]] for k in languages]
    return np.array(values, dtype=float).reshape(len(languages), b, len(chosen)), languages, len(cells) - kept


def _whole(cells: dict[tuple[str, int, int], float], language: str, seeds: list[int]) -> list[int]:
    """Return the buckets of a language that have all ``seeds``."""
    return [
        b for b in sorted({k[1] for k in cells if k[0] == language}) if all((language, b, s) in cells for s in seeds)
    ]


def _shared(rows: list[tuple[str, int, float, float, float]]) -> list[Component]:
    total = sum(max(variance, 0.0) for _, _, _, variance, _ in rows if variance == variance)
    return [
        Component(
            source, df, ms, variance, max(variance, 0.0) / total if total and variance == variance else math.nan, p
        )
        for source, df, ms, variance, p in rows
    ]


def _p(upper: float, df_upper: int, lower: float, df_lower: int) -> float:
    """Return p of the ratio of two mean squares; NaN if there is none."""
    from scipy.stats import f

    if not df_upper or not df_lower or not lower > 0:
        return math.nan
    return float(f.sf(upper / lower, df_upper, df_lower))
