"""Meta-metrics of a score matrix. Scores in [0, 1]; every result is a fraction or a difference of fractions.

N languages are learned in N hops; the language of hop i is ℓ_i. R[i, j] is the score on ℓ_j after hop i, R[0, j]
before fine-tuning, M[j] the score on ℓ_j of the model trained on ℓ_j alone. Formulas count from 1, as the papers do,
and arrays from 0: ``scores[..., i, j - 1]`` is R[i, j], ``reference[..., j - 1]`` is M[j]. Every function takes
stacks over any leading axes, shape (..., N + 1, N), as the bootstrap makes them.

NaN is "not measured": a result is NaN where one of its inputs is. Entries that a definition leaves out (forgetting of
the last language, transfer to the first) are NaN too, and the mean over the others does not count them.

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
    """F_i = mean over j < i of F[i, j]. Shape (..., N); NaN at the first hop, which has nothing to forget."""
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
    """R[i, i] − M[i] for i = 2…N. Shape (..., N); NaN for the first language, to which nothing can transfer.

    So that, over orders in which each language is at each position once, the mean over languages is T (CCL Table
    15).
    """
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
    """T0 = mean over j = 2…N of (mean over i in 1…j−1 of R[i, j], minus R[0, j]) (CCL §2.5). Higher is better.

    Shape (...).
    """
    return _mean(zero_shot_transfer_per_language(scores)[..., 1:])


def generalisation_by_seen(scores: ArrayLike) -> np.ndarray:
    """Mean over j > i of R[i, j] − R[0, j] after each number of languages seen, i = 1…N−1 (the x axis of CCL Fig. 8).

    Shape (..., N − 1); empty for one language.
    """
    gain = _gain_over_hop_0(scores)
    return _mean_where(gain, _earlier(gain).T, axis=-1)[..., :-1]


def generalisation_by_distance(scores: ArrayLike) -> np.ndarray:
    """Mean over i = 1…N−k of R[i, i + k] − R[0, i + k] at each distance k = 1…N−1.

    Shape (..., N − 1); empty for one language.
    """
    gain = _gain_over_hop_0(scores)
    distances = range(1, gain.shape[-1])
    if not distances:
        return np.full((*gain.shape[:-2], 0), np.nan)
    return np.stack([_mean(np.diagonal(gain, offset=k, axis1=-2, axis2=-1)) for k in distances], axis=-1)


def one_hop(scores: ArrayLike) -> np.ndarray:
    """The two-hop prefix of a stream: R[0…2, 1…2], to which F and T apply as to any R (CCL §4.1, "one-hop").

    The second language is one transfer hop from the first. Shape (..., 3, 2).

    Raises:
        ValueError: the stream has fewer than two hops.
    """
    _after(scores)  # checks the shape
    matrix = np.asarray(scores, dtype=float)
    if matrix.shape[-1] < 2:
        raise ValueError("one-hop analysis needs at least two hops")
    return matrix[..., :3, :2]


def final_forgetting_per_language(scores: ArrayLike) -> np.ndarray:
    """Max over l in 1…N−1 of R[l, j], minus R[N, j] (LL §4.2, after Chaudhry).

    Shape (..., N); NaN for the last language. It is the last row of `forgetting_matrix`.
    """
    return forgetting_matrix(scores)[..., -1, :]


def final_forgetting(scores: ArrayLike) -> np.ndarray:
    """F_m = mean over j < N of (max over l in 1…N−1 of R[l, j], minus R[N, j]). Lower is better. Shape (...)."""
    return _mean(final_forgetting_per_language(scores)[..., :-1])


def curve_forgetting(curves: ArrayLike) -> np.ndarray:
    """F_m as the public code of LL has it: (1/m) Σ_j (max_t a_j(t) − a_j(T)), over all E points and all m keys.

    Args:
        curves: a_j(t), shape (E, m); the first row is before training, the last one the end.

    Returns:
        Shape (m,): for each key; their mean is F_m_curve. It is never negative.
    """
    found = np.asarray(curves, dtype=float)
    return np.asarray(found.max(axis=0) - found[-1])


def backward_transfer(scores: ArrayLike) -> np.ndarray:
    """BWT = mean over i = 2…N of mean over j < i of (R[i, j] − R[j, j]) (GEM). Higher is better. Shape (...)."""
    after = _after(scores)
    change = after - learnt_scores(scores)[..., np.newaxis, :]
    return _mean(_mean_where(change, _earlier(after), axis=-1)[..., 1:])


def aultc(examples: ArrayLike, scores: ArrayLike) -> np.ndarray:
    """Area under the learning curve by the trapezoid rule over [0, total examples], divided by total (LL §4.2).

    Args:
        examples: training examples seen at each evaluation, shape (E,): 0 first, then rising.
        scores: mean score over all N languages at each of them, shape (..., E).

    Returns:
        Shape (...), in [0, 1].

    Raises:
        ValueError: the evaluations do not begin at 0, do not rise, or are not as many as the scores.
    """
    seen, curve = np.asarray(examples, dtype=float), np.asarray(scores, dtype=float)
    if seen.ndim != 1 or len(seen) < 2 or seen[0] != 0 or (np.diff(seen) <= 0).any() or curve.shape[-1:] != seen.shape:
        raise ValueError("a learning curve needs scores at 0 examples and at rising numbers of examples after it")
    return ((curve[..., 1:] + curve[..., :-1]) / 2 * np.diff(seen)).sum(axis=-1) / seen[-1]


def intransigence(scores: ArrayLike, reference: ArrayLike) -> np.ndarray:
    """I = mean over i = 1…N of (M[i] − R[i, i]) (LL §4.2). Lower is better. Shape (...)."""
    return _mean(np.asarray(reference, dtype=float) - learnt_scores(scores))


def learnt_scores(scores: ArrayLike) -> np.ndarray:
    """R[i, i]: the score on each language right after its own hop. Shape (..., N).

    Of a run that trains each language alone (``lang_spec_ft``) this is M.
    """
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
    """Mean over the last axis; NaN if it is empty (one language has no second hop)."""
    return values.mean(axis=-1) if values.shape[-1] else np.full(values.shape[:-1], np.nan)


def _mean_where(values: np.ndarray, mask: np.ndarray, axis: int) -> np.ndarray:
    """Mean over the entries of ``mask`` along ``axis``; NaN if there is none, or where one of them is NaN."""
    total = np.where(mask, values, 0.0).sum(axis=axis)
    return np.divide(total, mask.sum(axis=axis), out=np.full_like(total, np.nan), where=mask.any(axis=axis))
