"""Compute the sizes of an encoder and of its parameters from the config, without torch.

tests/model/test_shape.py compares the result with the built model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import Task
from xclrun.model.families import FAMILIES, check_length, positions
from xclrun.model.folder import BERTS
from xclrun.model.source import check_layers, family_of, settings_of

# Sizes in config.json that determine the parameters of BERT's families.
BERT_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip


@dataclass(frozen=True)
class HeadSizes:
    """The number of classes (ignored if the task has no labels) and of tags (0 without tags) of one task.

    Attributes:
        settings: the settings of the task (`Task.settings`), or None.
    """

    task: Task
    classes: int
    tags: int
    settings: Any = None


def described(config: ModelConfig, vocabulary: int, pad: int) -> dict[str, Any]:
    """Return an encoder's sizes under their names in all families; ``pad`` is the id of the padding token."""
    keys = ("vocab_size", "hidden_size", "hidden_layers", "attention_heads", "intermediate_size")
    if missing := [key for key in keys if getattr(config, key) is None]:
        raise UsageError(f"model={config.name}: set a source of weights, or the missing sizes {', '.join(missing)}")
    width: int = config.hidden_size  # type: ignore[assignment]
    heads: int = config.attention_heads  # type: ignore[assignment]
    if width % heads:
        raise UsageError(f"model.hidden_size={width} must be a multiple of attention_heads={heads}")
    begin = pad + 1 if FAMILIES[config.family].from_padding and config.positions is None else 0
    sizes = {
        "vocab_size": vocabulary,
        "pad_token_id": pad,
        "max_position_embeddings": (config.positions or config.max_length) + begin,
        "type_vocab_size": config.token_types or 2,
        "hidden_size": width,
        **dict.fromkeys(("num_hidden_layers", "num_decoder_layers"), config.layers or config.hidden_layers),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), config.intermediate_size),
        **dict.fromkeys(("head_dim", "d_kv"), width // heads),
    }
    check_length(config, positions({"model_type": config.family, **sizes}), f"with model.positions={config.positions}")
    return sizes


def sizes_of(config: ModelConfig, heads: Sequence[HeadSizes], vocabulary: int | None) -> dict[str, list[int]] | None:
    """Return the sizes of a model's parameters before a strategy changes the model: name → [number of values, 1].

    The 1 marks a parameter as trainable. For encoders of unusual shape, or of other families than BERT's, and for heads
    of plug-ins, return None; count these with `xclrun.model.network.skeleton`.

    Args:
        heads: sizes of each task's heads.
        vocabulary: number of word embeddings if the vocabulary is trimmed or learned; None: as in the encoder's config.
    """
    check_layers(config)
    if not all(head.task.head in SHAPES for head in heads):
        return None
    if config.path is not None:
        family_of(config)
        settings = settings_of(config)
        settings["vocab_size"] = vocabulary or settings.get("vocab_size")
        settings["num_hidden_layers"] = config.layers or settings.get("num_hidden_layers")
    else:
        settings = {"model_type": config.family, **described(config, vocabulary or config.vocab_size or 0, 0)}
    odd = settings.get("add_cross_attention") or settings.get("pruned_heads") if config.path else config.settings
    if odd or settings["model_type"] not in BERTS or settings.get("position_embedding_type", "absolute") != "absolute":
        return None
    if not all(type(settings.get(key)) is int and settings[key] > 0 for key in BERT_SIZES):
        return None
    shapes: dict[str, Any] = {f"encoder.{name}": shape for name, shape in _bert_shapes(settings)}
    width = settings["hidden_size"]
    # A pooler that tasks use is counted with their heads.
    if not any(head.task.pooled for head in heads):
        shapes |= _linear("encoder.pooler.dense", width, width)
    for head in heads:
        prefix = f"tasks.{head.task.place}." if len(heads) > 1 else ""
        shapes |= {prefix + name: shape for name, shape in SHAPES[head.task.head](head, width)}
    return {name: [prod(shape), 1] for name, shape in shapes.items()}


def _bert_shapes(settings: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield (name, shape) of the parameters of a BERT encoder with this config.json, without its pooler."""
    width, inner = settings["hidden_size"], settings["intermediate_size"]
    for table, rows in (("word", "vocab_size"), ("position", "max_position_embeddings"),
                        ("token_type", "type_vocab_size")):  # fmt: skip
        yield f"embeddings.{table}_embeddings.weight", (settings[rows], width)
    modules: list[tuple[str, tuple[int, ...]]] = [("embeddings.LayerNorm", (width,))]
    for i in range(settings["num_hidden_layers"]):
        at = f"encoder.layer.{i}"
        parts = ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense")
        modules += [(f"{at}.{part}", (width, width)) for part in parts]
        modules += [
            (f"{at}.attention.output.LayerNorm", (width,)),
            (f"{at}.intermediate.dense", (inner, width)),
            (f"{at}.output.dense", (width, inner)),
            (f"{at}.output.LayerNorm", (width,)),
        ]
    for name, shape in modules:
        yield f"{name}.weight", shape
        yield f"{name}.bias", shape[:1]


def _linear(name: str, out: int, into: int) -> dict[str, Sequence[int]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _labels_and_tags(head: HeadSizes, width: int) -> Iterator[tuple[str, Sequence[int]]]:
    if head.task.pooled:
        yield from _linear("pooler.dense", width, width).items()
        yield from _linear("classifier", head.classes, width).items()
    elif head.task.label is not None:
        yield from _linear("intent", head.classes, width).items()
    if head.tags:
        yield from _linear("tagger.linear", head.tags, width).items()
        if head.task.crf:
            yield "tagger.crf.start_transitions", (head.tags,)
            yield "tagger.crf.end_transitions", (head.tags,)
            yield "tagger.crf.transitions", (head.tags, head.tags)


def _answers(head: HeadSizes, width: int) -> Iterator[tuple[str, Sequence[int]]]:
    yield from _linear("span.linear", 2, width).items()


# Head (`xclrun.model.heads.HEADS`) → its parameters (name, shape), for the heads that are counted without torch.
SHAPES: Mapping[str, Callable[[HeadSizes, int], Iterator[tuple[str, Sequence[int]]]]] = {
    "labels_and_tags": _labels_and_tags,
    "answers": _answers,
}
