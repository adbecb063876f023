"""`xclrun store gc`: what goes, and what never does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.command.plan import plan_runs
from xclrun.plan import freeze
from xclrun.store import prune
from xclrun.store.stages import StageStore

from .commands import predictions, small, trainings, whole

JOB = small("strategy=naive")
Command = Callable[..., tuple[int, str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a finished run, to be copied."""
    from xclrun.cli import main

    outputs = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "1")  # the command sets it; so it is put back
        assert main([*JOB, f"paths.outputs={outputs}", "-m"]) == 0
    return outputs


@pytest.fixture
def outputs(finished: Path, tmp_path: Path) -> Path:
    """The outputs of a finished run."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def _kinds(outputs: Path) -> dict[str, int]:
    result: dict[str, int] = {}
    for entry in prune.entries(StageStore(outputs / "store"), outputs):
        result[entry.kind] = result.get(entry.kind, 0) + 1
    return result


def test_nothing_goes_that_could_be_used(outputs: Path, xclrun: Command) -> None:
    before = _kinds(outputs)
    assert before == {"train": 3, "evaluation": 4}
    assert "0 removed" in xclrun("store", "gc", "--outputs", str(outputs))[1]
    assert _kinds(outputs) == before


def test_what_a_killed_average_left_beside_a_run_goes_when_it_is_old(outputs: Path, xclrun: Command) -> None:
    [run] = outputs.glob("runs/*")
    (run / "averages").mkdir()
    remaining = [run / "averages" / f".tmp-{name}" for name in ("old", "new")]
    for path in remaining:
        path.write_bytes(b"half")
    os.utime(remaining[0], (0, 0))
    assert _kinds(outputs)["leftover"] == 2
    assert "1 removed" in xclrun("store", "gc", "--outputs", str(outputs))[1]
    assert sorted((run / "averages").iterdir()) == [remaining[1]]


@pytest.mark.full
def test_weights_go_and_the_report_stays(outputs: Path, xclrun: Command, undrawn: None) -> None:
    def report() -> dict[str, Any]:
        code, output = xclrun("report", "--all", "--outputs", str(outputs), "--from-runs", "--json")
        assert code == 0, output
        summary = outputs / "reports" / "all" / "summary.csv"
        return {"summary": summary.read_text(), "told": json.loads(output)}

    before, done = report(), predictions(outputs)
    assert "3 to remove" in xclrun("store", "gc", "--weights", "--dry-run", "--outputs", str(outputs))[1]
    assert _kinds(outputs) == {"train": 3, "evaluation": 4}
    assert "3 removed" in xclrun("store", "gc", "--weights", "--outputs", str(outputs))[1]
    assert _kinds(outputs) == {"evaluation": 4}
    assert report() == before
    assert predictions(outputs) == done
    assert whole(outputs)
    # The finished run stays finished, and a run anew takes its predictions from the store.
    assert "; 1 already finished" in xclrun(*JOB, f"paths.outputs={outputs}", "-m")[1]
    shutil.rmtree(outputs / "runs")
    assert xclrun(*JOB, f"paths.outputs={outputs}", "-m")[0] == 0
    assert predictions(outputs) == done
    assert trainings(outputs) == []


def test_who_would_have_shared_trains_again(
    outputs: Path, xclrun: Command, undisturbed: Callable[..., dict[str, str]]
) -> None:
    xclrun("store", "gc", "--weights", "--outputs", str(outputs))
    er = small("strategy=er")
    assert xclrun(*er, f"paths.outputs={outputs}", "-m")[0] == 0
    assert len(trainings(outputs)) == 3
    expected = undisturbed(er)
    assert {key: value for key, value in predictions(outputs).items() if key in expected} == expected


@pytest.mark.full
def test_what_an_unfinished_run_needs_stays(
    faults: Callable[..., Any], xclrun: Command, undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    er = small("strategy=er", "trainer.checkpoint_minutes=0.000001")
    assert faults("dies_after_checkpoint", 6, *er, f"paths.outputs={tmp_path}", "-m") == -signal.SIGKILL
    before = _kinds(tmp_path)
    assert before == {"train": 1, "state": 1, "evaluation": 2, "checkpoint": 1}
    assert "0 removed" in xclrun("store", "gc", "--weights", "--outputs", str(tmp_path))[1]
    assert _kinds(tmp_path) == before
    assert xclrun(*er, f"paths.outputs={tmp_path}", "-m")[0] == 0
    assert predictions(tmp_path) == undisturbed(er)
    # Its checkpoint is of no use any more, and is gone.
    assert "checkpoint" not in _kinds(tmp_path)


def test_checkpoint_of_a_finished_training_goes(outputs: Path, xclrun: Command) -> None:
    store = StageStore(outputs / "store")
    folder = store.checkpoints(trainings(outputs)[0])
    folder.mkdir()
    (folder / "000000001-00.safetensors").write_bytes(b"left")
    assert _kinds(outputs)["checkpoint"] == 1
    assert "1 removed" in xclrun("store", "gc", "--outputs", str(outputs))[1]
    assert not folder.exists()
    assert whole(outputs)


def test_what_a_queued_run_will_read_stays(outputs: Path, xclrun: Command) -> None:
    [run] = plan_runs([*JOB, f"paths.outputs={outputs}"])
    shutil.rmtree(run.directory.path)
    freeze(run)
    assert "0 removed" in xclrun("store", "gc", "--weights", "--outputs", str(outputs))[1]
    assert len(trainings(outputs)) == 3


def test_leftovers_go_when_they_are_old(outputs: Path, xclrun: Command) -> None:
    place = next((outputs / "store").iterdir())
    folder, file = place / ".tmp-folder", place / ".tmp-file"
    folder.mkdir()
    (folder / "weights.safetensors").write_bytes(b"half")
    file.write_bytes(b"half")
    lease = place / f"{'0' * 64}.lease-1"  # of a process that died
    lease.write_text("{}")
    assert _kinds(outputs)["leftover"] == 2
    assert "0 removed" in xclrun("store", "gc", "--outputs", str(outputs))[1]
    old = time.time() - prune.AGE - 1
    for path in (folder, file, lease):
        os.utime(path, (old, old))
    assert "3 removed" in xclrun("store", "gc", "--outputs", str(outputs))[1]
    assert not any(path.exists() for path in (folder, file, lease))
    assert whole(outputs)


def test_what_another_process_works_on_stays(outputs: Path, xclrun: Command) -> None:
    store = StageStore(outputs / "store")
    key = trainings(outputs)[0]
    mine = store.lease(key).try_acquire()
    assert mine is not None
    with store.lease(key).held(mine):
        assert "2 removed" in xclrun("store", "gc", "--weights", "--outputs", str(outputs))[1]
        assert trainings(outputs) == [key]


def test_damaged_stage_is_listed_and_stops_nothing(outputs: Path, xclrun: Command) -> None:
    store = StageStore(outputs / "store")
    (store.path(trainings(outputs)[0]) / "stage.json").write_text("{")
    code, output = xclrun("store", "ls", "--outputs", str(outputs))
    assert code == 0
    assert "1 damaged" in output
    assert xclrun("store", "gc", "--weights", "--outputs", str(outputs))[0] == 0
    assert xclrun("store", "verify", "--outputs", str(outputs))[0] == 1


@pytest.fixture
def shared(outputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, StageStore]:
    """Two outputs folders with one store; only the second has the run, unfinished, which needs the weights."""
    folder = tmp_path_factory.mktemp("shared")
    first, second = folder / "first", folder / "second"
    (first / "runs").mkdir(parents=True)
    shutil.copytree(outputs / "store", folder / "store")
    [run] = plan_runs([*JOB, f"paths.outputs={second}", f"paths.store={folder / 'store'}"])
    freeze(run)
    return first, second, run.store


def _weights(store: StageStore) -> int:
    return [store.facts(key)["kind"] for key in store.all_keys()].count("train")


def test_what_a_run_of_another_outputs_folder_needs_stays(
    shared: tuple[Path, Path, StageStore], xclrun: Command
) -> None:
    first, second, store = shared
    code, output = xclrun("store", "gc", "--weights", "--outputs", str(first), "--store", str(store.root))
    assert (code, _weights(store)) == (0, 3), output
    # The user deleted this run; its folder is still readable.
    shutil.rmtree(next((second / "runs").iterdir()))
    assert xclrun("store", "gc", "--weights", "--outputs", str(first), "--store", str(store.root))[0] == 0
    assert _weights(store) == 0


def test_nothing_goes_while_an_outputs_folder_of_the_store_cannot_be_read(
    shared: tuple[Path, Path, StageStore], xclrun: Command
) -> None:
    first, second, store = shared
    shutil.rmtree(second / "runs")  # like an empty mount point
    command = ("store", "gc", "--weights", "--outputs", str(first), "--store", str(store.root))
    code, output = xclrun(*command)
    assert (code, _weights(store)) == (2, 3)
    assert str(second) in output
    [file] = (store.root / "outputs").iterdir()
    assert f"remove {file}" in output
    file.unlink()
    assert xclrun(*command)[0] == 0
    assert _weights(store) == 0


def test_the_store_is_that_of_the_runs(shared: tuple[Path, Path, StageStore], xclrun: Command) -> None:
    _, second, store = shared
    code, output = xclrun("store", "ls", "--outputs", str(second), "--json")
    assert code == 0
    assert {entry["key"] for entry in json.loads(output)} == set(store.all_keys())
    assert {entry["unfinished"] for entry in json.loads(output)} == {1}


def test_no_weights_go_while_an_unfinished_run_cannot_be_read(outputs: Path, xclrun: Command) -> None:
    [run] = outputs.glob("runs/*")
    (run / "DONE").unlink()
    (run / "manifest.json").write_text("{")
    code, output = xclrun("store", "gc", "--weights", "--outputs", str(outputs))
    assert (code, len(trainings(outputs))) == (1, 3)
    assert str(run / "manifest.json") in output


def test_a_run_registers_its_outputs_folder_in_the_store(tmp_path: Path, xclrun: Command) -> None:
    outputs, store = tmp_path / "outputs", tmp_path / "store"
    assert xclrun(*JOB, f"paths.outputs={outputs}", f"paths.store={store}", "-m")[0] == 0
    [file] = (store / "outputs").iterdir()
    assert json.loads(file.read_text()) == {"outputs": str(outputs.resolve())}
