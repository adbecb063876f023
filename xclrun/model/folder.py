"""Checks of a pretrained encoder's folder while planning: names, JSON and headers, without torch.

Nothing in such a folder is ever run or unpickled. Code of its own is refused as soon as a file names some
(``auto_map``), so that nobody is asked whether to trust it; weights are safetensors alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.model.families import FAMILIES, NAMES, check_length, family, number, positions

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# What a tokenizer is saved as: whole, or as the vocabulary that it is made from.
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")
# Files of JSON in which transformers looks for the name of code.
SETTINGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
# Names a base model by its path or on the hub, which transformers then loads where the package peft is installed.
REDIRECTION = "adapter_config.json"
# Kinds of encoder whose tensors are those of BERT; of RoBERTa's family, positions begin behind the padding's.
ROBERTAS = ("roberta", "xlm-roberta", "camembert")
BERTS = ("bert", *ROBERTAS)

# Sizes in config.json beside those that each family has (`NAMES`).
OTHER_SIZES = (
    "vocab_size", "intermediate_size", "hidden_dim", "d_ff", "d_kv", "head_dim", "num_key_value_heads",
    "embedding_size",
)  # fmt: skip

Shapes = dict[str, tuple[int, ...]]


def refuse_code(folder: Path, told: str, settings: tuple[str, ...] = SETTINGS) -> None:
    """Refuse a folder whose settings name code: Python files of its own, or compiled code on the hub.

    Args:
        told: the key and its value, for messages.
        settings: names of the JSON files that are read where they are there.

    Raises:
        UsageError: some file does, or is no JSON object.
    """
    for name in settings:
        if not (folder / name).is_file():
            continue
        found = read_object(folder / name, told)
        if found.get("auto_map"):
            raise UsageError(
                f"{told}: its {name} names Python code of its own (auto_map), which is never run here; only encoders "
                "that transformers itself knows can be used"
            )
        kernels = [found.get(key) for key in ("attn_implementation", "_attn_implementation")]
        if any(isinstance(kernel, str) and "/" in kernel for kernel in kernels):
            raise UsageError(f"{told}: its {name} names code on the hub (attn_implementation), which is never run here")


def read_object(path: Path, told: str) -> dict[str, Any]:
    """Return the object of a JSON file.

    Raises:
        UsageError: it is none, or cannot be read.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{told}: {path.name} cannot be read ({str(error).splitlines()[0]})") from None
    if not isinstance(found, dict):
        raise UsageError(f"{told}: {path.name} is not a JSON object")
    return found


def check_folder(folder: Path, told: str, model: ModelConfig) -> None:
    """Check that an encoder and its tokenizer can be read: all that can be known without computing.

    Args:
        told: the key and its value, for messages.
        model: how much of it is wanted.

    Raises:
        UsageError: one line: a file, a tensor or the tokenizer is missing, damaged, or does not fit ``config.json``;
            the encoder is shallower or shorter than is asked for; a weight is no finite number.
    """
    refuse_code(folder, told)
    if (folder / REDIRECTION).exists():
        raise UsageError(
            f"{told}: holds {REDIRECTION}, by which transformers may load another encoder in its place; give a folder "
            "of the encoder alone"
        )
    settings = read_object(folder / "config.json", told)
    shapes: Shapes = {}
    for path in weight_files(folder, told):
        shapes |= header(path, told)
    kind = family(settings, told)
    _check_sizes(settings, told, model)
    if settings["model_type"] in BERTS:
        _check_bert(settings, shapes, told, model)
    rows = settings.get("vocab_size")
    if type(rows) is int and not any(shape[:1] == (rows,) for shape in shapes.values()):
        raise UsageError(f"{told}: the weights have no table of {rows} pieces, which config.json asks for")
    if not kind.converted and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{told}: has no tokenizer.json, and transformers makes none of the files of {kind.title}")
    _check_tokenizer(folder, told, settings)
    _check_tokenizer_class(folder, told)
    check_finite(folder, told)


