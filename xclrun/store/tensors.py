"""Tensors on disk: safetensors, so nothing is ever unpickled."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def content(tensors: Mapping[str, Tensor]) -> bytes:
    """Return named tensors as the content of a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors to a file, straight from their memory: nothing is copied of those on the CPU.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        # The library has the system's error in its text alone.
        number = re.search(r"(?:os error |code: )(\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    # The library's own mode would keep others who share the store from reading it.
    path.chmod(0o644)


def load_tensors(path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read all tensors of a file, or those named, on the CPU."""
    if names is None:
        from safetensors.torch import load_file

        return load_file(path)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in names}
