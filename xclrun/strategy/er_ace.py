"""Replay with asymmetric cross-entropy (ER-ACE): new sentences compete among the their own classes batch alone.

Caccia et al. 2022, "New insights on reducing abrupt representation change in online continual learning", equation 5.
From hop 2 on, at every k-th main mini-batch, the loss of the main step is

    L(main; classes in main) + L(memory; all classes)

with a batch drawn uniformly from a memory of all languages seen before. In the first term the logits of classes that
the main mini-batch does not have are left out of the softmax, so that what is new does not push down the others. Tags
likewise: the tags that the batch does not have are left out, of the softmax of each word without a CRF, and with one of
the sequences that its partition function sums over. Spans have no classes, and are refused.

Where we differ: the memory is that of ``er``, filled after each hop in equal shares, where the paper's is a reservoir
of the stream; label sets are known from the start (they are those of all training data), so the second term has all
classes and not those seen so far.

Settings: ``memory``, ``every_k`` (the paper: 1) and ``selection`` as of ``er``. Cost: one batch more in each such step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context
from xclrun.strategy.shared.memory import MemoryBatches, MemorySettings, MemoryStrategy, remembered

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.core.task import Task
    from xclrun.data.batches import Batch
    from xclrun.model.network import Output

# What represents the logit of a class that is left out: its probability is exactly 0 in fp32.
LOWEST = -1e9


class ERACE(MemoryStrategy[MemorySettings]):
    """Replay next to the main mini-batch, whose classes are its own alone."""

    name = "er_ace"
    settings_type = MemorySettings
    signature = MemoryStrategy.signature
    _main: Batch | None = None
    _drawn: MemoryBatches[None] | None = None

    def unfit(self, tasks: Sequence[Task]) -> str | None:
        if any(task.answers for task in tasks):
            return "answers are places in a text; there are no classes to leave out"
        return super().unfit(tasks)

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        self._drawn, self._main = None, main
        if self.due(step):
            drawn = self.memory.draw_from_all(context.batch_size, context.generator("replay", step))
            batches = remembered(drawn, context, together=self.settings.expansion is None)
            self._drawn = MemoryBatches([(language, batch, None) for language, batch in batches], main.size)
        return (main,)

    def repeats(self) -> bool:
        return self._drawn is None

    def loss(self, batch: Batch, context: Context) -> Tensor:
        if self._drawn is None or self._main is None:
            return super().loss(batch, context)
        model = context.model
        loss = model.loss(batch, own_classes(model(batch), self._main))
        for language, part, _, _, factor in self._drawn.take(batch, context):
            loss = loss + factor * self.loss_of(language, part, context)
        return loss

    def skip(self, batch: Batch, context: Context) -> None:
        if self._drawn is not None:
            self._drawn.skip(batch)


def own_classes(output: Output, main: Batch) -> Output:
    """Return outputs without the classes, and the tags, that the main mini-batch does not have."""
    logits, emissions = output.logits, output.emissions
    if logits is not None:
        logits = _without(logits, main.labels)
    if emissions is not None:
        emissions = _without(emissions, main.word_rows(main.tags))
    return replace(output, logits=logits, emissions=emissions)


def _without(scores: Tensor, there: Tensor) -> Tensor:
    """Return scores (…, C) with `LOWEST` for the classes that are not among the ids ``there``."""
    import torch

    absent = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
    absent[there] = False
    return scores.masked_fill(absent, LOWEST)
