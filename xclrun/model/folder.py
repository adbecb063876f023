"""Checks of a pretrained encoder's folder while planning: names, JSON and headers, without torch.

Code in a folder is never run, and pickles are never read: weights are safetensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from safetensors import safe_open

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES, NAMES, check_length, family, positions

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# A tokenizer is saved whole, or as the vocabulary that it is made from.
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")
# JSON files in which transformers looks for the name of code.
SETTINGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
# Names a base model by its path or on the hub. transformers loads that model where the package peft is installed.
REDIRECTION = "adapter_config.json"
# Families whose tensors are those of BERT. RoBERTa's family counts positions from behind the padding's.
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
BERTS = ("bert", *ROBERTAS)

# Sizes in config.json, in addition to those that every family has (`NAMES`).
OTHER_SIZES = (
    "vocab_size", "intermediate_size", "hidden_dim", "d_ff", "d_kv", "head_dim", "num_key_value_heads",
    "embedding_size",
)  # fmt: skip
BERT_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "intermediate_size", "max_position_embeddings", "type_vocab_size",
)  # fmt: skip

Shapes = dict[str, tuple[int, ...]]


@contextmanager
def one_line(problem: str) -> Iterator[None]:
    """Raise an error of a library as a `UsageError`: the problem, and the library's message in brackets.

    Libraries check few of the settings that they read, so any exception can come out of them.
    """
    try:
        yield
    except UsageError:
        raise
    except Exception as error:
        cause = shorten(str(error), 300, placeholder=" …") or type(error).__name__
        raise UsageError(f"{problem} ({cause})") from error


def refuse_code(folder: Path, subject: str, settings: tuple[str, ...] = SETTINGS) -> None:
    """Refuse a folder whose settings name code: Python files, or compiled code on the hub.

    Args:
        subject: the config key and its value, for messages.
        settings: names of the JSON files to read; missing files are skipped.

    Raises:
        UsageError: a file names code, or is no JSON object.
    """
    for name in settings:
        if not (folder / name).is_file():
            continue
        content = read_object(folder / name, subject)
        if content.get("auto_map"):
            raise UsageError(
                f"{subject}: its {name} names Python code of its own (auto_map), which is never run here; only "
                "encoders that transformers itself knows can be used"
            )
        kernels = [content.get(key) for key in ("attn_implementation", "_attn_implementation")]
        if any(isinstance(kernel, str) and "/" in kernel for kernel in kernels):
            raise UsageError(
                f"{subject}: its {name} names code on the hub (attn_implementation), which is never run here"
            )


def read_object(path: Path, subject: str) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        UsageError: the file cannot be read, or holds something else.
    """
    with one_line(f"{subject}: {path.name} cannot be read"):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise UsageError(f"{subject}: {path.name} is not a JSON object")
    return content


def check_folder(folder: Path, subject: str, model: ModelConfig) -> None:
    """Check all that can be known of an encoder and its tokenizer without computing.

    Args:
        subject: the config key and its value, for messages.
        model: the longest text that the encoder will read, and how many of its layers are used.

    Raises:
        UsageError: a file, a tensor or the tokenizer is missing, damaged, or does not fit ``config.json``; the encoder
            has too few positions; a weight is not finite.
    """
    refuse_code(folder, subject)
    if (folder / REDIRECTION).exists():
        raise UsageError(
            f"{subject}: holds {REDIRECTION}, by which transformers may load another encoder in its place; give a "
            "folder of the encoder alone"
        )
    settings = read_object(folder / "config.json", subject)
    shapes: Shapes = {}
    for path in weight_files(folder, subject):
        shapes |= header(path, subject)
    kind = family(settings, subject)
    _check_sizes(settings, subject)
    check_length(model, positions(settings), f"of {subject}")
    if settings["model_type"] in BERTS:
        _check_bert(settings, shapes, subject, model.layers)
    rows = settings.get("vocab_size")
    if rows is not None and not any(shape[:1] == (rows,) for shape in shapes.values()):
        raise UsageError(f"{subject}: the weights have no table of {rows} pieces, which config.json asks for")
    if not kind.converted and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{subject}: has no tokenizer.json, and transformers makes none of the files of {kind.title}")
    _check_tokenizer(folder, subject, rows)
    check_finite(folder, subject)


