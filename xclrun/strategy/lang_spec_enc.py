"""Language-specific layers of the encoder; the rest is shared.

CCL, section 3.2 ("Lang-Spec Enc[a-b]": layers a to b, counted from 1, both included). The layers of a hop's language
start from the pretrained layers. Languages not learned yet also use the pretrained layers.

Settings: ``layers``, the numbers of the language-specific layers; null: all layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.model.structure import layer
from xclrun.strategy.base import Parameters
from xclrun.strategy.shared.language_parameters import LanguageParameters

if TYPE_CHECKING:
    from xclrun.model.families import Family


@dataclass
class LayersSettings(StrategyConfig):
    layers: list[int] | None = None


class LangSpecEnc(LanguageParameters[LayersSettings]):
    name = "lang_spec_enc"
    settings_type = LayersSettings

    def __init__(self, settings: LayersSettings) -> None:
        super().__init__(settings)
        layers = settings.layers
        if layers is not None and (not layers or len(set(layers)) < len(layers)):
            raise UsageError(f"strategy.layers={layers}: must be distinct layers, counted from 1, or null")

    def check_encoder(self, family: Family | None, width: int | None, layers: int | None) -> None:
        if family is not None and not family.layers_apart:
            raise UsageError(
                f"strategy={self.settings.name}: the layers of {family.title} share their weights, so no layer can be "
                "language-specific on its own; use strategy=lang_spec_trans or another encoder"
            )
        for number in self.settings.layers or ():
            if layers is not None and not 1 <= number <= layers:
                raise UsageError(f"strategy.layers: the encoder has no layer {number}, only layers 1 to {layers}")

    @property
    def parameters(self) -> Parameters:
        return Parameters(language_specific=self._chosen)

    def _chosen(self, parameter: str) -> bool:
        number = layer(parameter)
        return number is not None and (self.settings.layers is None or number in self.settings.layers)
