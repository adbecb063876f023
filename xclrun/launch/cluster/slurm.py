"""Queries that Submitit lacks: states of jobs, limits of Slurm, and cancelling thousands of jobs at once.

Submitit uses only ``sacct``, which many clusters do not have, and waits for a result file that a killed job never
writes. A command that times out counts as no answer.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

TIMEOUT = 20.0  # seconds
DEFAULT_MAX_ARRAY = 1001  # Slurm's default of MaxArraySize
AT_ONCE = 500  # jobs per command: arguments are limited to 128 KiB on Linux

# Final states (https://slurm.schedmd.com/job_state_codes.html).
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)


def ask(*command: str) -> str | None:
    """Return the output of a command of Slurm; None if it is not installed, fails or times out."""
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout if completed.returncode == 0 else None


@dataclass(frozen=True)
class JobState:
    """State of a job in Slurm.

    Attributes:
        id: ``<job>``, or ``<job>_<index>`` in an array.
        state: Slurm's name of the state; ``UNKNOWN`` for an unknown job; empty if Slurm does not answer.
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
        text = {"": "Slurm does not answer", "UNKNOWN": "no longer known to Slurm"}.get(self.state, self.state)
        return f"Slurm job {self.id}: {text}" + (f" ({self.reason})" if self.reason else "")


def states(ids: Iterable[str]) -> dict[str, JobState]:
    """Return the states of jobs from ``squeue``, or for jobs that ended minutes ago from ``sacct``."""
    jobs = set(ids)
    if not jobs:
        return {}
    queue = ask("squeue", "--noheader", "--all", "--array", "--states=all", f"--user={os.getuid()}", "-o", "%i|%T|%r")
    by_id = _by_id(jobs, queue or "")
    missing = jobs - set(by_id)
    for numbers in _chunks(sorted({job.partition("_")[0] for job in missing})):
        accounts = ask("sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode", "-j", ",".join(numbers))
        if accounts is None:
            # Without accounting, further calls would fail too.
            break
        by_id |= _by_id(missing, accounts)
    return {job: by_id.get(job, JobState(job, "" if queue is None else "UNKNOWN")) for job in jobs}


def _chunks(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    return (jobs[start : start + AT_ONCE] for start in range(0, len(jobs), AT_ONCE))


def _by_id(jobs: set[str], text: str) -> dict[str, JobState]:
    """Return the states of jobs from rows ``<job>|<state>|<reason>``.

    An array that was cancelled before any job started is one row: its number, or its number with indices in brackets.
    """
    rows: dict[str, list[str]] = {}
    for row in (line.split("|") for line in text.splitlines()):
        if len(row) >= 3 and row[1]:
            array, _, index = row[0].partition("_")
            for first, last in re.findall(r"(\d+)(?:-(\d+))?", index.strip("[]").partition("%")[0]):
                for i in range(int(first), int(last or first) + 1):
                    rows.setdefault(f"{array}_{i}", row)
            if not index:
                rows[array] = row
    row_of = {name: rows.get(name) or rows.get(name.partition("_")[0]) for name in jobs}
    return {
        # sacct adds the user who cancelled a job: "CANCELLED by 0".
        name: JobState(name, row[1].split()[0], row[2] if row[2] not in ("None", "0:0") else "")
        for name, row in row_of.items()
        if row
    }


def max_array() -> int:
    """Return the maximum number of jobs in an array: indices are below MaxArraySize."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config") or "", re.MULTILINE)
    return int(match[1]) if match else DEFAULT_MAX_ARRAY


def cancel(jobs: Sequence[str]) -> None:
    """Cancel jobs."""
    for chunk in _chunks(jobs):
        ask("scancel", *chunk)


def this_job() -> str | None:
    """Return the ID of the job of this process, or None."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")
