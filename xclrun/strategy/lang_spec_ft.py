"""Language-specific fine-tuning: one model per language, each trained from the pretrained encoder on that language
alone.

CCL, section 3.1 ("Lang-Spec FT"). Its scores on each model's own language are the reference scores M[j] of transfer and
intransigence. Its models are naive's hop-1 models of the orders that start with those languages, and are shared with
them.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.config import StrategyConfig
from xclrun.plan import Stream, independent
from xclrun.strategy.base import Strategy


class LangSpecFT(Strategy[StrategyConfig]):
    """Every hop starts from hop 0; no settings."""

    def language_specific(self, parameter: str) -> bool:
        return True

    def stream(self, order: Sequence[str]) -> Stream:
        return independent(order)
