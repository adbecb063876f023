"""Outputs of a model that serve as a teacher: recorded once, in eval mode, without padding.

Outputs of sentences are a row each; those of words (emissions of tags, of start and end) lie end to end.
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
    emissions = {} if output.emissions is None else {"emissions": batch.of_words(output.emissions)}
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
