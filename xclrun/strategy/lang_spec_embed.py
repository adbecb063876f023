"""Language-specific embeddings; layers, pooler and heads are shared (CCL, section 3.2, "Lang-Spec Embed").

The embeddings of subwords, positions and types and their layer norm are language-specific. In each hop they start from
the pretrained values, which are also used for languages that are not learned yet. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.model.structure import is_embedding
from xclrun.strategy.shared.language_parts import LanguageParts


class LangSpecEmbed(LanguageParts[StrategyConfig]):
    name = "lang_spec_embed"

    def language_specific(self, parameter: str) -> bool:
        return is_embedding(parameter)
