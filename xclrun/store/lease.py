"""Leases: one process at a time computes a result; others wait, or take over if the owner has died.

The leases of a key are files ``<key>.lease-<n>``; the file with the highest n is valid. The owner updates the
modification time of this file (heartbeat). If the owner has died or the heartbeat has expired, the next process creates
``n + 1``; the file system lets only one process do so, also over a network. A lease only saves work: results are
renamed into place atomically, so an owner that was wrongly considered dead does no harm.

The heartbeat has expired if one of two ages exceeds `SILENCE`. The first is the time since the file's modification; it
shows at once that an owner on another machine died long ago. The second is the time for which this process has seen the
file unchanged; it also detects a dead owner whose clock was ahead.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from xclrun.core.files import parse_json, read_bytes
from xclrun.store.files import TEMPORARY, writing

HEARTBEAT = 10.0  # seconds between two heartbeats
SILENCE = 60.0  # seconds without a heartbeat after which an owner counts as dead
CLOCK = ".clock-"  # prefix of files that are created to read the time of the file system


@lru_cache
def _machine() -> str:
    """Return an identifier that two processes share if and only if each can check whether the other is alive."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _birth(pid: int) -> str | None:
    """Return the start time of a process; empty if the time is unknown, None if the process is dead.

    The start time distinguishes processes that had the same ID one after another.
    """
    try:
        # The name of the process, in parentheses, can contain spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except (OSError, IndexError):
        return ""


def _alive(pid: int, birth: Any) -> bool:
    """Return whether process ``pid`` of this machine is alive and has the start time ``birth``, where it is known.

    /proc may hide the processes of other users (``hidepid``).
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _birth(pid) in (birth, "")


@dataclass(frozen=True)
class Owner:
    """The process that holds a lease.

    Attributes:
        facts: content of the lease file.
        alive: whether the process counts as alive.
    """

    host: str
    pid: int
    facts: dict[str, Any]
    alive: bool

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"


@dataclass(frozen=True)
class Lease:
    """The lease of one key.

    Attributes:
        path: ``<folder>/<key>``, the prefix of the lease files.
    """

    path: Path

    def _files(self) -> list[tuple[int, Path]]:
        prefix = f"{self.path.name}.lease-"
        files: list[tuple[int, Path]] = []
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(self.path.parent) if name.startswith(prefix)]
            files = [(int(n.removeprefix(prefix)), self.path.with_name(n)) for n in names if n.split("-")[-1].isdigit()]
        return sorted(files)

    def owner(self) -> Owner | None:
        """Return the process that holds the lease, alive or not; None if the lease is free."""
        files = self._files()
        return _read(files[-1][1]) if files else None

    @property
    def free(self) -> bool:
        """Whether no process holds the lease, or its owner has died."""
        owner = self.owner()
        return owner is None or not owner.alive

    def try_acquire(self) -> Path | None:
        """Acquire the lease and return its file; return None if another process holds it."""
        files = self._files()
        if files:
            owner = _read(files[-1][1])
            if owner is None or owner.alive:
                return None
        number = files[-1][0] + 1 if files else 1
        mine = self.path.with_name(f"{self.path.name}.lease-{number}")
        facts = {"host": socket.gethostname(), "machine": _machine(), "pid": os.getpid(), "birth": _birth(os.getpid())}
        if job := os.environ.get("XCLRUN_JOB"):
            facts["job"] = job
        with writing(mine):
            mine.parent.mkdir(parents=True, exist_ok=True)
            try:
                _create(mine, json.dumps(facts))
            except FileExistsError:
                return None
        # Another process may have acquired and released the lease after this process listed the files. Its release
        # removed all files, so a third process can create number 1 while this process creates n + 1; then both have a
        # lease file.
        for _, other in self._files():
            if other != mine and (owner := _read(other)) is not None and owner.alive:
                mine.unlink(missing_ok=True)
                return None
        return mine

    def holds(self, mine: Path) -> bool:
        """Return whether a lease from `try_acquire` is still valid: no other process took this one for dead."""
        files = self._files()
        return bool(files) and files[-1][1] == mine

    @contextlib.contextmanager
    def held(self, mine: Path) -> Iterator[None]:
        """Renew a lease from `try_acquire` while the block runs, and release it afterwards."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(HEARTBEAT):
                with contextlib.suppress(OSError):
                    os.utime(mine)

        thread = threading.Thread(target=beat, daemon=True, name="lease")
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.release(mine)

    def release(self, mine: Path) -> None:
        """Release a lease: remove the files of earlier, dead owners, and then the file ``mine``."""
        number = int(mine.name.rpartition("-")[2])
        for n, path in self._files():
            if n < number:
                path.unlink(missing_ok=True)
        mine.unlink(missing_ok=True)


def _create(path: Path, content: str) -> None:
    """Create a file together with its content, so that the owner can be read as soon as the file exists.

    Raises:
        FileExistsError: the file exists.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{threading.get_ident()}")
    try:
        temporary.write_text(content)
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        # This file system has no hard links.
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666), "w") as file:
            file.write(content)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> Owner | None:
    """Return the owner that a lease file names; None if the file does not exist."""
    try:
        text, stamp = read_bytes(path), path.stat().st_mtime
        seen, aged = _unchanged(path, stamp) < SILENCE, file_time(path.parent) - stamp < SILENCE
    except OSError:
        return None
    try:
        facts = parse_json(text)
        host, pid = str(facts["host"]), int(facts["pid"])
    except (ValueError, KeyError, TypeError, OverflowError):
        # Without hard links, the file is empty at first, and stays empty if its owner dies at that moment.
        return Owner("unknown", 0, {}, seen and aged)
    if facts.get("machine") == _machine():
        # Age does not matter here: after a clock change or a suspension of the machine, every owner would look dead.
        return Owner(host, pid, facts, seen and _alive(pid, facts.get("birth")))
    return Owner(host, pid, facts, seen and aged)


# Lease file → (its modification time, when this process first saw this modification time, by the monotonic clock).
_seen: dict[Path, tuple[float, float]] = {}


def _unchanged(path: Path, stamp: float) -> float:
    """Return for how many seconds this process has seen a lease with the same modification time."""
    now = time.monotonic()
    if path not in _seen or _seen[path][0] != stamp:
        _seen[path] = stamp, now
    return now - _seen[path][1]


def file_time(folder: Path) -> float:
    """Return the current time of the file system of ``folder``, because the clocks of a cluster's machines differ."""
    probe = folder / f"{CLOCK}{os.getpid()}-{threading.get_ident()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
