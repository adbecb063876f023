"""What parameters a model has, from its shape alone: for counting without torch, in encoders of BERT's and RoBERTa's
families.

That these are the parameters of the model as it is built is tested (tests/model/test_shape.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.task import Task
from xclrun.model.families import FAMILIES, check_length, positions
from xclrun.model.folder import BERTS, bert_tensors
from xclrun.model.source import check_layers, family_of, settings_of

# What the tensors of an encoder of these families follow from, as config.json calls it.
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
)
# What gives it others, where config.json says it.
OTHERS = ("add_cross_attention", "pruned_heads")


@dataclass(frozen=True)
class HeadSizes:
    """What the heads of one task tell apart.

    Attributes:
        task: decides on the heads.
        classes: number of classes; not used where the task has no labels.
        tags: number of tags; 0 where there are none.
    """

    task: Task
    classes: int
    tags: int


def described(config: ModelConfig, vocabulary: int, pad: int) -> dict[str, Any]:
    """Return the shape of an encoder that the config describes: its sizes, by all names that families have for them.

    Args:
        vocabulary: number of word pieces.
        pad: id of the padding.

    Raises:
        UsageError: a size is missing, the width is no multiple of the number of attention heads, or the encoder has
            fewer positions than ``model.max_length``.
    """
    shape = {
        "hidden_size": config.hidden_size,
        "hidden_layers": config.hidden_layers,
        "attention_heads": config.attention_heads,
        "intermediate_size": config.intermediate_size,
    }
    missing = [key for key, value in {"vocab_size": config.vocab_size, **shape}.items() if value is None]
    if missing:
        raise UsageError(
            f"model={config.name}: no source of weights is given, and the shape lacks {', '.join(missing)}"
        )
    if config.hidden_size % config.attention_heads:  # type: ignore[operator]
        raise UsageError(
            f"model.hidden_size={config.hidden_size} must be a multiple of attention_heads={config.attention_heads}"
        )
    begin = pad + 1 if FAMILIES[config.family].from_padding and config.positions is None else 0
    head = config.hidden_size // config.attention_heads  # type: ignore[operator]
    sizes = {
        "vocab_size": vocabulary,
        "pad_token_id": pad,
        "max_position_embeddings": (config.positions or config.max_length) + begin,
        "type_vocab_size": config.token_types or 2,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.layers or config.hidden_layers,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.attention_heads,
        **dict.fromkeys(("intermediate_size", "hidden_dim", "d_ff"), config.intermediate_size),
        **dict.fromkeys(("head_dim", "d_kv"), head),
    }
    check_length(config, positions({"model_type": config.family, **sizes}), f"with model.positions={config.positions}")
    return sizes


def sizes_of(config: ModelConfig, heads: Sequence[HeadSizes], vocabulary: int | None) -> dict[str, list[int]] | None:
    """Return the sizes of a model's parameters before a strategy has prepared it: name → [numbers, 1: may be trained].

    In the order of the model's own. None where the encoder is of another family, or of an odd shape: then only the
    model itself can say it (`xclrun.model.network.skeleton`).

    Args:
        heads: those of the model's task, or of its several.
        vocabulary: rows of the word embeddings, where they are trimmed or learnt from the data; default: the shape's.

    Raises:
        UsageError: there is no such encoder, or a size is missing.
    """
    found = _encoder_sizes(config, vocabulary)
    if found is None:
        return None
    pooled = any(of.task.pooled for of in heads)
    shapes: dict[str, Sequence[int]] = {}
    for name, shape in bert_tensors(found, found["num_hidden_layers"]):
        shapes[f"encoder.{name}"] = shape  # type: ignore[assignment]
    width = found["hidden_size"]
    if not pooled:
        shapes |= _linear("encoder.pooler.dense", width, width)
    for of in heads:
        prefix = f"tasks.{of.task.head}." if len(heads) > 1 else ""
        shapes |= {prefix + name: shape for name, shape in _of_heads(of, width)}
    return {name: [prod(shape), 1] for name, shape in shapes.items()}


def _encoder_sizes(config: ModelConfig, vocabulary: int | None) -> dict[str, int] | None:
    """Return `SIZES` of an encoder; None where its tensors follow from something else too, or its files do not say."""
    if config.path is not None:
        said: Mapping[str, Any] = settings_of(config)
        family_of(config)
        odd = any(said.get(key) for key in OTHERS) or said.get("position_embedding_type", "absolute") != "absolute"
        kind = said.get("model_type")
        if config.layers is not None:
            check_layers(config)
            said = {**said, "num_hidden_layers": config.layers}
        said = {**said, "vocab_size": vocabulary or said.get("vocab_size")}
    else:
        check_layers(config)
        said = described(config, vocabulary or config.vocab_size or 0, 0)
        odd, kind = bool(config.settings), config.family
    known = all(type(said.get(key)) is int and said[key] > 0 for key in SIZES)
    return {key: said[key] for key in SIZES} if kind in BERTS and known and not odd else None


def _linear(name: str, out: int, into: int) -> dict[str, Sequence[int]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def _of_heads(of: HeadSizes, width: int) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield the parameters of a task's heads (`xclrun.model.network.Heads`), and their shapes."""
    if of.task.label is not None and not of.task.pooled:
        yield from _linear("intent", of.classes, width).items()
    if of.task.pooled:
        yield from _linear("pooler.dense", width, width).items()
        yield from _linear("classifier", of.classes, width).items()
    if of.tags:
        yield from _linear("tagger.linear", of.tags, width).items()
        if of.task.crf:
            yield "tagger.crf.start_transitions", (of.tags,)
            yield "tagger.crf.end_transitions", (of.tags,)
            yield "tagger.crf.transitions", (of.tags, of.tags)
    if of.task.answers:
        yield from _linear("span.linear", 2, width).items()