def weight_files(folder: Path, subject: str) -> list[Path]:
    """Return the files of the weights: one, or those that the index lists.

    Raises:
        UsageError: a file is missing, or the index names one that is no safetensors file of the folder.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UsageError(
            f"{subject}: has no {WEIGHTS}; weights in other formats are pickles, never read: save the model and its "
            "tokenizer in a folder with transformers' save_pretrained, and give model.path=DIR"
        )
    listed = read_object(folder / INDEX, subject).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError(f"{subject}: {INDEX} has no weight_map of tensors and their files")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UsageError(f"{subject}: {INDEX} names '{name}', which is not a safetensors file of the folder")
        if not (folder / name).is_file():
            raise UsageError(f"{subject}: has no {name}, which {INDEX} names")
    return [folder / name for name in names]


def header(path: Path, subject: str) -> Shapes:
    """Return tensor → shape from the header of a safetensors file, which also says how long the file must be.

    Raises:
        UsageError: the file is damaged or cut short.
    """
    with one_line(f"{subject}: {path.name} is damaged or cut short"), safe_open(path, framework="np") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _check_sizes(settings: Mapping[str, Any], subject: str) -> None:
    bert = BERT_SIZES if settings["model_type"] in BERTS else ()
    for key in dict.fromkeys((*chain(*NAMES.values()), *OTHER_SIZES, *bert)):
        value = settings.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{subject}: config.json says {key}={value}, which must be a whole number of at least 1")
    (wide, width), (split, heads) = (
        next(((key, settings[key]) for key in NAMES[size] if settings.get(key)), ("", None))
        for size in ("width", "heads")
    )
    # Decoders and T5 set the width of an attention head separately.
    kind = FAMILIES[settings["model_type"]]
    if not kind.causal and not kind.with_decoder and width and heads and width % heads:
        raise UsageError(f"{subject}: config.json says {wide}={width}, no multiple of {split}={heads}")


def _check_bert(settings: Mapping[str, Any], shapes: Shapes, subject: str, layers: int | None) -> None:
    """Check the tensors of BERT's families; a size that ``config.json`` omits is not compared."""
    prefix = "roberta." if settings["model_type"] in ROBERTAS else "bert."
    # An encoder saved with a head has its family in front of its names. Old files have other names for LayerNorm's.
    renamed = {
        name.removeprefix(prefix)
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): shape
        for name, shape in shapes.items()
    }
    for name, wanted in bert_tensors(settings, layers or settings.get("num_hidden_layers") or 0):
        shape = renamed.get(name)
        if shape is None:
            raise UsageError(f"{subject}: the weights lack {name}, which config.json asks for")
        if len(shape) != len(wanted) or any(b is not None and a != b for a, b in zip(shape, wanted, strict=True)):
            shown = " × ".join("?" if size is None else str(size) for size in wanted)
            raise UsageError(
                f"{subject}: {name} is {' × '.join(map(str, shape))} in the weights, and {shown} by config.json"
            )


def bert_tensors(settings: Mapping[str, Any], layers: int) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the tensors of a BERT encoder without its pooler, and their shapes; None: not in the settings.

    Args:
        settings: by the names of config.json.
    """
    width, inner = settings.get("hidden_size"), settings.get("intermediate_size")
    for table, rows in (("word", "vocab_size"), ("position", "max_position_embeddings"),
                        ("token_type", "type_vocab_size")):  # fmt: skip
        yield f"embeddings.{table}_embeddings.weight", (settings.get(rows), width)
    # Linear maps have a matrix (outputs, inputs), and a bias as norms have.
    modules: list[tuple[str, tuple[int | None, ...]]] = [("embeddings.LayerNorm", (width,))]
    for i in range(layers):
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


def _check_tokenizer(folder: Path, subject: str, rows: int | None) -> None:
    """Check that there is a tokenizer, and that the encoder has an embedding for each piece of its vocabulary."""
    if not any(file.is_file() for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        raise UsageError(f"{subject}: has no tokenizer.json; save the tokenizer with its save_pretrained too")
    path = folder / "tokenizer.json"
    if path.is_file():
        with one_line(f"{subject}: its tokenizer cannot be read"):
            highest = _highest_id(path, path.stat().st_mtime_ns, path.stat().st_size)
        if rows is not None and highest >= rows:
            raise UsageError(
                f"{subject}: its tokenizer has pieces up to id {highest}, the encoder embeddings for {rows}"
            )


@lru_cache
def _highest_id(path: Path, modified: int, size: int) -> int:
    """Return the highest id of a vocabulary; the file is read once for all jobs, unless it is modified."""
    from tokenizers import Tokenizer

    return max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False).values(), default=-1)


# Values that are checked at a time: as many as fit into a processor's cache.
BLOCK = 1 << 20
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@lru_cache
def check_finite(folder: Path, subject: str) -> None:
    """Check that all weights are finite; a gigabyte takes about a second.

    Raises:
        UsageError: names the first tensor that is not.
    """
    for path in weight_files(folder, subject):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            tensors = json.loads(file.read(length))
        tensors.pop("__metadata__", None)
        for name, facts in tensors.items():
            begin, end = facts["data_offsets"]
            if facts["dtype"] not in FLOATS or begin == end:
                continue
            kind = np.dtype(FLOATS[facts["dtype"]])
            values = np.memmap(path, kind, "r", 8 + length + begin, ((end - begin) // kind.itemsize,))
            for start in range(0, len(values), BLOCK):
                block = values[start : start + BLOCK]
                # numpy has no bfloat16: the exponent of one that is not finite is all ones.
                odd = (block & 0x7F80) == 0x7F80 if facts["dtype"] == "BF16" else ~np.isfinite(block)
                if odd.any():
                    raise UsageError(
                        f"{subject}: {name} in {path.name} holds values that are not finite (NaN, infinite)"
                    )
