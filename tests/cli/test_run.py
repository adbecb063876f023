"""Jobs from the command line: what they write and say, and how they fail."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from xclrun.store.files import read_events
from xclrun.store.rundir import RunDirectory

from .conftest import SMALL, Told

RECORD = {"config.yaml", "manifest.json", "scores.parquet", "events.jsonl", "DONE", "predictions"}


def runs(outputs: Path) -> list[RunDirectory]:
    """Return the run directories, by name."""
    return [RunDirectory(path) for path in sorted((outputs / "runs").iterdir())]


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind."""
    return [event for event in read_events(run.events) if event["event"] == kind]


def test_a_job_writes_its_directory_and_tells_the_matrix(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*SMALL)
    assert told.code == 0
    assert told.out == ""
    [run] = runs(here / "outputs")
    assert {path.name for path in run.path.iterdir()} >= RECORD
    assert run.read_manifest()["status"] == "finished"
    lines = told.err.splitlines()
    assert lines[0] == "xclrun: 1 run (1 strategy × 1 order × 1 seed) on mini with tiny → outputs"
    assert f"[1/1] naive · h2l · seed 1   {run.run_id}" in lines
    rows = [line.split()[:2] for line in lines if line[:1] == " " and line.split()[0] in "012"]
    assert rows == [["0", "before"], ["1", "en"], ["2", "de"]]
    assert "1 of 1 runs finished in " in told.err
    assert lines[-1].startswith("Next: `xclrun report sweep-")
    # Nothing lies beside the outputs: Hydra writes nothing of its own.
    assert [path.name for path in here.iterdir()] == ["outputs"]


def test_the_same_command_skips_what_is_finished(xclrun: Callable[..., Told], here: Path) -> None:
    assert xclrun(*SMALL, "seed=1,2").code == 0
    before = [path.stat().st_mtime_ns for run in runs(here / "outputs") for path in sorted(run.path.rglob("*"))]
    told = xclrun(*SMALL, "seed=1,2,3")
    assert told.code == 0
    assert told.err.splitlines()[0].endswith("→ outputs; 2 finished before")
    first, second, third = runs(here / "outputs")
    for number, run in ((1, first), (2, second)):
        assert f"[{number}/3] naive · h2l · seed {number}   {run.run_id}: finished before, skipped" in told.err
    assert len(events(third, "finished")) == 1
    after = [path.stat().st_mtime_ns for run in (first, second) for path in sorted(run.path.rglob("*"))]
    assert after == before


def test_orders_given_as_lists_can_be_swept(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*SMALL, "order=[en,de],[de,en],h2l", "-m")
    assert told.code == 0
    assert told.err.startswith("xclrun: 3 runs (1 strategy × 3 orders × 1 seed)")
    streams = {
        run.run_id.rsplit("-s1-")[0]: run.read_manifest()["stream"]["languages"] for run in runs(here / "outputs")
    }
    assert streams == {
        "mini-naive-en-de": ["en", "de"],
        "mini-naive-de-en": ["de", "en"],
        "mini-naive-h2l": ["en", "de"],
    }


