"""Forward passes over many sentences in eval mode, without gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import torch

from xclrun.data.batches import length_sorted_batches

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.heads import Output
    from xclrun.model.network import Model
    from xclrun.strategy.base import Context

# Sentences in a batch.
BATCH = 64


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Put the model into eval mode inside the block."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def frozen(parameters: Iterable[Tensor]) -> Iterator[None]:
    """Exclude parameters from all gradients inside the block."""
    trained = [p for p in parameters if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_()


@torch.no_grad()
def outputs(
    context: Context, sentences: Encoded, forward: Callable[[Batch], Output] | None = None
) -> Iterator[tuple[np.ndarray, Output]]:
    """Yield (indices, outputs) of all sentences in batches of similar lengths, in fp32.

    Args:
        forward: batch → output; default: the model's own.
    """
    with evaluating(context.model):
        for indices in length_sorted_batches(sentences.lengths, BATCH):
            yield indices, (forward or context.model)(sentences.batch(indices).to(context.device))
