"""Multilingual training: one training on the union of all languages.

CCL, section 3.1 ("Multilingual"): an upper baseline without hops, so only its final performance is defined.
"""

from __future__ import annotations

from collections.abc import Sequence

from xclrun.core.stream import Stream, joint
from xclrun.strategy.naive import Naive


class Multilingual(Naive):
    """One hop on everything; no settings."""

    name = "multilingual"
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return joint(order)
