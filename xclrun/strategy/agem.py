"""Averaged gradient episodic memory (A-GEM): no step may increase the mean loss on the memory.

Chaudhry et al. 2019, "Efficient lifelong learning with A-GEM", section 4, equation 11. Let g be the gradient of the
main mini-batch and r the gradient of a random batch from the memory of all earlier languages, computed for all shared
parameters that have a gradient. Before clipping,

    g ← g − (g · r) / (r · r) · r    if g · r < 0

After each hop, a sample of the hop's training sentences enters the memory. All learned languages have equal shares.

Settings: ``memory``, the total number of sentences; ``every_k``, to project the gradients of every k-th main mini-batch
(1 in the paper); ``selection``, described in `xclrun.strategy.shared.memory`. With fp16, r is computed in fp32, because
only the main loss is scaled against underflow.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy, Settings, to_batches
from xclrun.strategy.shared.steps import MeanGradient, Step

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch


class AGEM(MemoryStrategy[Settings]):
    name = "agem"
    settings_type = MemorySettings

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        yield Step(main, edit=partial(self.edit, number, context) if self.due(number) else None)

    def edit(self, number: int, context: Context, mean_gradient: MeanGradient) -> None:
        """Edit the gradients of a main step."""
        parameters = self.compared(context)
        terms = self.terms(self.memory_batches(number, context), context)
        at_most = sum(term.batch.size for term in terms)
        project([p.grad for p in parameters if p.grad is not None], mean_gradient(terms, parameters, at_most))

    def compared(self, context: Context) -> list[torch.nn.Parameter]:
        """Return the parameters whose gradients are compared: shared parameters that have a gradient."""
        parameters = context.model.named_parameters()
        return [p for name, p in parameters if p.grad is not None and not self.parameters.language_specific(name)]

    def memory_batches(self, number: int, context: Context) -> list[tuple[str, Batch]]:
        """Return the random memory batch of a main step as (language, batch).

        If all languages share the whole model, there is one batch per task, paired with the task's first language.
        Otherwise there is one batch per language.
        """
        drawn = self.memory.draw_from_all(context.batch_size, context.generator("reference", number))
        return to_batches(drawn, context, together=self.settings.expansion is None)


# Elements multiplied at once: few enough for a CPU's cache, enough to use a GPU fully.
CHUNK = 2**20


def project(gradients: list[Tensor], reference: list[Tensor]) -> None:
    """Project ``gradients`` in place (equation 11), without synchronising with the GPU."""
    import torch

    groups = [(gradients[chunk], reference[chunk]) for chunk in _groups([tensor.numel() for tensor in gradients])]
    along = torch.stack([part.sum() for g, r in groups for part in torch._foreach_mul(g, r)]).sum()
    squared = torch.stack([part.sum() for _, r in groups for part in torch._foreach_mul(r, r)]).sum()
    # The clamp avoids 0 / 0 for a zero memory gradient.
    share = along.clamp(max=0.0) / squared.clamp(min=torch.finfo(squared.dtype).tiny)
    for g, r in groups:
        torch._foreach_sub_(g, torch._foreach_mul(r, share))


def _groups(sizes: list[int]) -> list[slice]:
    """Split a list of tensors into slices of at most `CHUNK` elements in total; a larger tensor has its own slice."""
    starts, room = list[int](), 0
    for i, size in enumerate(sizes):
        if not starts or size > room:
            starts.append(i)
            room = CHUNK
        room -= size
    return [slice(*ends) for ends in zip(starts, [*starts[1:], len(sizes)], strict=True)]
