"""Checkpoints inside a hop: one safetensors file whose name holds the checksum of its content.

A checkpoint is put in place by a rename before the one before is removed, so there is always a whole one; a file whose
content does not match its name (torn, or changed on disk) is not read.
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

from xclrun.store.files import TEMPORARY, sha256, sync_directory, writing
from xclrun.store.tensors import load_tensors, save_tensors

# What else can change how a checkpoint is read: a new number with each change.
FORMAT = "3"


class Unchanged:
    """Knows tensors again that a hop began with, as long as nothing has changed them.

    A strategy's state may be as large as the model (Fisher information) or larger (teachers), and mostly no hop changes
    it: then the store has it, of the hop before, and no checkpoint needs it again. A tensor counts as unchanged if it
    is the very object, which torch has not written into since; a copy of it counts as changed, which costs space alone.

    Args:
        tensors: name → tensor, as the hop begins.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = {name: (tensor, _version(tensor)) for name, tensor in tensors.items()}

    def among(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Return the names under which tensors are what the hop began with."""
        began = self.tensors
        return [
            name
            for name, tensor in tensors.items()
            if name in began and tensor is began[name][0] and _version(tensor) == began[name][1] is not None
        ]

    def named(self, names: Iterable[str]) -> dict[str, Tensor] | None:
        """Return the tensors of these names; None where the hop did not begin with all of them."""
        wanted = list(names)
        if not set(wanted) <= self.tensors.keys():
            return None
        return {name: self.tensors[name][0] for name in wanted}


def _version(tensor: Tensor) -> int | None:
    """Return how often torch has written into a tensor; None where it does not count."""
    return None if tensor.is_inference() else tensor._version


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, in their own folder.

    Attributes:
        folder: where.
        warn: called with a line on a checkpoint that is damaged.
    """

    folder: Path
    warn: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def save(self, facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Write a checkpoint and remove the ones before.

        Raises:
            RunError: the disk is full; the checkpoint before stays.
        """
        metadata = {"format": FORMAT, "facts": json.dumps(facts)}
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f"{TEMPORARY}{os.getpid()}"
            try:
                save_tensors(temporary, tensors, metadata)
                path = self.folder / f"{facts['step']:09d}-{sha256(temporary)}.safetensors"
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
                os.replace(temporary, path)
            finally:
                temporary.unlink(missing_ok=True)
            sync_directory(self.folder)
        for other in self.folder.iterdir():
            # Predictions and weights of evaluation points lie here too, and belong to this checkpoint as to the one
            # before.
            if other != path and other.suffix not in (".parquet", ".weights"):
                other.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return facts and tensors (on the CPU) of the newest whole checkpoint, or None."""
        from safetensors import safe_open

        for path in sorted(self.folder.glob("*-*.safetensors"), reverse=True):
            if sha256(path) != path.stem.split("-")[1]:
                self.warn(f"{path} is damaged (its checksum does not match): it is not used")
                continue
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            if metadata.get("format") == FORMAT:
                return json.loads(metadata["facts"]), load_tensors(path)
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the training is done."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
