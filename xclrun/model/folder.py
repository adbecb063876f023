"""Check the folder of a pretrained encoder during planning: names, JSON and headers, without torch.

Code in a folder is never run, and pickles are never read: weights must be safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from textwrap import shorten
from typing import Any

from safetensors import safe_open

from xclrun.config.schema import ModelConfig
from xclrun.core.errors import UsageError
from xclrun.core.files import parse_json, read_bytes
from xclrun.model.families import check_length, family, positions

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
# Tokenizer files: a complete tokenizer, or a vocabulary to create it from.
TOKENIZER_FILES = ("tokenizer.json", "vocab.*", "*.model")
# JSON files that can name code for transformers.
SETTINGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
# File that names another model; transformers loads that model if the package peft is installed.
REDIRECTION = "adapter_config.json"
# Families whose parameters have BERT's names.
BERTS = ("bert", "roberta", "xlm-roberta", "camembert")


@contextmanager
def one_line(problem: str) -> Iterator[None]:
    """Convert any error of a library to a `UsageError`: the problem, then the library's message in brackets."""
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
        settings: JSON files to read; missing files are skipped.
    """
    for name in settings:
        if not (folder / name).is_file():
            continue
        content = read_object(folder / name, subject)
        if content.get("auto_map"):
            raise UsageError(
                f"{subject}: its {name} names Python code (auto_map), which is never run; use an encoder "
                "that is part of transformers"
            )
        kernels = [content.get(key) for key in ("attn_implementation", "_attn_implementation")]
        if any(isinstance(kernel, str) and "/" in kernel for kernel in kernels):
            raise UsageError(f"{subject}: its {name} names code on the hub (attn_implementation), which is never run")


def read_object(path: Path, subject: str) -> dict[str, Any]:
    """Return the object in a JSON file."""
    with one_line(f"{subject}: {path.name} cannot be read"):
        content = parse_json(read_bytes(path))
    if not isinstance(content, dict):
        raise UsageError(f"{subject}: {path.name} is not a JSON object")
    return content


def check_folder(folder: Path, subject: str, model: ModelConfig) -> None:
    """Check an encoder and its tokenizer as far as possible without reading weights.

    Args:
        subject: the config key and its value, for messages.
        model: model config; its ``max_length`` is checked.
    """
    refuse_code(folder, subject)
    if (folder / REDIRECTION).exists():
        raise UsageError(
            f"{subject}: contains {REDIRECTION}, which can make transformers load another encoder; remove the file"
        )
    settings = read_object(folder / "config.json", subject)
    for path in weight_files(folder, subject):
        check_header(path, subject)
    kind = family(settings, subject)
    check_length(model, positions(settings), f"of {subject}")
    if not kind.converted and not (folder / "tokenizer.json").is_file():
        raise UsageError(f"{subject}: has no tokenizer.json, which transformers cannot create for {kind.title}")
    _check_tokenizer(folder, subject, settings.get("vocab_size"))


def weight_files(folder: Path, subject: str) -> list[Path]:
    """Return the weight files: ``model.safetensors``, or else the files that the index lists."""
    if (folder / WEIGHTS).is_file():
        return [folder / WEIGHTS]
    if not (folder / INDEX).is_file():
        raise UsageError(
            f"{subject}: has no {WEIGHTS}, and pickles are never read; save the model and its tokenizer in one folder "
            "with transformers' save_pretrained, and set model.path=DIR"
        )
    listed = read_object(folder / INDEX, subject).get("weight_map")
    if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
        raise UsageError(f"{subject}: {INDEX} has no weight_map from tensors to files")
    names = sorted(set(listed.values()))
    for name in names:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UsageError(f"{subject}: {INDEX} names '{name}', which is not a safetensors file of the folder")
        if not (folder / name).is_file():
            raise UsageError(f"{subject}: has no {name}, which {INDEX} names")
    return [folder / name for name in names]


def check_header(path: Path, subject: str) -> None:
    """Check that the size of a safetensors file matches its header."""
    with one_line(f"{subject}: {path.name} is damaged or cut short"), safe_open(path, framework="np"):
        pass


def _check_tokenizer(folder: Path, subject: str, rows: object) -> None:
    """Check that there is a tokenizer, and that the encoder has an embedding for each token id."""
    if not any(file.is_file() for pattern in TOKENIZER_FILES for file in folder.glob(pattern)):
        raise UsageError(f"{subject}: has no tokenizer.json; save the tokenizer with save_pretrained as well")
    path = folder / "tokenizer.json"
    if path.is_file():
        with one_line(f"{subject}: its tokenizer cannot be read"):
            highest = _highest_id(path, path.stat().st_mtime_ns, path.stat().st_size)
        if type(rows) is int and highest >= rows:
            raise UsageError(f"{subject}: its tokenizer has ids up to {highest}, but the encoder has {rows} embeddings")


@lru_cache
def _highest_id(path: Path, modified: int, size: int) -> int:
    """Return the highest id of a vocabulary, cached until the file is modified."""
    from tokenizers import Tokenizer

    return max(Tokenizer.from_file(str(path)).get_vocab(with_added_tokens=False).values(), default=-1)
