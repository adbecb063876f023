"""Batches made by hand, and an encoder whose output is known."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from xclrun.data.batches import Batch


def batch(lengths: Sequence[int], labels: Sequence[int], tags: Sequence[Sequence[int]], extra: int = 0) -> Batch:
    """Return a batch of words with ``1 + extra`` subwords; all subword ids are distinct."""
    size, words = len(lengths), max(lengths)
    pieces = 2 + words * (1 + extra)
    mask = torch.arange(words) < torch.tensor(lengths)[:, None]
    position = (1 + torch.arange(words) * (1 + extra)).expand(size, -1) * mask
    used = torch.tensor([2 + n * (1 + extra) for n in lengths])
    return Batch(
        input_ids=torch.arange(size * pieces).reshape(size, pieces),
        attention_mask=(torch.arange(pieces) < used[:, None]).long(),
        token_type_ids=torch.zeros(size, pieces, dtype=torch.long),
        word_pieces=position,
        word_mask=mask,
        labels=torch.tensor(labels),
        tags=torch.tensor([[*row, *[0] * (words - len(row))] for row in tags]),
        indices=np.arange(size),
        lengths=used.numpy(),
    )


class KnownEncoder(nn.Module):
    """An encoder whose state of a piece is a row of a fixed table, whatever stands around it."""

    def __init__(self, hidden: int, vocabulary: int = 400) -> None:
        super().__init__()
        self.config = SimpleNamespace(hidden_size=hidden)
        generator = torch.Generator().manual_seed(5)
        self.table = nn.Parameter(torch.randn(vocabulary, hidden, generator=generator))

    def forward(self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor) -> SimpleNamespace:
        return SimpleNamespace(last_hidden_state=self.table[input_ids])


@pytest.fixture
def encoder() -> KnownEncoder:
    return KnownEncoder(6)
