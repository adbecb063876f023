"""Damaged files, pipes and folders where our files belong: each reader names and skips them, and none waits."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xclrun.analysis.records import read_records
from xclrun.compose.overrides import load_config_dir
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import UsageError
from xclrun.core.files import parse_json, read_bytes
from xclrun.launch.cluster.files import submissions
from xclrun.launch.status import run_status
from xclrun.model.folder import read_object
from xclrun.store.files import read_events, sha256
from xclrun.store.lease import Lease
from xclrun.store.prune import entries
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore
from xclrun.store.sweeps import sweeps
from xclrun.store.users import FOLDER, outputs_folders
from xclrun.tracking.trackers import Tracker

DAMAGED: dict[str, Callable[[Path], Any]] = {
    "a pipe": os.mkfifo,
    "a folder": Path.mkdir,
    "nested": lambda path: path.write_text("[" * 100_000),
    "empty": Path.touch,
    "binary": lambda path: path.write_bytes(b"\xff\x00\x80"),
    "a list": lambda path: path.write_text("[1]"),
    "a number": lambda path: path.write_text("1e999"),
    "null": lambda path: path.write_text("null"),
}


@pytest.fixture(autouse=True)
def limited() -> Iterator[None]:
    """End a test that waits for a pipe."""

    def late(*_: object) -> None:
        raise AssertionError("waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(params=DAMAGED)
def damage(request: pytest.FixtureRequest) -> Callable[[Path], Path]:
    """Return a function that puts something unreadable at a path."""

    def make(path: Path) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        DAMAGED[request.param](path)
        return path

    return make


@pytest.mark.parametrize("name", ["manifest.json", "DONE"])
def test_a_run_with_an_unreadable_file_is_named_and_skipped(
    name: str, damage: Callable[[Path], Path], tmp_path: Path
) -> None:
    directory, lines = RunDirectory(tmp_path / "runs" / "mini-er-1"), list[str]()
    damage(directory.path / name)
    assert read_records(tmp_path, lines.append) == []
    assert all("mini-er-1" in line for line in lines)
    assert not directory.finished
    assert run_status(directory).state in ("damaged", "missing")


def test_other_unreadable_files_are_named_and_skipped(damage: Callable[[Path], Path], tmp_path: Path) -> None:
    lines = list[str]()
    sweep, user = damage(tmp_path / "sweeps" / "first.json"), damage(tmp_path / "store" / FOLDER / "0.json")
    assert sweeps(tmp_path, lines.append) == []
    assert str(sweep) in " ".join(lines)
    submission = damage(tmp_path / "slurm" / "first" / "1" / "submission.json")
    assert submissions(tmp_path, warn=lines.append) == []
    assert str(submission) in " ".join(lines)
    assert list(outputs_folders(tmp_path / "store", tmp_path, lines.append)) == [tmp_path]
    assert str(user) in lines[-1]


def test_unreadable_files_of_the_store_count_as_absent(damage: Callable[[Path], Path], tmp_path: Path) -> None:
    store, key = StageStore(tmp_path / "store"), "ab" * 32
    damage(store.path(key) / "stage.json")
    assert store.damaged(key) == "stage.json"
    assert [entry.kind for entry in entries(store, tmp_path)] == ["damaged"]
    lease = damage(tmp_path / "key.lease-1")
    assert not (owner := Lease(lease.with_name("key")).owner()) or owner.pid == 0
    sent = damage(tmp_path / "tracked" / "any" / "xclrun" / "run.json")
    assert Sends(tmp_path, TrackingConfig()).before(["run"]) == {}
    assert sent.parent.is_dir()
    if (events := damage(tmp_path / "events.jsonl")).is_file():
        assert list(read_events(events)) == []


class Sends(Tracker):
    """A tracker that never sends."""

    name = "any"

    def send(self, update: Any) -> None:
        raise AssertionError


def test_pipes_are_refused_where_files_belong(tmp_path: Path) -> None:
    pipe = tmp_path / "some.yaml"
    os.mkfifo(pipe)
    for read in (read_bytes, sha256):
        with pytest.raises(OSError, match="pipe"):
            read(pipe)
    for refuse in (
        lambda folder: load_config_dir(folder, ["order=some"]),
        lambda folder: read_object(folder / "some.yaml", "model.path"),
    ):
        with pytest.raises(UsageError, match=r"some\.yaml.*pipe"):
            refuse(tmp_path)


def test_json_of_any_depth_is_read_or_refused() -> None:
    assert parse_json("[[1]]") == [[1]]
    assert parse_json(json.dumps({"é": None}).encode()) == {"é": None}
    with pytest.raises(ValueError, match="nested"):
        parse_json("[" * 100_000)
