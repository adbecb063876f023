"""Sweeps on a real Slurm, disturbed in every way that a cluster knows."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recovery.commands import SMALL, predictions, small, wait_for, whole

from xclrun.config.schema import TrackingConfig
from xclrun.core.version import PACKAGE
from xclrun.launch.cluster.files import submissions
from xclrun.tracking.mirror import Mirror

from .conftest import MAX_ARRAY
from .lab import LONG, SLURM, Lab

pytestmark = [
    pytest.mark.full,
    pytest.mark.xdist_group("slurm"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of the database's library, about MLflow
]

Undisturbed = Callable[..., dict[str, str]]


def log_of(outputs: Path) -> str:
    [job] = [job for s in submissions(outputs) for job, runs in s.jobs() if runs]
    return job.log.read_text()


def tries(outputs: Path) -> list[dict[str, Any]]:
    [job] = [job for s in submissions(outputs) for job, runs in s.jobs() if runs]
    return job.files.events()


def test_a_sweep_is_submitted_at_once_and_equals_the_local_one(
    lab: Lab, tmp_path: Path, undisturbed: Undisturbed
) -> None:
    sweep = small("strategy=naive,er", "order=[en,de,th],[th,de,en]", "seed=1,2")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = lab.xclrun(*sweep, *SLURM, "hydra.launcher.pack=2", f"paths.outputs={tmp_path}", "-m")
    # Of the processor: the clock also counts what other processes do.
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 10
    assert done.returncode == 0, done.stderr
    printed = done.stderr
    # Four jobs with shared trainings and four with runs; the cluster allows arrays of three.
    assert [printed.count(f"{n} with {kind}") for kind in ("shared", "runs") for n in ("3 jobs", "1 job")] == [
        1,
        1,
        1,
        1,
    ]
    assert f"MaxArraySize            = {MAX_ARRAY}" in lab.call("scontrol", "show", "config")
    assert [len(array["packs"]) for array in submissions(tmp_path)[0].arrays] == [3, 1, 3, 1]
    # Nothing is submitted twice.
    assert "8 runs already running or queued" in lab.submit(tmp_path, *sweep, "hydra.launcher.pack=2")
    watched = lab.xclrun("status", "--watch", "1", "--outputs", str(tmp_path))
    assert watched.returncode == 0, watched.stdout
    assert "8 runs: 8 finished" in watched.stdout
    assert set(lab.ended(tmp_path).values()) == {"COMPLETED"}
    assert predictions(tmp_path) == undisturbed(sweep)
    assert whole(tmp_path)


def _interrupt(lab: Lab, job: str) -> None:
    lab.call("scancel", "--signal=USR2", job)


def _preempt(lab: Lab, job: str) -> None:
    """A job of a higher partition needs the whole node."""
    lab.call("sbatch", "-p", "high", "-n", "4", "-o", "/dev/null", "--wrap", "sleep 1")


def _requeue(lab: Lab, job: str) -> None:
    lab.call("scontrol", "requeue", job)


@pytest.mark.parametrize("ranks", ["runtime.devices=2", "hydra.launcher.tasks_per_node=2"])
def test_a_run_with_two_ranks_is_requeued_and_finishes(lab: Lab, tmp_path: Path, ranks: str) -> None:
    parts = ("trainer.batch_size=2", "trainer.gradient_accumulation=2")
    lab.submit(tmp_path, *LONG, "strategy=er", "order=[en,de]", *parts, ranks)
    _interrupt(lab, lab.training(tmp_path))
    [run] = lab.wait(tmp_path, "finished", "failed", "lost")
    assert run.state == "finished", log_of(tmp_path)
    assert "xclrun: the job is requeued" in log_of(tmp_path)
    [directory] = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "manifest.json").read_text())["environment"]["ranks"] == "2"


@pytest.mark.parametrize("disturb", [_interrupt, _preempt, _requeue], ids=["USR2", "preemption", "requeue"])
def test_a_disturbed_job_goes_on_by_itself(
    lab: Lab, tmp_path: Path, undisturbed: Undisturbed, disturb: Callable[[Lab, str], None]
) -> None:
    sweep = (*LONG, "strategy=er")
    lab.submit(tmp_path, *sweep)
    disturb(lab, lab.training(tmp_path))
    assert [run.state for run in lab.wait(tmp_path, "finished", "failed", "lost")] == ["finished"], log_of(tmp_path)
    # Both tries got further, and the second began where the first was stopped.
    first, second = [event["position"] for event in tries(tmp_path) if event["event"] == "started"]
    assert first < second
    # A run is finished some instants before the process that did it has put everything away.
    assert set(lab.ended(tmp_path).values()) == {"COMPLETED"}
    assert predictions(tmp_path) == undisturbed(sweep)
    assert whole(tmp_path)


def test_a_job_at_its_time_limit_goes_on_by_itself(lab: Lab, tmp_path: Path, undisturbed: Undisturbed) -> None:
    sweep = (*LONG, "strategy=naive")
    lab.submit(tmp_path, *sweep, "hydra.launcher.signal_delay=50")
    job = lab.training(tmp_path)
    os.kill(lab.worker(tmp_path), signal.SIGSTOP)
    lab.call("scontrol", "update", f"JobId={job}", "TimeLimit=1")
    wait_for(lambda: "xclrun: the job is requeued" in log_of(tmp_path), 60)
    lab.call("scontrol", "update", f"JobId={job}", "TimeLimit=30")
    assert [run.state for run in lab.wait(tmp_path, "finished", "failed", "lost")] == ["finished"], log_of(tmp_path)
    assert predictions(tmp_path) == undisturbed(sweep)


def test_cancelled(lab: Lab, tmp_path: Path, undisturbed: Undisturbed) -> None:
    sweep = (*LONG, "strategy=naive", "seed=1,2")
    # One after the other, so that one is queued while the other runs.
    lab.submit(tmp_path, *sweep, "hydra.launcher.array_parallelism=1")
    lab.training(tmp_path)
    output = lab.xclrun("cancel", "--outputs", str(tmp_path))
    assert output.returncode == 0, output.stderr
    assert output.stdout.startswith("2 jobs of sweep-")
    assert [run.state for run in lab.wait(tmp_path)] == ["interrupted", "interrupted"]
    assert set(lab.ended(tmp_path).values()) == {"CANCELLED"}
    # The same command goes on.
    assert lab.submit(tmp_path, *sweep).count("2 jobs") == 1
    assert [run.state for run in lab.wait(tmp_path)] == ["finished", "finished"]
    assert predictions(tmp_path) == undisturbed(sweep)


def test_a_killed_worker_is_lost_and_alone_submitted_again(lab: Lab, tmp_path: Path, undisturbed: Undisturbed) -> None:
    sweep = (*LONG, "strategy=naive")
    lab.submit(tmp_path, *sweep)
    lab.training(tmp_path)
    os.kill(lab.worker(tmp_path), signal.SIGKILL)
    [run] = lab.wait(tmp_path, "finished", "failed", "lost")
    assert run.state == "lost"
    assert "FAILED" in run.detail
    assert Path(run.log).is_file()
    assert lab.xclrun("status", "--outputs", str(tmp_path)).returncode == 1
    lab.submit(tmp_path, *sweep)
    assert [run.state for run in lab.wait(tmp_path)] == ["finished"]
    assert predictions(tmp_path) == undisturbed(sweep)


def test_a_node_whose_daemon_dies_goes_on(lab: Lab, tmp_path: Path, undisturbed: Undisturbed) -> None:
    sweep = (*LONG, "strategy=naive")
    lab.submit(tmp_path, *sweep)
    lab.training(tmp_path)
    pid = lab.folder / "pid" / "slurmd"
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert [run.state for run in lab.status(tmp_path)] == ["running"]
    with (lab.folder / "log" / "slurmd.out").open("ab") as log:
        lab.daemons.append(
            subprocess.Popen(["slurmd", "-D"], env=lab.environment, stdout=log, stderr=log, start_new_session=True)
        )
    pid.write_text(str(lab.daemons[-1].pid))
    assert [run.state for run in lab.wait(tmp_path)] == ["finished"]
    assert predictions(tmp_path) == undisturbed(sweep)


def test_a_failing_run_is_failed_everywhere_and_its_siblings_finish(lab: Lab, tmp_path: Path) -> None:
    sweep = [text for text in SMALL if text != "tracking=none"]
    sweep += ["strategy=naive", "trainer.lr=1e-3,1e30,1e-4", "hydra.launcher.max_array=2"]
    done = lab.xclrun(*sweep, "hydra/launcher=slurm", "hydra.launcher.wait=true", f"paths.outputs={tmp_path}", "-m")
    assert done.returncode == 1
    assert re.search(r"1 failed", done.stderr)
    assert [len(array["packs"]) for array in submissions(tmp_path)[0].arrays] == [2, 1]
    result = lab.status(tmp_path)
    assert [run.state for run in result] == ["finished", "failed", "finished"]
    assert sorted(lab.ended(tmp_path).values()) == ["COMPLETED", "COMPLETED", "FAILED"]
    assert lab.jobs(tmp_path)[result[1].job] == "FAILED"
    output = lab.xclrun("status", "--outputs", str(tmp_path)).stdout
    assert f"log: {result[1].log}" in output
    assert result[1].detail in lab.xclrun("logs", result[1].run_id, "--outputs", str(tmp_path)).stdout
    # The workers wrote files alone.
    assert not (tmp_path / "mlflow.db").exists()
    assert lab.xclrun("mlflow", "sync", "--watch", "0.1", "--outputs", str(tmp_path)).returncode == 0
    mirror = Mirror(tmp_path, TrackingConfig())
    runs = mirror.client.search_runs([mirror.experiment], "tags.`xclrun.kind` = 'run'")
    states = {run.data.tags["xclrun.run_id"]: run.info.status for run in runs}
    assert [states[run.run_id] for run in result] == ["FINISHED", "FAILED", "FINISHED"]
    # The same command submits the failed one alone.
    again = lab.xclrun(*sweep, "hydra/launcher=slurm", f"paths.outputs={tmp_path}", "-m")
    assert again.returncode == 0
    assert submissions(tmp_path)[-1].arrays[0]["packs"] == [[result[1].run_id]]
    lab.wait(tmp_path)


def test_what_is_edited_after_submission_does_not_reach_queued_jobs(lab: Lab, tmp_path: Path) -> None:
    checkout, outputs = tmp_path / "checkout", tmp_path / "outputs"
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("xclrun", "conf", "sweeps"):
        shutil.copytree(PACKAGE.parent / name, checkout / name, ignore=ignored)
    options = ("strategy=naive", "+hydra.launcher.options.hold=true")
    arguments = [*SMALL, *options, *SLURM, f"paths.outputs={outputs}", "-m"]
    done = lab.xclrun(*arguments, PYTHONPATH=str(checkout))
    assert done.returncode == 0, done.stderr
    assert [run.state for run in lab.status(outputs)] == ["waiting"]
    (checkout / "xclrun" / "work.py").write_text("raise SystemExit('edited')\n")
    (checkout / "conf" / "config.yaml").write_text("seed: 17\n")
    [job] = lab.jobs(outputs)
    lab.call("scontrol", "release", job)
    assert [run.state for run in lab.wait(outputs)] == ["finished"]
    [manifest] = [json.loads(path.read_text()) for path in outputs.glob("runs/*/manifest.json")]
    assert manifest["status"] == "finished"


def test_plan_measures_in_a_job(lab: Lab, tmp_path: Path) -> None:
    command = ["plan", *small("strategy=naive", "order=[en,de]"), *SLURM, f"paths.outputs={tmp_path}"]
    done = lab.xclrun(*command, "hydra.launcher.setup=['export OMP_NUM_THREADS=1']", "--measure")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Measured on cpu: 3 steps")
    assert [path.name for path in tmp_path.iterdir()] == ["slurm"]
