"""Language-specific embeddings; layers, pooler and heads are shared (CCL, section 3.2, "Lang-Spec Embed").

The language-specific parameters are the embeddings of subwords, positions and types, and the layer norm after them. In
each hop these parameters start from the pretrained values. Languages that are not learned yet also use the pretrained
values. No settings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError
from xclrun.core.stream import Stream
from xclrun.model.structure import is_embedding
from xclrun.strategy.base import Library, Parameters
from xclrun.strategy.shared.language_parameters import LanguageParameters

if TYPE_CHECKING:
    from xclrun.model.network import Model


class LangSpecEmbed(LanguageParameters[StrategyConfig]):
    name = "lang_spec_embed"

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        config: Any = model.encoder.config
        if config.tie_word_embeddings and any(head.reads_encoder for head in model.heads.values()):
            raise UsageError(
                "strategy=lang_spec_embed: the output layer has the weights of the embeddings, so it would be "
                "language-specific too; use strategy=lang_spec_ft, or a model with tie_word_embeddings=false"
            )
        super().prepare(model, stream, library)

    @property
    def parameters(self) -> Parameters:
        return Parameters(language_specific=is_embedding)
