"""Dark experience replay++ (DER++): as ``der``, and the gold labels of the reservoir too.

Buzzega et al. 2020, "Dark experience for general continual learning: a strong, simple baseline", equation 6 and
algorithm 2. With the reservoir of ``der`` (`xclrun.strategy.der`), at every step

    loss + α · ‖z' − h(x')‖² + β · loss(x'', y'')

on two draws from it, x' and x'', each of as many examples as the main mini-batch has; the last term is the model's own
loss on gold labels, tags or answers. With α = 0 it is replay from a reservoir, next to the main mini-batch.

Settings: those of ``der``, and ``beta``, β, no unit; the paper on CIFAR-10: α = 0.1, β = 0.5. Cost: two batches more in
each step; memory as ``der``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.der import DER, DERSettings
from xclrun.strategy.shared.memory import MemoryBatches

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch


@dataclass
class DERPPSettings(DERSettings):
    alpha: float = bounded(0.1, at_least=0)
    beta: float = bounded(0.5, at_least=0)


class DERPP(DER[DERPPSettings]):
    """Distillation and replay, from a reservoir."""

    name = "derpp"
    settings_type = DERPPSettings
    signature = DER.signature
    _labelled: MemoryBatches[dict[str, Tensor]] | None = None

    def active(self) -> bool:
        return self.settings.memory > 0 and (self.settings.alpha > 0 or self.settings.beta > 0)

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        batches = super().replay(step, main, context)
        self._labelled = self.drawn("labelled replay", main.size, context)
        return batches

    def loss(self, batch: Batch, context: Context) -> Tensor:
        loss = super().loss(batch, context)
        for language, part, _, _, factor in self._labelled.take(batch, context) if self._labelled else ():
            loss = loss + factor * self.settings.beta * self.loss_of(language, part, context)
        return loss

    def skip(self, batch: Batch, context: Context) -> None:
        super().skip(batch, context)
        if self._labelled is not None:
            self._labelled.skip(batch)
