"""Multilingual training: one hop on the union of all languages.

CCL, section 3.1 ("Multilingual"): an upper bound. There is only one hop, so only final performance is defined. No
settings.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, joint
from xclrun.strategy.naive import Naive


class Multilingual(Naive):
    name = "multilingual"
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return joint(order)
