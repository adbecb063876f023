"""Few-shot adapting that tunes only the heads: the encoder stays as source training left it.

FS (Zhao et al. 2021), Table 6. The encoder is in eval mode throughout, so that what it makes of a sentence never
changes: it is computed once, and heads learn from what is kept (`xclrun.train.features`). Dropout before the heads is
as ever. In a stream of more hops all but the first adapt. Source training is plain fine-tuning, and shared with it.

| strategy | what is tuned | goes with |
|---|---|---|
| ``fc`` | the output layers: classes; intents, tags and their CRF | every task |
| ``fc_pooler`` | BERT's pooler and the output layer | tasks that read the class through it: ``sequence_class`` |
| ``fc_reset_pooler`` | the same, of which a part starts again | the same |
| ``cos_pooler`` | the pooler, and a fresh cosine classifier | the same |

Tuning everything, ``full``, is plain fine-tuning: ``strategy=naive``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from xclrun.core.identity import derive
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Settings, Strategy

if TYPE_CHECKING:
    from torch import nn

    from xclrun.core.task import Task

# How the names of the parameters of encoder and pooler begin.
ENCODER, POOLER = "encoder.", "pooler."


class HeadsOnly(Strategy[Settings]):
    """Base of the strategies that adapt heads.

    Attributes:
        kept: how the names of the parameters begin that adapting leaves unchanged.
    """

    kept: ClassVar[tuple[str, ...]] = (ENCODER,)

    def adapts(self, hop: Hop) -> bool:
        """Whether a hop tunes only the heads; otherwise it trains everything."""
        return hop.adapts or hop.depth > 1

    def unfit(self, tasks: Sequence[Task]) -> str | None:
        if len(tasks) > 1:
            return "it adapts the heads of one task"
        if POOLER in self.kept or tasks[0].pooled:
            return None
        return "tunes BERT's pooler, through which only sequence_class reads; fc and full go with every task"

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.described() if self.adapts(hop) else {}

    def keeps_encoder(self, hop: Hop) -> bool:
        return self.adapts(hop)

    def trains(self, parameter: str, hop: Hop) -> bool:
        return not (self.adapts(hop) and parameter.startswith(self.kept))

    def begin_hop(self, context: Context) -> None:
        context.model.still = self.adapts(context.hop)
        for name, parameter in context.model.named_parameters():
            parameter.requires_grad_(self.trains(name, context.hop))


def start_anew(layer: nn.Linear, context: Context, purpose: str, std: float | None = None) -> None:
    """Give a layer fresh values: as torch initialises, or as BERT does, normal with ``std`` and without bias."""
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(derive(context.seed, purpose, context.hop.depth))
        # On the CPU, so they are the same on every device.
        fresh = nn.Linear(layer.in_features, layer.out_features)
        if std is not None:
            nn.init.normal_(fresh.weight, std=std)
            nn.init.zeros_(fresh.bias)
    layer.load_state_dict(fresh.state_dict())
