"""Few-shot adapting of BERT's pooler and the output layer, one of them fresh ("FC (reset) + pooler"; FS, Table 6).

Settings: ``reset``: ``pooler``, ``classifier`` or ``both``. The pooler starts as BERT initialises it (normal, without
bias), the classifier as before source training, with values of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from xclrun.config import StrategyConfig
from xclrun.strategy.base import Context
from xclrun.strategy.heads_only import HeadsOnly, start_anew


class Reset(Enum):
    pooler = "pooler"
    classifier = "classifier"
    both = "both"


@dataclass
class ResetSettings(StrategyConfig):
    reset: Reset = Reset.pooler


class FCResetPooler(HeadsOnly[ResetSettings]):
    """The pooler and the output layer; one of them, or both, fresh."""

    settings_type = ResetSettings
    signature = HeadsOnly.signature

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        if not self.adapts(context.hop):
            return
        model: Any = context.model
        if self.settings.reset is not Reset.classifier:
            start_anew(model.pooler.dense, context, "pooler", std=model.encoder.config.initializer_range)
        if self.settings.reset is not Reset.pooler:
            start_anew(model.classifier, context, "classifier")
