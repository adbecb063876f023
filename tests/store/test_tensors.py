"""Tensors on disk: bit for bit, and never a pickle."""

from pathlib import Path

import pytest
import torch

from xclrun.store.tensors import load_tensors, save_tensors


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    given = {
        "a.weight": torch.randn(3, 5),
        "turned": torch.randn(4, 6).t(),
        "counts": torch.tensor([1, -(2**60)]),
        "mask": torch.tensor([True, False]),
        "half": torch.randn(7).to(torch.float16),
        "scalar": torch.tensor(2.5),
        "odd": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "none": torch.zeros(0, 3),
        "graph": torch.randn(2, requires_grad=True),
    }
    save_tensors(tmp_path / "file", given)
    found = load_tensors(tmp_path / "file")
    assert sorted(found) == sorted(given)
    for name, tensor in given.items():
        assert found[name].dtype is tensor.dtype
        assert found[name].shape == tensor.shape
        assert found[name].numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes(), name


def test_the_same_tensors_make_the_same_file(tmp_path: Path) -> None:
    given = {"b": torch.arange(4), "a": torch.ones(2, 2)}
    save_tensors(tmp_path / "one", given)
    save_tensors(tmp_path / "two", dict(reversed(given.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_place_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_tensors(tmp_path / "no" / "file", {"a": torch.ones(1)})
