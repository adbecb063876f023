"""Leases: who holds one that lives keeps it, whoever asks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from xclrun.core.errors import XclrunError
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


# --- Who counts as alive.


def pretend(monkeypatch: pytest.MonkeyPatch, boot: str = "b1", space: str = "pid:[1]", host: str = "node1") -> str:
    """Be on a machine that was started as ``boot``, in a namespace of processes; return its identifier."""
    read_text = Path.read_text

    def read(path: Path, *given: Any, **named: Any) -> str:
        return f"{boot}\n" if path.name == "boot_id" else read_text(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", read)
        patch.setattr(lease.os, "readlink", lambda path: space)
        patch.setattr(lease.socket, "gethostname", lambda: host)
        return lease._machine.__wrapped__()


@pytest.mark.parametrize("change", [{"boot": "b2"}, {"space": "pid:[2]"}, {"host": "node2"}], ids=str)
def test_only_processes_that_see_each_other_share_a_machine(
    change: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, in another container and on another host, a process number says nothing."""
    assert pretend(monkeypatch) == pretend(monkeypatch)
    assert pretend(monkeypatch) != pretend(monkeypatch, **change)


def test_a_machine_without_proc_is_named_by_its_host(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(*_: Any, **__: Any) -> str:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", unreadable)
    monkeypatch.setattr(lease.socket, "gethostname", lambda: "node1")
    assert lease._machine.__wrapped__() == "node1"
    assert lease._birth(os.getpid()) == ""


@pytest.mark.parametrize(
    ("stat", "birth"),
    [("7 (python) S", "t19"), ("7 (a b) c) R", "t19"), ("7 (python) Z", None), ("7 (python) X", None), ("7", "")],
)
def test_the_birth_of_a_process_is_a_field_after_its_name(
    stat: str, birth: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name may have spaces and parentheses; a process that has ended is there until somebody asks how."""
    more = " ".join(f"t{field}" for field in range(1, 40))
    monkeypatch.setattr(Path, "read_text", lambda path: f"{stat} {more}" if ")" in stat else stat)
    assert lease._birth(7) == birth


# age of the last sign of life; where the owner is; whether its process exists → whether it counts as alive
LIVES = [
    (0.0, "here", True, True),
    (0.0, "here", False, False),  # A dead process of this machine is seen at once,
    (500.0, "here", True, True),  # and a living one that was suspended lives.
    (0.0, "restarted", True, True),  # What is not visible from here has its signs of life alone:
    (59.0, "restarted", False, True),
    (61.0, "restarted", True, False),  # the process with its number is another one.
    (59.0, "elsewhere", True, True),
    (61.0, "elsewhere", True, False),
]


@pytest.mark.parametrize(("age", "where", "exists", "alive"), LIVES)
def test_an_owner_is_alive(
    age: float, where: str, exists: bool, alive: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    if where != "here":
        owned(held, machine="other", host="elsewhere" if where == "elsewhere" else lease.socket.gethostname())
    if not exists:
        owned(held, birth="0")
    os.utime(held, (1000.0, 1000.0))
    monkeypatch.setattr(lease, "file_time", lambda folder: 1000.0 + age)
    assert options.free is not alive
    owner = options.owner()
    assert owner is not None
    assert owner.alive is alive
    assert (options.try_acquire() is None) is alive


@pytest.mark.parametrize("proc", ["readable", "hidden"])
def test_the_lease_of_another_user_is_not_taken(
    proc: str, tmp_path: Path, other: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process may not be signaled, and /proc may hide it (hidepid)."""
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    owned(held, pid=other.pid, birth=lease._birth(other.pid))

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(lease.os, "kill", forbidden)
    if proc == "hidden":
        mine, birth = os.getpid(), lease._birth
        monkeypatch.setattr(lease, "_birth", lambda pid: birth(pid) if pid == mine else "")
    assert options.try_acquire() is None
    # A process that took the number of a dead one is not the owner.
    monkeypatch.setattr(lease, "_birth", lambda pid: "1")
    assert options.try_acquire() is not None


def test_a_lease_file_that_may_not_be_read_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None

    def forbidden(path: Path) -> bytes:
        raise PermissionError

    monkeypatch.setattr(lease, "read_bytes", forbidden)
    assert options.try_acquire() is None
    assert held.exists()


# --- Numbers of leases.


def test_numbers_above_nine_are_counted_as_numbers(tmp_path: Path) -> None:
    options = Lease(tmp_path / "key")
    for number in range(1, 12):
        held = options.try_acquire()
        assert held is not None
        assert held.name == f"key.lease-{number}"
        assert options.holds(held)
        owned(held, birth="0")
    assert not options.holds(tmp_path / "key.lease-9")
    options.release(tmp_path / "key.lease-11")
    assert list(tmp_path.iterdir()) == []


def test_who_was_taken_for_dead_releases_its_own_lease_alone(tmp_path: Path) -> None:
    options = Lease(tmp_path / "key")
    first = options.try_acquire()
    assert first is not None
    facts = first.read_text()
    owned(first, birth="0")
    second = options.try_acquire()
    assert second is not None
    first.write_text(facts)
    assert not options.holds(first)
    options.release(first)
    assert options.holds(second)


def test_leases_of_other_keys_are_other_leases(tmp_path: Path) -> None:
    names = ("key", "key2", "key.x", "ke", "a key")
    held = [Lease(tmp_path / name).try_acquire() for name in names]
    assert [path.name for path in held if path] == [f"{name}.lease-1" for name in names]
    (tmp_path / "key.lease-x").touch()
    Lease(tmp_path / "key").release(tmp_path / "key.lease-1")
    assert {path.name for path in tmp_path.iterdir()} == {"key.lease-x", *(f"{name}.lease-1" for name in names[1:])}


def test_a_lease_says_which_job_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Lease(tmp_path / "none" / "key").owner() is None
    assert Lease(tmp_path / "none" / "key").free
    for key, job in (("a", "17_3"), ("b", "")):
        monkeypatch.setenv("XCLRUN_JOB", job)
        Lease(tmp_path / key).try_acquire()
        owner = Lease(tmp_path / key).owner()
        assert owner is not None
        assert owner.facts.get("job") == (job or None)
        assert str(owner) == f"{lease.socket.gethostname()}, process {os.getpid()}"


# --- File systems.


@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_has_leases_too(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(lease.os, "link", refused)
    options = Lease(tmp_path / "key")
    held = options.try_acquire()
    assert held is not None
    assert options.try_acquire() is None
    # Another process created the file after this one listed the folder.
    monkeypatch.setattr(Lease, "_files", lambda self: [])
    before = held.read_text()
    assert options.try_acquire() is None
    assert held.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["key.lease-1"]


def test_a_full_disk_makes_no_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lease.os, "link", full)
    with pytest.raises(XclrunError, match="no space left"):
        Lease(tmp_path / "key").try_acquire()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "h"}', '{"host": "h", "pid": "x"}'])
def test_a_lease_that_names_nobody_ends_with_its_signs_of_life(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without hard links, an owner may die between creating its file and writing it."""
    options = Lease(tmp_path / "key")
    held = tmp_path / "key.lease-1"
    held.write_text(content)
    assert options.try_acquire() is None
    now = held.stat().st_mtime
    monkeypatch.setattr(lease, "file_time", lambda folder: now + lease.SILENCE + 1)
    taken = options.try_acquire()
    assert taken is not None
    assert taken.name == "key.lease-2"


def test_the_time_of_the_file_system_leaves_no_file_and_falls_back_to_the_clock(tmp_path: Path) -> None:
    assert abs(lease.file_time(tmp_path) - time.time()) < 60
    assert list(tmp_path.iterdir()) == []
    assert abs(lease.file_time(tmp_path / "none") - time.time()) < 60