@pytest.mark.parametrize("how", ["override", "variable"])
def test_outputs_lie_where_they_are_wanted(
    how: str, xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = here.parent / "else where" / "ö=1"
    if how == "variable":
        monkeypatch.setenv("XCLRUN_OUTPUTS", str(place))
    told = xclrun(*SMALL, *([f"paths.outputs='{place}'"] if how == "override" else []))
    assert told.code == 0
    assert len(runs(place)) == 1
    assert list(here.iterdir()) == []
    assert ("--outputs" in told.err.splitlines()[-1]) == (how == "override")


def test_a_loss_that_is_not_finite_fails_its_run_alone(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*SMALL, "trainer.lr=1e30,1e-3", "-m")
    assert told.code == 1
    by_lr = {OmegaConf.load(run.config).trainer.lr: run for run in runs(here / "outputs")}
    failed, finished = by_lr[1e30], by_lr[1e-3]
    assert "1 of 2 runs finished in " in told.err
    assert told.last == f"failed: {failed.run_id}; give the same command again to retry"
    assert finished.finished
    assert not failed.finished
    manifest = failed.read_manifest()
    assert manifest["status"] == "failed"
    assert manifest["error"].startswith(
        "hop 1 (en), epoch 1, step 2: the loss is nan; try a lower trainer.lr (now 1e+30)"
    )
    assert f"  {manifest['error']}\n" in told.err


def test_a_failure_that_was_not_foreseen_keeps_its_traceback(
    xclrun: Callable[..., Told], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("one\nof many lines")

    monkeypatch.setattr("xclrun.train.loop.HopTraining._end_epoch", broken)
    told = xclrun(*SMALL)
    assert told.code == 1
    [run] = runs(here / "outputs")
    assert "ZeroDivisionError: one" in told.err
    assert f"the traceback is in outputs/runs/{run.run_id}/error.log" in told.err
    assert told.last.startswith(f"failed: {run.run_id}")
    assert "in broken" in (run.path / "error.log").read_text()


def test_a_failure_before_any_run_is_one_line(xclrun: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("one\nof many lines")

    monkeypatch.setattr("xclrun.launch.sweep.plan_sweep", broken)
    told = xclrun(*SMALL)
    assert told.code == 1
    assert told.line == "ZeroDivisionError: one of many lines (XCLRUN_DEBUG=1 shows where)"


@pytest.fixture
def small_files() -> Iterator[None]:
    """Let no file grow beyond 20 kB, as a disk that is full does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_fails_the_run_and_damages_nothing(
    xclrun: Callable[..., Told], here: Path, request: pytest.FixtureRequest
) -> None:
    # What lies in the cache before is not what fails.
    assert xclrun(*SMALL, "seed=7").code == 0
    whole = {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}
    request.getfixturevalue("small_files")
    told = xclrun(*SMALL)
    assert told.code == 1
    failed = next(run for run in runs(here / "outputs") if "-s1-" in run.run_id)
    assert told.last.startswith(f"failed: {failed.run_id}; ")
    told_why = failed.read_manifest()["error"]
    assert told_why.startswith("no space left to write outputs/store/")
    assert "give the same command again: nothing of record is lost" in told_why
    assert {path: path.read_bytes() for path in whole} == whole
    assert not list(here.rglob(".tmp-*"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[1],) * 2)
    assert xclrun(*SMALL).code == 0


@pytest.mark.parametrize("place", ["file/outputs", "file"])
def test_outputs_that_cannot_be_written(place: str, refused: Callable[..., str], here: Path) -> None:
    (here / "file").write_text("")
    line = refused(*SMALL, f"paths.outputs={place}")
    assert line.startswith("cannot write file")
    assert refused(*SMALL, f"paths.store={place}").startswith("cannot write file")
    assert line.endswith("; choose another place with paths.outputs=DIR (or XCLRUN_OUTPUTS) and paths.store=DIR")


def test_outputs_without_permission(refused: Callable[..., str], here: Path) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:
        # Root may write into any folder of a disk, but not into the kernel's.
        closed = Path("/sys")
        if not os.path.ismount(closed):
            pytest.skip("root may write everywhere here")
    line = refused(*SMALL, f"paths.outputs={closed}/outputs")
    assert line.startswith(f"cannot write {closed}/outputs (")
    assert line.endswith("; choose another place with paths.outputs=DIR (or XCLRUN_OUTPUTS) and paths.store=DIR")


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("runtime.device=cuda", "runtime.device=cuda: torch sees no GPU here; use runtime.device=cpu or auto"),
        ("trainer.precision=fp16", "trainer.precision=fp16 needs a GPU for its loss scaler; on a CPU use fp32 or bf16"),
    ],
)
def test_a_device_that_is_not_there(
    override: str, told: str, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert refused(*SMALL, override) == told


def test_a_wrong_path_of_an_encoder(refused: Callable[..., str], here: Path) -> None:
    (here / "empty").mkdir()
    (here / "pickled").mkdir()
    (here / "pickled" / "config.json").write_text("{}")
    (here / "pickled" / "pytorch_model.bin").write_text("")
    model = ["model=mbert", "tracking=none"]
    layout = "; it must hold an encoder in the transformers layout"
    assert refused(*model, "model.path=nowhere").startswith(f"model.path=nowhere: is no folder{layout}")
    assert refused(*model, "model.path=empty").startswith(f"model.path=empty: has no config.json{layout}")
    assert "in other formats are pickles, never read" in refused(*model, "model.path=pickled")


def test_a_hub_that_cannot_be_reached_names_the_path_to_give(run_python: Callable[..., str], tmp_path: Path) -> None:
    code = (
        "import contextlib, io, os\nfrom xclrun.cli import main\nerr = io.StringIO()\n"
        "with contextlib.redirect_stderr(err):\n    code = main(['model=mbert', 'paths.outputs=written'])\n"
        "print(code, os.path.exists('written'), err.getvalue())"
    )
    told = run_python(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path / "empty"))
    assert told.startswith(
        "2 False xclrun: model=mbert: the hub cannot be reached for 'bert-base-multilingual-cased'; "
    )
    assert "give a local folder with model.path=DIR" in told
    assert "\n" not in told


def test_the_command_is_kept_with_the_sweep(xclrun: Callable[..., Told], here: Path) -> None:
    assert xclrun(*SMALL, "seed=1,2", "-m").code == 0
    [path] = (here / "outputs" / "sweeps").glob("*.json")
    sweep = json.loads(path.read_text())
    assert sweep["name"] == path.stem
    assert sorted(sweep["runs"]) == [run.run_id for run in runs(here / "outputs")]
    again = xclrun(*sweep["command"].split()[1:])
    assert again.code == 0
    assert "2 finished before" in again.err
