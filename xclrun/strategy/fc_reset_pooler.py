"""Few-shot adaptation of pooler and output layer, one or both reinitialised ("FC (reset) + pooler"; FS, section 5.5).

Settings: ``reset``: ``classifier`` (FS, Table 6), ``pooler`` or ``both``. The classifier gets new initial values, drawn
as before source training; the pooler is reinitialised as in BERT (normal weights, zero bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.base import Context
from xclrun.strategy.shared.heads_only import HeadsOnly, reinitialise


class Reset(Enum):
    pooler = "pooler"
    classifier = "classifier"
    both = "both"


@dataclass
class ResetSettings(StrategyConfig):
    reset: Reset = Reset.classifier


class FCResetPooler(HeadsOnly[ResetSettings]):
    name = "fc_reset_pooler"
    settings_type = ResetSettings

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        if not self.adapts(context.hop):
            return
        model: Any = context.model
        if self.settings.reset is not Reset.classifier:
            std = getattr(model.encoder.config, "initializer_range", 0.02)
            reinitialise(model.pooler.dense, context, "pooler", std)
        if self.settings.reset is not Reset.pooler:
            reinitialise(model.classifier, context, "classifier")
