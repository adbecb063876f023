"""What Submitit does not do: ask Slurm for the states of jobs and for its limits, and cancel thousands at once.

Submitit asks ``sacct`` alone, which many clusters do not have, and waits for a result file that a killed job never
writes. A command that does not answer in time counts as no answer.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

TIMEOUT = 20.0  # seconds
DEFAULT_MAX_ARRAY = 1001  # Slurm's default of MaxArraySize
AT_ONCE = 500  # jobs per command: Linux takes no argument above 128 KiB

# States of ended jobs (https://slurm.schedmd.com/job_state_codes.html); in all others a job may still run.
ENDED = frozenset(
    ("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY")
)


def ask(*command: str) -> str | None:
    """Return what a command of Slurm prints; None if it is not installed, fails or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


@dataclass(frozen=True)
class JobState:
    """Slurm's state of one job.

    Attributes:
        id: ``<job>``, or ``<job>_<index>`` in an array.
        state: Slurm's word; ``UNKNOWN`` where Slurm does not know the job; empty where Slurm does not answer.
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
        text = {"": "Slurm does not answer", "UNKNOWN": "gone from Slurm's memory"}.get(self.state, self.state)
        return f"Slurm job {self.id}: {text}" + (f" ({self.reason})" if self.reason else "")


def states(ids: Iterable[str]) -> dict[str, JobState]:
    """Return the states of jobs, from ``squeue``, which forgets ended jobs within minutes, else from ``sacct``."""
    wanted = set(ids)
    if not wanted:
        return {}
    queue = ask("squeue", "--noheader", "--all", "--array", "--states=all", f"--user={os.getuid()}", "-o", "%i|%T|%r")
    known = _by_name(wanted, queue or "")
    missing = wanted - set(known)
    for numbers in _chunks(sorted({job.partition("_")[0] for job in missing})):
        accounts = ask("sacct", "-n", "-X", "-P", "-o", "JobID,State,ExitCode", "-j", ",".join(numbers))
        if accounts is None:
            # Without accounting the next answer would be none as well.
            break
        known |= _by_name(missing, accounts)
    return {job: known.get(job, JobState(job, "" if queue is None else "UNKNOWN")) for job in wanted}


def _chunks(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    return (jobs[start : start + AT_ONCE] for start in range(0, len(jobs), AT_ONCE))


def _by_name(wanted: set[str], text: str) -> dict[str, JobState]:
    """Return the states of the wanted jobs, from rows ``<job>|<state>|<reason>``.

    An array that was cancelled before any of its jobs began is one row: its number alone, or with indices in brackets.
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
    row_of = {name: rows.get(name) or rows.get(name.partition("_")[0]) for name in wanted}
    return {
        # sacct adds who cancelled a job: "CANCELLED by 0".
        name: JobState(name, row[1].split()[0], row[2] if row[2] not in ("None", "0:0") else "")
        for name, row in row_of.items()
        if row
    }


def max_array() -> int:
    """Return how many jobs an array may have: indices are below MaxArraySize."""
    match = re.search(r"^MaxArraySize\s*=\s*(\d+)", ask("scontrol", "show", "config") or "", re.MULTILINE)
    return int(match[1]) if match else DEFAULT_MAX_ARRAY


def cancel(jobs: Sequence[str]) -> None:
    """End jobs."""
    for some in _chunks(jobs):
        ask("scancel", *some)


def this_job() -> str | None:
    """Return the id of the job in which this process runs, or None."""
    array, index = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")
