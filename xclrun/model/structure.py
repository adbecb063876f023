"""Find the layer of an encoder's parameter from its name in `xclrun.model.network.Model`, for all families.

Needs no model. tests/model/test_families.py checks the names for every family.
"""

from __future__ import annotations

import re

# Layers are in one list (BERT: encoder.layer.3.…) or in several (XLM: attentions.3.…, ffns.3.…). No other modules are
# in lists, so the first number in a name is the layer's.
LAYER = re.compile(r"encoder\.(?:[A-Za-z]\w*\.)+?(\d+)\.")
# Modules of the embeddings (subwords, positions, token types or languages) and their layer norm. Some families group
# them in one module; others have them at the level of the list of layers.
EMBEDDING = re.compile(
    r"encoder\.(?:embeddings|position_embeddings|lang_embeddings|layer_norm_emb|embed_tokens|shared|wte|wpe|"
    r"word_embeddings|word_embeddings_layernorm)\."
)


def layer(parameter: str) -> int | None:
    """Return the number of a parameter's layer, from 1; None outside of layers."""
    match = LAYER.match(parameter)
    return None if match is None else int(match[1]) + 1


def is_embedding(parameter: str) -> bool:
    return EMBEDDING.match(parameter) is not None
