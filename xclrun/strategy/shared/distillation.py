"""Outputs of a model that serve as a teacher, and the distances to them that strategies add to the loss.

Recorded outputs are of the model in eval mode, without padding: those of sentences are a row each, those of words
(emissions of tags, of start and end) lie end to end. Distances have the shape of the model's own loss: words of a
sentence are summed, and sentences are averaged. Shapes: B sentences, W words, C classes, T tags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.network import Output
    from xclrun.strategy.base import Context

# Names of outputs that have a row for each word.
PER_WORD = frozenset({"emissions"})


def answers(output: Output, batch: Batch) -> dict[str, Tensor]:
    """Return what the heads gave in a forward pass: name → one row per sentence, or per word."""
    emissions = {} if output.emissions is None else {"emissions": batch.word_rows(output.emissions)}
    return emissions if output.logits is None else {"logits": output.logits, **emissions}


def by_example(output: Output, batch: Batch) -> list[dict[str, Tensor]]:
    """Return what the heads gave for each sentence of a batch, without its graph: name → (1, C), or (words, T)."""
    words = (batch.word_mask.sum(dim=1) if batch.words is None else batch.words).tolist()
    given = {name: rows.detach() for name, rows in answers(output, batch).items()}
    split = {name: rows.split(words if name in PER_WORD else 1) for name, rows in given.items()}
    return [{name: parts[i] for name, parts in split.items()} for i in range(batch.size)]


def record(
    context: Context,
    sentences: Encoded,
    kind: torch.dtype,
    chosen: Callable[[Output, Batch], dict[str, Tensor]] = answers,
    forward: Callable[[Batch], Output] | None = None,
) -> dict[str, Tensor]:
    """Return the outputs of the model for all sentences, on the CPU: name → rows in the order of the sentences.

    Args:
        kind: number format in which they are kept.
        chosen: (output, batch) → what is kept of it.
        forward: batch → output; default: the model's own.
    """
    import torch

    from xclrun.strategy.shared.inference import outputs

    found: dict[str, list[Tensor]] = {}
    order: list[np.ndarray] = []
    for indices, output in outputs(context, sentences, forward):
        order.append(indices)
        for name, rows in chosen(output, sentences.batch(indices).to(context.device)).items():
            found.setdefault(name, []).append(rows.to("cpu", kind))
    if not order:
        return {}
    # From batches of like lengths back to the sentences' order.
    at = np.concatenate(order)
    back, words = np.argsort(at), sentences.word_pieces.lengths[at]
    return {name: rows_of(torch.cat(parts), name, back, words) for name, parts in found.items()}


def rows_of(stored: Tensor, name: str, rows: np.ndarray, words: np.ndarray) -> Tensor:
    """Return the stored outputs of the sentences ``rows``, whose words lie end to end.

    Args:
        words: (n,) number of words of each sentence that is stored.
    """
    if name not in PER_WORD:
        return stored[rows]
    ends = np.cumsum(words)
    return stored[np.concatenate([np.arange(ends[row] - words[row], ends[row]) for row in rows])]


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
