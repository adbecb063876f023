"""Families of encoders, by the ``model_type`` of their config.json; without torch.

Every family is tested with random weights (tests/model/test_families.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError, did_you_mean


@dataclass(frozen=True)
class Family:
    """Properties of a family of encoders.

    Attributes:
        title: the names of its encoders.
        causal: whether attention is causal. If so, the state of the last subword represents a sentence or word.
        from_padding: whether position numbers start after the padding's id, as in RoBERTa.
        attends: whether the modules of queries and keys have BERT's names; ``evaluate.attention`` needs these names.
        layers_apart: whether each layer has separate weights.
        converted: whether transformers can convert old tokenizer files; otherwise, a tokenizer.json is required.
        with_decoder: whether transformers' base model also has a decoder, which is not used.
        adapted: whether the library `adapters` supports this family.
    """

    title: str
    causal: bool = False
    from_padding: bool = False
    attends: bool = False
    layers_apart: bool = True
    converted: bool = True
    with_decoder: bool = False
    adapted: bool = False


def _roberta(title: str, **more: bool) -> Family:
    return Family(title, **{"from_padding": True, "attends": True} | more)


# model_type → its family.
FAMILIES: Mapping[str, Family] = {
    "bert": Family("BERT, LaBSE, multilingual E5 (small), BGE", attends=True, adapted=True),
    "xlm-roberta": _roberta("XLM-R, multilingual E5, BGE-M3", adapted=True),
    "xlm-roberta-xl": _roberta("XLM-R XL and XXL"),
    "roberta": _roberta("RoBERTa", adapted=True),
    "camembert": _roberta("CamemBERT"),
    "roberta-prelayernorm": _roberta("RoBERTa with layer norms first"),
    "longformer": _roberta("Longformer", attends=False),
    "mpnet": Family("MPNet", from_padding=True),
    "distilbert": Family("DistilBERT", adapted=True),
    "deberta": Family("DeBERTa", adapted=True),
    "deberta-v2": Family("DeBERTa v2 and v3, mDeBERTa", adapted=True),
    "rembert": Family("RemBERT", attends=True),
    "electra": Family("ELECTRA", attends=True, adapted=True),
    "albert": Family("ALBERT", layers_apart=False),
    "ernie": Family("ERNIE", attends=True),
    "megatron-bert": Family("Megatron-BERT", attends=True),
    "xlm": Family("XLM", converted=False),
    "flaubert": Family("FlauBERT", converted=False),
    "modernbert": Family("ModernBERT, mmBERT"),
    "t5": Family("T5, the encoder", with_decoder=True, adapted=True),
    "mt5": Family("mT5, the encoder", with_decoder=True, adapted=True),
    "umt5": Family("umT5, the encoder", with_decoder=True),
    "llama": Family("Llama", causal=True, adapted=True),
    "mistral": Family("Mistral", causal=True, adapted=True),
    "qwen2": Family("Qwen2 and 2.5", causal=True),
    "qwen3": Family("Qwen3", causal=True),
    "gemma": Family("Gemma", causal=True),
    "gemma2": Family("Gemma 2", causal=True),
    "gemma3_text": Family("Gemma 3, EmbeddingGemma", causal=True),
    "gpt2": Family("GPT-2", causal=True, adapted=True),
    "bloom": Family("BLOOM", causal=True),
}

# Families in transformers that cannot be used → the reason.
UNFIT: Mapping[str, str] = {
    "canine": "hashes characters and has neither subwords nor a tokenizer.json",
    "perceiver": "reads bytes into a fixed number of states, so words have no states",
    "funnel": "shortens sentences layer by layer, so words have no separate states",
    "fnet": "mixes all positions without a mask, so padding would change the states of a sentence",
    "convbert": "mixes positions without a mask, so padding would change the states of a sentence",
    "xlnet": "permutes the order of attention for each sentence, and expects padding on the left",
    "reformer": "attends by random hashes, so the states of a sentence are not reproducible",
    "xmod": "requires the language of each sentence, which xclrun does not pass to encoders",
    **dict.fromkeys(
        ("mamba", "mamba2", "rwkv", "falcon_mamba"), "lets padding affect later subwords, since it has no mask"
    ),
    **dict.fromkeys(
        ("bart", "mbart", "m2m_100", "marian", "pegasus", "plbart", "blenderbot", "led", "nllb-moe", "prophetnet"),
        "has an encoder and a decoder, and transformers provides no separate encoder",
    ),
}

# Size → its names in config.json, which depend on the family.
NAMES = {
    "width": ("hidden_size", "dim", "d_model", "emb_dim", "n_embd"),
    "layers": ("num_hidden_layers", "n_layers", "num_layers", "n_layer"),
    "heads": ("num_attention_heads", "n_heads", "num_heads", "n_head"),
    "positions": ("max_position_embeddings", "n_positions"),
}
# Families without a limit of positions; their configs contain the length used in pretraining.
ENDLESS = ("t5", "mt5", "umt5", "bloom")


def family(settings: Mapping[str, Any], subject: str) -> Family:
    """Return the family of an encoder.

    Args:
        settings: the content of its config.json.
        subject: the config key and its value, for messages.
    """
    kind = settings.get("model_type")
    if not isinstance(kind, str):
        raise UsageError(f"{subject}: config.json has no model_type, so the family is unknown")
    if kind in UNFIT:
        raise UsageError(f"{subject}: the family {kind} cannot be used: it {UNFIT[kind]}")
    if kind not in FAMILIES:
        raise UsageError(f"{subject}: the family {kind} is not tested with xclrun; {did_you_mean(kind, FAMILIES)}")
    facts = FAMILIES[kind]
    for key in ("is_decoder", "causal"):
        if settings.get(key) is True and not facts.causal:
            raise UsageError(f"{subject}: config.json has {key}=true; {facts.title} can only be used as an encoder")
    # Gemma 3 as a sentence encoder.
    if facts.causal and settings.get("use_bidirectional_attention"):
        return Family(facts.title, adapted=facts.adapted)
    return facts


def number(settings: Mapping[str, Any], size: str) -> int | None:
    """Return a size in config.json, under any of its names (`NAMES`); None if it is missing."""
    value = next((settings[name] for name in NAMES[size] if settings.get(name) is not None), None)
    return value if type(value) is int else None


def positions(settings: Mapping[str, Any]) -> int | None:
    """Return the largest number of subwords of an input; None if it is unlimited or unknown."""
    kind, rows = settings.get("model_type"), number(settings, "positions")
    if rows is None or kind in ENDLESS:
        return None
    padding = settings.get("pad_token_id", 1)
    counted = kind in FAMILIES and FAMILIES[str(kind)].from_padding and type(padding) is int
    return rows - (padding + 1) if counted else rows


def check_length(config: ModelConfig, available: int | None, encoder: str) -> None:
    """Check that an encoder has at least ``model.max_length`` positions (``available``: see `positions`)."""
    if available is not None and config.max_length > available:
        raise UsageError(
            f"model.max_length={config.max_length}: the encoder {encoder} has {available} positions; "
            f"set model.max_length={available} or less"
        )
