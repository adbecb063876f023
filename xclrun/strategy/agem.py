"""Averaged gradient episodic memory (A-GEM): no step may raise the mean loss on the memory.

Chaudhry et al. 2019, "Efficient lifelong learning with A-GEM", section 4, equation 11. With g the gradient of the main
mini-batch and r that of a random batch of the memory (all languages seen before, together),

    g ← g − (g · r / r · r) r    where g · r < 0

over all trained weights that languages share, before clipping and the optimiser's step; heads of other tasks, which the
step leaves unchanged, have no part in it. After each hop a sample of its
training sentences enters the memory, with equal shares per language.

Settings: ``memory`` in sentences, all languages together; ``every_k``: how many main mini-batches come to one whose
gradient is compared (1: each, as in the paper); ``selection`` of what is kept (`xclrun.strategy.shared.memory`).

Under fp16, r is computed in fp32: only the main loss has a scaler against gradients that vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy, Settings, remembered

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch


class AGEM(MemoryStrategy[Settings]):
    """Projection of the gradient, by one batch of the whole memory."""

    name = "agem"
    settings_type = MemorySettings
    signature = MemoryStrategy.signature
    _step = 0
    _parts = 0

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        self._step, self._parts = step, 0
        return (main,)

    def loss(self, batch: Batch, context: Context) -> torch.Tensor:
        # Where gradients are accumulated, the memory's batch is taken in as many parts as the main one.
        self._parts += 1
        return super().loss(batch, context)

    def skip(self, batch: Batch, context: Context) -> None:
        self._parts += 1

    def repeats(self) -> bool:
        return not self.due(self._step)

    def edit_gradients(self, context: Context) -> None:
        if self.due(self._step):
            parameters = self.compared(context)
            reference = self.reference(self.memory_batches(context), parameters, context)
            project([p.grad for p in parameters if p.grad is not None], reference)

    def compared(self, context: Context) -> list[torch.nn.Parameter]:
        """Return the parameters whose gradients are compared: those that languages share and the batch reaches."""
        named = context.model.named_parameters()
        return [p for name, p in named if p.grad is not None and not self.language_specific(name)]

    def memory_batches(self, context: Context) -> list[tuple[str, Batch]]:
        """Return the random batch of the memory that belongs to this step, as (language, batch).

        It is one batch for each task, under the name of its first language, where all languages share the whole model,
        else one for each language.
        """
        drawn = self.memory.draw_from_all(context.batch_size, context.generator("reference", self._step))
        return remembered(drawn, context, together=self.settings.expansion is None)

    def reference(
        self, batches: list[tuple[str, Batch]], parameters: list[torch.nn.Parameter], context: Context
    ) -> list[Tensor]:
        """Return the gradient of the mean loss over the sentences of all batches, one tensor per parameter."""
        largest = -(-sum(batch.size for _, batch in batches) // max(1, self._parts))
        return mean_gradient(batches, parameters, largest, self.loss_of, context)


def mean_gradient(
    batches: Sequence[tuple[str, Batch]],
    parameters: Sequence[torch.nn.Parameter],
    largest: int,
    loss: Callable[[str, Batch, Context], Tensor],
    context: Context,
) -> list[Tensor]:
    """Return the gradient of the mean loss over the sentences of all batches, one tensor per parameter.

    Args:
        batches: of the memory, each with its key.
        largest: number of sentences that go through the model at once.
        loss: the mean loss of a batch of a key (scalar).
    """
    import torch

    total: tuple[Tensor, ...] = ()
    size = sum(batch.size for _, batch in batches)
    for key, batch in batches:
        context.beside(batch)
        for part in batch.split(largest):
            bf16 = context.precision == "bf16"
            with torch.autocast(context.device.type, torch.bfloat16) if bf16 else nullcontext():
                share = loss(key, part, context) * (part.size / size)
            found = torch.autograd.grad(share, list(parameters), allow_unused=True, materialize_grads=True)
            total = torch._foreach_add(total, found) if total else found
    return list(total)


# Numbers whose products are in memory at once: few enough for a processor's cache, and enough for a GPU to be busy.
TOGETHER = 2**20


def project(gradients: list[Tensor], reference: list[Tensor]) -> None:
    """Change ``gradients`` in place so that their product with ``reference`` is not negative (equation 11).

    Nothing here waits for a GPU.
    """
    import torch

    groups = [(gradients[some], reference[some]) for some in _groups([tensor.numel() for tensor in gradients])]
    along = torch.stack([part.sum() for g, r in groups for part in torch._foreach_mul(g, r)]).sum()
    squared = torch.stack([part.sum() for _, r in groups for part in torch._foreach_mul(r, r)]).sum()
    # A zero memory gradient gives no direction to project out.
    share = along.clamp(max=0.0) / squared.clamp(min=torch.finfo(squared.dtype).tiny)
    for g, r in groups:
        torch._foreach_sub_(g, torch._foreach_mul(r, share))


def _groups(sizes: list[int]) -> list[slice]:
    """Return slices of neighbours with at most `TOGETHER` numbers, or a single tensor's."""
    starts, room = list[int](), 0
    for i, size in enumerate(sizes):
        if not starts or size > room:
            starts.append(i)
            room = TOGETHER
        room -= size
    return [slice(*ends) for ends in zip(starts, [*starts[1:], len(sizes)], strict=True)]
