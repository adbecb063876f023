"""Slurm's commands. Nothing here waits long: a command that does not return in time counts as no answer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xclrun.core.errors import UsageError, require

TIMEOUT = 20.0  # seconds
BY_DEFAULT = 1001  # Slurm's own default of MaxArraySize
AT_ONCE = 500  # jobs that a command is told of: Linux takes no argument above 128 KiB

# States in which a job has ended: https://slurm.schedmd.com/job_state_codes.html. All others may still run.
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)


def ask(*command: str) -> str | None:
    """Return what a command of Slurm prints; None where it is not there, fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True)
class JobState:
    """Slurm's state of one job.

    Attributes:
        id: ``<array job>_<index>``.
        state: Slurm's word; ``UNKNOWN`` where Slurm answers and does not know the job; empty where it does not answer.
        reason: why it is pending, or how it ended.
    """

    id: str
    state: str = ""
    reason: str = ""

    @property
    def live(self) -> bool:
        """Whether it may still run."""
        return self.state not in ENDED and self.state not in ("", "UNKNOWN")

    def __str__(self) -> str:
        told = {"": "Slurm does not answer", "UNKNOWN": "gone from Slurm's memory"}.get(self.state, self.state)
        return f"Slurm job {self.id}: {told}" + (f" ({self.reason})" if self.reason else "")


def states(ids: Iterable[str]) -> dict[str, JobState]:
    """Return the states of jobs: from ``squeue``, which forgets ended jobs within minutes, else from ``sacct``, which
    not every cluster has."""
    wanted = set(ids)
    if not wanted:
        return {}
    listed = ask("squeue", "--noheader", "--all", "--array", "--states=all", f"--user={os.getuid()}", "-o", "%i|%T|%r")
    known = _of(wanted, _read(listed or ""))
    if rest := wanted - set(known):
        arrays = sorted({job.partition("_")[0] for job in rest})
        accounted = []
        for some in _parts(arrays):
            said = ask("sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode", "-j", ",".join(some))
            if said is None:
                # Without accounting, or with one that hangs, the next answer would be none as well.
                break
            accounted += _read(said)
        known |= _of(rest, accounted)
    silent = "" if listed is None else "UNKNOWN"
    return {job: known.get(job, JobState(job, silent)) for job in wanted}


def _parts(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield jobs, as many at a time as a command may be told of."""
    return (jobs[start : start + AT_ONCE] for start in range(0, len(jobs), AT_ONCE))


def _of(wanted: set[str], listed: Sequence[JobState]) -> dict[str, JobState]:
    """Return the states of the wanted jobs.

    An array that was cancelled before any of its jobs began is listed as one job, under its number alone or with its
    indices in brackets.
    """
    # By name, not job by job among all that are listed: of a sweep of 10⁴ jobs that would take seconds.
    of_name: dict[str, JobState] = {}
    for job in listed:
        array, indices = _indices(job.id)
        for name in [array] if indices is None else [f"{array}_{i}" for i in indices]:
            of_name.setdefault(name, job)
    of_name |= {job.id: job for job in listed}
    state_of = {}
    for name in wanted:
        state = of_name.get(name) or of_name.get(name.partition("_")[0])
        if state is not None:
            state_of[name] = JobState(name, state.state, state.reason)
    return state_of


def _indices(job: str) -> tuple[str, set[int] | None]:
    """Return the array of a name such as ``7_[0-3,5%2]``, and the indices it stands for; None: all of them."""
    array, _, index = job.partition("_")
    ranges = re.findall(r"(\d+)(?:-(\d+))?", index.strip("[]").partition("%")[0])
    return array, {i for first, last in ranges for i in range(int(first), int(last or first) + 1)} if index else None


def _read(text: str) -> list[JobState]:
    rows = [line.split("|") for line in text.splitlines()]
    # sacct says by whom a job was cancelled: "CANCELLED by 0".
    jobs = [JobState(row[0], row[1].split()[0], row[2]) for row in rows if len(row) >= 3 and row[1]]
    return [job if job.reason not in ("None", "0:0") else JobState(job.id, job.state) for job in jobs]


def details(job: str) -> dict[str, str]:
    """Return what ``scontrol show job`` says of a job, by its keys; empty where Slurm does not answer."""
    return dict(re.findall(r"(\w+)=(\S*)", ask("scontrol", "show", "job", job) or ""))


def max_array() -> int:
    """Return how many jobs an array may have: indices are below MaxArraySize."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config") or "", re.MULTILINE)
    return int(found[1]) if found else BY_DEFAULT


def requeue(job: str) -> bool:
    """Have a job start again later; return whether Slurm agreed."""
    return ask("scontrol", "requeue", job) is not None


def cancel(jobs: Sequence[str]) -> None:
    """End jobs."""
    for some in _parts(jobs):
        ask("scancel", *some)


def this_job() -> str | None:
    """Return the id of the job in which this process runs, or None."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else None


def check_there() -> None:
    """Check that jobs can be submitted from here.

    Raises:
        UsageError: Submitit is not installed, or there is no Slurm here.
    """
    require("submitit", "hydra/launcher=slurm needs Submitit", "slurm")
    if shutil.which("srun") is None:
        raise UsageError("hydra/launcher=slurm: no Slurm here (srun is not found); give the command on a login node")


def submit_array(folder: Path, command: str, size: int, options: Mapping[str, Any]) -> str:
    """Submit an array of jobs by Submitit, which writes the batch script; return its id.

    Only a command is submitted: Submitit's pickles are not used.

    Args:
        folder: gets the batch script and the logs (see `log_path`).
        command: what every job of the array runs, by srun.
        size: number of jobs.
        options: as `submitit.SlurmExecutor.update_parameters` takes them.

    Raises:
        UsageError: there is no Slurm here, or it refuses.
    """
    check_there()
    import submitit
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    folder.mkdir(parents=True, exist_ok=True)
    try:
        executor = submitit.SlurmExecutor(folder=folder)
        executor.update_parameters(**options, stderr_to_stdout=True, wckey=None)
        executor.parameters["map_count"] = size
        job = executor._submit_command(command)
    except RuntimeError as error:
        if isinstance(error, FailedJobError | FailedSubmissionError):
            raise UsageError(f"Slurm refuses the jobs: {_last_line(error)}") from error
        raise UsageError(f"hydra/launcher=slurm: {_last_line(error)}") from error
    return str(job.job_id)


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "error:" in line]
    return (lines or str(error).strip().splitlines() or [""])[0].removeprefix("sbatch: error: ")


def log_path(folder: Path, array: str, index: int) -> Path:
    """Return where a job of an array writes what it says."""
    return folder / f"{array}_{index}_0_log.out"
