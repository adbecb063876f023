"""A real Slurm that is silent, rejects, is killed at or is asked by several: nothing is submitted twice or lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from recovery.commands import SMALL, XCLRUN, small, wait_for

from xclrun.launch.cluster.files import submissions

from .lab import SLURM, Lab
from .test_real import log_of

pytestmark = [pytest.mark.full, pytest.mark.xdist_group("slurm")]

# Jobs that stay in the queue.
HELD = (*SLURM, "+hydra.launcher.options.hold=true")
OTHER = 65534  # the number of a user who is not root


@pytest.fixture
def put(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """Put scripts in front of Slurm's commands; return the environment. In a script, ``REAL`` is the real command."""

    def scripts(**content: str) -> dict[str, str]:
        folder = tmp_path / f"bin-{'-'.join(content)}"
        folder.mkdir()
        for name, text in content.items():
            (folder / name).write_text(f"#!/bin/bash\n{text.replace('REAL', str(shutil.which(name)))}\n")
            (folder / name).chmod(0o755)
        return {"PATH": f"{folder}:{os.environ['PATH']}"}

    return scripts


@pytest.fixture
def outputs(lab: Lab, tmp_path: Path) -> Iterator[Path]:
    """An outputs folder, whose jobs are cancelled afterwards."""
    folder = tmp_path / "outputs"
    yield folder
    if queued := list(queue(lab, folder)):
        lab.call("scancel", *queued)
        wait_for(lambda: not queue(lab, folder), 60)


def queue(lab: Lab, outputs: Path) -> list[str]:
    """Return the jobs in the queue whose scripts are in an outputs folder, recorded or not."""
    rows = lab.call("squeue", "-h", "-a", "-r", "-o", "%i|%o").splitlines()
    return [job for job, _, script in (row.partition("|") for row in rows) if script.startswith(f"{outputs}/")]


@pytest.mark.parametrize("how", ["signal", "preemption"])
def test_a_job_stopped_in_its_first_second_returns_to_the_queue(lab: Lab, outputs: Path, how: str) -> None:
    started = outputs.parent / "started"
    lab.submit(outputs, *small("strategy=naive"), f"hydra.launcher.setup=[touch {started}]")
    wait_for(started.exists, 60)
    [job] = lab.jobs(outputs)
    if how == "signal":
        # To the script, and to whatever it has started.
        lab.call("scancel", "--signal=USR2", "--full", job)
    else:
        lab.call("sbatch", "-p", "high", "-n", "4", "-o", "/dev/null", "--wrap", "sleep 1")
    assert [run.state for run in lab.wait(outputs, "finished", "failed", "lost")] == ["finished"], log_of(outputs)
    assert set(lab.ended(outputs).values()) == {"COMPLETED"}


