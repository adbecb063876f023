"""Many tensors as one copy."""

from __future__ import annotations

import numpy as np
import torch

from xclrun.data.batches import Encoded, Ragged
from xclrun.data.transfer import ALIGNED, packed, sent, unpacked


def test_tensors_of_all_types_and_shapes_come_out_of_one_copy_as_they_went_in() -> None:
    torch.manual_seed(0)
    given = {
        "mask": torch.tensor([[True, False, True]]),
        "ids": torch.arange(12).reshape(4, 3).T,
        "empty": torch.empty(0, 5, dtype=torch.int64),
        "half": torch.randn(7).to(torch.float16),
        "one": torch.tensor(3.5),
    }
    together, places = packed(given)
    assert all(start % ALIGNED == 0 for *_, start in places.values())
    found = unpacked(together.clone(), places)
    assert list(found) == list(given)
    for name, tensor in given.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    # Of a CPU they are the same tensors.
    assert all(sent(given, "cpu")[name] is tensor for name, tensor in given.items())


def test_rows_of_words_are_those_that_the_mask_selects() -> None:
    words = [[1, 2, 3], [1], [1, 2]]
    rows = Ragged.of(words)
    batch = Encoded(
        *(np.array(["a", "b", "c"], object),) * 2, *(Ragged.of([[0, *row, 9] for row in words]),) * 2, rows, rows,
        np.zeros(3, np.int64), rows.lengths, np.zeros(3, bool), 0,
    ).batch([2, 0, 1])  # fmt: skip
    states = torch.randn(3, 3, 4)
    for some in (batch, batch.at(slice(0, 2)), batch.at(np.array([2, 0]))):
        assert torch.equal(some.of_words(states[: some.size]), states[: some.size][some.word_mask])
        assert some.pieces == int(some.attention_mask.sum())
