"""Distances between the outputs of a model and a teacher's, which strategies add to the loss.

Both have the shape of the model's own loss: words of a sentence are summed, and sentences are averaged.
Shapes: B sentences, W words, C classes, T tags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch
    from xclrun.model.network import Output


def squared_distance(output: Output, wanted: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the squared distance of outputs, a mean over classes and a sum over words; a mean over examples (scalar).

    Args:
        wanted: ``logits`` (B, C), or ``emissions`` (B, at least W, T), or both.
    """
    parts = []
    if output.logits is not None:
        parts.append((output.logits - wanted["logits"]).square().mean(dim=1))
    if output.emissions is not None:
        away = (output.emissions - wanted["emissions"]).square().mean(dim=2)
        parts.append(away.masked_fill(~batch.word_mask, 0.0).sum(dim=1))
    return sum(parts[1:], parts[0]).mean()


def cross_entropy(output: Output, teacher: dict[str, Tensor], batch: Batch, temperature: float, spans: bool) -> Tensor:
    """Return the cross-entropy of outputs with a teacher's in the place of gold labels, both softened (scalar).

    −Σ q^(1/T) log p^(1/T), each scaled to sum to 1: a mean over sentences, of the sum over classes, and over all words'
    tags, or start and end.

    Args:
        teacher: ``logits`` (B, C), or ``emissions`` of all words end to end (words, T), or both; on the device.
        spans: whether emissions are of start and end, and so probabilities over words.
    """
    import torch

    total = batch.labels.new_zeros((), dtype=torch.float32)
    if output.logits is not None:
        soft = (teacher["logits"] / temperature).softmax(dim=1)
        total = total - (soft * (output.logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    if output.emissions is not None:
        target = batch.padded(teacher["emissions"])
        outside = ~batch.word_mask.unsqueeze(2)
        found = output.emissions / temperature
        target = target / temperature
        if spans:
            lowest = torch.finfo(found.dtype).min
            found, target = (x.masked_fill(outside, lowest) for x in (found, target))
        dim = 1 if spans else 2
        words = target.softmax(dim=dim) * found.log_softmax(dim=dim)
        total = total - words.masked_fill(outside, 0.0).sum(dim=(1, 2)).mean()
    return total
