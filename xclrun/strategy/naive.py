"""Sequential fine-tuning, without any method against forgetting (CCL, section 3.1). No settings."""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop
from xclrun.strategy.base import Plan, Strategy


class Naive(Strategy[StrategyConfig]):
    name = "naive"

    def plan(self, hop: Hop) -> Plan:
        return Plan()
