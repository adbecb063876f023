"""Tensors on disk in the safetensors format, without pickle."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.store.files import file_mode

if TYPE_CHECKING:
    from torch import Tensor


def content(tensors: Mapping[str, Tensor]) -> bytes:
    """Serialize named tensors as the content of a safetensors file."""
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def save_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write named tensors to a file, without copying tensors that are on the CPU.

    Raises:
        OSError: the file is not writable.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path, metadata)
    except SafetensorError as error:
        # The library reports the system's error number only in the text of its error.
        number = re.search(r"(?:os error |code: )(\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error
    # The library's mode 0600 would make a shared store unreadable for other users.
    path.chmod(file_mode(path.parent))


def load_tensors(path: Path, names: Sequence[str] | None = None) -> dict[str, Tensor]:
    """Read all tensors of a file, or only ``names``, to the CPU."""
    if names is None:
        from safetensors.torch import load_file

        return load_file(path)
    from safetensors import safe_open

    with safe_open(path, "pt") as file:
        return {name: file.get_tensor(name) for name in names}
