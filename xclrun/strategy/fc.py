"""Few-shot adaptation of the output layers ("FC only"; FS, Table 6).

The output layers are the heads without BERT's pooler, for example the class layer, or the intent and tag layers with
the CRF. Encoder and pooler are frozen. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.heads_only import ENCODER, POOLER, HeadsOnly


class FC(HeadsOnly[StrategyConfig]):
    name = "fc"
    frozen = (ENCODER, POOLER)
