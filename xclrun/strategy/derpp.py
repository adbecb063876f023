"""Dark experience replay++ (DER++): ``der`` with an additional loss on the gold labels of the reservoir.

Buzzega et al. 2020, "Dark experience for general continual learning: a strong, simple baseline", equation 6 and
algorithm 2. With the reservoir and z' of ``der`` (`xclrun.strategy.der`), every step has the loss

    loss + α · ‖z' − h(x')‖² + β · loss(x'', y'')

x' and x'' are two draws from the reservoir, each with as many examples as the main mini-batch. The last term is the
model's own loss. α = 0 is plain replay from a reservoir.

Settings: those of ``der``, and ``beta`` β. In the paper on CIFAR-10, α = 0.1 and β = 0.5. Cost: two more batches per
step; the reservoir needs as much memory as in ``der``.
"""

from __future__ import annotations

from dataclasses import dataclass

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.der import DER, DERSettings
from xclrun.strategy.shared.steps import Term


@dataclass
class DERPPSettings(DERSettings):
    alpha: float = bounded(0.1, at_least=0)
    beta: float = bounded(0.5, at_least=0)


class DERPP(DER[DERPPSettings]):
    name = "derpp"
    settings_type = DERPPSettings

    def active(self) -> bool:
        return self.settings.memory > 0 and (self.settings.alpha > 0 or self.settings.beta > 0)

    def replayed(self, number: int, count: int, context: Context) -> list[Term]:
        batches = [(language, batch) for language, batch, _ in self.drawn("labelled replay", number, count, context)]
        return [*super().replayed(number, count, context), *self.terms(batches, context, self.settings.beta)]
