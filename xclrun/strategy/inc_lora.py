"""Incremental LoRA: each hop adds a low-rank update to a frozen encoder and leaves earlier updates unchanged.

The baseline "IncLoRA" of Wang et al. 2023, "Orthogonal subspace learning for language model continual learning", with
the update of Hu et al. 2022, "LoRA". Equations, settings and cost: `xclrun.strategy.shared.low_rank`.
"""

from __future__ import annotations

from xclrun.strategy.shared.adapters import LowRankSettings
from xclrun.strategy.shared.low_rank import LowRankPerHop


class IncLora(LowRankPerHop[LowRankSettings]):
    name = "inc_lora"
    settings_type = LowRankSettings
