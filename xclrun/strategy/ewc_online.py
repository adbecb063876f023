"""Online elastic weight consolidation (EWC-Online): one penalty on changes of weights with high Fisher information.

CCL, section 3.2 ("EWC-Online"), after Schwarz et al. 2018, "Progress & Compress", section 4.2 ("online EWC"). From hop
2 on the loss of hop i has a penalty around θ_prev, the weights at the beginning of the hop:

    λ/2 · Σ_θ F̃_i[θ] · (θ − θ_prev)²        F̃_i = γ · F̃_{i−1} + F_{i−1}        F̃_1 = 0

F_j is the diagonal of the empirical Fisher information for the parameters of body and heads. It is computed after hop j
on the hop's training data (`xclrun.strategy.shared.fisher`).

Settings: ``penalty`` λ; ``gamma`` γ, from 0 to 1; ``fisher_examples``, the number of sentences drawn at random from a
hop for F (null: all sentences). Cost: 8 bytes per weight on the device during training (F̃ and θ_prev), and 4 bytes per
weight in the stored state (F̃).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.shared.penalty import ImportancePenalty, PullSettings, mean_over_hop

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PenaltySettings(PullSettings):
    penalty: float = bounded(20.0, at_least=0)
    fisher_examples: int | None = bounded(None, at_least=1)


Settings = TypeVar("Settings", bound=PenaltySettings)


class FisherPenalty(ImportancePenalty[Settings]):
    """Base of ``ewc`` and ``ewc_online``."""

    def fisher(self, context: Context) -> dict[str, Tensor]:
        """Return the Fisher information of the trained hop, by parameter name."""
        from xclrun.strategy.shared.fisher import diagonal_fisher

        return mean_over_hop(
            context, "fisher", self.settings.fisher_examples, diagonal_fisher, self.parameters.language_specific
        )


@dataclass
class EWCOnlineSettings(PenaltySettings):
    gamma: float = bounded(1.0, at_least=0, at_most=1)


class EWCOnline(FisherPenalty[EWCOnlineSettings]):
    name = "ewc_online"
    settings_type = EWCOnlineSettings

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self.anchor_here(context)

    def end_hop(self, context: Context) -> None:
        before, self.precision = self.precision, self.fisher(context)
        for name, tensor in before.items():
            decayed = self.settings.gamma * tensor.to(context.device)
            self.precision[name] = decayed + self.precision[name] if name in self.precision else decayed
        self._terms, self.anchor = None, {}
