"""Features of a frozen encoder, computed once for each split and encoder, and cached in the store.

A hop that leaves the encoder unchanged (`Plan.still`) is trained on these features instead of subwords.
Features are the float32 inputs of the heads (`xclrun.model.network.Features`), computed in eval mode. A sentence of W
words takes 4·H·(W + 1) bytes with hidden size H, or 4·H bytes if the task has no tags. Strategies that compare
sentences in `predict` (`Plan.features`) use only [CLS] features, computed with the encoder of hop 0.

Batches depend only on the sentences, so all processes compute bit-identical features.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from xclrun.core.identity import digest
from xclrun.data.batches import Encoded, Ragged, length_sorted_batches
from xclrun.model.network import Model
from xclrun.store.tensors import load_tensors, save_tensors
from xclrun.strategy.shared.inference import BATCH, evaluating
from xclrun.train.precision import autocast

FILE = "features.safetensors"


def features_key(weights: str, examples: str, precision: str, words: bool = True) -> str:
    """Return the key of features in the store.

    Args:
        weights: stage key of the training that produced the encoder.
        examples: fingerprint of the sentences.
        words: whether the features of words are included.
    """
    content = {"kind": "features", "train": weights, "examples": examples, "precision": precision}
    return digest(content if words else {**content, "words": False})


@torch.no_grad()
def with_features(
    model: Model, sentences: Encoded, device: torch.device, precision: str, words: bool = True
) -> Encoded:
    """Return the sentences with features from the model's encoder: of [CLS], and of words if ``words``."""
    hidden: int = model.encoder.config.hidden_size  # type: ignore[union-attr,assignment]
    cls = np.zeros((len(sentences), hidden), np.float32)
    offsets = sentences.word_pieces.offsets
    states = np.zeros((int(offsets[-1]) if words else 0, hidden), np.float32)
    tagged = False
    with evaluating(model):
        for indices in length_sorted_batches(sentences.lengths, BATCH):
            batch = sentences.batch(indices).to(device)
            with autocast(device, precision):
                features = model.encode(batch)
            cls[indices] = features.cls.float().cpu().numpy()
            if features.words is not None and words:
                tagged = True
                for i, of_words in zip(indices, features.words.float().cpu().numpy(), strict=True):
                    states[offsets[i] : offsets[i + 1]] = of_words[: offsets[i + 1] - offsets[i]]
    return replace(sentences, cls=cls, word_states=Ragged(states, offsets) if tagged else None)


def save_features(folder: Path, sentences: Encoded) -> None:
    """Write the features of sentences into a folder of the store."""
    assert sentences.cls is not None
    tensors = {"cls": torch.from_numpy(sentences.cls)}
    if sentences.word_states is not None:
        tensors["words"] = torch.from_numpy(sentences.word_states.values)
    save_tensors(folder / FILE, tensors)


def load_features(folder: Path, sentences: Encoded) -> Encoded:
    """Return sentences with the features that `save_features` wrote."""
    arrays = {name: tensor.numpy() for name, tensor in load_tensors(folder / FILE).items()}
    words = Ragged(arrays["words"], sentences.word_pieces.offsets) if "words" in arrays else None
    return replace(sentences, cls=arrays["cls"], word_states=words)


def load_cls(folder: Path) -> np.ndarray:
    """Return the [CLS] features that `save_features` wrote, (n, H) float32."""
    return load_tensors(folder / FILE, ["cls"])["cls"].numpy()
