"""Zero-shot transfer: one hop on the order's first language; all languages are tested. No settings.

Keung et al. 2020, "Don't Use English Dev", section 3. `xclrun.analysis.points` selects checkpoints after training. The
trained hop is identical to the first hop of naive fine-tuning, so the two strategies share one stored training.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, zero_shot
from xclrun.strategy.naive import Naive


class ZeroShot(Naive):
    name = "zero_shot"

    def stream(self, order: Sequence[str]) -> Stream:
        return zero_shot(order)
