"""`xclrun rm`: the runs that are meant go, with all that only they use; everything else stays."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from xclrun.cli import main
from xclrun.store.removal import Removal
from xclrun.store.rundir import RunDirectory
from xclrun.store.stages import StageStore
from xclrun.store.users import register

SHARED, FIRST, SECOND, OTHER = ("00" * 32, "11" * 32, "22" * 32, "33" * 32)


def run(outputs: Path, run_id: str, keys: Iterable[str]) -> Path:
    """Write a run that uses entries of the store, and these entries."""
    directory = RunDirectory(outputs / "runs" / run_id)
    directory.open("", {"run_id": run_id, "keys": list(keys), "store": None})
    for key in keys:
        StageStore(outputs / "store").put(
            key, {"kind": "train", "hop": ""}, lambda folder: (folder / "x").write_text("")
        )
    return directory.path


def sweep(outputs: Path, name: str, *runs: str) -> Path:
    path = outputs / "sweeps" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"name": name, "command": "xclrun", "started": "", "runs": runs}))
    return path


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Three runs: two of the sweep `mine`, one of them and a third of the sweep `other`."""
    outputs = tmp_path / "outputs"
    run(outputs, "run-1", [SHARED, FIRST])
    run(outputs, "run-2", [SHARED, SECOND])
    run(outputs, "run-3", [SHARED, OTHER])
    sweep(outputs, "mine", "run-1", "run-2")
    sweep(outputs, "other", "run-2", "run-3")
    return outputs


def remaining(outputs: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the runs, the keys of the store, and the sweeps."""
    return (
        sorted(path.name for path in (outputs / "runs").iterdir()),
        [key[:2] for key in StageStore(outputs / "store").all_keys()],
        sorted(path.stem for path in (outputs / "sweeps").iterdir()),
    )


def rm(outputs: Path, *arguments: str) -> int:
    return main(["rm", "--outputs", str(outputs), *arguments])


def test_a_run_goes_with_what_only_it_used(outputs: Path) -> None:
    assert rm(outputs, "run-1", "--yes") == 0
    assert remaining(outputs) == (["run-2", "run-3"], ["00", "22", "33"], ["mine", "other"])
    assert sorted(path.name for path in outputs.iterdir()) == ["runs", "store", "sweeps"]


def test_a_sweep_goes_with_the_runs_that_no_other_sweep_has(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (outputs / "slurm" / "mine" / "log.out", outputs / "searches" / "mine.log"):
        path.parent.mkdir(parents=True)
        path.touch()
    assert rm(outputs, "mine", "--yes") == 0
    assert remaining(outputs) == (["run-2", "run-3"], ["00", "22", "33"], ["other"])
    assert not (outputs / "slurm" / "mine").exists()
    assert not (outputs / "searches" / "mine.log").exists()
    assert "other sweeps contain them: 1 run" in capsys.readouterr().out


@pytest.mark.parametrize(("answer", "code"), [("n\n", 1), ("", 1), ("yes\n", 0), ("Y\n", 0)])
def test_it_asks_and_a_dry_run_deletes_nothing(
    answer: str, code: int, outputs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = remaining(outputs)
    assert rm(outputs, "run-1", "--dry-run") == 0
    assert "run-1" in capsys.readouterr().out
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert rm(outputs, "run-1") == 2, "no terminal"
    assert remaining(outputs) == before
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", terminal)
    assert rm(outputs, "run-1") == code
    assert (remaining(outputs) == before) is bool(code)


def test_a_run_that_trains_is_refused(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory, before = RunDirectory(outputs / "runs" / "run-1"), remaining(outputs)
    manifest = {
        "run_id": "run-1", "keys": [FIRST], "store": None, "stages": [], "status": "running", "host": "a", "pid": 1,
        "started": "2026-01-01T00:00:00+0000", "stream": {"kind": "sequence", "languages": ["en"]},
    }  # fmt: skip
    directory.write_manifest(manifest)
    mine = directory.lease.try_acquire()
    assert mine is not None
    with directory.lease.held(mine):
        assert rm(outputs, "run-1", "--yes") == 2
    assert "running" in capsys.readouterr().err
    assert remaining(outputs) == before


@pytest.mark.parametrize("readable", [True, False])
def test_what_another_outputs_folder_uses_stays_and_all_of_the_store_if_one_cannot_be_read(
    readable: bool, outputs: Path, tmp_path: Path
) -> None:
    another = tmp_path / "another"
    if readable:
        run(another, "run-9", [FIRST])
    register(outputs / "store", another)
    assert rm(outputs, "run-1", "--yes") == 0
    assert remaining(outputs)[:2] == (["run-2", "run-3"], ["00", "11", "22", "33"])


def test_a_damaged_run_can_be_deleted_and_its_entries_stay(outputs: Path) -> None:
    (outputs / "runs" / "run-1" / "manifest.json").write_text("{")
    assert rm(outputs, "run-1", "--yes") == 0
    assert remaining(outputs)[:2] == (["run-2", "run-3"], ["00", "11", "22", "33"])


def test_names_that_fit_nothing_or_several_runs_are_refused(outputs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = remaining(outputs)
    for name in ("run-", "mini", "../store", ""):
        assert rm(outputs, name, "--yes") == 2
    assert len(capsys.readouterr().err.splitlines()) == 4
    assert remaining(outputs) == before


def test_event_files_and_records_of_what_was_sent_go_too(outputs: Path) -> None:
    directory = RunDirectory(outputs / "runs" / "run-1")
    directory.open("tracking: {to: tensorboard, uri: null, experiment: xclrun}\n", directory.read_manifest())
    names = ("tensorboard/xclrun/run-1/events", "tracked/tensorboard/xclrun/run-1.json")
    copies = [outputs / name for name in names]
    for path in copies:
        path.parent.mkdir(parents=True)
        path.touch()
    pytest.importorskip("tensorboard")
    assert rm(outputs, "run-1", "--yes") == 0
    assert not any(path.exists() for path in copies)


def test_a_kill_after_the_rename_leaves_no_part_of_a_run(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(path: Path, *arguments: object) -> None:
        raise KeyboardInterrupt

    remove: Callable[[], None] = Removal(outputs, ["run-1"]).remove_files
    with monkeypatch.context() as patch:
        patch.setattr("xclrun.store.removal.shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove()
    assert remaining(outputs)[0] == ["run-2", "run-3"]
    from xclrun.store.prune import entries

    assert "leftover" in {entry.kind for entry in entries(StageStore(outputs / "store"), outputs)}


def test_a_command_that_trains_a_removed_run_again_keeps_its_lease(
    outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, remove, taken = RunDirectory(outputs / "runs" / "run-1"), shutil.rmtree, []

    def begun(path: Path) -> None:
        taken.append(directory.lease.try_acquire())
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr("xclrun.store.removal.shutil.rmtree", begun)
        Removal(outputs, ["run-1"]).remove_files()
    assert [path is not None and path.is_file() for path in taken] == [True]
