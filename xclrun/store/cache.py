"""Cache of files that are computed once and read by later runs.

The name ``<stem>-<SHA-256 of the content><suffix>`` contains the checksum, so one rename puts content and checksum in
place. A file that does not match its checksum is reported, removed and computed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xclrun.core import plugins
from xclrun.core.errors import XclrunError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.core.version import PACKAGE
from xclrun.store.files import atomic_write, sha256

# The libraries that determine a model's parameters and tokens.
LIBRARIES = ("torch", "transformers", "tokenizers", "adapters", "peft", "pytorch-crf")

_NAME = re.compile(r"(.+)-([0-9a-f]{64})(\.\w+)")


def cache_folder() -> Path:
    """Return the user's cache folder: ``XCLRUN_CACHE``, or ``xclrun`` in the system's cache."""
    if folder := os.environ.get("XCLRUN_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "xclrun"


def is_intact(path: Path) -> bool:
    """Return whether the content of a cached file matches the checksum in its name."""
    name = _NAME.fullmatch(path.name)
    return name is not None and path.is_file() and sha256(path) == name[2]


def _intact(path: Path) -> bool | None:
    """Return whether a cached file is intact; None if this user cannot read it."""
    try:
        return is_intact(path)
    except OSError:
        return None


def damaged_files(folder: Path) -> Iterator[Path]:
    """Yield the cached files of a folder that do not match their checksums."""
    for path in sorted(folder.glob("*-*.*")):
        if _NAME.fullmatch(path.name) and not is_intact(path):
            yield path


@dataclass(frozen=True)
class CachedFile:
    """One cached file.

    Attributes:
        stem: the name without its checksum; it contains a hash of everything that determines the content.
        suffix: with its dot, as ``.txt``.
        warn: called with a line about a damaged file.
    """

    folder: Path
    stem: str
    suffix: str
    warn: Callable[[str], None] = note

    def _versions(self) -> list[Path]:
        paths = sorted(self.folder.glob(f"{self.stem}-*{self.suffix}"))
        return [path for path in paths if (name := _NAME.fullmatch(path.name)) and name[1] == self.stem]

    def find(self) -> Path | None:
        """Return the path of the intact file, or None; remove damaged files."""
        for path in self._versions():
            if intact := _intact(path):
                return path
            if intact is None:
                continue
            self.warn(f"{path} is damaged (checksum mismatch); it is created again")
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def read(self) -> bytes | None:
        """Return the content of the intact file, or None; remove damaged files."""
        # Another process can replace the file at the same time.
        with contextlib.suppress(FileNotFoundError):
            return None if (path := self.find()) is None else path.read_bytes()
        return None

    def remove(self) -> None:
        for path in self._versions():
            with contextlib.suppress(OSError):
                path.unlink()

    def write(self, content: bytes) -> Path:
        """Write the file unless it exists with this content, and remove versions with other content."""
        path = self.folder / f"{self.stem}-{hashlib.sha256(content).hexdigest()}{self.suffix}"
        if not _intact(path):
            atomic_write(path, content)
        for other in self._versions():
            if other != path:
                with contextlib.suppress(OSError):
                    other.unlink()
        return path


def cached_json(folder: Path, kind: str, inputs: Any, compute: Callable[[], Any]) -> Any:
    """Return the JSON value of ``compute()``, from ``folder`` if it was computed before.

    The file's name has a hash of the inputs, the package's source, the loaded plug-ins and the versions of `LIBRARIES`.

    Args:
        kind: the first part of the file's name.
        inputs: JSON value of everything else that determines the result.
    """
    file = CachedFile(folder, f"{kind}-{digest([source_hash(), plugins.hashes(), inputs])[:32]}", ".json")
    if (content := file.read()) is not None:
        return json.loads(content)
    value = compute()
    # In a folder that is not writable the value is computed each time.
    with contextlib.suppress(XclrunError):
        file.write(json.dumps(value, ensure_ascii=False).encode())
    return value


@cache
def source_hash() -> str:
    """Return the hash of the package's Python files and of the versions of `LIBRARIES`."""
    files = [[str(path.relative_to(PACKAGE)), sha256(path)] for path in sorted(PACKAGE.rglob("*.py"))]
    versions = {}
    for library in LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            versions[library] = version(library)
    return digest([files, versions])
