"""Language-specific heads: every language has heads of its own; the encoder is shared.

CCL, section 3.2 ("Lang-Spec Task"). The heads are all that lies behind the encoder's last states: intent, or BERT's
pooler and class; tags, with their CRF where they have one. Each language's are drawn independently (a pretrained pooler
is as it is); those of the first language are hop 0's. A language that was not seen is served by its own, untrained: an
encoder tuned under other heads has nothing to say through them. No settings.

Version 2: in version 1 all languages' heads started with hop 0's values. The encoder had then been tuned under heads
that began as those of unseen languages did, and transferred to these as if the heads were shared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from xclrun.config.schema import StrategyConfig
from xclrun.core.identity import derive
from xclrun.strategy.shared.language_parts import HEADS, LanguageParts

if TYPE_CHECKING:
    from torch import Tensor


class LangSpecTask(LanguageParts[StrategyConfig]):
    """The heads per language."""

    name = "lang_spec_task"
    version = 2
    parts = HEADS

    def fresh_parts(self, language: str) -> Mapping[str, Tensor]:
        from xclrun.model import redrawn_heads

        if self.hop_of.get(language) == 1:
            return self.initial
        return {**self.initial, **redrawn_heads(self.model, derive(self.seed, "heads", language))}
