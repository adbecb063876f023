"""Files of a submission to the cluster: packs of runs, one per job, and the events of each attempt.

<outputs>/slurm/<sweep>/<time>/submission.json    the arrays of jobs
                              /<array>/<i>.json   pack of job i; <i>.tries.jsonl: its attempts; its log
                              /<array>/<job>_submission.sh   script of the jobs, from Submitit
<outputs>/slurm/code/<hash>/                      copy of the code for the jobs
<outputs>/slurm/submit.lease-<n>                  held by the command that is submitting

The record is written before the jobs are submitted. Each array has a name that no other array has, so its jobs can be
found in Slurm's queue if the command dies before it has written their number.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import line, note
from xclrun.store.files import append_event, read_events, read_json, write_json
from xclrun.store.lease import Lease

# Prefix of the IDs of jobs that run in this process, without Slurm.
DEBUG = "debug"


@dataclass(frozen=True)
class Pack:
    """Work of one job.

    Attributes:
        runs: run IDs, in order.
        stages: (run ID, hop) of shared stages to train before the runs.
    """

    runs: tuple[str, ...] = ()
    stages: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class PackFiles:
    """The files of one pack; ``path`` is ``<array>/<i>.json``."""

    path: Path

    @property
    def outputs(self) -> Path:
        return self.path.parents[4]

    def write(self, pack: Pack) -> None:
        # Not flushed to disk, because thousands are written at once; ``submission.json`` is written after them.
        self.path.write_text(json.dumps(asdict(pack)), encoding="utf-8")

    def read(self) -> Pack:
        content = read_json(self.path)
        return Pack(tuple(content["runs"]), tuple((run, hop) for run, hop in content["stages"]))

    def add_event(self, event: str, **facts: Any) -> None:
        """Append an event to the log of the job's attempts."""
        append_event(self.path.with_suffix(".tries.jsonl"), event, **facts)

    def events(self) -> list[dict[str, Any]]:
        return list(read_events(self.path.with_suffix(".tries.jsonl")))

    @property
    def cancelled(self) -> bool:
        """Whether `xclrun cancel` cancelled the job."""
        events = self.events()
        return bool(events) and events[-1]["event"] == "cancelled"

    def errors(self) -> dict[str, str] | None:
        """Return run ID → error in the last attempt; None if the last attempt has not ended."""
        events = self.events()
        with contextlib.suppress(*UNREADABLE):
            if events and events[-1]["event"] == "ended":
                return dict(events[-1]["errors"])
        return None


@dataclass(frozen=True)
class Job:
    """One job of a submission.

    Attributes:
        id: Slurm's ID: ``<job>``, or ``<job>_<index>`` in an array.
        log: file of its standard output and errors.
        submitted: seconds since the epoch.
        runs: run IDs, in order.
        user: number of the user who submitted it; None if unknown.
    """

    id: str
    files: PackFiles
    log: Path
    submitted: float
    runs: tuple[str, ...] = ()
    user: int | None = None

    @property
    def on_cluster(self) -> bool:
        """Whether it is a Slurm job."""
        return not self.id.startswith(DEBUG)


