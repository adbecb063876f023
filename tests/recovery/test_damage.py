"""Damaged files of the store and a full disk: reported in one line, and the same command recovers."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import some
from xclrun.analysis.records import read_predictions, read_records
from xclrun.store.stages import StageStore

from .commands import events, predictions, small, trainings, whole

JOB = small("strategy=er")
DAMAGES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size // 2),
    "emptied": lambda path: os.truncate(path, 0),
    "flipped": lambda path: path.write_bytes(_flipped(path.read_bytes())),
    "deleted": lambda path: path.unlink(),
}


def _flipped(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The outputs of a finished run, to be copied."""
    from xclrun.cli import main

    outputs = tmp_path_factory.mktemp("finished")
    assert main([*JOB, f"paths.outputs={outputs}", "-m"]) == 0
    return outputs


@pytest.fixture(autouse=True)
def converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache, with nothing in it."""
    monkeypatch.setenv("XCLRUN_CACHE", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def outputs(finished: Path, tmp_path: Path) -> Path:
    """A folder with the store of a finished run, but without the run."""
    shutil.copytree(finished, tmp_path / "outputs")
    shutil.rmtree(tmp_path / "outputs" / "runs")
    return tmp_path / "outputs"


def _files(outputs: Path) -> Iterator[tuple[str, Path]]:
    """Yield each kind of file in the store, with the last one of its kind: that of the last hop, or of one of them."""
    store, result = StageStore(outputs / "store"), {}
    for key in store.all_keys():
        for path in store.path(key).iterdir():
            result[store.facts(key)["kind"], path.name] = path
    assert set(result) == {
        ("train", "stage.json"),
        ("train", "weights.safetensors"),
        ("state", "stage.json"),
        ("state", "facts.json"),
        ("evaluation", "stage.json"),
        ("evaluation", "predictions.parquet"),
    }
    for (kind, name), path in sorted(result.items()):
        yield f"{kind}/{name}", path


@pytest.mark.parametrize(
    ("how", "kinds"),
    [
        ("flipped", ("train/weights.safetensors", "evaluation/predictions.parquet")),
        *(pytest.param(how, None, marks=pytest.mark.full, id=f"{how}, every file") for how in DAMAGES),
    ],
)
def test_damaged_file_is_said_and_made_again(
    how: str,
    kinds: tuple[str, ...] | None,
    outputs: Path,
    finished: Path,
    xclrun: Callable[..., tuple[int, str]],
) -> None:
    command = (*JOB, f"paths.outputs={outputs}", "-m")
    for part, path in some(_files(outputs)):
        if kinds is not None and part not in kinds:
            continue
        if part.startswith(("train", "state")):
            # What builds on it is gone too, or it would not be needed.
            store = StageStore(outputs / "store")
            for key in some(list(store.all_keys())):
                if store.facts(key)["kind"] == "evaluation":
                    shutil.rmtree(store.path(key))
        DAMAGES[how](path)
        code, output = xclrun("store", "verify", "--outputs", str(outputs))
        assert code == 1, part
        assert str(path) in output, part
        code, output = xclrun(*command)
        assert code == 0, output
        assert f"{path} is damaged" in output, (part, output)
        assert predictions(outputs) == predictions(finished), part
        assert whole(outputs)
        shutil.rmtree(outputs / "runs")


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_checkpoint_is_not_read(
    how: str, faults: Callable[..., Any], xclrun: Callable[..., tuple[int, str]], finished: Path, tmp_path: Path
) -> None:
    command = (*JOB, "trainer.checkpoint_minutes=0.000001", f"paths.outputs={tmp_path}", "-m")
    assert faults("dies_after_checkpoint", 3, *command) == -signal.SIGKILL
    [checkpoint] = tmp_path.glob("store/*/*.checkpoints/*.safetensors")
    DAMAGES[how](checkpoint)
    code, output = xclrun(*command)
    assert code == 0, output
    assert how == "deleted" or f"{checkpoint} is damaged" in output, output
    assert predictions(tmp_path) == predictions(finished)
    assert whole(tmp_path)


@pytest.mark.parametrize("part", ["vocabulary", "cut"])
def test_a_damaged_file_of_the_cache_changes_no_result(
    part: str, outputs: Path, finished: Path, xclrun: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a process of its own, which has encoded nothing yet.
    monkeypatch.setattr("xclrun.train.encodings._common", None)
    [path] = (outputs / "cache").glob(f"{part}-*")
    content = path.read_bytes()
    DAMAGES["truncated"](path)
    code, output = xclrun("store", "verify", "--outputs", str(outputs))
    assert (code, output.count("\n")) == (1, 1)
    assert str(path) in output
    if part == "vocabulary":
        shutil.rmtree(outputs / "store")
    code, output = xclrun(*JOB, f"paths.outputs={outputs}", "-m")
    assert code == 0, output
    assert f"{path} is damaged" in output
    assert predictions(outputs) == predictions(finished)
    assert path.read_bytes() == content
    assert whole(outputs)


def test_a_finished_run_that_is_damaged_is_named_and_made_again_from_the_store(
    finished: Path, tmp_path: Path, xclrun: Callable[..., tuple[int, str]]
) -> None:
    outputs = tmp_path / "outputs"
    shutil.copytree(finished, outputs)
    assert xclrun("store", "gc", "--weights", "--outputs", str(outputs))[0] == 0
    [run] = (outputs / "runs").iterdir()
    files = {"manifest.json": "truncated", "predictions/hop-1.parquet": "deleted", "DONE": "emptied"}
    for name, how in files.items():
        DAMAGES[how](run / name)
        code, output = xclrun("store", "verify", "--outputs", str(outputs))
        assert (code, output.count("\n")) == (1, 1)
        assert f"{run / name}: changed since the run finished; re-run the same command" in output
        code, output = xclrun("status", "--outputs", str(outputs))
        assert code == 1
        assert f"\n{run.name}   damaged" in output
        assert str(run / name) in output
        assert read_records(outputs, lambda output: None) == []
        code, output = xclrun(*JOB, f"paths.outputs={outputs}", "-m")
        assert code == 0, output
        assert f"{run / name} is missing or damaged; restoring the run from the store" in output
        assert predictions(outputs) == predictions(finished)
        assert trainings(outputs) == []
        assert whole(outputs)
    assert "; 1 already finished" in xclrun(*JOB, f"paths.outputs={outputs}", "-m")[1]
    # A flipped bit, which a glance at sizes does not show, is found where the rows are read, and by verify.
    path = run / "predictions" / "hop-1.parquet"
    records = read_records(outputs)
    DAMAGES["flipped"](path)
    told_of: list[str] = []
    assert read_predictions(outputs, records, told_of.append) == {}
    assert read_records(outputs, told_of.append) == []
    assert [f"{path} has changed since the run finished" in output for output in told_of] == [True, True]
    assert f"remove {run / 'DONE'} and re-run" in xclrun("store", "verify", "--outputs", str(outputs))[1]


def test_a_folder_that_holds_another_run_counts_for_none(
    finished: Path, tmp_path: Path, xclrun: Callable[..., tuple[int, str]]
) -> None:
    outputs = tmp_path / "outputs"
    shutil.copytree(finished, outputs)
    [run] = (outputs / "runs").iterdir()
    other = shutil.copytree(run, run.with_name(run.name.replace("-s1-", "-s2-")))
    warnings: list[str] = []
    assert [record.run_id for record in read_records(outputs, warnings.append)] == [run.name]
    assert [text.startswith(f"{other} holds the run {run.name}; rename the folder") for text in warnings] == [True]
    shutil.rmtree(run)
    code, output = xclrun("show", other.name, "--outputs", str(outputs))
    assert (code, output.count("\n")) == (1, 1)
    assert f"{other} holds the run {run.name}; rename the folder" in output


# Small files that every command reads.

TORN = {"torn": b'{"na', "of another kind": b"[1, {}]", "no text": b"\xff\x00"}


@pytest.fixture
def torn(finished: Path, tmp_path: Path) -> Callable[[bytes], tuple[Path, list[Path]]]:
    """Write outputs in which a finished run is whole, and beside it files that cannot be read; return these too."""

    def write(content: bytes) -> tuple[Path, list[Path]]:
        outputs = tmp_path / "outputs"
        shutil.rmtree(outputs, ignore_errors=True)
        shutil.copytree(finished, outputs)
        [run] = (outputs / "runs").iterdir()
        for name, file in (("config", "config.yaml"), ("manifest", "manifest.json")):
            other = Path(shutil.copytree(run, run.with_name(name)))
            (other / "DONE").unlink()
            (other / file).write_bytes(content)
        [sweep] = (outputs / "sweeps").iterdir()
        facts = json.loads(sweep.read_text())
        sweep.write_text(json.dumps(facts | {"runs": [run.name, "config", "manifest"]}))
        result = [run.with_name("config") / "config.yaml", run.with_name("manifest") / "manifest.json"]
        for path in (outputs / "sweeps" / "other.json", outputs / "slurm" / "other" / "1" / "submission.json"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            result.append(path)
        return outputs, result

    return write


@pytest.mark.parametrize("content", TORN.values(), ids=TORN)
def test_what_cannot_be_read_is_named_and_the_rest_is_told(
    content: bytes,
    torn: Callable[[bytes], tuple[Path, list[Path]]],
    xclrun: Callable[..., tuple[int, str]],
) -> None:
    outputs, (config, manifest, sweep, submission) = torn(content)
    code, output = xclrun("status", "all", "--outputs", str(outputs))
    assert code == 1
    assert "3 runs: 1 finished, 1 lost, 1 damaged\n" in output
    assert all(output.count(str(path)) == 1 for path in (manifest, sweep, submission)), output
    # A run that was not done is as its manifest says; its config is written anew before it goes on.
    assert str(config) not in output
    warnings: list[str] = []
    assert [record.status for record in read_records(outputs, warnings.append)] == ["finished"]
    assert all(any(str(path.parent) in text for text in warnings) for path in (config, manifest))
    code, output = xclrun("status", "other", "--outputs", str(outputs))
    assert code == 1
    assert "the file of sweep 'other' is unreadable" in output
    # Its command writes the file anew.
    [sweep_file] = (path for path in (outputs / "sweeps").iterdir() if path != sweep)
    sweep_file.write_bytes(content)
    sweep.unlink()
    submission.unlink()
    assert xclrun(*JOB, f"paths.outputs={outputs}", "-m")[0] == 0
    assert xclrun("status", "--outputs", str(outputs))[0] == 0


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_cannot_be_read_stops_neither_reports_nor_the_mirror(
    torn: Callable[[bytes], tuple[Path, list[Path]]], xclrun: Callable[..., tuple[int, str]]
) -> None:
    outputs, (config, manifest, sweep, _) = torn(TORN["torn"])
    for command, done in (
        (("mlflow", "sync"), "1 run sent"),
        (("report",), "Intent"),
        (("report", "--from-runs"), "Intent"),
    ):
        code, output = xclrun(*command, "--outputs", str(outputs))
        assert (code, done in output) == (1, True), output
        assert "Traceback" not in output
        for path in (config.parent, manifest.parent, sweep):
            assert str(path) in output


# A full disk.


def test_no_space_for_the_weights(finished: Path, tmp_path: Path, xclrun: Callable[..., tuple[int, str]]) -> None:
    outputs = tmp_path / "outputs"
    shutil.copytree(finished, outputs)
    existing = {path: path.read_bytes() for path in outputs.rglob("*") if path.is_file()}
    command = (*JOB, "seed=2", f"paths.outputs={outputs}", "-m")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, before[1]))
    try:
        code, output = xclrun(*command)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 1
    assert "Traceback" not in output
    assert f"no space left to write {outputs}/store/" in output
    assert "re-run the same command; finished work is not lost" in output
    assert {path: path.read_bytes() for path in existing} == existing
    assert whole(outputs)
    [failed] = events(outputs, "failed")
    assert failed["error"].startswith("no space left to write")
    assert xclrun(*command)[0] == 0
    assert set(predictions(outputs)) > set(predictions(finished))
    assert whole(outputs)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, that a test may fill and enlarge."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small disk: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize("free", [0, 40, 200, 400])
def test_full_disk(free: int, small_disk: Path, finished: Path, xclrun: Callable[..., tuple[int, str]]) -> None:
    outputs = small_disk / "outputs"
    shutil.copytree(finished, outputs)
    command = (*JOB, "seed=2", "trainer.checkpoint_minutes=0.000001", f"paths.outputs={outputs}", "-m")
    with (small_disk / "ballast").open("wb") as ballast:
        remaining = shutil.disk_usage(small_disk).free
        ballast.write(b"0" * (remaining - 1024 * free))
    code, output = xclrun(*command)
    assert code == 1
    assert "Traceback" not in output
    assert "no space left to write" in output
    assert list(outputs.glob("store/**/.tmp-*")) == []
    assert {key: value for key, value in predictions(outputs).items() if "-s1-" in key} == predictions(finished)
    assert xclrun("store", "verify", "--outputs", str(outputs))[0] == 0
    (small_disk / "ballast").unlink()
    assert xclrun(*command)[0] == 0
    assert whole(outputs)
