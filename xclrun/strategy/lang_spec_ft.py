"""Language-specific fine-tuning: a separate model for each language, trained from the pretrained encoder.

CCL, section 3.1 ("Lang-Spec FT"). The score of each model on its own language is the reference M[j] of transfer and
intransigence. The models are shared with the first hops of naive runs whose orders begin with these languages.

Settings: ``expansion``: language adapters in every model (``lang_spec_ada_t``, ``lang_spec_ada_f``, …), as a reference
for strategies with adapters. The first hops of such strategies are shared with these models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xclrun.core.stream import Hop, Stream, independent
from xclrun.strategy import names_with
from xclrun.strategy.base import Parameters, Plan, Strategy
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings


class LangSpecFT(Expandable[ExpandableSettings]):
    """Every hop starts from hop 0. The model after the hop is evaluated on all languages."""

    name = "lang_spec_ft"
    settings_type = ExpandableSettings

    def unsupported_expansion(self, expansion: Strategy[Any]) -> str | None:
        if expansion.has_adapters:
            return None
        adapters = ", ".join(names_with("has_adapters"))
        return f"each language already has its own model; only adapters can be added; choose {adapters}"

    @property
    def parameters(self) -> Parameters:
        return replace(self.expansion.parameters, language_specific=lambda name: True)

    def plan(self, hop: Hop) -> Plan:
        plan = self.expansion.plan(hop)
        return replace(plan, serve={} if hop.depth else plan.serve, reads=())

    def for_language(self, language: str, seen: Sequence[str]) -> None:
        """Use the hop's model for every language."""

    def stream(self, order: Sequence[str]) -> Stream:
        return independent(order)
