"""Few-shot adaptation of the heads on a frozen encoder.

FS (Zhao et al. 2021), Table 6. The encoder is in eval mode, so its features are computed once per sentence
(`xclrun.train.features`); dropout before the heads stays active. Source training is plain fine-tuning, as is hop 1 of
other streams. All other hops adapt only the heads.

| strategy | trained parameters | tasks |
|---|---|---|
| ``fc`` | output layers: classes; intents, tags and their CRF | all |
| ``fc_pooler`` | BERT's pooler and the output layer | tasks whose class head uses the pooler: ``sequence_class`` |
| ``fc_reset_pooler`` | pooler and output layer, one or both of them reinitialised | as ``fc_pooler`` |
| ``cos_pooler`` | the pooler and a new cosine classifier | as ``fc_pooler`` |

``full`` tunes all parameters and is plain fine-tuning: ``strategy=naive``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from xclrun.core.identity import derive
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Parameters, Plan, Settings, Strategy

if TYPE_CHECKING:
    from torch import nn

    from xclrun.core.task import Task

# Name prefixes of the parameters of encoder and pooler.
ENCODER, POOLER = "encoder.", "pooler."


class HeadsOnly(Strategy[Settings]):
    """Base of the strategies that adapt heads; parameters with a name prefix in ``frozen`` are not adapted."""

    frozen: ClassVar[tuple[str, ...]] = (ENCODER,)
    cannot_write = "adapts heads, but the output layer of a language model is part of the pretrained model"

    def adapts(self, hop: Hop) -> bool:
        """Return whether a hop trains only the heads; otherwise it trains all parameters."""
        return hop.adapts or hop.depth > 1

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if len(tasks) > 1:
            return "this strategy adapts the heads of only one task"
        if POOLER in self.frozen or tasks[0].pooled:
            return None
        return "tunes BERT's pooler, which this task does not use; use strategy=fc or strategy=naive"

    def plan(self, hop: Hop) -> Plan:
        adapts = self.adapts(hop)
        return Plan(train=self.described() if adapts else {}, still=adapts)

    @property
    def parameters(self) -> Parameters:
        return Parameters(trains=lambda name, hop: not (self.adapts(hop) and name.startswith(self.frozen)))

    def begin_hop(self, context: Context) -> None:
        context.model.still = self.adapts(context.hop)
        for name, parameter in context.model.named_parameters():
            parameter.requires_grad_(self.parameters.trains(name, context.hop))


def reinitialise(layer: nn.Linear, context: Context, purpose: str, std: float | None = None) -> None:
    """Reinitialise a layer as torch does or, if ``std`` is set, as BERT does: normal weights, zero bias."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(context.seed, purpose, context.hop.depth))
        # Draw on the CPU, so that the values are equal on all devices.
        fresh = nn.Linear(layer.in_features, layer.out_features)
        if std is not None:
            nn.init.normal_(fresh.weight, std=std)
            nn.init.zeros_(fresh.bias)
    layer.load_state_dict(fresh.state_dict())
