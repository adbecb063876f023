"""Formulas that merge the weights of several models, by parameter name, without training.

With θ_0 the initial weights, θ_1 … θ_n the models and τ_i = θ_i − θ_0 their task vectors:

| function | merged weights |
|---|---|
| `mean` | 1/n Σ θ_i (Wortsman et al. 2022, "Model soups", uniform soup) |
| `exponential_mean` | m_1 = θ_1, m_i = β m_{i−1} + (1 − β) θ_i |
| `task_arithmetic` | θ_0 + λ Σ τ_i (Ilharco et al. 2023, "Editing models with task arithmetic") |
| `ties` | θ_0 + λ τ, τ the mean after trimming and sign election (Yadav et al. 2023, "TIES-merging", algorithm 1) |
| `dare` | θ_0 + λ Σ m_i ∘ τ_i / (1 − p), m_i Bernoulli(1 − p) (Yu et al. 2024, "Language models are super Mario") |
| `spherical_mean` | m_1 = θ_1, m_i = slerp(m_{i−1}, θ_i; 1/i), tensor by tensor (slerp: Shoemake 1985) |
| `weighted_mean` | Σ F_i θ_i / Σ F_i (Matena & Raffel 2022, "Merging models with Fisher-weighted averaging") |
| `revert` | θ_n with a share of its changes τ_n undone |

All functions compute in double precision and return tensors of the models' data type.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from xclrun.core.identity import derive

if TYPE_CHECKING:
    from torch import Tensor


Weights = Mapping[str, "Tensor"]


def mean(models: Iterable[Weights]) -> dict[str, Tensor]:
    """Return the mean of models, read one at a time; integer tensors are from the last model."""
    total: dict[str, Tensor] = {}
    count, last = 0, dict[str, "Tensor"]()
    for model in models:
        count, last = count + 1, dict(model)
        for name, tensor in last.items():
            if tensor.is_floating_point():
                total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (total[name] / count).to(t.dtype) if name in total else t for name, t in last.items()}


def exponential_mean(models: Sequence[Weights], decay: float) -> dict[str, Tensor]:
    """Return the exponential moving average of models, β = ``decay``."""

    def merge(name: str) -> Tensor:
        merged = models[0][name].double()
        for model in models[1:]:
            merged = decay * merged + (1 - decay) * model[name].double()
        return merged

    return _each(models[0], merge)


def task_arithmetic(base: Weights, models: Sequence[Weights], scale: float) -> dict[str, Tensor]:
    """Add the sum of all task vectors, times λ = ``scale``, to the initial weights."""
    return _each(base, lambda name: base[name].double() + scale * _changes(base, models, name).sum(dim=0))


def ties(base: Weights, models: Sequence[Weights], density: float, scale: float) -> dict[str, Tensor]:
    """Trim the task vectors, elect a sign for each parameter, and average the entries of that sign.

    Args:
        density: share of a task vector's entries that trimming keeps: the largest ones of all parameters together.
    """
    thresholds = [_threshold(base, model, 1 - density, base) for model in models]

    def merge(name: str) -> Tensor:
        changes = _changes(base, models, name)
        large = changes.abs() >= torch.stack(thresholds).view(-1, *[1] * (changes.dim() - 1))
        trimmed = changes * large
        agrees = trimmed.sign() == trimmed.sum(dim=0).sign()
        count = (agrees & (trimmed != 0)).sum(dim=0).clamp(min=1)
        return base[name].double() + scale * (trimmed * agrees).sum(dim=0) / count

    return _each(base, merge)


def dare(base: Weights, models: Sequence[Weights], drop: float, scale: float, seed: int) -> dict[str, Tensor]:
    """Drop entries of the task vectors at random (p = ``drop``), rescale the others, and add their sum."""

    def merge(name: str) -> Tensor:
        merged = base[name].double()
        for i, change in enumerate(_changes(base, models, name), start=1):
            generator = torch.Generator().manual_seed(derive(seed, "dare", i, name))
            remains = torch.rand(change.shape, generator=generator) >= drop
            merged = merged + scale / (1 - drop) * change * remains.to(change.device)
        return merged

    return _each(base, merge)


def spherical_mean(models: Sequence[Weights]) -> dict[str, Tensor]:
    """Merge models one after another by spherical interpolation; the result depends on the order of the models."""

    def merge(name: str) -> Tensor:
        merged = models[0][name].double()
        for i, model in enumerate(models[1:], start=2):
            merged = slerp(merged, model[name].double(), 1 / i)
        return merged

    return _each(models[0], merge)


def slerp(a: Tensor, b: Tensor, t: float) -> Tensor:
    """Interpolate between two tensors along the arc between their directions; t = 0 gives a, t = 1 gives b.

    (sin((1 − t) Ω) a + sin(t Ω) b) / sin Ω, with Ω the angle between a and b. If a and b are nearly parallel, the
    interpolation is linear.
    """
    norms = a.norm() * b.norm()
    cosine = ((a * b).sum() / norms).clamp(-1, 1) if norms > 0 else norms.new_ones(())
    if 1 - cosine.abs() < 1e-7:
        return torch.lerp(a, b, t)
    angle = cosine.acos()
    return (((1 - t) * angle).sin() * a + (t * angle).sin() * b) / angle.sin()


def weighted_mean(models: Sequence[Weights], weights: Sequence[Weights]) -> dict[str, Tensor]:
    """Return Σ F_i θ_i / Σ F_i for parameters with weights F_i; the plain mean elsewhere and where Σ F_i = 0."""
    merged = mean(models)
    for name in weights[0]:
        F = torch.stack([weight[name].to(merged[name]) for weight in weights]).double()
        weighted = (F * torch.stack([model[name] for model in models])).sum(dim=0) / F.sum(dim=0)
        merged[name] = torch.where(F.sum(dim=0) > 0, weighted, merged[name]).to(merged[name].dtype)
    return merged


def revert(
    base: Weights,
    model: Weights,
    share: float,
    largest: bool = False,
    strength: float = 1.0,
    reverted: Callable[[str], bool] = lambda name: True,
) -> dict[str, Tensor]:
    """Undo a share of a model's changes since the initial weights: the smallest, or the largest, by absolute value.

    Args:
        strength: how far a change is undone: 1 sets the weight back to its initial value.
        reverted: name of a parameter → whether its changes count in the share and can be undone.
    """
    names = [name for name in base if reverted(name)]
    threshold = _threshold(base, model, 1 - share if largest else share, names)
    merged = dict(model)
    for name in names:
        change = model[name].double() - base[name].double()
        undone = change.abs() >= threshold if largest else change.abs() < threshold
        # Copy the other weights: base + change could differ from them by rounding.
        merged[name] = torch.where(undone, base[name] + (1 - strength) * change, model[name]).to(model[name].dtype)
    return merged


def _each(like: Weights, merge: Callable[[str], Tensor]) -> dict[str, Tensor]:
    return {name: merge(name).to(tensor.dtype) for name, tensor in like.items()}


def _changes(base: Weights, models: Sequence[Weights], name: str) -> Tensor:
    """Return the task vectors of a parameter, (models, …), in double precision."""
    return torch.stack([model[name].double() for model in models]) - base[name].double()


def _threshold(base: Weights, model: Weights, share: float, names: Iterable[str]) -> Tensor:
    """Return the ``share`` quantile of the parameters' absolute changes, a double scalar; infinity for ``share`` 1."""
    sizes = torch.cat([(model[name].double() - base[name].double()).abs().flatten() for name in names])
    rank = round(share * len(sizes))
    return sizes.new_tensor(float("inf")) if rank >= len(sizes) else sizes.kthvalue(rank + 1).values
