"""Jobs of an outputs folder, from the records of submissions and from Slurm's queue.

Jobs whose record is incomplete or lost are found in the queue by their names (`files.job_name`).
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from xclrun.core.errors import XclrunError
from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import about, note
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.files import (
    Job,
    PackFiles,
    Submission,
    accepted,
    folder_mark,
    submission_lease,
    submissions,
)
from xclrun.launch.cluster.slurm import JobState, Silent
from xclrun.store.lease import file_time

# Seconds in which the jobs of a command that died can still appear in the queue: sbatch, which may live on, retries for
# two minutes if the controller is busy.
YOUNG = 130.0
# Seconds between two looks at the queue.
LOOK = 2.0


@dataclass(frozen=True)
class Jobs:
    """Jobs of an outputs folder.

    Attributes:
        submissions: most recent last, including those that are known from the queue only.
        interrupted: the records that lacked the number of an array.
        queue: the answer of `slurm.queue`; empty if Slurm was not asked or did not answer.
        silence: why Slurm did not answer, else empty.
    """

    outputs: Path
    submissions: list[Submission]
    interrupted: list[Submission] = field(default_factory=list)
    queue: Mapping[str, JobState] = field(default_factory=dict)
    silence: str = ""

    @cached_property
    def of_runs(self) -> dict[str, Job]:
        """Run ID → its most recent job."""
        return {run: job for submission in self.submissions for job, runs in submission.jobs() for run in runs}

    @cached_property
    def being_submitted(self) -> set[str]:
        """IDs of runs whose jobs another command is submitting, or may have submitted before it died."""
        runs = {run for s, array in self.undecided for run in [run for pack in array["packs"] for run in pack]}
        if not runs or self.silence:
            return runs
        owner = submission_lease(self.outputs).owner()
        active = owner is not None and owner.alive
        return {
            run
            for submission, array in self.undecided
            if active or _age(submission) < YOUNG
            for pack in array["packs"]
            for run in pack
        }

    @property
    def undecided(self) -> list[tuple[Submission, dict[str, Any]]]:
        """The arrays whose number is unknown: Slurm has not accepted them, or the command died."""
        return [(s, array) for s in self.submissions for array in s.arrays if not array["jobs"]]

    def states(self, jobs: Iterable[Job]) -> dict[str, JobState]:
        """Return job ID → state. Jobs of other users that Slurm does not show have an empty state."""
        by_id = {job.id: job for job in jobs}
        on_cluster = [job.id for job in by_id.values() if job.on_cluster]
        result = {job: JobState(job, "UNKNOWN") for job in by_id} | slurm.states(on_cluster, self.queue)
        for job, state in result.items():
            if state.state == "UNKNOWN" and by_id[job].on_cluster:
                if self.silence:
                    result[job] = JobState(job, "", self.silence)
                elif (user := by_id[job].user) not in (None, os.getuid()) and self._hidden:
                    result[job] = JobState(job, "", f"it does not show you the jobs of {user_name(user)}")
        return result

    @cached_property
    def _hidden(self) -> bool:
        return slurm.hides_other_users()

    def trainings(self) -> dict[str, str]:
        """Return store key → number of the array that trains it: shared stages of queued and running jobs."""
        planned = [
            (key, job, array["job"])
            for submission in self.submissions
            for array in submission.arrays
            if array["jobs"]
            for job, keys in zip(array["jobs"], array.get("trainings", ()), strict=False)
            for key in keys
        ]
        states = slurm.states({job for _, job, _ in planned}, self.queue)
        return {key: number for key, job, number in planned if states[job].live}


def user_name(user: int | None) -> str:
    with contextlib.suppress(KeyError, TypeError, OverflowError):
        return pwd.getpwuid(user).pw_name  # type: ignore[arg-type]
    return f"user {user}"


def find_jobs(outputs: Path, warn: Callable[[str], None] = note, ask: bool = True) -> Jobs:
    """Return the jobs of an outputs folder.

    Args:
        warn: called for unreadable records.
        ask: whether to ask Slurm, if a job was ever submitted from this folder.
    """
    records = submissions(outputs, warn=warn)
    interrupted = [s for s in records if not all(array["jobs"] for array in s.arrays)]
    if not ask or not any((outputs / "slurm").glob("*/*")):
        return Jobs(outputs, records, interrupted)
    queue, silence = {}, ""
    try:
        queue = slurm.queue({os.getuid(), *(s.user for s in records if s.user is not None)})
    except Silent as silent:
        silence = silent.reason
    ours = re.compile(rf"xclrun-.+-{folder_mark(outputs)}[0-9a-f]{{8}}")
    # Name → numbers of arrays; sbatch may have submitted an array twice after a time-out.
    numbers: dict[str, dict[str, JobState]] = {}
    for job, row in queue.items():
        if ours.fullmatch(row.name):
            numbers.setdefault(row.name, {}).setdefault(job.partition("_")[0], row)
    found = []
    for submission in records:
        for array in submission.arrays:
            named = numbers.pop(array.get("job_name", ""), {})
            if not array["jobs"]:
                number = next(iter(named), None) or _number_in_logs(submission.folder / array["name"])
                if number is not None:
                    accepted(array, number)
            for number in named.keys() - {array["job"]}:
                again = dict(array)
                accepted(again, number)
                found.append(replace(submission, arrays=[again]))
    found += [
        lost for named in numbers.values() for number, row in named.items() if (lost := _unrecorded(number, row, queue))
    ]
    # Recorded jobs last: they are the jobs of their runs.
    return Jobs(outputs, sorted([*found, *records], key=lambda s: s.submitted), interrupted, queue, silence)


def _number_in_logs(folder: Path) -> str | None:
    """Return the number of an array whose jobs have started, from the names of their logs."""
    return next((path.name.partition("_")[0] for path in folder.glob("*_log.out")), None)


def _unrecorded(number: str, row: JobState, queue: Mapping[str, JobState]) -> Submission | None:
    """Return the submission of an array that no record names, from the packs next to its script."""
    folder = Path(row.script).parent
    indices = [int(job.partition("_")[2] or 0) for job in queue if job.partition("_")[0] == number]
    single, packs = number in queue and len(indices) == 1, []
    for i in range(max(indices) + 1):
        try:
            packs.append(list(PackFiles(folder / f"{i}.json").read().runs))
        except UNREADABLE:
            packs.append([])
    jobs = [number] if single else [f"{number}_{i}" for i in range(len(packs))]
    array = {"name": folder.name, "job_name": row.name, "job": number, "jobs": jobs, "packs": packs}
    submitted = 0.0
    with contextlib.suppress(OSError):
        submitted = folder.stat().st_mtime
    return Submission(folder.parent, [array], submitted, None)


def _age(submission: Submission) -> float:
    """Return the seconds since a record was last written."""
    try:
        written = (submission.folder / "submission.json").stat().st_mtime
    except OSError:
        written = submission.submitted
    return max(0.0, file_time(submission.folder) - written)


def settled_jobs(outputs: Path) -> Jobs:
    """Return the jobs of an outputs folder, and complete or remove the records of commands that died.

    Call it under `files.submitting`.

    Raises:
        Silent: Slurm does not answer.
    """
    waits = False
    while True:
        jobs = find_jobs(outputs)
        if jobs.silence:
            raise Silent(jobs.silence)
        left = max((YOUNG - _age(s) for s, _ in jobs.undecided), default=0.0)
        if left <= 0:
            break
        if not waits:
            note(f"an earlier command died while it submitted; waiting up to {about(left)} for its jobs to be queued")
        waits = True
        time.sleep(LOOK)
    for submission in jobs.interrupted:
        submission.arrays = [array for array in submission.arrays if array["jobs"]]
        # The record of another user may not be writable.
        with contextlib.suppress(XclrunError):
            submission.write()
    return jobs
