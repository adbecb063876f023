"""Locks: one process at a time changes files that several commands read, change and write."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xclrun.core.names import slug
from xclrun.core.terminal import if_slow


@contextmanager
def alone(outputs: Path, kind: str, name: str) -> Iterator[bool]:
    """Let one process at a time write, for example, the report ``name``; yield False if files cannot be locked here.

    Args:
        kind: what is written, for messages and the name of the lock file, which is in ``<outputs>/cache``.
    """
    path = outputs / "cache" / f"{kind}-{slug(name)}.lock"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a")
    except OSError:
        yield False
        return
    with file:
        locked = True
        with if_slow(f"waiting for another process that writes the {kind} {name}"):
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:
                locked = False
        yield locked
