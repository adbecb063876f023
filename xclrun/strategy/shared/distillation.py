"""Recorded teacher outputs and distances to them.

Outputs are recorded in eval mode, in the order of the sentences and without padding. ``logits`` has one row per
sentence; ``emissions`` (tag scores, or start and end scores) has one row per word. Like the model's loss, distances are
summed over words and averaged over sentences. Shapes: B sentences, W words, C classes, T tags.

Logits of models that write texts are too large to record: V numbers for each subword of each target. They are computed
when they are needed (`text_logits`), from the recorded ``states`` (H numbers) or by the teacher itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.heads import Output
    from xclrun.model.network import Model
    from xclrun.strategy.base import Context

# Names of the outputs with one row per word.
PER_WORD = frozenset({"emissions", "states"})


def head_outputs(output: Output, batch: Batch) -> dict[str, Tensor]:
    """Return the outputs of the heads: name → one row per sentence, or per word."""
    scores = {"emissions": output.emissions, "states": output.states}
    per_word = {name: batch.word_rows(rows) for name, rows in scores.items() if rows is not None}
    return per_word if output.logits is None else {"logits": output.logits, **per_word}


def writes_texts(model: Model) -> bool:
    """Return whether the model's outputs are the states of a language model, of which its own layer makes logits."""
    return any(head.reads_encoder for head in model.heads.values())


def text_logits(model: Model, batch: Batch, output: Output | None = None) -> Tensor:
    """Return the logits of all subwords of targets, in order (N, V), of a model that writes texts."""
    states = (model(batch) if output is None else output).states
    assert states is not None
    logits: Tensor = model.head_of(batch.task).score_states(batch.word_rows(states))
    return logits


def by_example(output: Output, batch: Batch) -> list[dict[str, Tensor]]:
    """Return the detached outputs of the heads for each sentence: name → (1, C), or (words, T)."""
    words = (batch.word_mask.sum(dim=1) if batch.words is None else batch.words).tolist()
    detached = {name: rows.detach() for name, rows in head_outputs(output, batch).items()}
    split = {name: rows.split(words if name in PER_WORD else 1) for name, rows in detached.items()}
    return [{name: parts[i] for name, parts in split.items()} for i in range(batch.size)]


def record(
    context: Context,
    sentences: Encoded,
    dtype: torch.dtype,
    select: Callable[[Output, Batch], dict[str, Tensor]] = head_outputs,
    forward: Callable[[Batch], Output] | None = None,
) -> dict[str, Tensor]:
    """Return the outputs of the model for all sentences, on the CPU: name → rows in the order of the sentences.

    Args:
        select: (output, batch) → tensors to record.
        forward: batch → output; default: the model's own.
    """
    import torch

    from xclrun.strategy.shared.inference import outputs

    recorded: dict[str, list[Tensor]] = {}
    order: list[np.ndarray] = []
    for indices, output in outputs(context, sentences, forward):
        order.append(indices)
        for name, rows in select(output, sentences.batch(indices).to(context.device)).items():
            recorded.setdefault(name, []).append(rows.to("cpu", dtype))
    if not order:
        return {}
    # Restore the order of the sentences.
    at = np.concatenate(order)
    back, words = np.argsort(at), sentences.word_pieces.lengths[at]
    return {name: rows_of(torch.cat(parts), name, back, words) for name, parts in recorded.items()}


def rows_of(stored: Tensor, name: str, rows: np.ndarray, words: np.ndarray) -> Tensor:
    """Return the recorded outputs of the sentences ``rows``.

    Args:
        words: (n,) number of words of each recorded sentence.
    """
    if name not in PER_WORD:
        return stored[rows]
    ends = np.cumsum(words)
    return stored[np.concatenate([np.arange(ends[row] - words[row], ends[row]) for row in rows])]


def text_cross_entropy(student: Tensor, teacher: Tensor, batch: Batch, temperature: float) -> Tensor:
    """Return `cross_entropy` of the logits of all subwords of targets (N, V), summed over subwords (scalar)."""
    soft = (teacher / temperature).softmax(dim=1) * (student / temperature).log_softmax(dim=1)
    return -soft.sum() / batch.size


def squared_distance(output: Output, target: dict[str, Tensor], batch: Batch) -> Tensor:
    """Return the squared distance (scalar): averaged over classes or tags, summed over words, averaged over examples.

    Args:
        target: ``logits`` (B, C), ``emissions`` (B, at least W, T), or logits and emissions.
    """
    parts = []
    if output.logits is not None:
        parts.append((output.logits - target["logits"]).square().mean(dim=1))
    if output.emissions is not None:
        squared = (output.emissions - target["emissions"]).square().mean(dim=2)
        parts.append(squared.masked_fill(~batch.word_mask, 0.0).sum(dim=1))
    return sum(parts[1:], parts[0]).mean()


def cross_entropy(
    output: Output, teacher: dict[str, Tensor], batch: Batch, temperature: float, over_words: bool
) -> Tensor:
    """Return the cross-entropy with a teacher's softened probabilities as targets (scalar).

    −Σ q^(1/τ) log p^(1/τ), with q the teacher's and p the student's probabilities, τ the temperature, and both powers
    renormalised to sum to 1. Σ runs over classes or tags; with ``over_words``, over the words of the sentence. The
    results are summed over the words of a sentence (with ``over_words``, over start and end) and averaged over
    sentences.

    Args:
        teacher: outputs on the device: ``logits`` (B, C), ``emissions`` of all words in order (words, T), or logits and
            emissions.
        over_words: see `xclrun.model.heads.Head`.
    """
    import torch

    total = batch.labels.new_zeros((), dtype=torch.float32)
    if output.logits is not None:
        soft = (teacher["logits"] / temperature).softmax(dim=1)
        total = total - (soft * (output.logits / temperature).log_softmax(dim=1)).sum(dim=1).mean()
    if output.emissions is not None:
        target = batch.padded(teacher["emissions"])
        outside = ~batch.word_mask.unsqueeze(2)
        student = output.emissions / temperature
        target = target / temperature
        if over_words:
            lowest = torch.finfo(student.dtype).min
            student, target = (x.masked_fill(outside, lowest) for x in (student, target))
        dim = 1 if over_words else 2
        words = target.softmax(dim=dim) * student.log_softmax(dim=dim)
        total = total - words.masked_fill(outside, 0.0).sum(dim=(1, 2)).mean()
    return total
