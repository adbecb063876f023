"""Language-specific heads: every language has heads of its own; the encoder is shared.

CCL, section 3.2 ("Lang-Spec Task"). The heads (intent; tags with their CRF) of a hop's language start freshly
initialised, with the same values for every language: those of hop 0, which also serve languages that were not seen.
No settings.
"""

from __future__ import annotations

from xclrun.config import StrategyConfig
from xclrun.strategy.parts import HEADS, LanguageParts


class LangSpecTask(LanguageParts[StrategyConfig]):
    """The heads per language."""

    parts = HEADS
