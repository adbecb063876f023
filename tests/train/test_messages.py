"""Messages between ranks: every value returns unchanged, and no message can execute code."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.conftest import some
from xclrun.core.stream import Hop
from xclrun.train import messages


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        float("inf"),
        "ünï",
        [1, [2.0, None]],
        ("train", (Path("a/b"), {1: "a", (2, "b"): [True]})),
        {},
        Hop(2, ("en", "de"), ("de",), 1, 2, mixed=True),
    ],
)
def test_a_value_returns_unchanged(value: Any) -> None:
    back = messages.decode(messages.encode(value))
    assert back == value
    assert type(back) is type(value)


def test_tensors_and_arrays_return_unchanged() -> None:
    weights = torch.randn(3, 4)
    # Two views of one tensor, one of which is not contiguous; an empty tensor; a scalar; other types.
    tensors = [weights, weights.T, weights[:0], torch.tensor(7), weights.bfloat16(), weights > 0]
    array = np.arange(6).reshape(2, 3)[:, ::2]
    *back, back_array = messages.decode(messages.encode([*tensors, array]))
    for tensor, other in some(zip(tensors, back, strict=True)):
        assert other.dtype == tensor.dtype
        assert torch.equal(other, tensor)
    np.testing.assert_array_equal(back_array, array)


class Code:
    """Creates a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


def test_a_message_executes_no_code(tmp_path: Path) -> None:
    attack = pickle.dumps(Code(tmp_path / "executed"))
    for content in (attack, len(attack).to_bytes(8, "little") + attack, b"", b"\0" * 100):
        with pytest.raises(ValueError, match="not a message of a rank"):
            messages.decode(content)
    for value in (Code(tmp_path / "executed"), np.array([Code(tmp_path / "executed")]), print):
        with pytest.raises(TypeError):
            messages.encode(value)
    assert not (tmp_path / "executed").exists()