def weight_files(folder: Path, told: str) -> list[Path]:
    """Return the files of the weights: one, or those that the index lists.

    Raises:
        UsageError: one is not there, or the index names what is no safetensors file of the folder.
    """
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UsageError(
            f"{told}: has no {WEIGHTS}; weights in other formats are pickles, never read: save the model and its "
            "tokenizer in a folder with transformers' save_pretrained, and give model.path=DIR"
        )
    listed = read_object(folder / INDEX, told).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError(f"{told}: {INDEX} has no weight_map of tensors and their files")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UsageError(f"{told}: {INDEX} names '{name}', which is not a safetensors file of the folder")
        if not (folder / name).is_file():
            raise UsageError(f"{told}: has no {name}, which {INDEX} names")
    return [folder / name for name in names]


def header(path: Path, told: str) -> Shapes:
    """Return tensor → shape of a safetensors file, from its header, which also says how long the file must be.

    Raises:
        UsageError: the file is damaged or cut short.
    """
    try:
        with safe_open(path, framework="np") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{told}: {path.name} is damaged or cut short ({str(error).splitlines()[0]})") from None


def _check_sizes(settings: Mapping[str, Any], told: str, model: ModelConfig) -> None:
    """Check the sizes of an encoder of any family, and that it has the layers and positions that are asked for."""
    for key in (*chain(*NAMES.values()), *OTHER_SIZES):
        value = settings.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{told}: config.json says {key}={value}, which must be a whole number of at least 1")
    (wide, width), (split, heads) = (
        next(((key, settings[key]) for key in NAMES[what] if settings.get(key)), ("", None))
        for what in ("width", "heads")
    )
    # Where heads have a width of their own, it need not be a share of the encoder's.
    of = FAMILIES[settings["model_type"]]
    if not of.causal and not of.with_decoder and width and heads and width % heads:
        raise UsageError(f"{told}: config.json says {wide}={width}, no multiple of {split}={heads}")
    layers = number(settings, "layers")
    if layers is not None and model.layers is not None and model.layers > layers:
        raise UsageError(f"model.layers={model.layers}: the encoder has {layers} layers")
    check_length(model, positions(settings), f"of {told}")


def _check_bert(settings: Mapping[str, Any], shapes: Shapes, told: str, model: ModelConfig) -> None:
    """Check the tensors of an encoder of BERT's kind; a size that ``config.json`` leaves out is not compared."""
    sizes: dict[str, int | None] = {}
    for key in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                "max_position_embeddings", "type_vocab_size"):  # fmt: skip
        sizes[key] = value = settings.get(key)
        if value is not None and (type(value) is not int or value < 1):
            raise UsageError(f"{told}: config.json says {key}={value}, which must be a whole number of at least 1")
    layers = sizes["num_hidden_layers"]
    prefix = "roberta." if settings["model_type"] in ROBERTAS else "bert."
    # Saved with a head, the encoder's own tensors begin with its family; old files name LayerNorm's otherwise.
    renamed = {
        name.removeprefix(prefix)
        .replace("LayerNorm.gamma", "LayerNorm.weight")
        .replace("LayerNorm.beta", "LayerNorm.bias"): shape
        for name, shape in shapes.items()
    }
    for name, wanted in bert_tensors(sizes, model.layers or layers or 0):
        found = renamed.get(name)
        if found is None:
            raise UsageError(f"{told}: the weights lack {name}, which config.json asks for")
        if len(found) != len(wanted) or any(b is not None and a != b for a, b in zip(found, wanted, strict=True)):
            shown = " × ".join("?" if size is None else str(size) for size in wanted)
            raise UsageError(
                f"{told}: {name} is {' × '.join(map(str, found))} in the weights, and {shown} by config.json"
            )


