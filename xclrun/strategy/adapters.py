"""MAD-X language adapters in every layer of the encoder: what `lang_spec_ada_t` and `lang_spec_ada_f` have in common.

CCL, section 3.2 ("Ada"), after Pfeiffer et al. 2020, "MAD-X: an adapter-based framework for multi-task cross-lingual
transfer", with the library `adapters`. In each layer, with x and f what goes into and comes out of its feed-forward
part: f ← f + U relu(D LN(f + x) + b) + c, with D of shape (d/r, d) and U of shape (d, d/r) for width d, before the
layer's own LN(f + x); and one invertible adapter (NICE coupling, reduction 2) on the embeddings. Every language has
adapters of its own, which start freshly initialised (the same values for every language); one that was not seen is
served by those. The heads are shared.

Settings: ``reduction``, r: the width of the hidden states over that of the bottleneck. The default 2 is that of MAD-X's
language adapters; with mBERT it gives 7,387,776 parameters per language (the paper's totals imply 7,370,000, rounded).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from xclrun.config import StrategyConfig
from xclrun.errors import UsageError
from xclrun.plan import Hop, Stream
from xclrun.strategy.base import Library
from xclrun.strategy.parts import LanguageParts

if TYPE_CHECKING:
    from xclrun.model import Model

# Name of the one adapter in the model, whose values are those of the language at work.
NAME = "language"


@dataclass
class AdapterSettings(StrategyConfig):
    reduction: int = 2


class LanguageAdapters(LanguageParts[AdapterSettings]):
    """Adapters per language.

    Attributes:
        frozen: whether the encoder itself stays as pretrained.
    """

    settings_type = AdapterSettings
    parts = (f"adapters.{NAME}",)
    frozen: bool

    def __init__(self, settings: AdapterSettings) -> None:
        if settings.reduction < 1:
            raise UsageError(f"strategy.reduction={settings.reduction}: must be a whole number of at least 1")
        super().__init__(settings)

    def language_specific(self, parameter: str) -> bool:
        return any(part in parameter for part in self.parts)

    def signature(self, hop: Hop) -> dict[str, Any]:
        # The model has other parameters from hop 0 on, so nothing is shared with strategies without adapters.
        return self.described()

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        return self.described()

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        try:
            import adapters
        except ImportError as error:
            raise UsageError(
                f"strategy={self.settings.name} needs the library adapters: pip install 'xclrun[adapters]'"
            ) from error
        width: Any = model.intent.in_features
        if width % self.settings.reduction:
            raise UsageError(f"strategy.reduction={self.settings.reduction}: must divide the encoder's width {width}")
        encoder: Any = model.encoder
        try:
            adapters.init(encoder)
        except ValueError as error:
            raise UsageError(f"strategy={self.settings.name}: adapters do not fit this encoder ({error})") from error
        # Prompt tuning, which is not used here, holds the embeddings a second time.
        encoder.prompt_tuning.base_model_embeddings = None
        with _quiet("adapters.model_mixin"):
            encoder.add_adapter(NAME, config=adapters.SeqBnInvConfig(reduction_factor=self.settings.reduction))
            encoder.set_active_adapters(NAME)
        for name, parameter in model.encoder.named_parameters():
            parameter.requires_grad_(not self.frozen or self.language_specific(name))
        super().prepare(model, stream, library)


@contextmanager
def _quiet(logger: str) -> Iterator[None]:
    """Hold back a library's warnings about adapters that are there and not yet active."""
    found = logging.getLogger(logger)
    before = found.level
    found.setLevel(logging.ERROR)
    try:
        yield
    finally:
        found.setLevel(before)
