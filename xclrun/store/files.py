"""Atomic writes: to a temporary file, flushed to disk, then renamed."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from xclrun.core.errors import RunError, UsageError, XclrunError
from xclrun.core.files import UNREADABLE, open_file, parse_json, read_bytes

TEMPORARY = ".tmp-"


# Advice for a folder that cannot be written.
OUTPUTS = "choose another folder with paths.outputs=DIR (or XCLRUN_OUTPUTS) and paths.store=DIR"


def explain(error: OSError, path: Path | str, advice: str = OUTPUTS) -> XclrunError:
    """Return the one-line error for a failed write."""
    where = error.filename or path
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return RunError(
            f"no space left to write {where}; free some and re-run the same command; finished work is not lost"
        )
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENOENT):
        return UsageError(f"cannot write {where} ({error.strerror}); {advice}")
    return RunError(f"cannot write {where}: {error.strerror or error}")


@contextlib.contextmanager
def writing(path: Path | str) -> Iterator[None]:
    """Convert an OSError in the block to a one-line error about ``path``."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def check_target(folder: Path, advice: str) -> None:
    """Raise a `UsageError` if files cannot be written to a folder, which need not exist; create nothing."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    probe = _temporary(existing)
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise explain(OSError(error.errno, error.strerror, str(folder)), folder, advice) from error


def sync_directory(path: Path) -> None:
    """Flush a directory's entries, so that a rename survives a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _temporary(folder: Path) -> Path:
    """Return an unused path in a folder. Not from `tempfile`, whose files only their owner can read."""
    return folder / f"{TEMPORARY}{secrets.token_hex(8)}"


def file_mode(folder: Path) -> int:
    """Return the permissions of new files in a folder, which depend on the umask and on default ACLs.

    For files of libraries that only their owner can read. `os.umask` would change the umask for all threads.
    """
    probe = _temporary(folder)
    try:
        probe.touch(exist_ok=False)
        return stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write a file atomically: readers see either the old or the new content. Its permissions follow the umask."""
    content = data.encode() if isinstance(data, str) else data
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        name = _temporary(path.parent)
        descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
        sync_directory(path.parent)


@contextlib.contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to ``path`` if the block succeeds; an existing ``path`` is kept."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _temporary(path.parent)
        temporary.mkdir()
        try:
            yield temporary
            for file in temporary.rglob("*"):
                if file.is_file():
                    descriptor = os.open(file, os.O_RDONLY)
                    os.fsync(descriptor)
                    os.close(descriptor)
            try:
                os.rename(temporary, path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            else:
                sync_directory(path.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; raise a ValueError for NaN, which JSON does not have."""
    atomic_write(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError, ValueError: the file is missing or damaged, or is not a regular file.
    """
    return parse_json(read_bytes(path))


def append_event(path: Path, kind: str, **facts: Any) -> None:
    """Append an event as one line of JSON, after ending an incomplete last line that a crash left."""
    line = json.dumps({"time": round(time.time(), 3), "event": kind, **facts}, ensure_ascii=False) + "\n"
    with writing(path), path.open("ab+") as file:
        if file.tell():
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                line = "\n" + line
        file.write(line.encode())


def read_events(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the readable events of a file in order; none if it does not exist."""
    # Read bytes: an incomplete line can end inside a character, and events can contain other line separators.
    for line in read_bytes(path).split(b"\n") if path.is_file() else ():
        with contextlib.suppress(*UNREADABLE):
            event = parse_json(line)
            float(event["time"]), str(event["event"])
            yield event


def sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's content."""
    with open_file(path) as file:
        result = hashlib.sha256()
        while block := file.read(1 << 20):
            result.update(block)
    return result.hexdigest()
