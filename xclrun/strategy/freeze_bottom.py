"""Frozen bottom: after hop 1 the embeddings and the lowest layers of the encoder are frozen.

Lower layers are useful for all languages, and forgetting occurs in higher layers (Lee et al. 2019, "What would Elsa do?
Freezing layers during transformer fine-tuning"; Ramasesh et al. 2021, "Anatomy of catastrophic forgetting"). Hop 1 is
plain fine-tuning. In later hops

    θ_embeddings, θ_1, …, θ_n  keep their values of hop 1

and the other layers, pooler and heads are trained. Dropout stays active in frozen layers.

Settings: ``layers`` n, the number of frozen layers, counted from the bottom (0: only the embeddings are frozen). Cost:
less than fine-tuning, because backward passes end above the frozen layers, and frozen layers have no optimiser state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop
from xclrun.model.structure import is_embedding, layer
from xclrun.strategy.base import Context, Parameters, Plan, Strategy, bounded

if TYPE_CHECKING:
    from xclrun.model.families import Family


@dataclass
class FreezeSettings(StrategyConfig):
    layers: int = bounded(1, at_least=0)


class FreezeBottom(Strategy[FreezeSettings]):
    name = "freeze_bottom"
    settings_type = FreezeSettings

    def plan(self, hop: Hop) -> Plan:
        return Plan(train=self.described() if hop.depth > 1 else {})

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        if family is not None and not family.layers_apart:
            raise UsageError(
                f"strategy={self.settings.name}: the layers of {family.title} share their weights, so lower layers "
                "cannot be frozen separately; choose another encoder"
            )
        if layers is not None and self.settings.layers > layers:
            raise UsageError(f"strategy.layers={self.settings.layers}: must be at most {layers}, the encoder's depth")

    @property
    def parameters(self) -> Parameters:
        return Parameters(trains=lambda name, hop: not (hop.depth > 1 and self._in_bottom(name)))

    def _in_bottom(self, parameter: str) -> bool:
        number = layer(parameter)
        return is_embedding(parameter) if number is None else number <= self.settings.layers

    def begin_hop(self, context: Context) -> None:
        for name, parameter in context.model.named_parameters():
            parameter.requires_grad_(self.parameters.trains(name, context.hop))
