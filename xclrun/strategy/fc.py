"""Few-shot adapting of the output layers alone ("FC only"; FS, Table 6): classes; intents, tags and their CRF.

Encoder and pooler stay as source training left them. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.heads_only import ENCODER, POOLER, HeadsOnly


class FC(HeadsOnly[StrategyConfig]):
    """The output layers."""

    name = "fc"
    kept = (ENCODER, POOLER)
