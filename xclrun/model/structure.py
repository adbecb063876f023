"""What a parameter of the encoder is a part of: its name in `xclrun.model.network.Model` says so, in all families.

Names alone are known wherever parameters are counted, also of models that are not built. That they say what the
modules are is tested with every family (tests/model/test_families.py).
"""

from __future__ import annotations

import re

# Layers are in lists, and no list stands outside of them: of one (BERT: encoder.layer.3.…) or of several (XLM:
# attentions.3.…, ffns.3.…), the first number of a name is the layer's.
LAYER = re.compile(r"encoder\.(?:[A-Za-z]\w*\.)+?(\d+)\.")
# The tables of pieces, positions and types, and their norm: in their own module, or next to the layers.
EMBEDDING = re.compile(
    r"encoder\.(?:embeddings|position_embeddings|lang_embeddings|layer_norm_emb|embed_tokens|shared|wte|wpe|"
    r"word_embeddings|word_embeddings_layernorm)\."
)


def layer(parameter: str) -> int | None:
    """Return the number of a parameter's layer, from 1; None for one outside of layers."""
    found = LAYER.match(parameter)
    return None if found is None else int(found[1]) + 1


def is_embedding(parameter: str) -> bool:
    """Whether a parameter is one of the embeddings."""
    return EMBEDDING.match(parameter) is not None
