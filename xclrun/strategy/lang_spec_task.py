"""Language-specific heads: every language has its own heads; the encoder is shared.

CCL, section 3.2 ("Lang-Spec Task"). The heads are all that lies behind the encoder's last states: intent, or BERT's
pooler and class; tags, with their CRF where they have one. A language that was not seen is served by its own heads
that nobody trained, drawn independently of all others (a pretrained pooler is as it is): an encoder tuned under other
heads has nothing to say through them.

Settings: ``start``, with which values the heads of a language that is learned begin. The paper does not say; in the
authors' public code all begin with the same, those of hop 0 (``same``). The encoder that one hop leaves then fits what
the next begins with, and earlier languages lose little more than under shared heads. Where each language's are drawn
independently (``own``), a hop turns the encoder towards new heads, and away from those of earlier languages.

Version 2, whose ids those of ``own`` still are: in version 1 unseen languages too were served by hop 0's heads, and the
encoder transferred to these as if the heads were shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.identity import derive
from xclrun.strategy.shared.language_parts import HEADS, LanguageParts

if TYPE_CHECKING:
    from torch import Tensor


class Start(Enum):
    same = "same"
    own = "own"


@dataclass
class HeadsSettings(StrategyConfig):
    start: Start = Start.same


class LangSpecTask(LanguageParts[HeadsSettings]):
    """The heads per language."""

    name = "lang_spec_task"
    settings_type = HeadsSettings
    signature = LanguageParts.signature
    serving_signature = LanguageParts.serving_signature
    parts = HEADS

    def fresh_parts(self, language: str) -> Mapping[str, Tensor]:
        from xclrun.model import redrawn_heads

        if self.hop_of.get(language) == 1:
            return self.initial
        return {**self.initial, **redrawn_heads(self.model, derive(self.seed, "heads", language))}

    def first_parts(self, language: str) -> Mapping[str, Tensor]:
        return self.initial if self.settings.start is Start.same else self.fresh_parts(language)
