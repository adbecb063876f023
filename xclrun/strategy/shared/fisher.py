"""The diagonal of the empirical Fisher information: squared gradients of ln p(gold), averaged over examples.

F[θ] = 1/n Σ_x (∂ ln p(y_x | x) / ∂θ)², with y_x the gold label and tags of sentence x (Kirkpatrick et al. 2017,
section 2.1, with gold labels in place of sampled ones). The square is taken per example, so the gradient of a batch's
mean loss cannot be used. There are two exact implementations:

- `by_batches`: one forward and backward pass per batch. The gradients at the outputs of all modules are recorded. A
  module's per-example gradients follow from its inputs and these gradients (Goodfellow 2015, "Efficient per-example
  gradient computations"): for a linear layer, they are outer products summed over positions, with at most
  (batch, out, in) numbers in memory at a time; for a large layer on a CPU, (out, in).
- `one_by_one`: one backward pass per example, for models with modules that `by_batches` does not support.

``mas`` uses the same implementations to average absolute values of per-example gradients (`mean_over`).

The model is in eval mode and computes in fp32, whatever the run's precision. Shapes: B sentences, L positions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from xclrun.data.batches import length_sorted_batches
from xclrun.model.crf import crf_log_likelihood
from xclrun.model.heads import ClassHead, TagCRF
from xclrun.strategy.shared.inference import evaluating

if TYPE_CHECKING:
    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.network import Model

# Sentences in a batch: on a GPU, the per-example gradients of a layer with 3072 × 768 weights take 150 MB.
BATCH = 16
# Weights of a linear layer from which a CPU takes longer to fetch memory for a batch's gradients than to compute them
# one sentence at a time.
LARGE = 2**16

# Parameter → sum of the transformed per-example gradients, in the parameter's shape.
Sums = dict[Tensor, Tensor]
# (model, batch) → the value to differentiate, summed over the batch's sentences (scalar).
Value = Callable[["Model", "Batch"], Tensor]
# Changes a tensor in place, element by element, and returns it.
InPlace = Callable[[Tensor], Tensor]


class Unknown(Exception):
    """The model has a module whose per-example gradients `by_batches` cannot compute."""


def diagonal_fisher(model: Model, sentences: Encoded, device: torch.device) -> dict[str, Tensor]:
    """Return parameter name → diagonal Fisher information over all sentences, same shape, float32 on the device.

    Parameters that are frozen or do not affect the loss are omitted.
    """
    return mean_over(model, sentences, device, _log_likelihood, Tensor.square_)


def _log_likelihood(model: Model, batch: Batch) -> Tensor:
    # Sum over sentences: a mean would divide per-example gradients by the batch size.
    return -model.log_likelihood(batch).sum()


def mean_over(
    model: Model, sentences: Encoded, device: torch.device, value: Value, transform: InPlace
) -> dict[str, Tensor]:
    """Return parameter name → mean of ``transform(gradient)`` over sentences, float32 in the parameter's shape.

    Args:
        value: (model, batch) → the value to differentiate, summed over the batch's sentences (scalar).
        transform: replaces gradients in place by their squares or absolute values.
    """
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    with evaluating(model):
        try:
            sums = by_batches(model, sentences, device, value, transform)
        except Unknown:
            sums = one_by_one(model, sentences, device, value, transform)
    return {names[parameter]: total / len(sentences) for parameter, total in sums.items()}


def one_by_one(
    model: Model,
    sentences: Encoded,
    device: torch.device,
    value: Value = _log_likelihood,
    transform: InPlace = Tensor.square_,
) -> Sums:
    """Return the sums of `mean_over`, computed with one backward pass per example."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    sums: Sums = {}
    for index in range(len(sentences)):
        total = value(model, sentences.batch(np.array([index])).to(device))
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is not None:
                _add(sums, parameter, transform(gradient.clone()))
    return sums


def by_batches(
    model: Model,
    sentences: Encoded,
    device: torch.device,
    value: Value = _log_likelihood,
    transform: InPlace = Tensor.square_,
) -> Sums:
    """Return the sums of `mean_over`, computed with one backward pass per batch.

    Raises:
        Unknown: the type of a trained module is not in `_SUMS`, or a trained module is called twice in a forward pass,
            shares a weight, or has weights that are used without calling the module.
    """
    if any(head.reads_encoder for head in model.heads.values()):
        raise Unknown
    owned = [p for module in _trained(model) for p in module.parameters(recurse=False)]
    if len(set(owned)) < len(owned) or any(_kind(module) not in _SUMS for module in _trained(model)):
        raise Unknown
    sums: Sums = {}
    for indices in length_sorted_batches(sentences.lengths, BATCH):
        batch = sentences.batch(indices).to(device)
        calls = _Calls(model, batch.size)
        with calls:
            total = value(model, batch)
        for module, inputs, gradient in calls.gradients(total):
            for parameter, sum_of_batch in _SUMS[_kind(module)](module, inputs, gradient, transform):
                if parameter.requires_grad:
                    _add(sums, parameter, sum_of_batch)
    return sums


def _add(sums: Sums, parameter: Tensor, value: Tensor) -> None:
    sums[parameter] = sums[parameter].add_(value) if parameter in sums else value.clone()


def _kind(module: nn.Module) -> type[nn.Module]:
    """Return a module's type; a class head without cosines counts as a linear layer."""
    return nn.Linear if isinstance(module, ClassHead) and module.scale is None else type(module)


