"""A small pretrained encoder as a folder: BERT's tensors, its config and a tokenizer; without torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "model_type": "bert",
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 10,
    "max_position_embeddings": 128,
    "type_vocab_size": 2,
}
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]


def tensors() -> dict[str, np.ndarray]:
    """Return the encoder's tensors by name."""
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.word_embeddings.weight": (12, 8),
        "embeddings.position_embeddings.weight": (128, 8),
        "embeddings.token_type_embeddings.weight": (2, 8),
    }
    linear = {"intermediate.dense": (10, 8), "output.dense": (8, 10), "attention.output.dense": (8, 8)}
    linear |= {f"attention.self.{part}": (8, 8) for part in ("query", "key", "value")}
    norms = ["embeddings.LayerNorm"]
    for i in range(2):
        at = f"encoder.layer.{i}"
        norms += [f"{at}.attention.output.LayerNorm", f"{at}.output.LayerNorm"]
        for name, shape in linear.items():
            shapes |= {f"{at}.{name}.weight": shape, f"{at}.{name}.bias": shape[:1]}
    shapes |= {f"{name}.{part}": (8,) for name in norms for part in ("weight", "bias")}
    generator = np.random.default_rng(1)
    return {name: generator.normal(0, 0.1, shape).astype(np.float32) for name, shape in shapes.items()}


def tokenizer_model(pieces: list[str]) -> dict[str, object]:
    """Return the model of a tokenizer.json."""
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    return {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocabulary}  # fmt: skip


def write_encoder(folder: Path) -> Path:
    """Write the encoder into a folder, which is made."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(tensors(), folder / "model.safetensors", metadata={"format": "pt"})
    content = {"version": "1.0", "added_tokens": [], "model": tokenizer_model(PIECES)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizerFast"}))
    return folder
