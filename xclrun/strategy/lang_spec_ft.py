"""Language-specific fine-tuning: one model per language, each trained from the pretrained encoder on that language
alone.

CCL, section 3.1 ("Lang-Spec FT"). Its scores on each model's own language are the reference scores M[j] of transfer and
intransigence. Its models are naive's hop-1 models of the orders that start with those languages, and are shared with
them.

Settings: ``expansion``: language adapters, ``lang_spec_ada_t`` or ``lang_spec_ada_f``, in every model: the reference
runs of strategies with such adapters. A language's model is then hop 1 of that strategy, and shared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xclrun.core.stream import Hop, Stream, independent
from xclrun.strategy import having
from xclrun.strategy.base import Strategy
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings


class LangSpecFT(Expandable[ExpandableSettings]):
    """Every hop starts from hop 0, and its model serves all languages."""

    name = "lang_spec_ft"
    settings_type = ExpandableSettings

    def unsuited(self, expansion: Strategy[Any]) -> str | None:
        if expansion.has_adapters:
            return None
        adapters = ", ".join(having("has_adapters"))
        return f"every language has a whole model of its own; only adapters add to it ({adapters})"

    def language_specific(self, parameter: str) -> bool:
        return True

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.expansion.signature(hop)

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        return {} if hop.depth else self.expansion.serving_signature(hop)

    def recalled(self, hop: Hop) -> Sequence[int]:
        return ()

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        # Hops are independent: no weights of another hop enter.
        pass

    def stream(self, order: Sequence[str]) -> Stream:
        return independent(order)
