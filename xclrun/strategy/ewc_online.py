"""Online elastic weight consolidation (EWC-Online): weights that mattered for earlier languages are held back.

CCL, section 3.2 ("EWC-Online"), after Schwarz et al. 2018, "Progress & Compress", section 4.2 ("online EWC"). From
hop 2 on the loss of hop i has a penalty around the weights with which the hop begins:

    λ/2 · Σ_θ F̃_i[θ] · (θ − θ_prev)²        F̃_i = γ · F̃_{i−1} + F_{i−1}        F̃_1 = 0

F_j is the diagonal empirical Fisher information of hop j's training data after the hop, over body and heads
(`xclrun.strategy.shared.fisher`). The penalty's gradient λ F̃ (θ − θ_prev) is added to the gradients before clipping,
which equals adding the penalty to the loss; the losses that are noted are the model's own.

Settings: ``penalty``, λ, no unit; ``gamma``, γ from 0 to 1, no unit; ``fisher_examples``, sentences of a hop that F is
averaged over, a random sample, or null: all.

Cost: 8 bytes per weight on the device while a hop is trained (F̃ and θ_prev), 4 in the stored state (F̃).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.shared.penalty import ImportancePenalty, PullSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class PenaltySettings(PullSettings):
    penalty: float = bounded(20.0, at_least=0)
    fisher_examples: int | None = bounded(None, at_least=1)


Settings = TypeVar("Settings", bound=PenaltySettings)


class FisherPenalty(ImportancePenalty[Settings]):
    """Base of both kinds of EWC: parameters are as important as their Fisher information says."""

    def fisher(self, context: Context) -> dict[str, Tensor]:
        """Return the Fisher information of the hop that has just been trained, by parameter name."""
        from xclrun.strategy.shared.fisher import diagonal_fisher

        return self.mean_over_hop(context, "fisher", self.settings.fisher_examples, diagonal_fisher)


@dataclass
class EWCOnlineSettings(PenaltySettings):
    gamma: float = bounded(1.0, at_least=0, at_most=1)


class EWCOnline(FisherPenalty[EWCOnlineSettings]):
    """One running Fisher information, around the weights with which the hop begins."""

    name = "ewc_online"
    settings_type = EWCOnlineSettings
    signature, state_signature = FisherPenalty.signature, FisherPenalty.state_signature

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self.hold_here(context)

    def end_hop(self, context: Context) -> None:
        before, self.precision = self.precision, self.fisher(context)
        for name, tensor in before.items():
            held = self.settings.gamma * tensor.to(context.device)
            self.precision[name] = held + self.precision[name] if name in self.precision else held
        self._terms, self.anchor = None, {}
