"""Leases: who holds one that lives keeps it, whoever asks."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xclrun.store import lease
from xclrun.store.lease import Lease


@pytest.fixture
def other() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine."""
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def owned(held: Path, **changes: Any) -> None:
    """Say that another one holds a lease."""
    held.write_text(json.dumps({**json.loads(held.read_text()), **changes}))


def test_a_lease_of_a_living_owner_is_not_taken(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    owners: list[dict[str, Any]] = [
        {},  # this very process
        {"pid": other.pid, "birth": lease._birth(other.pid)},
        {"host": "elsewhere", "machine": "another", "pid": 1, "birth": "1"},  # gave a sign of life just now
    ]
    for facts in owners:
        owned(held, **facts)
        before = held.read_bytes()
        assert options.try_acquire() is None
        assert [path.name for path in tmp_path.iterdir()] == ["key.lease-1"]
        assert held.read_bytes() == before
    options.release(held)
    assert list(tmp_path.iterdir()) == []
    assert options.try_acquire() == held


def test_a_lease_of_a_dead_owner_is_taken(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    # Another process has the number of the one that died.
    owned(held, birth="0")
    second = options.try_acquire()
    assert second is not None
    assert second.name == "key.lease-2"
    birth = lease._birth(other.pid)
    owned(second, pid=other.pid, birth=birth)
    other.kill()
    # Dead, though nobody has asked how it ended.
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    third = options.try_acquire()
    assert third is not None
    assert third.name == "key.lease-3"
    options.release(third)
    assert list(tmp_path.iterdir()) == []


def test_a_stamp_in_the_future_is_no_sign_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(lease.time, "monotonic", lambda: now)
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    owned(held, host="elsewhere", machine="another", pid=1, birth="1")
    ahead = held.stat().st_mtime + 3600
    for beat in range(3):
        os.utime(held, (ahead + beat, ahead + beat))
        for _ in range(2):
            assert options.try_acquire() is None
            now += lease.SILENCE - 1
    now += 2
    taken = options.try_acquire()
    assert taken is not None
    assert taken.name == "key.lease-2"


def test_a_lease_that_another_took_in_between_is_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    whole, create = held.read_bytes(), lease._create
    owned(held, birth="0")

    def late(path: Path, content: str) -> None:
        held.write_bytes(whole)
        create(path, content)

    monkeypatch.setattr(lease, "_create", late)
    assert options.try_acquire() is None
    assert [path.name for path in tmp_path.iterdir()] == ["key.lease-1"]


def test_a_clock_that_is_put_forward_makes_nobody_look_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    real = lease.file_time
    monkeypatch.setattr(lease, "file_time", lambda folder: real(folder) + 3600)
    assert options.try_acquire() is None
    # Of another machine the age is all that is known.
    owned(held, host="elsewhere", machine="another", pid=1, birth="1")
    assert options.try_acquire() is not None


def test_a_held_lease_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "HEARTBEAT", 0.01)
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    with options.held(held):
        for _ in range(2):
            os.utime(held, (0, 0))
            until = time.monotonic() + 60
            while held.stat().st_mtime == 0:
                assert time.monotonic() < until
                time.sleep(0.01)
    assert list(tmp_path.iterdir()) == []
