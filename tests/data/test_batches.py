"""Batches: packed rows that hold every piece once, and many tensors as one copy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from xclrun.data import transfer
from xclrun.data.batches import Encoded, Ragged
from xclrun.data.packing import Packing
from xclrun.data.transfer import ALIGNED, in_blocks, moved, packed, to_device, unpacked
from xclrun.store.tensors import load_tensors, save_tensors


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_piece_stands_in_one_place_and_in_order(seed: int, fixed: bool) -> None:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(1, 40, generator.integers(1, 20))
    padded = int(lengths.max())
    packing = Packing.fixed(lengths, padded, 48) if fixed else Packing.of(lengths, padded, linear=60)
    source, positions, sentences = packing.source.ravel(), packing.positions.ravel(), packing.sentences.ravel()
    for i, (length, first) in enumerate(zip(lengths, packing.first, strict=True)):
        places = np.arange(first, first + length)
        # In one row, and nothing else of the sentence anywhere.
        assert len(set(places // packing.source.shape[1])) == 1
        assert np.array_equal(np.flatnonzero(sentences == i + 1), places)
        assert np.array_equal(source[places], i * padded + np.arange(length))
        assert np.array_equal(positions[places], np.arange(length))
    assert np.count_nonzero(sentences) == lengths.sum()
    assert packing.source.size <= len(lengths) * (48 if fixed else padded)


def test_short_sentences_fill_up_the_rows_of_long_ones() -> None:
    # By hand: 9, 8, 7 begin rows of 9; 2 goes behind 7 and 1 behind 8.
    packing = Packing.of(np.array([2, 9, 1, 7, 8]), 9, linear=1)
    assert packing.sentences.tolist() == [[2] * 9, [5] * 8 + [3], [4] * 7 + [1] * 2]


def test_rows_of_a_fixed_width_have_few_numbers() -> None:
    generator = np.random.default_rng(0)
    fixed = [Packing.fixed(generator.integers(3, 40, 64), 48, 48).source.shape for _ in range(40)]
    assert {width for _, width in fixed} == {48}
    assert {rows % 4 for rows, _ in fixed} == {0}
    assert len(set(fixed)) <= 4


@pytest.mark.parametrize(("linear", "shape"), [(1, (5, 9)), (30, (3, 12)), (1000, (1, 33))])
def test_rows_are_wide_where_attention_costs_little(linear: int, shape: tuple[int, int]) -> None:
    """By hand, places · (linear + width): 450 in rows of 9, where 468 in 12; 1512 in 12, 1755 in 9, 1728 in 18; …"""
    assert Packing.of(np.array([6, 6, 6, 9, 6]), 9, linear).source.shape == shape


def test_tensors_of_all_types_and_shapes_come_out_of_one_copy_as_they_went_in() -> None:
    torch.manual_seed(0)
    values = {
        "mask": torch.tensor([[True, False, True]]),
        "ids": torch.arange(12).reshape(4, 3).T,
        "empty": torch.empty(0, 5, dtype=torch.int64),
        "half": torch.randn(7).to(torch.float16),
        "one": torch.tensor(3.5),
    }
    together, places = packed(values)
    assert all(start % ALIGNED == 0 for *_, start in places.values())
    result = unpacked(together.clone(), places)
    assert list(result) == list(values)
    for name, tensor in values.items():
        assert result[name].dtype == tensor.dtype
        assert torch.equal(result[name], tensor), name
    # Of a CPU they are the same tensors.
    assert all(to_device(values, "cpu")[name] is tensor for name, tensor in values.items())


def test_copies_between_devices_are_in_blocks_of_limited_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other device has no values (``meta``): which tensors are copied together, and where each lies, is tested."""
    monkeypatch.setattr(transfer, "BLOCK", 100)
    sizes = {"a": 10, "large": 40, "b": 10, "c": 12, "d": 2}
    values = {name: torch.zeros(size, requires_grad=True) for name, size in sizes.items()}
    values["there"] = torch.zeros(30, device="meta")
    blocks = [*in_blocks(values, "meta")]
    assert [[*block] for block in blocks] == [["there"], ["a"], ["large"], ["b", "c", "d"]]
    assert {name: t.shape for name, t in moved(values, "meta").items()} == {name: t.shape for name, t in values.items()}
    assert all(t.device.type == "meta" and not t.requires_grad for block in blocks for t in block.values())
    # One copy for a block.
    assert len({t.untyped_storage().nbytes() for t in blocks[3].values()}) == 1
    # Tensors of the device are not copied, and nothing yields no block.
    [block] = in_blocks({"a": values["a"]}, "cpu")
    assert block["a"].data_ptr() == values["a"].data_ptr()
    assert not [*in_blocks({}, "cpu")]


def test_tensors_of_one_block_can_be_saved(tmp_path: Path) -> None:
    """As they come from a GPU: views of one tensor."""
    values = {"w": torch.randn(3, 5), "i": torch.tensor([1, 2**40]), "flag": torch.tensor([True])}
    save_tensors(tmp_path / "block", unpacked(*packed(values)))
    save_tensors(tmp_path / "single", values)
    assert (tmp_path / "block").read_bytes() == (tmp_path / "single").read_bytes()
    assert all(torch.equal(load_tensors(tmp_path / "block")[name], tensor) for name, tensor in values.items())


def test_rows_of_words_are_those_that_the_mask_selects() -> None:
    words = [[1, 2, 3], [1], [1, 2]]
    rows = Ragged.of(words)
    batch = Encoded(
        *(np.array(["a", "b", "c"], object),) * 2, *(Ragged.of([[0, *row, 9] for row in words]),) * 2, rows, rows,
        np.zeros(3, np.int64), rows.lengths, np.zeros(3, bool), 0,
    ).batch([2, 0, 1])  # fmt: skip
    states = torch.randn(3, 3, 4)
    for some in (batch, batch.at(slice(0, 2)), batch.at(np.array([2, 0]))):
        assert torch.equal(some.word_rows(states[: some.size]), states[: some.size][some.word_mask])
        assert some.pieces == int(some.attention_mask.sum())
