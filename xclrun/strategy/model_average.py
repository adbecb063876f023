"""Averaged weights: after each hop the model is a mean of the weights before and after training.

WiSE-FT (Wortsman et al. 2022, "Robust fine-tuning of zero-shot models", section 3) averages a pretrained and a
fine-tuned model. This strategy averages the weights before and after a hop. From hop 2 on, with θ_{i−1} the weights at
the beginning of the hop and θ* the selected weights,

    θ_i = (1 − α) · θ_{i−1} + α · θ*

for all shared parameters. θ_i is evaluated, and the next hop starts from it. Hop 1 is plain fine-tuning, because its
initial heads are random; heads of a task that no earlier hop has learned are not averaged either. Dev scores and
evaluation points inside a hop use the weights before averaging. With ``trainer.optimizer_state=kept``, the optimiser's
state is not averaged.

Settings: ``weight`` α, above 0 and at most 1. The value 1 is plain fine-tuning; the paper recommends 0.5. Cost: 4 bytes
per weight on the device during training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings

if TYPE_CHECKING:
    from torch import Tensor


@dataclass
class AverageSettings(ExpandableSettings):
    weight: float = bounded(0.5, above=0, at_most=1)


class ModelAverage(Expandable[AverageSettings]):
    name = "model_average"
    settings_type = AverageSettings

    def __init__(self, settings: AverageSettings) -> None:
        super().__init__(settings)
        self.before: dict[str, Tensor] = {}

    def active(self) -> bool:
        return self.settings.weight < 1

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        hop, self.before = context.hop, {}
        if hop.depth <= 1:
            return
        learned = {context.train[key].task for other in context.stream.hops[: hop.index] for key in other.train}
        fresh = tuple(
            f"tasks.{context.train[key].task}." for key in hop.train if context.train[key].task not in learned
        )
        self.before = {
            name: p.detach().clone()
            for name, p in context.model.named_parameters()
            if p.requires_grad and not self.parameters.language_specific(name) and not name.startswith(fresh)
        }

    def end_training(self, context: Context) -> None:
        import torch

        weights = dict(context.model.named_parameters())
        with torch.no_grad():
            for name, before in self.before.items():
                weights[name].copy_(torch.lerp(before, weights[name], self.settings.weight))
        self.before = {}
