"""Formulas of the measures of a score matrix. Results are in the unit of the scores, of which higher is better.

N languages are learned in N hops; the language of hop i is ℓ_i. R[i, j] is the score on ℓ_j after hop i, R[0, j]
before fine-tuning, M[j] the score on ℓ_j of the model trained on ℓ_j alone. Formulas count from 1, as in the papers:
``scores[..., i, j - 1]`` is R[i, j], ``reference[..., j - 1]`` is M[j]. Leading axes (...) are resamples.

NaN means "not measured": a result is NaN if one of its inputs is. Entries that a definition excludes (forgetting of
the last language, transfer to the first) are NaN, and means exclude them.

Sources: CCL = "Cross-lingual Continual Learning" §2.5 and App. C.3; LL = "Towards a robust experimental framework for
lifelong language learning" §4.2, after Chaudhry et al. 2018; GEM = Lopez-Paz & Ranzato 2017. docs/metrics.md, "From the
score matrix".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def forgetting_matrix(scores: ArrayLike) -> np.ndarray:
    """F[i, j] = max over l in 1…i−1 of R[l, j], minus R[i, j], for i ≥ 2 and j < i (CCL eq. 1). Can be negative.

    The maximum runs over all earlier hops, also those before ℓ_j was learned, but not over hop 0.
    Returns shape (..., N, N), [i − 1, j − 1]; NaN where j ≥ i.
    """
    after = _after(scores)
    best = np.maximum.accumulate(after, axis=-2)
    forgot = np.full_like(after, np.nan)
    forgot[..., 1:, :] = best[..., :-1, :] - after[..., 1:, :]
    return np.where(_earlier(after), forgot, np.nan)


def forgetting_per_hop(scores: ArrayLike) -> np.ndarray:
    """F_i = mean over j < i of F[i, j]. Shape (..., N); NaN at the first hop."""
    forgot = forgetting_matrix(scores)
    return _mean_where(forgot, _earlier(forgot), axis=-1)


def forgetting_per_language(scores: ArrayLike) -> np.ndarray:
    """F^j = mean over i > j of F[i, j] (CCL Table 14). Shape (..., N); NaN for the last language."""
    forgot = forgetting_matrix(scores)
    return _mean_where(forgot, _earlier(forgot), axis=-2)


def forgetting(scores: ArrayLike) -> np.ndarray:
    """F = mean over i = 2…N of F_i (CCL eq. 1). Lower is better. Shape (...)."""
    return _mean(forgetting_per_hop(scores)[..., 1:])


def transfer_per_language(scores: ArrayLike, reference: ArrayLike) -> np.ndarray:
    """R[i, i] − M[i] for i = 2…N (CCL Table 15). Shape (..., N); NaN for the first language."""
    gain = learnt_scores(scores) - np.asarray(reference, dtype=float)
    gain[..., 0] = np.nan
    return gain


def transfer(scores: ArrayLike, reference: ArrayLike) -> np.ndarray:
    """T = mean over i = 2…N of (R[i, i] − M[i]) (CCL §2.5). Higher is better. Shape (...)."""
    return _mean(transfer_per_language(scores, reference)[..., 1:])


def zero_shot_transfer_per_language(scores: ArrayLike) -> np.ndarray:
    """Mean over i in 1…j−1 of R[i, j], minus R[0, j]. Shape (..., N); NaN for the first language."""
    gain = _gain_over_hop_0(scores)
    return _mean_where(gain, _earlier(gain).T, axis=-2)


def zero_shot_transfer(scores: ArrayLike) -> np.ndarray:
    """T0 = mean over j = 2…N of (mean over i in 1…j−1 of R[i, j], minus R[0, j]) (CCL §2.5). Shape (...)."""
    return _mean(zero_shot_transfer_per_language(scores)[..., 1:])


def generalisation_by_seen(scores: ArrayLike) -> np.ndarray:
    """Mean over j > i of R[i, j] − R[0, j] for i = 1…N−1 languages seen (CCL Fig. 8). Shape (..., N − 1)."""
    gain = _gain_over_hop_0(scores)
    return _mean_where(gain, _earlier(gain).T, axis=-1)[..., :-1]


def generalisation_by_distance(scores: ArrayLike) -> np.ndarray:
    """Mean over i = 1…N−k of R[i, i + k] − R[0, i + k] at each distance k = 1…N−1. Shape (..., N − 1)."""
    gain = _gain_over_hop_0(scores)
    distances = range(1, gain.shape[-1])
    if not distances:
        return np.full((*gain.shape[:-2], 0), np.nan)
    return np.stack([_mean(np.diagonal(gain, offset=k, axis1=-2, axis2=-1)) for k in distances], axis=-1)


def one_hop(scores: ArrayLike) -> np.ndarray:
    """Two-hop prefix R[0…2, 1…2] of a stream, for F and T with one transfer hop (CCL §4.1). Shape (..., 3, 2)."""
    _after(scores)  # checks the shape
    matrix = np.asarray(scores, dtype=float)
    if matrix.shape[-1] < 2:
        raise ValueError("one-hop analysis needs at least two hops")
    return matrix[..., :3, :2]


def final_forgetting_per_language(scores: ArrayLike) -> np.ndarray:
    """Max over l in 1…N−1 of R[l, j], minus R[N, j] (LL §4.2). Shape (..., N); NaN for the last language."""
    return forgetting_matrix(scores)[..., -1, :]


def final_forgetting(scores: ArrayLike) -> np.ndarray:
    """F_m = mean over j < N of (max over l in 1…N−1 of R[l, j], minus R[N, j]). Lower is better. Shape (...)."""
    return _mean(final_forgetting_per_language(scores)[..., :-1])


def curve_forgetting(curves: ArrayLike) -> np.ndarray:
    """Max over t of a_j(t), minus a_j(T), for each of m keys; their mean is F_m in LL's public code. Shape (m,).

    Args:
        curves: a_j(t) at E evaluations, shape (E, m), from before training to the end T.
    """
    scores = np.asarray(curves, dtype=float)
    return np.asarray(scores.max(axis=0) - scores[-1])


def backward_transfer(scores: ArrayLike) -> np.ndarray:
    """BWT = mean over i = 2…N of mean over j < i of (R[i, j] − R[j, j]) (GEM). Higher is better. Shape (...)."""
    after = _after(scores)
    change = after - learnt_scores(scores)[..., np.newaxis, :]
    return _mean(_mean_where(change, _earlier(after), axis=-1)[..., 1:])


def aultc(examples: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Area under the learning curve by the trapezoid rule over [0, total examples], divided by total (LL §4.2).

    Args:
        examples: training examples seen at each evaluation, shape (E,), increasing from 0.
        scores: mean score over all N languages at each evaluation, shape (..., E).
    """
    seen, curve = np.asarray(examples, dtype=float), np.asarray(scores, dtype=float)
    if seen.ndim != 1 or len(seen) < 2 or seen[0] != 0 or (np.diff(seen) <= 0).any() or curve.shape[-1:] != seen.shape:
        raise ValueError("a learning curve needs scores at increasing numbers of examples, from 0")
    return ((curve[..., 1:] + curve[..., :-1]) / 2 * np.diff(seen)).sum(axis=-1) / seen[-1]


