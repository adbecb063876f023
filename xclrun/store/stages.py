"""The content-addressed store: one directory per key, renamed into place when complete, with checksums.

A directory holds one result: a training (``weights.safetensors``), a strategy state (``state.safetensors``,
``facts.json``), an evaluation (``predictions.parquet``), the features of a split from a frozen encoder
(``features.safetensors``) or the attention of [CLS] (``attention.parquet``). Its ``stage.json`` contains the kind and
origin of the result, the SHA-256 of the other files, and a checksum of its own content. A damaged directory is removed
and counts as absent, so its content is computed again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from xclrun.core.files import UNREADABLE, parse_json, read_text
from xclrun.core.identity import digest
from xclrun.store.files import TEMPORARY, atomic_directory, read_json, sha256, writing
from xclrun.store.lease import Lease

FACTS = "stage.json"


@dataclass(frozen=True)
class StageStore:
    """Stages under ``root``, by key.

    Attributes:
        warn: called with a line about a damaged stage.
    """

    root: Path
    warn: Callable[[str], None] = field(default=lambda text: None, compare=False)

    def path(self, key: str) -> Path:
        """Return the directory of a key, in one of 256 folders."""
        return self.root / key[:2] / key

    def lease(self, key: str) -> Lease:
        return Lease(self.path(key))

    def checkpoints(self, key: str) -> Path:
        """Return the folder of the checkpoints of an unfinished training."""
        return self.path(key).with_name(f"{key}.checkpoints")

    def all_keys(self) -> Iterator[str]:
        for path in sorted(self.root.glob(f"[0-9a-f][0-9a-f]/*/{FACTS}")):
            if not path.parent.name.startswith(TEMPORARY):
                yield path.parent.name

    def has(self, key: str) -> bool:
        """Return whether the stage exists; `get` verifies its checksums."""
        return (self.path(key) / FACTS).is_file()

    def __contains__(self, key: object) -> bool:
        return self.has(str(key))

    def get(self, key: str) -> Path | None:
        """Return the directory of an intact stage, or None; remove a damaged stage."""
        folder = self.path(key)
        if not folder.is_dir():
            return None
        if (name := self.damaged(key)) is None:
            return folder
        self.warn(f"{folder / name} is damaged (checksum mismatch); the stage is created again")
        with contextlib.suppress(OSError):
            aside = folder.with_name(f"{TEMPORARY}damaged-{key}")
            shutil.rmtree(aside, ignore_errors=True)
            folder.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
        return None

    def damaged(self, key: str) -> str | None:
        """Return the name of the first file of a stage that is missing or does not match its checksum, or None."""
        name = FACTS
        try:
            text = read_text(self.path(key) / FACTS)
            facts = parse_json(text)
            # Compare the text too, since damage to the last digits of a number can leave its parsed value unchanged.
            if facts.pop("checksum") != digest(facts) or text != _text(facts):
                return name
            for name, checksum in facts["files"].items():
                if sha256(self.path(key) / name) != checksum:
                    return name
        except UNREADABLE:
            return name
        return None

    def problem(self, key: str) -> str | None:
        """Return why the weights of a stage cannot be read, or None. Unlike `get`, remove nothing."""
        if (name := self.damaged(key)) is None:
            return None
        folder = self.path(key)
        return f"{folder / name} is damaged" if folder.is_dir() else "its weights are no longer in the store"

    def facts(self, key: str) -> dict[str, Any]:
        return read_json(self.path(key) / FACTS)

    def put(self, key: str, facts: dict[str, Any], fill: Callable[[Path], None]) -> Path:
        """Write a stage: ``fill`` writes its files to a directory, which then becomes the directory of ``key``."""
        folder = self.path(key)
        with atomic_directory(folder) as temporary:
            fill(temporary)
            files = {file.name: sha256(file) for file in sorted(temporary.iterdir())}
            with writing(folder):
                (temporary / FACTS).write_text(_text({"key": key, **facts, "files": files}), encoding="utf-8")
        return folder


def _text(facts: dict[str, Any]) -> str:
    """Return the text of ``stage.json``: the facts and their checksum."""
    return json.dumps({**facts, "checksum": digest(facts)}, indent=1, ensure_ascii=False) + "\n"
