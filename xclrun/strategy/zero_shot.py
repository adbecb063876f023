"""Zero-shot transfer: one hop on the order's first language; all languages are tested. No settings.

ED = "Don't Use English Dev" (Keung et al. 2020), section 3; checkpoints are selected afterwards
(`xclrun.analysis.points`). The hop is shared with the first hop of naive fine-tuning.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, zero_shot
from xclrun.strategy.naive import Naive


class ZeroShot(Naive):
    name = "zero_shot"

    def stream(self, order: Sequence[str]) -> Stream:
        return zero_shot(order)
