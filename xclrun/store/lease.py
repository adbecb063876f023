"""Leases: one process at a time makes a thing, the others wait, and a dead owner's lease is taken over.

Leases of a key are files ``<key>.lease-<n>``; the highest n counts. Its owner refreshes the file's time stamp
(heartbeat). Where the owner is dead, or has been silent for too long, the next one creates ``n + 1``, which the file
system grants to one process only, also over a network. A lease only saves work: what is made is put in place by an
atomic rename, so an owner that was taken for dead and is not does no harm.

Silence is judged twice: by the age of the stamp, which tells at once of an owner who died long ago on another machine,
and by how long this process, on its own clock, has seen the stamp unchanged. So nobody is waited for whose stamp lies
in the future, because a clock was wrong and was put right.
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

from xclrun.store.files import TEMPORARY, writing

HEARTBEAT = 10.0  # seconds between two signs of life
SILENCE = 60.0  # seconds without one after which an owner counts as dead
CLOCK = ".clock-"  # files that show the time of the file system


@lru_cache
def _machine() -> str:
    """Return an identifier that two processes share exactly if each can see whether the other is alive."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return "/".join(parts)


def _birth(pid: int) -> str | None:
    """Return when a process began, so that a reused process number is recognised; empty if unknown.

    None: it is dead, though its parent has not asked how it ended.
    """
    try:
        # The name, in parentheses, may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in ("Z", "X") else fields[19]
    except (OSError, IndexError):
        return ""


def _alive(pid: int, birth: Any) -> bool:
    """Whether the process of this machine that has this number is alive, and is the one that began at ``birth``."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return _birth(pid) == birth


@dataclass(frozen=True)
class Owner:
    """Who holds a lease, and since when.

    Attributes:
        host, pid: where.
        facts: what the file says.
        alive: whether it counts as alive.
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
        path: ``<folder>/<key>``; the files of the lease begin with it.
    """

    path: Path

    def _files(self) -> list[tuple[int, Path]]:
        prefix = f"{self.path.name}.lease-"
        found: list[tuple[int, Path]] = []
        with contextlib.suppress(FileNotFoundError):
            names = [name for name in os.listdir(self.path.parent) if name.startswith(prefix)]
            found = [(int(n.removeprefix(prefix)), self.path.with_name(n)) for n in names if n.split("-")[-1].isdigit()]
        return sorted(found)

    def owner(self) -> Owner | None:
        """Return who holds the lease, alive or not; None where nobody does."""
        files = self._files()
        return _read(files[-1][1]) if files else None

    def try_acquire(self) -> Path | None:
        """Return the file of a lease that is now held by this process, or None where another holds it."""
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
        # Who listed the files before another took the lease and gave it back may have made a second one.
        for _, other in self._files():
            if other != mine and (owner := _read(other)) is not None and owner.alive:
                mine.unlink(missing_ok=True)
                return None
        return mine

    @contextlib.contextmanager
    def held(self, mine: Path) -> Iterator[None]:
        """Renew a lease that `try_acquire` gave while the block runs, and release it afterwards."""
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
        """Release a lease: its file, and those of dead owners before it, are removed, the newest last."""
        number = int(mine.name.rpartition("-")[2])
        for n, path in self._files():
            if n < number:
                path.unlink(missing_ok=True)
        mine.unlink(missing_ok=True)


def _create(path: Path, content: str) -> None:
    """Create a file with its content at once, so that its owner is known from the first instant on.

    Raises:
        FileExistsError: it is there already.
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
        # A file system without hard links.
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644), "w") as file:
            file.write(content)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> Owner | None:
    """Return the owner that a lease file names; None where the file is gone."""
    try:
        text, stamp = path.read_text(), path.stat().st_mtime
        seen, aged = _unchanged(path, stamp) < SILENCE, _now(path.parent) - stamp < SILENCE
    except OSError:
        return None
    try:
        facts = json.loads(text)
        host, pid = str(facts["host"]), int(facts["pid"])
    except (ValueError, KeyError, TypeError):
        # Its owner died, or is, between making the file and writing it: there are no hard links here.
        return Owner("unknown", 0, {}, seen and aged)
    if facts.get("machine") == _machine():
        # Not by age: a clock that is put forward, or a machine that slept, would make every owner look dead.
        return Owner(host, pid, facts, seen and _alive(pid, facts.get("birth")))
    return Owner(host, pid, facts, seen and aged)


# Lease → its stamp, and when this process first saw it (on its own clock, which is never put right).
_seen: dict[Path, tuple[float, float]] = {}


def _unchanged(path: Path, stamp: float) -> float:
    """Return for how many seconds this process has seen a lease with the same stamp."""
    now = time.monotonic()
    if path not in _seen or _seen[path][0] != stamp:
        _seen[path] = stamp, now
    return now - _seen[path][1]


def _now(folder: Path) -> float:
    """Return the time as the file system of ``folder`` has it: clocks of a cluster differ."""
    probe = folder / f"{CLOCK}{os.getpid()}-{threading.get_ident()}"
    try:
        probe.touch()
        return probe.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()
