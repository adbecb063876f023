"""Experience replay with asymmetric cross-entropy (ER-ACE): the softmax for new sentences contains only their classes.

Caccia et al. 2022, "New insights on reducing abrupt representation change in online continual learning", equation 5.
From hop 2 on, at every k-th main mini-batch, the loss of the main step is

    L(main; classes in main) + L(memory; all classes)

The memory batch is drawn uniformly from the stored sentences of all earlier languages. In the first term, classes that
the main mini-batch does not contain are excluded from the softmax, so that new examples do not reduce their logits.
Absent tags are likewise excluded from the softmax of each word, or from the tag sequences of a CRF's partition
function. Spans have no classes and are refused.

Deviations: as in ``er``, the memory is filled after each hop, with equal shares per language; the paper uses a
reservoir of the stream. Label sets are fixed in advance, so the second term has all classes, not only those seen so
far.

If ``cosine`` is set to a number α, the logits of classes are α · cos(w_c, x) without bias, as in the authors' code;
tags keep linear emissions. The reference models of transfer still have linear heads.

Settings: ``memory``, ``every_k`` (1 in the paper) and ``selection`` as for ``er``; ``cosine``. Cost: one more batch in
every k-th main step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Context, Library, Parameters, Plan, bounded
from xclrun.strategy.shared.memory import MemorySettings, MemoryStrategy, to_batches
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.core.task import Task
    from xclrun.data.batches import Batch
    from xclrun.model.heads import Output
    from xclrun.model.network import Model

# Logit of an excluded class: its probability is exactly 0 in fp32.
LOWEST = -1e9


@dataclass
class ERACESettings(MemorySettings):
    cosine: float | None = bounded(None, above=0)


class ERACE(MemoryStrategy[ERACESettings]):
    name = "er_ace"
    settings_type = ERACESettings

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if any(task.writes or task.needs - {"label", "tags"} for task in tasks):
            return "its targets are no classes, so there are no classes to exclude; use strategy=er"
        if self.settings.cosine is not None and any(task.label is None for task in tasks):
            return "strategy.cosine needs class heads, which not all tasks have; use strategy.cosine=null"
        return super().unsupported(tasks)

    def plan(self, hop: Hop) -> Plan:
        plan, cosine = super().plan(hop), self.settings.cosine
        if cosine is None:
            return plan
        # Hop 0 is included, because the model before fine-tuning already has cosine heads.
        return replace(plan, train=self.described(), serve={**plan.serve, "cosine": cosine})

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        super().prepare(model, stream, library)
        if self.settings.cosine is not None:
            from xclrun.model.heads import ClassHead

            for head in (module for module in model.modules() if isinstance(module, ClassHead)):
                head.scale = self.settings.cosine

    @property
    def parameters(self) -> Parameters:
        if self.settings.cosine is None:
            return super().parameters
        # Cosine logits have no bias, so the heads' biases are not trained.
        return replace(
            super().parameters, trains=lambda name, hop: not name.endswith(("intent.bias", "classifier.bias"))
        )

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        if not self.due(number):
            yield Step(main)
            return
        drawn = self.memory.draw_from_all(context.batch_size, context.generator("replay", number))
        batches = to_batches(drawn, context, together=self.settings.expansion is None)

        def loss(part: Batch, rows: slice) -> Tensor:
            return context.model.loss(part, own_classes(context.model(part), main))

        yield Step(main, loss, self.terms(batches, context))


def own_classes(output: Output, main: Batch) -> Output:
    """Exclude the classes and tags that the main mini-batch does not contain."""
    logits, emissions = output.logits, output.emissions
    if logits is not None:
        logits = _only(logits, main.labels)
    if emissions is not None:
        emissions = _only(emissions, main.word_rows(main.tags))
    return replace(output, logits=logits, emissions=emissions)


def _only(scores: Tensor, classes: Tensor) -> Tensor:
    """Set the scores (…, C) of all classes that are not in ``classes`` to `LOWEST`."""
    import torch

    absent = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
    absent[classes] = False
    return scores.masked_fill(absent, LOWEST)
