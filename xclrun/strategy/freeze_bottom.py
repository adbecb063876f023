"""Frozen bottom: after hop 1 the embeddings and the lowest layers of the encoder are trained no more.

Lower layers serve all languages, and forgetting happens in the higher ones (Lee et al. 2019, "What would Elsa do?
Freezing layers during transformer fine-tuning"; Ramasesh et al. 2021, "Anatomy of catastrophic forgetting"). Hop 1 is
plain fine-tuning. In every later hop

    θ_embeddings, θ_1, …, θ_n  stay as hop 1 left them

and the other layers, pooler and heads are trained. Dropout stays on below; only weights are frozen.

Settings: ``layers``, n, counted from the bottom; 0: the embeddings alone. Cost: none; backward passes end above what is
frozen, and the optimiser keeps no state of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop
from xclrun.model.structure import is_embedding, layer
from xclrun.strategy.base import Context, Strategy, bounded

if TYPE_CHECKING:
    from xclrun.model.families import Family


@dataclass
class FreezeSettings(StrategyConfig):
    layers: int = bounded(1, at_least=0)


class FreezeBottom(Strategy[FreezeSettings]):
    """The bottom of the encoder stays as the first hop left it."""

    name = "freeze_bottom"
    settings_type = FreezeSettings

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.described() if hop.depth > 1 else {}

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        if family is not None and not family.layers_apart:
            raise UsageError(f"strategy={self.settings.name}: the layers of {family.title} share their weights")
        if layers is not None and self.settings.layers > layers:
            raise UsageError(f"strategy.layers={self.settings.layers}: the encoder has {layers} layers")

    def trains(self, parameter: str, hop: Hop) -> bool:
        return not (hop.depth > 1 and self._is_bottom(parameter))

    def _is_bottom(self, parameter: str) -> bool:
        number = layer(parameter)
        return is_embedding(parameter) if number is None else number <= self.settings.layers

    def begin_hop(self, context: Context) -> None:
        for name, parameter in context.model.named_parameters():
            parameter.requires_grad_(self.trains(name, context.hop))
