"""Language-specific embeddings; layers, pooler and heads are shared (CCL, section 3.2, "Lang-Spec Embed").

The language-specific parameters are the embeddings of subwords, positions and types, and the layer norm after them. In
each hop these parameters start from the pretrained values. Languages that are not learned yet also use the pretrained
values. No settings.
"""

from __future__ import annotations

from xclrun.config.schema import StrategyConfig
from xclrun.model.structure import is_embedding
from xclrun.strategy.base import Parameters
from xclrun.strategy.shared.language_parameters import LanguageParameters


class LangSpecEmbed(LanguageParameters[StrategyConfig]):
    name = "lang_spec_embed"

    @property
    def parameters(self) -> Parameters:
        return Parameters(language_specific=is_embedding)
