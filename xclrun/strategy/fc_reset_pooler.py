"""Few-shot adapting of BERT's pooler and a fresh output layer ("FC (reset) + pooler"; FS, section 5.5 and Table 6).

Settings: ``reset``: ``classifier`` (FS: the linear classifier of source training starts again), ``pooler`` or ``both``.
The classifier starts as before source training, with its own values, the pooler as BERT initialises it (normal,
without bias).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.base import Context
from xclrun.strategy.shared.heads_only import HeadsOnly, start_anew


class Reset(Enum):
    pooler = "pooler"
    classifier = "classifier"
    both = "both"


@dataclass
class ResetSettings(StrategyConfig):
    reset: Reset = Reset.classifier


class FCResetPooler(HeadsOnly[ResetSettings]):
    """The pooler and the output layer, which is fresh; or the pooler, or both."""

    name = "fc_reset_pooler"
    settings_type = ResetSettings
    signature = HeadsOnly.signature

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        if not self.adapts(context.hop):
            return
        model: Any = context.model
        if self.settings.reset is not Reset.classifier:
            start_anew(
                model.pooler.dense, context, "pooler", std=getattr(model.encoder.config, "initializer_range", 0.02)
            )
        if self.settings.reset is not Reset.pooler:
            start_anew(model.classifier, context, "classifier")
