"""Checkpoints inside a hop: one safetensors file whose name holds the checksum of its content.

A checkpoint is put in place by a rename before the one before is removed, so there is always a whole one; a file whose
content does not match its name (torn, or changed on disk) is not read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from xclrun.store.files import atomic_write

# What else can change how a checkpoint is read: raise it with the format.
FORMAT = 1


@dataclass(frozen=True)
class Checkpoints:
    """The checkpoints of one training, in a folder of their own.

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
        from safetensors.torch import save

        metadata = {"format": str(FORMAT), "facts": json.dumps(facts)}
        content = save({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, metadata=metadata)
        path = self.folder / f"{facts['step']:09d}-{hashlib.sha256(content).hexdigest()}.safetensors"
        atomic_write(path, content)
        for other in self.folder.iterdir():
            # Predictions and weights of evaluation points lie here too, and belong to this checkpoint as to the one
            # before.
            if other != path and other.suffix not in (".parquet", ".weights"):
                other.unlink(missing_ok=True)

    def load(self) -> tuple[dict[str, Any], dict[str, Tensor]] | None:
        """Return facts and tensors (on the CPU) of the newest whole checkpoint, or None."""
        from safetensors import safe_open
        from safetensors.torch import load

        for path in sorted(self.folder.glob("*-*.safetensors"), reverse=True):
            content = path.read_bytes()
            if hashlib.sha256(content).hexdigest() != path.stem.split("-")[1]:
                self.warn(f"{path} is damaged (its checksum does not match): it is not used")
                continue
            with safe_open(path, "pt") as file:
                metadata = file.metadata()
            if metadata.get("format") == str(FORMAT):
                return json.loads(metadata["facts"]), load(content)
        return None

    def clear(self) -> None:
        """Remove all checkpoints: the training is done."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self.folder)
