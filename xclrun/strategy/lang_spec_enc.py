"""Language-specific layers: every language has some layers of the encoder of its own; the rest is shared.

CCL, section 3.2 ("Lang-Spec Enc[a-b]": layers a to b, counted from 1, both included). Those layers of a hop's language
start from the pretrained ones, which also serve languages that were not seen.

Settings: ``layers``, their numbers; null stands for all layers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Stream
from xclrun.model.structure import layer
from xclrun.strategy.base import Library
from xclrun.strategy.shared.language_parts import LanguageParts

if TYPE_CHECKING:
    from xclrun.model import Model
    from xclrun.model.families import Family


@dataclass
class LayersSettings(StrategyConfig):
    layers: list[int] | None = None


class LangSpecEnc(LanguageParts[LayersSettings]):
    """Chosen layers per language."""

    name = "lang_spec_enc"
    settings_type = LayersSettings
    signature = LanguageParts.signature

    def __init__(self, settings: LayersSettings) -> None:
        super().__init__(settings)
        layers = settings.layers
        if layers is not None and (not layers or len(set(layers)) < len(layers)):
            raise UsageError(f"strategy.layers={layers}: must be different layers, counted from 1, or null")

    def check_encoder(self, family: Family, width: int | None) -> None:
        if not family.layers_apart:
            raise UsageError(f"strategy={self.settings.name}: the layers of {family.title} share their weights")

    def check_depth(self, layers: int) -> None:
        for number in self.settings.layers or ():
            if not 1 <= number <= layers:
                raise UsageError(f"strategy.layers: there is no layer {number}; the encoder has layers 1 to {layers}")

    def language_specific(self, parameter: str) -> bool:
        number = layer(parameter)
        return number is not None and (self.settings.layers is None or number in self.settings.layers)

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        self._check_layers(name for name, _ in model.named_parameters())
        super().prepare(model, stream, library)

    def as_built(self, parameters: Collection[str]) -> bool:
        self._check_layers(parameters)
        return super().as_built(parameters)

    def _check_layers(self, parameters: Iterable[str]) -> None:
        self.check_depth(max((layer(name) or 0 for name in parameters), default=0))