def _trained(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that own trained parameters directly, not only through submodules."""
    return (m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False)))


class _Calls(ExitStack):
    """Records inputs and outputs of all modules with trained parameters inside a ``with`` block."""

    def __init__(self, model: nn.Module, size: int) -> None:
        super().__init__()
        self.size = size
        self.noted: dict[nn.Module, tuple[tuple[Any, ...], Tensor]] = {}
        self.trained = list(_trained(model))
        for module in self.trained:
            if isinstance(module, nn.Embedding):
                self._hold(module.register_forward_pre_hook(self._expand))
            self._hold(module.register_forward_hook(self._note, with_kwargs=True))

    def _hold(self, handle: Any) -> None:
        self.callback(handle.remove)

    def _expand(self, module: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        # Position embeddings are looked up once per batch; per-example gradients need one lookup per sentence.
        return (inputs[0].expand(self.size, -1),)

    def _note(self, module: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Tensor) -> None:
        if module in self.noted:
            raise Unknown
        self.noted[module] = ((*inputs, *named.values()), output)

    def gradients(self, total: Tensor) -> Iterator[tuple[nn.Module, tuple[Any, ...], Tensor]]:
        """Yield (module, its inputs, gradient of ``total`` at its output) of the modules that ``total`` depends on."""
        outputs = [output for _, output in self.noted.values()]
        # Hooks miss parameters that are used without calling their module: refuse a ``total`` that depends on such a
        # parameter.
        unseen = [p for m in self.trained if m not in self.noted for p in m.parameters(recurse=False)]
        all_gradients = torch.autograd.grad(total, outputs + [p for p in unseen if p.requires_grad], allow_unused=True)
        if any(gradient is not None for gradient in all_gradients[len(outputs) :]):
            raise Unknown
        for (module, (inputs, _)), gradient in zip(self.noted.items(), all_gradients[: len(outputs)], strict=True):
            if gradient is not None:
                yield module, tuple(x.detach() if isinstance(x, Tensor) else x for x in inputs), gradient


# The functions below yield (parameter, sum of the transformed per-example gradients) for a type of module.
ParameterSums = Iterator[tuple[Tensor, Tensor]]


def _positions(x: Tensor) -> Tensor:
    """Return (B, …, H) as (B, L, H)."""
    return x.reshape(x.shape[0], -1, x.shape[-1])


def _linear(module: nn.Linear, inputs: Sequence[Tensor], gradient: Tensor, transform: InPlace) -> ParameterSums:
    x, g = _positions(inputs[0]), _positions(gradient)
    if module.weight.is_cpu and module.weight.numel() >= LARGE:
        total, buffer = torch.zeros_like(module.weight), torch.empty_like(module.weight)
        for sentence_x, sentence_g in zip(x, g, strict=True):
            total += transform(torch.mm(sentence_g.T, sentence_x, out=buffer))
    else:
        total = transform(torch.bmm(g.transpose(1, 2), x)).sum(dim=0)
    yield module.weight, total
    if module.bias is not None:
        yield module.bias, transform(g.sum(dim=1)).sum(dim=0)


def _layer_norm(module: nn.LayerNorm, inputs: Sequence[Tensor], gradient: Tensor, transform: InPlace) -> ParameterSums:
    normal = functional.layer_norm(inputs[0], module.normalized_shape, eps=module.eps)
    yield module.weight, transform(_positions(gradient * normal).sum(dim=1)).sum(dim=0)
    yield module.bias, transform(_positions(gradient).sum(dim=1)).sum(dim=0)


def _embedding(module: nn.Embedding, inputs: Sequence[Tensor], gradient: Tensor, transform: InPlace) -> ParameterSums:
    ids, rows = inputs[0], module.num_embeddings
    # Sum over repeated subwords of a sentence before the transform: they share a row, so they have one gradient.
    sentence = torch.arange(len(ids), device=ids.device).unsqueeze(1)
    pairs, where = (sentence * rows + ids).unique(return_inverse=True)
    summed = gradient.new_zeros(len(pairs), gradient.shape[2]).index_add_(0, where.flatten(), gradient.flatten(0, 1))
    pieces = pairs % rows
    if module.padding_idx is not None:
        summed[pieces == module.padding_idx] = 0.0
    yield module.weight, torch.zeros_like(module.weight).index_add_(0, pieces, transform(summed))


def _crf(module: TagCRF, inputs: Sequence[Any], gradient: Tensor, transform: InPlace) -> ParameterSums:
    emissions, tags, mask = inputs[:3]
    # Each sentence gets its own copy of the CRF and thus its own gradient.
    parameters = [module.start_transitions, module.transitions, module.end_transitions]
    copies = [p.detach().expand(len(tags), *p.shape).clone().requires_grad_() for p in parameters]
    with torch.enable_grad():
        likelihood = crf_log_likelihood(emissions, tags, mask, *copies)
    for parameter, values in zip(parameters, torch.autograd.grad(likelihood, copies, gradient), strict=True):
        yield parameter, transform(values).sum(dim=0)


_SUMS: dict[type[nn.Module], Callable[..., ParameterSums]] = {
    nn.Linear: _linear,
    nn.LayerNorm: _layer_norm,
    nn.Embedding: _embedding,
    TagCRF: _crf,
}
