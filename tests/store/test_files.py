"""Atomic writing: the old content or the new, never a part; tensors bit for bit; files named by their checksum."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from xclrun.core.errors import RunError, UsageError
from xclrun.store import files
from xclrun.store.cache import CachedFile
from xclrun.store.files import (
    append_event,
    atomic_directory,
    atomic_write,
    check_target,
    explain,
    read_events,
    read_json,
    sha256,
    write_json,
    writing,
)
from xclrun.store.lease import Lease
from xclrun.store.tensors import load_tensors, save_tensors


class Interrupted(BaseException):
    """What no except clause expects."""


def fail(error: BaseException) -> Any:
    def raises(*_: Any, **__: Any) -> None:
        raise error

    return raises


@pytest.mark.parametrize("folder", ["file/new", "file/new/deeper", "closed", "closed/new"])
def test_a_folder_that_cannot_be_written_is_found_beforehand(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "closed").mkdir()
    if folder.startswith("closed"):
        # Not by its mode, which does not bind root.
        monkeypatch.setattr(Path, "touch", fail(PermissionError(errno.EACCES, "Permission denied", "probe")))
    with pytest.raises(UsageError, match=rf"^cannot write .*{folder} \(\w+.*\); choose another"):
        check_target(tmp_path / folder, "choose another")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["closed", "file"]


def test_checking_a_folder_creates_nothing(tmp_path: Path) -> None:
    check_target(tmp_path / "new" / "deeper", "")
    assert list(tmp_path.iterdir()) == []


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "file"
    atomic_write(path, "é\n")
    assert path.read_bytes() == "é\n".encode()
    atomic_write(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(path.parent) == ["file"]


@pytest.mark.parametrize("umask", [0o002, 0o022, 0o077])
def test_files_and_folders_have_the_permissions_of_the_umask(umask: int, tmp_path: Path) -> None:
    before = os.umask(umask)
    try:
        atomic_write(tmp_path / "file", "content")
        with atomic_directory(tmp_path / "folder") as folder:
            save_tensors(folder / "tensors", {"a": torch.ones(1)})
        mine = Lease(tmp_path / "key").try_acquire()
    finally:
        os.umask(before)
    assert mine is not None
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes.pop("folder") == 0o777 & ~umask
    assert modes == dict.fromkeys(("file", "tensors", mine.name), 0o666 & ~umask)


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError(errno.EIO, "broken"), Interrupted()], ids=["OSError", "interrupt"])
def test_a_failed_write_leaves_the_old_content(
    step: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    atomic_write(path, "old")
    with monkeypatch.context() as patch:
        patch.setattr(files.os, step, fail(error))
        with pytest.raises((RunError, Interrupted)):
            atomic_write(path, "new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]


def test_the_content_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)
        monkeypatch.setattr(files.os, name, lambda *a, o=original, n=name: (calls.append(n), o(*a))[1])
    atomic_write(tmp_path / "file", "content")
    assert calls == ["fsync", "replace", "fsync"]


@pytest.mark.parametrize(
    ("number", "kind", "message"),
    [
        (errno.ENOSPC, RunError, "no space left to write /some/place; free some and re-run"),
        (errno.EDQUOT, RunError, "no space left"),
        (errno.EACCES, UsageError, "cannot write /some/place .*; choose another folder with paths.outputs=DIR"),
        (errno.EROFS, UsageError, "choose another folder"),
        (errno.EIO, RunError, "cannot write /some/place: "),
    ],
)
def test_errors_for_people(number: int, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message), writing("/some/place"):
        raise OSError(number, os.strerror(number))
    assert "\n" not in str(explain(OSError(number, os.strerror(number)), "/some/place"))


def test_a_file_stands_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UsageError, match="cannot write"):
        atomic_write(tmp_path / "taken" / "file", "content")


def test_a_folder_appears_whole(tmp_path: Path) -> None:
    target = tmp_path / "ab" / "key"
    with atomic_directory(target) as folder:
        (folder / "one").write_text("1")
        (folder / "deep").mkdir()
        (folder / "deep" / "two").write_text("2")
        assert not target.exists()
        assert folder.parent == target.parent
    assert (target / "one").read_text() == "1"
    assert (target / "deep" / "two").read_text() == "2"
    assert os.listdir(target.parent) == ["key"]


def test_a_folder_is_on_disk_under_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, calls = tmp_path / "ab" / "key", []
    fsync, rename = os.fsync, os.rename

    def flushed(descriptor: int) -> None:
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def renamed(source: Path, to: Path) -> None:
        calls.append("rename")
        rename(source, to)

    monkeypatch.setattr(files.os, "fsync", flushed)
    monkeypatch.setattr(files.os, "rename", renamed)
    with atomic_directory(target) as folder:
        (folder / "file").write_text("content")
    assert calls == [folder / "file", "rename", target.parent]


@pytest.mark.parametrize("error", [ValueError("no"), Interrupted()], ids=["error", "interrupt"])
def test_a_folder_that_fails_never_appears(error: BaseException, tmp_path: Path) -> None:
    def half() -> None:
        with atomic_directory(tmp_path / "key") as folder:
            (folder / "one").write_text("1")
            raise error

    with pytest.raises(type(error)):
        half()
    assert os.listdir(tmp_path) == []


def test_a_folder_that_is_there_stays(tmp_path: Path) -> None:
    target = tmp_path / "key"
    with atomic_directory(target) as folder:
        (folder / "file").write_text("mine")
        target.mkdir()
        (target / "file").write_text("theirs")
    assert (target / "file").read_text() == "theirs"
    assert os.listdir(tmp_path) == ["key"]


def test_json_round_trip(tmp_path: Path) -> None:
    content = {"a": [1, 2.5, None, True], "é": {"x": 1e-300}}
    write_json(tmp_path / "file.json", content)
    assert read_json(tmp_path / "file.json") == content
    assert json.loads((tmp_path / "file.json").read_text(encoding="utf-8")) == content
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "file.json", {"a": float("nan")})
    assert read_json(tmp_path / "file.json") == content


def test_sha256_of_known_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    # More than one block.
    content = bytes(range(256)) * 10_000
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_a_damaged_file_is_noted_and_goes_and_others_stay(tmp_path: Path) -> None:
    warnings: list[str] = []
    file = CachedFile(tmp_path, "cut-1", ".json", warnings.append)
    other = CachedFile(tmp_path, "cut-1-2", ".json", warnings.append).write(b"other")
    path = file.write(b"content")
    assert (file.find(), file.read()) == (path, b"content")
    for ask in (file.read, file.find):
        path.write_bytes(b"contend")
        assert ask() is None
        assert str(path) in warnings.pop()
        assert not path.exists()
        file.write(b"content")
    newer = file.write(b"another")
    assert sorted(tmp_path.iterdir()) == sorted([newer, other])
    assert not warnings


def test_tensors_come_back_bit_for_bit(tmp_path: Path) -> None:
    arguments = {
        "a.weight": torch.randn(3, 5),
        "turned": torch.randn(4, 6).t(),
        "counts": torch.tensor([1, -(2**60)]),
        "mask": torch.tensor([True, False]),
        "half": torch.randn(7).to(torch.float16),
        "scalar": torch.tensor(2.5),
        "odd": torch.tensor([float("nan"), float("-inf"), -0.0]),
        "none": torch.zeros(0, 3),
        "graph": torch.randn(2, requires_grad=True),
    }
    save_tensors(tmp_path / "file", arguments)
    result = load_tensors(tmp_path / "file")
    assert sorted(result) == sorted(arguments)
    for name, tensor in arguments.items():
        assert result[name].dtype is tensor.dtype
        assert result[name].shape == tensor.shape
        assert result[name].numpy(force=True).tobytes() == tensor.numpy(force=True).tobytes(), name


def test_the_same_tensors_make_the_same_file(tmp_path: Path) -> None:
    arguments = {"b": torch.arange(4), "a": torch.ones(2, 2)}
    save_tensors(tmp_path / "one", arguments)
    save_tensors(tmp_path / "two", dict(reversed(arguments.items())))
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_place_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save_tensors(tmp_path / "no" / "file", {"a": torch.ones(1)})


def test_an_event_after_an_incomplete_line_has_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    append_event(path, "started")
    with path.open("a") as file:
        file.write('{"time": 1, "eve')
    append_event(path, "hop", hop=1)
    append_event(path, "finished")
    assert [event["event"] for event in read_events(path)] == ["started", "hop", "finished"]
    assert path.read_bytes().count(b"\n") == 4
