"""Language-specific heads: every language has heads of its own; the encoder is shared.

CCL, section 3.2 ("Lang-Spec Task"). The heads are all that lies behind the encoder's last states: intent, or BERT's
pooler and class; tags, with their CRF where they have one. Those of a hop's language start with the same values for
every language: those of hop 0 (freshly initialised, a pretrained pooler as it is), which also serve languages that were
not seen. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.language_parts import HEADS, LanguageParts


class LangSpecTask(LanguageParts[StrategyConfig]):
    """The heads per language."""

    name = "lang_spec_task"
    parts = HEADS
