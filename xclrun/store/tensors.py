"""Tensors on disk: safetensors, so that nothing is ever unpickled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def content(tensors: Mapping[str, Tensor]) -> bytes:
    """Return named tensors as the content of a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write named tensors to a new file.

    Raises:
        OSError: the file cannot be written (the library's own writer would hide which error it was).
    """
    path.write_bytes(content(tensors))


def load_tensors(path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read all tensors of a file, or those named, on the CPU."""
    if names is None:
        from safetensors.torch import load_file

        return load_file(path)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in names}