def intransigence(scores: ArrayLike, reference: ArrayLike) -> np.ndarray:
    """I = mean over i = 1…N of (M[i] − R[i, i]) (LL §4.2). Lower is better. Shape (...)."""
    return _mean(np.asarray(reference, dtype=float) - learnt_scores(scores))


def learnt_scores(scores: ArrayLike) -> np.ndarray:
    """R[i, i]: the score on each language right after its hop; in ``lang_spec_ft`` runs, M. Shape (..., N)."""
    return np.diagonal(_after(scores), axis1=-2, axis2=-1).copy()


def _after(scores: ArrayLike) -> np.ndarray:
    """Return R without hop 0, (..., N, N): row i − 1 is hop i."""
    matrix = np.asarray(scores, dtype=float)
    if matrix.ndim < 2 or matrix.shape[-2] != matrix.shape[-1] + 1 or matrix.shape[-1] < 1:
        raise ValueError(f"a score matrix has shape (..., N + 1, N), not {matrix.shape}")
    return matrix[..., 1:, :]


def _gain_over_hop_0(scores: ArrayLike) -> np.ndarray:
    """R[i, j] − R[0, j], (..., N, N)."""
    return _after(scores) - np.asarray(scores, dtype=float)[..., :1, :]


def _earlier(matrix: np.ndarray) -> np.ndarray:
    """Mask (N, N) of j < i: languages learned before hop i."""
    return np.tri(matrix.shape[-1], k=-1, dtype=bool)


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the last axis; NaN if the axis is empty, as hops 2…N are with one language."""
    return values.mean(axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)


def _mean_where(values: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Mean over the entries of ``mask`` along ``axis``; NaN if the mask is empty or an entry is NaN."""
    total = np.where(mask, values, 0.0).sum(axis=axis)
    return np.divide(total, mask.sum(axis=axis), out=np.full_like(total, np.nan), where=mask.any(axis=axis))
