"""Few-shot adaptation of BERT's pooler and the output layer ("FC + pooler"; FS, Table 6). No settings."""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.shared.heads_only import HeadsOnly


class FCPooler(HeadsOnly[StrategyConfig]):
    name = "fc_pooler"
