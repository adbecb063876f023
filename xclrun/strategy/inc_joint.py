"""Incremental joint training: hop i trains on the data of languages 1…i, going on from the model of hop i−1.

CCL, section 3.1 ("Inc Joint"): an upper baseline that keeps all data.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, sequence
from xclrun.strategy.naive import Naive


class IncJoint(Naive):
    """The training data accumulates; no settings."""

    name = "inc_joint"
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return sequence(order, cumulative=True)
