"""The gradients of a step: divided into micro-batches and among ranks, weighted and counted.

A step's batch is split into micro-batches (``trainer.gradient_accumulation``), and the batches of its terms into as
many parts. The gradients of all micro-batches are summed, also over ranks, before the strategy edits them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from xclrun.train.precision import autocast
from xclrun.train.ranks import ALONE, Ranks

if TYPE_CHECKING:
    from xclrun.data.batches import Batch
    from xclrun.strategy import Context, Step, Term
    from xclrun.strategy.shared.steps import Loss


class Gradients:
    """Computes the gradients of steps.

    Args:
        micro_batch: maximum number of sentences in a micro-batch.
        scaler: scales losses against underflow.

    Attributes:
        beside: sentences and subwords of memory batches that this rank counts, since it was last set to 0.
    """

    def __init__(
        self,
        context: Context,
        micro_batch: int,
        ranks: Ranks = ALONE,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.context, self.micro_batch, self.ranks = context, micro_batch, ranks
        self.scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
        self.beside = [0, 0]
        # Number of micro-batches of the last step, and sentences of the largest one.
        self._parts, self._largest = 1, micro_batch

    def units(self, batch: Batch) -> float:
        """Return the weight of a batch in a mean loss: its sentences, or other units of its head."""
        return self.context.model.units(batch)

    def add(self, step: Step, seed: Callable[[int], None] = lambda number: None) -> list[Tensor]:
        """Add the gradients of a step to those of the parameters.

        Args:
            seed: seeds dropout for a micro-batch, given by its number. After the last micro-batch of several, it is
                called with their number.

        Returns:
            The loss of each micro-batch on the device (scalars), with its weight; 0 if another rank counts it.
        """
        model, ranks, batch = self.context.model, self.ranks, step.batch
        parts, whole = batch.split(self.micro_batch), self.units(batch) or 1.0
        self._parts, self._largest = len(parts), parts[0].size
        losses = [torch.zeros((), device=self.context.device) for _ in parts]
        divided, start = ranks.several and len(parts) > 1, 0
        for number, part in enumerate(parts):
            rows, start = slice(start, start + part.size), start + part.size
            if number not in ranks.micro_batches(len(parts)):
                continue
            if number:
                seed(number)
            with autocast(self.context.device, self.context.precision):
                loss, units = self._loss(step.loss, part, rows), self.units(part)
                if not units:
                    # The micro-batch has no weight, but the terms have.
                    loss, units = loss * 0.0, whole
                for term in step.terms:
                    # The factor cancels the weight of the micro-batch.
                    counts = divided or not ranks.rank
                    loss = self._with_term(loss, term, batch.size, rows, whole / units, counts)
                loss = loss * (units / whole)
            self.scaler.scale(loss).backward()
            losses[number] = loss.detach()
        if len(parts) > 1:
            seed(len(parts))
        if divided:
            ranks.sum_gradients(model.parameters())
            if step.rows is not None:
                for values in ranks.gather(list(step.rows.items()), self.context.device):
                    step.rows.update(values)
        elif ranks.rank:
            # Every rank computed the only micro-batch, so only rank 0 counts its loss.
            losses = [torch.zeros_like(loss) for loss in losses]
        return losses

    def mean(
        self, terms: Sequence[Term], parameters: Sequence[nn.Parameter], at_most: int | None = None
    ) -> list[Tensor]:
        """Return the gradient of the sum of terms, see `xclrun.strategy.shared.steps.MeanGradient`."""
        largest = self._largest if at_most is None else -(-at_most // self._parts)
        total: tuple[Tensor, ...] = ()
        for term in terms:
            self._count(term.batch, not self.ranks.rank)
            start = 0
            for part in term.batch.split(largest):
                rows, start = slice(start, start + part.size), start + part.size
                # With fp16 in fp32, because only the loss of the step is scaled against underflow.
                with autocast(self.context.device, "bf16") if self.context.precision == "bf16" else nullcontext():
                    loss = self._loss(term.loss, part, rows) * (self._share(part, term) * term.weight)
                gradients = torch.autograd.grad(loss, list(parameters), allow_unused=True, materialize_grads=True)
                total = torch._foreach_add(total, gradients) if total else gradients
        return list(total)

    def _loss(self, loss: Loss | None, part: Batch, rows: slice) -> Tensor:
        return self.context.model.loss(part) if loss is None else loss(part, rows)

    def _with_term(self, loss: Tensor, term: Term, whole: int, rows: slice, factor: float, counts: bool) -> Tensor:
        """Add ``factor`` times the share of a term that belongs to the micro-batch ``rows`` of ``whole`` sentences."""
        size = term.batch.size
        at = slice(size * rows.start // whole, size * rows.stop // whole)
        if at.start == at.stop:
            return loss
        memory = term.batch.at(at)
        self._count(memory, counts)
        return loss + self._share(memory, term) * factor * term.weight * self._loss(term.loss, memory, at)

    def _share(self, part: Batch, term: Term) -> float:
        size = term.size or self.units
        total = sum(map(size, term.among or (term.batch,)))
        return size(part) / total if total else 0.0

    def _count(self, batch: Batch, counts: bool) -> None:
        if counts:
            self.beside = [self.beside[0] + batch.size, self.beside[1] + batch.pieces]
