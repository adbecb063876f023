"""Checkpoints inside a hop: safetensors files whose names contain the checksum of their content.

A new checkpoint is renamed into place before the previous one is removed. Damaged files are ignored.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from xclrun.data.transfer import moved
from xclrun.store.files import TEMPORARY, sha256, sync_directory, writing
from xclrun.store.tensors import load_tensors, save_tensors

# Version of the file format.
FORMAT = "1"


class Unchanged:
    """Detects which tensors of a strategy's state are unchanged since the start of a hop.

    Checkpoints omit unchanged tensors, such as Fisher information and teachers, because the store has them. A tensor is
    unchanged if it is still the same object, and PyTorch has not written to it since the start.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: (tensor, _version(tensor)) for name, tensor in tensors.items()}

    def among(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the names of the tensors that are unchanged."""
        began = self.tensors
        return [
            name
            for name, tensor in tensors.items()
            if name in began and tensor is began[name][0] and _version(tensor) == began[name][1] is not None
        ]

    def named(self, names: Iterable[str]) -> dict[str, Tensor] | None:
        """Return the tensors with these names; None if one of them did not exist at the start of the hop."""
        if not set(names := list(names)) <= self.tensors.keys():
            return None
        return {name: self.tensors[name][0] for name in names}


def _version(tensor: Tensor) -> int | None:
    """Return the number of in-place writes to a tensor; None for inference tensors, which have no count."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one hop's training, in one folder; ``warn`` reports damaged files."""

    folder: Path
    warn: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def save(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint and remove earlier ones.

        Raises:
            RunError: the disk is full; the earlier checkpoint stays.
        """
        metadata = {"format": FORMAT, "facts": json.dumps(facts)}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f"{TEMPORARY}{os.getpid()}"
            try:
                save_tensors(temporary, moved(tensors, "cpu"), metadata)
                path = self.folder / f"{facts['step']:09d}-{sha256(temporary)}.safetensors"
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(self.folder)
        for other in self.folder.iterdir():
            # Keep the files of evaluation points, which are in the same folder.
            if other != path and other.suffix not in (".parquet", ".weights"):
                other.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return (metadata, tensors on the CPU) of the newest undamaged checkpoint; None if there is none."""
        from safetensors import safe_open

        for path in sorted(self.folder.glob("*-*.safetensors"), reverse=True):
            if not path.is_file() or sha256(path) != path.stem.split("-")[1]:
                self.warn(f"{path} is damaged (its checksum does not match); ignoring it")
                continue
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            if metadata.get("format") == FORMAT:
                return json.loads(metadata["facts"]), load_tensors(path)
        return None

    def clear(self) -> None:
        """Remove all checkpoints."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
