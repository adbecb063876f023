"""Prompt tuning per language: each language has its own prompt in front of its texts; encoder frozen, heads shared.

Lester et al. 2021, "The power of scale for parameter-efficient prompt tuning"; per language as in CCL, section 3.2. All
prompts start from the same embeddings of randomly drawn subwords. This initial prompt is also used for languages that
are not learned yet. Prefix tuning per language is ``lang_spec_ada_f`` with ``adapter=prefix``.

Settings: ``length``, tokens of a prompt; according to the paper, gains are small beyond 20. Implementation and cost:
`xclrun.strategy.shared.prompts`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import StrategyConfig
from xclrun.strategy.base import Parameters, bounded
from xclrun.strategy.shared.language_parameters import LanguageParameters
from xclrun.strategy.shared.prompts import Prompted

if TYPE_CHECKING:
    from xclrun.model.prompts import Prompts


@dataclass
class PromptSettings(StrategyConfig):
    length: int = bounded(20, at_least=1)


class LangSpecPrompt(Prompted[PromptSettings], LanguageParameters[PromptSettings]):
    name = "lang_spec_prompt"
    settings_type = PromptSettings
    parts = ("prompts.",)
    encodes_alone = True

    @property
    def parameters(self) -> Parameters:
        return replace(super().parameters, prompt_tokens=self.settings.length)

    def prompts(self, embeddings: Any, hidden: int) -> Prompts:
        from xclrun.model.prompts import SinglePrompt

        return SinglePrompt(embeddings, self.settings.length)
