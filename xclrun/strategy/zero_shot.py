"""Zero-shot transfer: training on the order's first language alone; all others are tested without being learned.

ED = "Don't Use English Dev" (Keung et al. 2020), section 3: one hop, whose checkpoints are chosen after the fact (see
`xclrun.analysis.points`). Its hop is the first hop of naive fine-tuning, and shared with it.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, zero_shot
from xclrun.strategy.naive import Naive


class ZeroShot(Naive):
    """One hop on the source; no settings."""

    name = "zero_shot"

    def stream(self, order: Sequence[str]) -> Stream:
        return zero_shot(order)
