"""Jobs from the command line: what they write and say, and how they fail."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.conftest import TINY
from xclrun.model import source
from xclrun.store.files import read_events
from xclrun.store.rundir import RunDirectory

from .conftest import Told

RECORD = {"config.yaml", "manifest.json", "scores.parquet", "counts.parquet", "events.jsonl", "DONE", "predictions"}


def runs(outputs: Path) -> list[RunDirectory]:
    """Return the run directories, by name."""
    return [RunDirectory(path) for path in sorted((outputs / "runs").iterdir())]


def events(run: RunDirectory, kind: str) -> list[dict[str, Any]]:
    """Return the events of one kind."""
    return [event for event in read_events(run.events) if event["event"] == kind]


def test_a_job_writes_its_directory_and_tells_the_matrix(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*TINY)
    assert told.code == 0
    assert told.out == ""
    [run] = runs(here / "outputs")
    assert {path.name for path in run.path.iterdir()} >= RECORD
    assert run.read_manifest()["status"] == "finished"
    lines = told.err.splitlines()
    assert lines[0] == "xclrun: 1 run (1 strategy × 1 order × 1 seed) on mini with tiny → outputs"
    # A narrow terminal has the ID in a line of its own.
    assert f"[1/1] naive · h2l · seed 1 {run.run_id}" in " ".join(told.err.split())
    rows = [line.split()[:2] for line in lines if line[:1] == " " and line.split()[0] in "012"]
    assert rows == [["0", "before"], ["1", "en"], ["2", "de"]]
    assert "1 of 1 runs finished in " in told.err
    assert lines[-2].startswith("Next: `xclrun report sweep-")
    assert "`xclrun store gc --weights` frees" in lines[-1]
    # Nothing lies beside the outputs: Hydra writes nothing of its own.
    assert [path.name for path in here.iterdir()] == ["outputs"]


def test_the_same_command_skips_what_is_finished(xclrun: Callable[..., Told], here: Path) -> None:
    assert xclrun(*TINY, "seed=1,2").code == 0
    before = [path.stat().st_mtime_ns for run in runs(here / "outputs") for path in sorted(run.path.rglob("*"))]
    told = xclrun(*TINY, "seed=1,2,3")
    assert told.code == 0
    assert told.err.splitlines()[0].endswith("→ outputs; 2 already finished")
    first, second, third = runs(here / "outputs")
    # A large sweep that is resumed has no line for each finished run; the numbers of the others count them.
    assert re.findall(r"\[\d/3\]", told.err) == ["[3/3]"]
    assert len(events(third, "finished")) == 1
    after = [path.stat().st_mtime_ns for run in (first, second) for path in sorted(run.path.rglob("*"))]
    assert after == before


def test_outputs_lie_where_they_are_wanted(xclrun: Callable[..., Told], here: Path) -> None:
    place = here.parent / "else where" / "ö=1"
    told = xclrun(*TINY, f"paths.outputs='{place}'")
    assert told.code == 0
    assert len(runs(place)) == 1
    assert list(here.iterdir()) == []
    assert "--outputs" in told.err.splitlines()[-1]


def test_a_loss_that_is_not_finite_fails_its_run_alone(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*TINY, "trainer.lr=1e30,1e-3", "-m")
    assert told.code == 1
    by_lr = {OmegaConf.load(run.config).trainer.lr: run for run in runs(here / "outputs")}
    failed, finished = by_lr[1e30], by_lr[1e-3]
    assert "1 of 2 runs finished in " in told.err
    assert told.last == f"failed: {failed.run_id}; re-run the same command to retry"
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
    told = xclrun(*TINY)
    assert told.code == 1
    [run] = runs(here / "outputs")
    assert "ZeroDivisionError: one" in told.err
    assert f"traceback: outputs/runs/{run.run_id}/error.log" in told.err
    assert told.last.startswith(f"failed: {run.run_id}")
    assert "in broken" in (run.path / "error.log").read_text()


def test_a_failure_before_any_run_is_one_line(xclrun: Callable[..., Told], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*arguments: Any) -> None:
        raise ZeroDivisionError("one\nof many lines")

    monkeypatch.setattr("xclrun.launch.sweep.plan_sweep", broken)
    told = xclrun(*TINY)
    assert told.code == 1
    assert told.line == "ZeroDivisionError: one of many lines (XCLRUN_DEBUG=1 shows the traceback)"


@pytest.mark.parametrize("place", ["file/outputs", "file"])
def test_outputs_that_cannot_be_written(place: str, refused: Callable[..., str], here: Path) -> None:
    (here / "file").write_text("")
    line = refused(*TINY, f"paths.outputs={place}")
    assert line.startswith("cannot write file")
    assert refused(*TINY, f"paths.store={place}").startswith("cannot write file")
    assert line.endswith("; choose another folder with paths.outputs=DIR (or XCLRUN_OUTPUTS) and paths.store=DIR")


def test_outputs_without_permission(refused: Callable[..., str], here: Path) -> None:
    closed = here / "closed"
    closed.mkdir(mode=0o500)
    if os.geteuid() == 0:
        # Root may write into any folder of a disk, but not into the kernel's.
        closed = Path("/sys")
        if not os.path.ismount(closed):
            pytest.skip("root may write everywhere here")
    line = refused(*TINY, f"paths.outputs={closed}/outputs")
    assert line.startswith(f"cannot write {closed}/outputs (")
    assert line.endswith("; choose another folder with paths.outputs=DIR (or XCLRUN_OUTPUTS) and paths.store=DIR")


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
    assert refused(*TINY, override) == told


def test_an_encoder_that_cannot_be_had(
    refused: Callable[..., str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "pickled").mkdir()
    (here / "pickled" / "config.json").write_text("{}")
    (here / "pickled" / "pytorch_model.bin").write_text("")
    model = ["model=mbert", "tracking=none"]
    assert "pickles are never read" in refused(*model, "model.path=pickled")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(here / "empty"))
    source._from_hub.cache_clear()
    line = refused(*model)
    assert line.startswith("model=mbert: the hub cannot be reached for 'bert-base-multilingual-cased'; ")
    assert "set model.path=DIR to a local folder" in line


@pytest.mark.full
def test_a_sweep_of_orders_and_its_command_are_kept(xclrun: Callable[..., Told], here: Path) -> None:
    told = xclrun(*TINY, "order=[en,de],[de,en],h2l", "-m")
    assert told.code == 0
    assert told.err.startswith("xclrun: 3 runs (1 strategy × 3 orders × 1 seed)")
    found = {run.run_id: run.read_manifest()["stream"]["languages"] for run in runs(here / "outputs")}
    assert {run_id.rsplit("-s1-")[0]: languages for run_id, languages in found.items()} == {
        "mini-naive-en-de": ["en", "de"],
        "mini-naive-de-en": ["de", "en"],
        "mini-naive-h2l": ["en", "de"],
    }
    [path] = (here / "outputs" / "sweeps").glob("*.json")
    sweep = json.loads(path.read_text())
    assert sweep["name"] == path.stem
    assert sorted(sweep["runs"]) == [*found]
    again = xclrun(*shlex.split(sweep["command"])[1:])
    assert again.code == 0
    assert "3 already finished" in again.err