def bert_tensors(sizes: Mapping[str, int | None], layers: int) -> Iterator[tuple[str, tuple[int | None, ...]]]:
    """Yield the tensors that an encoder of BERT's kind must have, and their shapes; None: not known.

    Not its pooler's, which it need not have. In the order in which the encoder itself has them.

    Args:
        sizes: by the names of config.json.
    """
    width, inner = sizes["hidden_size"], sizes["intermediate_size"]

    def linear(name: str, out: int | None, into: int | None) -> Iterator[tuple[str, tuple[int | None, ...]]]:
        yield f"{name}.weight", (out, into)
        yield f"{name}.bias", (out,)

    def norm(name: str) -> Iterator[tuple[str, tuple[int | None, ...]]]:
        yield f"{name}.weight", (width,)
        yield f"{name}.bias", (width,)

    yield "embeddings.word_embeddings.weight", (sizes["vocab_size"], width)
    yield "embeddings.position_embeddings.weight", (sizes["max_position_embeddings"], width)
    yield "embeddings.token_type_embeddings.weight", (sizes["type_vocab_size"], width)
    yield from norm("embeddings.LayerNorm")
    for i in range(layers):
        at = f"encoder.layer.{i}"
        for part in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            yield from linear(f"{at}.{part}", width, width)
        yield from norm(f"{at}.attention.output.LayerNorm")
        yield from linear(f"{at}.intermediate.dense", inner, width)
        yield from linear(f"{at}.output.dense", width, inner)
        yield from norm(f"{at}.output.LayerNorm")


def _check_tokenizer(folder: Path, told: str, settings: Mapping[str, Any]) -> None:
    """Check that there is a tokenizer, and that the encoder has an embedding for each of its pieces."""
    if not any(file.is_file() for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        raise UsageError(f"{told}: has no tokenizer.json; save the tokenizer with its save_pretrained too")
    if not (folder / "tokenizer.json").is_file():
        return
    model = read_object(folder / "tokenizer.json", told).get("model")
    if not isinstance(model, dict):
        raise UsageError(f"{told}: its tokenizer cannot be read (tokenizer.json has no model)")
    vocabulary, rows = model.get("vocab"), settings.get("vocab_size")
    # Pieces by their ids, or a list of them in the order of their ids.
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary or ()))
    highest = max((i for i in ids if type(i) is int), default=-1)
    if type(rows) is int and highest >= rows:
        raise UsageError(f"{told}: its tokenizer has pieces up to id {highest}, the encoder embeddings for {rows}")
    stat = (folder / "tokenizer.json").stat()
    try:
        _read_tokenizer(folder / "tokenizer.json", stat.st_mtime_ns, stat.st_size)
    except Exception as error:
        # What the tokenizers' own reader raises is a plain Exception.
        raise UsageError(f"{told}: its tokenizer cannot be read ({str(error).splitlines()[0]})") from None


@lru_cache
def _read_tokenizer(path: Path, written: int, size: int) -> None:
    """Read a tokenizer as its library does: once for all jobs, as long as the file is the one it was."""
    from tokenizers import Tokenizer

    Tokenizer.from_file(str(path))


def _check_tokenizer_class(folder: Path, told: str) -> None:
    """Check that transformers has the class that the tokenizer's settings name, as it is or as its fast one."""
    path = folder / "tokenizer_config.json"
    name = read_object(path, told).get("tokenizer_class") if path.is_file() else None
    spec = find_spec("transformers")
    if not isinstance(name, str) or spec is None or spec.origin is None:
        return
    # Importing the table of tokenizers would import torch; its text says as much.
    table = Path(spec.origin).parent / "models" / "auto" / "tokenization_auto.py"
    names = {name, name.removesuffix("Fast"), f"{name}Fast"}
    if table.is_file() and any(f'"{one}"' in table.read_text(encoding="utf-8") for one in names):
        return
    import transformers

    if not names & set(dir(transformers)):
        raise UsageError(f"{told}: its tokenizer cannot be read (transformers has no tokenizer_class '{name}')")


# Blocks that are looked at, in values: what fits into a processor's cache.
BLOCK = 1 << 20
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


@lru_cache
def check_finite(folder: Path, told: str) -> None:
    """Check that every weight is a finite number; a gigabyte takes about a second.

    Raises:
        UsageError: names the first tensor in which one is not.
    """
    for path in weight_files(folder, told):
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
                # The exponent of a bfloat16 that is infinite or no number is all ones.
                odd = (block & 0x7F80) == 0x7F80 if facts["dtype"] == "BF16" else ~np.isfinite(block)
                if odd.any():
                    raise UsageError(f"{told}: {name} in {path.name} holds values that are not finite (NaN, infinite)")
