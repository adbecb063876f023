"""Language-specific heads; the encoder is shared (CCL, section 3.2, "Lang-Spec Task").

The heads are all parameters after the encoder's last states. For classes: the intent head, or BERT's pooler with the
class head. For tags: the tag head with its CRF. A language not learned yet is evaluated with its own untrained heads,
drawn independently of all other heads; a pretrained pooler keeps its values.

Settings: ``start`` selects the heads with which the hop of a language starts; the paper does not specify these heads.
``same`` selects the heads of hop 0, as in the authors' code; ``own`` draws heads independently for each language. With
``same``, all hops start from the same heads. The encoder has already adapted to them in earlier hops, so forgetting is
only slightly higher than with shared heads. With ``own``, each hop adapts the encoder to new heads, so forgetting is
higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.identity import derive
from xclrun.strategy.base import Parameters
from xclrun.strategy.shared.language_parameters import BODY, PROMPTS, LanguageParameters

if TYPE_CHECKING:
    from torch import Tensor


class Start(Enum):
    same = "same"
    own = "own"


@dataclass
class HeadsSettings(StrategyConfig):
    start: Start = Start.same


class LangSpecTask(LanguageParameters[HeadsSettings]):
    name = "lang_spec_task"
    settings_type = HeadsSettings
    cannot_write = "the output layer of a language model belongs to no language; use strategy=lang_spec_ft"

    @property
    def parameters(self) -> Parameters:
        return Parameters(language_specific=lambda name: not name.startswith((*BODY, *PROMPTS)))

    def unseen_parameters(self, language: str) -> Mapping[str, Tensor]:
        from xclrun.model.network import redrawn_heads

        if self.hop_of.get(language) == 1:
            return self.initial
        return {**self.initial, **redrawn_heads(self.model, derive(self.seed, "heads", language))}

    def initial_parameters(self, language: str) -> Mapping[str, Tensor]:
        return self.initial if self.settings.start is Start.same else self.unseen_parameters(language)