def test_while_slurm_is_silent_nothing_is_submitted_and_watching_goes_on(
    lab: Lab, outputs: Path, put: Callable[..., dict[str, str]]
) -> None:
    sweep = [*small("strategy=naive", "seed=1,2"), *HELD, f"paths.outputs={outputs}", "-m"]
    assert lab.xclrun(*sweep).returncode == 0
    jobs = queue(lab, outputs)
    assert len(jobs) == 2
    error = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    silent = put(squeue=error, sacct=error)
    again = lab.xclrun(*sweep, **silent)
    assert again.returncode != 0
    assert "Slurm does not answer (slurm_load_jobs error: Unable to contact" in again.stderr
    assert queue(lab, outputs) == jobs
    shown = lab.xclrun("status", "--outputs", str(outputs), **silent)
    assert "2 unknown (Slurm does not answer)" in shown.stdout
    watching = subprocess.Popen(
        [*XCLRUN, "status", "--watch", "0.5", "--outputs", str(outputs)],
        env={**lab.environment, **silent},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    try:
        # Two equal looks end it, unless the runs count as active.
        looks = [line for _, line in zip(range(40), watching.stdout, strict=False) if "unknown (" in line]
        assert len(looks) > 2
    finally:
        watching.kill()
        watching.communicate()


def test_two_commands_at_once_submit_each_run_once(lab: Lab, outputs: Path) -> None:
    sweep = [*XCLRUN, *small("strategy=naive,er", "seed=1,2"), *HELD, f"paths.outputs={outputs}", "-m"]
    both = [
        subprocess.Popen(sweep, env=lab.environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [process.communicate(timeout=200)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], printed
    assert sum("4 runs already running or queued" in text for text in printed) == 1
    runs = [run for s in submissions(outputs) for _, runs in s.jobs() for run in runs]
    assert len(runs) == len(set(runs)) == 4
    assert sorted(queue(lab, outputs)) == sorted(job.id for s in submissions(outputs) for job, _ in s.jobs())


def test_after_a_rejected_array_the_same_command_submits_the_rest(
    lab: Lab, outputs: Path, put: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    sweep = [*small("strategy=naive", "seed=1,2,3,4"), *HELD, f"paths.outputs={outputs}", "-m"]
    second = f'[ -e {tmp_path}/called ] && set -- --partition=nowhere "$@"\ntouch {tmp_path}/called\nexec REAL "$@"'
    done = lab.xclrun(*sweep, **put(sbatch=second))
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "3 of 4 jobs submitted; re-run the same command to submit the rest" in last
    assert "nvalid partition" in last
    assert len(queue(lab, outputs)) == 3
    assert "3 runs already running or queued" in lab.xclrun(*sweep).stderr
    assert len(queue(lab, outputs)) == 4


def test_jobs_of_a_command_killed_while_it_submitted_are_found_and_cancelled(
    lab: Lab, outputs: Path, put: Callable[..., dict[str, str]]
) -> None:
    sweep = [*small("strategy=naive", "seed=1,2"), *HELD, f"paths.outputs={outputs}", "-m"]
    done = lab.xclrun(*sweep, **put(sbatch='REAL "$@"; kill -KILL $PPID'))
    assert done.returncode == -signal.SIGKILL
    assert [run.state for run in lab.status(outputs)] == ["waiting", "waiting"]
    assert "2 runs already running or queued" in lab.xclrun(*sweep).stderr
    assert len(queue(lab, outputs)) == 2
    # Without any record, they are known by their names.
    for record in outputs.glob("slurm/*/*/submission.json"):
        record.unlink()
    assert [run.state for run in lab.status(outputs)] == ["waiting", "waiting"]
    cancelled = lab.xclrun("cancel", "--outputs", str(outputs))
    assert (cancelled.returncode, cancelled.stdout[:6]) == (0, "2 jobs"), cancelled.stderr
    assert queue(lab, outputs) == []


def test_another_user_neither_loses_nor_repeats_jobs_and_cancel_says_what_slurm_did(lab: Lab) -> None:
    home = Path(tempfile.mkdtemp(prefix="xclrun-shared-"))
    outputs = home / "outputs"
    # A user who can read the environment of Python wherever it is, and is no other root.
    rights = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    as_other = ["setpriv", f"--reuid={OTHER}", f"--regid={OTHER}", "--clear-groups", *rights]
    environment = {**lab.environment, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}

    def other(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [*as_other, *XCLRUN, *arguments]
        return subprocess.run(
            command, env=environment, cwd=home, capture_output=True, text=True, timeout=200, check=False
        )

    try:
        home.chmod(0o777)
        lab.folder.chmod(0o755)
        if (tried := other("--version")).returncode:
            pytest.skip(f"no other user can run xclrun here: {tried.stderr[-300:]}")
        sweep = [*SMALL, "strategy=naive", "seed=1,2", *HELD, f"paths.outputs={outputs}", "-m"]
        assert lab.xclrun(*sweep).returncode == 0
        subprocess.run(["chmod", "-R", "a+rwX", str(outputs)], check=True)
        jobs = queue(lab, outputs)
        assert len(jobs) == 2
        shown = other("status", "--outputs", str(outputs))
        assert (shown.returncode, "2 waiting" in shown.stdout) == (0, True), shown.stderr
        assert "2 runs already running or queued" in other(*sweep).stderr
        assert queue(lab, outputs) == jobs
        cancelled = other("cancel", "--outputs", str(outputs))
        assert cancelled.returncode == 1
        assert cancelled.stdout.startswith("0 jobs of ")
        assert "2 jobs not cancelled (root): " in cancelled.stderr
        assert queue(lab, outputs) == jobs
        assert [run.state for run in lab.status(outputs)] == ["waiting", "waiting"]
        lab.call("scancel", *jobs)
    finally:
        shutil.rmtree(home, ignore_errors=True)
