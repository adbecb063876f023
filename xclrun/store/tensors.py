"""Tensors on disk: safetensors, so that nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to a new file.

    Raises:
        OSError: the file cannot be written (the library's own writer would hide which error it was).
    """
    from safetensors.torch import save

    path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Read named tensors, on the CPU."""
    from safetensors.torch import load_file

    return load_file(path)