@dataclass
class Submission:
    """The arrays of jobs of one command.

    Attributes:
        folder: ``<outputs>/slurm/<sweep>/<time>``.
        arrays: for each array its folder ``name``; ``job_name``, its name in Slurm; ``job`` (Slurm's number, empty
            until Slurm has accepted the array); ``jobs`` (IDs); and for each job its ``packs`` (run IDs) and
            ``trainings`` (store keys of the shared stages that it trains).
        submitted: seconds since the epoch.
        user: number of the user who submits it; None if unknown.
    """

    folder: Path
    arrays: list[dict[str, Any]] = field(default_factory=list)
    submitted: float = field(default_factory=time.time)
    user: int | None = field(default_factory=os.getuid)

    @classmethod
    def new(cls, outputs: Path, sweep: str) -> Submission:
        """Create the folder of a new submission."""
        while True:
            folder = outputs / "slurm" / sweep / time.strftime("%Y%m%d-%H%M%S")
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                # Another command submitted the sweep in the same second.
                time.sleep(1)

    @property
    def sweep(self) -> str:
        return self.folder.parent.name

    def add_array(self, packs: Sequence[Pack], trainings: Sequence[Sequence[str]] = (), name: str = "") -> Path:
        """Write the packs of another array, and add the array to the record; return its folder."""
        folder = (self.folder / f"array-{len(self.arrays)}").absolute()
        folder.mkdir()
        for i, pack in enumerate(packs):
            PackFiles(folder / f"{i}.json").write(pack)
        array: dict[str, Any] = {"name": folder.name, "job_name": name, "job": "", "jobs": []}
        array |= {"packs": [list(pack.runs) for pack in packs], "trainings": [list(keys) for keys in trainings]}
        self.arrays.append(array)
        return folder

    def write(self) -> None:
        write_json(
            self.folder / "submission.json", {"submitted": self.submitted, "user": self.user, "arrays": self.arrays}
        )

    def jobs(self) -> Iterator[tuple[Job, list[str]]]:
        """Yield each job that Slurm has accepted and its run IDs."""
        for array in self.arrays:
            # An array without jobs has not been accepted.
            if array["jobs"]:
                folder = self.folder / array["name"]
                for i, (name, runs) in enumerate(zip(array["jobs"], array["packs"], strict=True)):
                    log = folder / f"{name}_0_log.out"
                    files = PackFiles(folder / f"{i}.json")
                    yield Job(name, files, log, self.submitted, tuple(runs), self.user), runs


def accepted(array: dict[str, Any], number: str) -> None:
    """Enter Slurm's number of an array; a single job is not submitted as an array."""
    count = len(array["packs"])
    array["job"], array["jobs"] = number, [number] if count == 1 else [f"{number}_{i}" for i in range(count)]


def folder_mark(outputs: Path) -> str:
    """Return the mark of an outputs folder in the names of its jobs."""
    return hashlib.sha256(str(outputs.resolve()).encode()).hexdigest()[:8]


def job_name(outputs: Path, sweep: str) -> str:
    """Return a new name for an array, which no other array has."""
    return f"xclrun-{sweep}-{folder_mark(outputs)}{secrets.token_hex(4)}"


def submission_lease(outputs: Path) -> Lease:
    """Return the lease of the command that submits jobs from an outputs folder."""
    return Lease(outputs / "slurm" / "submit")


@contextlib.contextmanager
def submitting(outputs: Path) -> Iterator[Callable[[], bool]]:
    """Let one command at a time submit or cancel jobs of an outputs folder; others wait.

    Yields a function that returns whether it is still this command's turn: after a minute without a heartbeat, for
    example of a suspended machine, another command continues.
    """
    lease, waits = submission_lease(outputs), False
    while (mine := lease.try_acquire()) is None:
        if not waits:
            line(f"xclrun: waiting for another command that submits jobs from {outputs} ({lease.owner()})")
        waits = True
        time.sleep(0.2)
    with lease.held(mine):
        yield partial(lease.holds, mine)


def submissions(outputs: Path, sweep: str = "*", warn: Callable[[str], None] = note) -> list[Submission]:
    """Return the submissions of a sweep (default: all), most recent last; ``warn`` is called for unreadable ones."""
    readable = []
    for path in sorted((outputs / "slurm").glob(f"{sweep}/*/submission.json")):
        try:
            content = read_json(path)
            user = content.get("user")
            submission = Submission(
                path.parent, list(content["arrays"]), float(content["submitted"]), user if user is None else int(user)
            )
            # Read completely, to report a damaged file here.
            assert all(isinstance(run, str) for _, runs in submission.jobs() for run in runs)
            readable.append(submission)
        except (*UNREADABLE, AssertionError):
            warn(f"{path} skipped, because it cannot be read; the status comes from the run directories only")
    return sorted(readable, key=lambda submission: submission.submitted)
