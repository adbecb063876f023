"""Who uses a store: its own outputs folder, and those that registered; entries that any of them needs stay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xclrun.core.errors import UsageError
from xclrun.store import prune
from xclrun.store.prune import Entry, removable
from xclrun.store.removal import Removal
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore
from xclrun.store.users import outputs_folders, register


def test_each_outputs_folder_counts_once_and_those_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    first, second, gone = (tmp_path / name for name in ("first", "second", "gone"))
    store = first / "store"
    for folder in (first, second, gone):
        (folder / "runs").mkdir(parents=True)
        register(store, folder)
        register(store, folder)
    assert len([*(store / "outputs").iterdir()]) == 2, "its own outputs folder is not registered"
    told: list[str] = []
    assert [*outputs_folders(store, second, told.append)] == [second, first, gone]
    assert {*outputs_folders(store, first, told.append)} == {first, second, gone}
    assert told == []
    (gone / "runs").rmdir()
    assert {*outputs_folders(store, tmp_path / "none", told.append)} == {tmp_path / "none", first, second}
    assert len(told) == 1
    assert str(gone) in told[0]
    # A store in no outputs folder.
    assert [*outputs_folders(tmp_path / "store", first, told.append)] == [first]


@pytest.mark.parametrize(
    ("kind", "trained", "old", "unfinished", "goes"),
    [
        ("checkpoint", True, False, 0, "always"),
        ("checkpoint", False, True, 0, "never"),  # Its training goes on from it.
        ("leftover", False, True, 0, "always"),
        ("leftover", False, False, 0, "never"),  # Somebody may be writing it.
        ("train", True, True, 0, "with weights"),
        ("state", True, True, 0, "with weights"),
        ("features", True, True, 0, "with weights"),
        ("train", True, True, 1, "never"),
        ("evaluation", True, True, 0, "never"),
        ("damaged", True, True, 0, "never"),
    ],
)
def test_what_changes_no_result_can_be_removed(
    kind: str, trained: bool, old: bool, unfinished: int, goes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "ab" * 32
    path = tmp_path / "ab" / (f"{key}.checkpoints" if kind == "checkpoint" else key)
    entry = Entry(path, kind, 1, "", unfinished, 3)
    monkeypatch.setattr(prune, "entries", lambda *_: [entry])
    monkeypatch.setattr(prune, "_old", lambda path: old)
    monkeypatch.setattr(StageStore, "has", lambda self, asked: trained and asked == key)
    found = {weights: [*removable(StageStore(tmp_path), tmp_path, weights)] for weights in (False, True)}
    assert found == {False: [entry] * (goes == "always"), True: [entry] * (goes != "never")}


@pytest.mark.parametrize(("finished", "unfinished"), [(0, 0), (1, 0), (0, 1)])
def test_what_another_run_uses_stays(
    finished: int, unfinished: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "r").mkdir(parents=True)
    monkeypatch.setattr(RunDirectory, "store", lambda self: None)
    monkeypatch.setattr(RunDirectory, "store_keys", lambda self: ["k"])
    of_run = [Entry(tmp_path / name, "train", 1, "", unfinished, finished) for name in ("k", "k.checkpoints")]
    other = Entry(tmp_path / "other", "train", 1, "", 0, 0)
    monkeypatch.setattr("xclrun.store.removal.entries", lambda *_: [*of_run, other])
    found = [*Removal(tmp_path, ["r"]).entries(print, print)]
    assert found == ([] if finished or unfinished else of_run)


def test_a_run_that_cannot_be_moved_keeps_its_directory_and_no_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(tmp_path / "runs" / "r")
    directory.path.mkdir(parents=True)

    def refused(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(UsageError):
            Removal(tmp_path, ["r"]).remove_files()
    assert directory.path.is_dir()
    assert directory.lease.free
    assert directory.lease.owner() is None
    # One that somebody works on stays.
    mine = directory.lease.try_acquire()
    assert mine is not None
    with pytest.raises(UsageError, match="r is running"):
        Removal(tmp_path, ["r"]).remove_files()
    directory.lease.release(mine)
    Removal(tmp_path, ["r"]).remove_files()
    assert not directory.path.exists()
