"""Files that are made once and read again by later runs: each name holds the checksum of its content.

``<stem>-<SHA-256>.<ending>``: one rename puts content and checksum in place. A file that was torn, or changed since, is
reported, removed, and made again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from xclrun.core.terminal import note
from xclrun.store.files import atomic_write, sha256

_NAMED = re.compile(r"(.+)-([0-9a-f]{64})(\.\w+)")


def whole(path: Path) -> bool:
    """Whether a file that `Kept` named is what was written."""
    named = _NAMED.fullmatch(path.name)
    return named is not None and path.is_file() and sha256(path) == named[2]


def damaged(folder: Path) -> Iterator[Path]:
    """Yield the files of a folder that are named by their checksums and do not match them."""
    for path in sorted(folder.glob("*-*.*")):
        if _NAMED.fullmatch(path.name) and not whole(path):
            yield path


@dataclass(frozen=True)
class Kept:
    """One such file.

    Attributes:
        folder: where it lies.
        stem: what it is called, without its checksum: it holds the key of all that its content depends on.
        ending: with its dot, as ``.txt``.
        warn: called with a line on a file that is damaged.
    """

    folder: Path
    stem: str
    ending: str
    warn: Callable[[str], None] = note

    def _there(self) -> list[Path]:
        found = sorted(self.folder.glob(f"{self.stem}-*{self.ending}"))
        return [path for path in found if (named := _NAMED.fullmatch(path.name)) and named[1] == self.stem]

    def find(self) -> Path | None:
        """Return the file, whole; None if there is none. A damaged one is removed."""
        for path in self._there():
            if whole(path):
                return path
            self.warn(f"{path} is damaged (its checksum does not match): it is made again")
            with contextlib.suppress(OSError):
                path.unlink()
        return None

    def read(self) -> bytes | None:
        """Return the content of the file, as it was written; None if there is none. A damaged one is removed."""
        # Another process may write another content meanwhile.
        with contextlib.suppress(FileNotFoundError):
            return None if (path := self.find()) is None else path.read_bytes()
        return None

    def remove(self) -> None:
        """Remove the file, if it is there."""
        for path in self._there():
            with contextlib.suppress(OSError):
                path.unlink()

    def write(self, content: bytes) -> Path:
        """Put the file in place, unless it is there as it should be; one of another content goes.

        Raises:
            UsageError: the place cannot be written.
            RunError: the disk is full.
        """
        path = self.folder / f"{self.stem}-{hashlib.sha256(content).hexdigest()}{self.ending}"
        if not whole(path):
            atomic_write(path, content)
        for other in self._there():
            if other != path:
                with contextlib.suppress(OSError):
                    other.unlink()
        return path
