"""Naive sequential fine-tuning: each hop fine-tunes the model of the hop before on its own language alone.

CCL, section 3.1 ("Naive Seq FT"): the lower baseline. It adds nothing to the model's loss and keeps nothing.
"""

from __future__ import annotations

from typing import Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop
from xclrun.strategy.base import Strategy


class Naive(Strategy[StrategyConfig]):
    """Plain fine-tuning, one language after another; no settings."""

    name = "naive"

    def signature(self, hop: Hop) -> dict[str, Any]:
        return {}
