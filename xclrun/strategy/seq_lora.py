"""Sequential LoRA: one low-rank update of a frozen encoder, which all hops train one after another.

The baseline "SeqLoRA" of Wang et al. 2023, "Orthogonal subspace learning for language model continual learning", with
the update of Hu et al. 2022, "LoRA". Equations, settings and cost: `xclrun.strategy.shared.low_rank`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LowRankSettings
from xclrun.strategy.shared.low_rank import LowRank


class SeqLora(LowRank[LowRankSettings]):
    name = "seq_lora"
    settings_type = LowRankSettings
