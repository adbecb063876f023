"""Incremental joint training: hop i continues from hop i−1 and trains on the data of languages 1…i.

CCL, section 3.1 ("Inc Joint"): an upper bound that stores all data. No settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, sequence
from xclrun.strategy.naive import Naive


class IncJoint(Naive):
    name = "inc_joint"
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return sequence(order, cumulative=True)
