"""Sequential fine-tuning, without any method against forgetting (CCL, section 3.1). No settings."""

from __future__ import annotations

from typing import Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop
from xclrun.strategy.base import Strategy


class Naive(Strategy[StrategyConfig]):
    name = "naive"

    def signature(self, hop: Hop) -> dict[str, Any]:
        return {}
