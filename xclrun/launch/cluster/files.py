"""Files of a submission to the cluster: packs of runs, one per job, and the events of each attempt.

<outputs>/slurm/<sweep>/<time>/submission.json    the arrays of jobs
                              /<array>/<i>.json   pack of job i; <i>.tries.jsonl: its attempts;
                                                  files of Submitit; the job's log
<outputs>/slurm/code/<hash>/                      copy of the code for the jobs
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import note
from xclrun.store.files import append_event, read_events, read_json, write_json

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
    """

    id: str
    files: PackFiles
    log: Path
    submitted: float

    @property
    def on_cluster(self) -> bool:
        """Whether it is a Slurm job."""
        return not self.id.startswith(DEBUG)


@dataclass
class Submission:
    """The arrays of jobs of one command.

    Attributes:
        folder: ``<outputs>/slurm/<sweep>/<time>``.
        arrays: ``name``, ``job`` (Slurm's number), ``jobs`` (IDs) and ``packs`` (run IDs of each job) of each array.
        submitted: seconds since the epoch.
    """

    folder: Path
    arrays: list[dict[str, Any]] = field(default_factory=list)
    submitted: float = field(default_factory=time.time)

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

    def write_packs(self, packs: Sequence[Pack]) -> list[PackFiles]:
        """Write the packs of the next array."""
        folder = (self.folder / f"array-{len(self.arrays)}").absolute()
        folder.mkdir()
        files = [PackFiles(folder / f"{i}.json") for i in range(len(packs))]
        for file, pack in zip(files, packs, strict=True):
            file.write(pack)
        return files

    def add_array(self, jobs: Sequence[str], packs: Sequence[Pack]) -> None:
        """Write a submitted array to the file at once, so status finds it even if the next array is rejected."""
        facts = {"name": f"array-{len(self.arrays)}", "job": jobs[0].partition("_")[0], "jobs": list(jobs)}
        self.arrays.append({**facts, "packs": [list(pack.runs) for pack in packs]})
        write_json(self.folder / "submission.json", {"submitted": self.submitted, "arrays": self.arrays})

    def jobs(self) -> Iterator[tuple[Job, list[str]]]:
        """Yield each job and its run IDs."""
        for array in self.arrays:
            folder = self.folder / array["name"]
            for i, (name, runs) in enumerate(zip(array["jobs"], array["packs"], strict=True)):
                yield Job(name, PackFiles(folder / f"{i}.json"), folder / f"{name}_0_log.out", self.submitted), runs


def submissions(outputs: Path, sweep: str = "*", warn: Callable[[str], None] = note) -> list[Submission]:
    """Return the submissions of a sweep (default: all), most recent last; ``warn`` is called for unreadable ones."""
    readable = []
    for path in sorted((outputs / "slurm").glob(f"{sweep}/*/submission.json")):
        try:
            content = read_json(path)
            submission = Submission(path.parent, list(content["arrays"]), float(content["submitted"]))
            # Read completely, to report a damaged file here.
            assert all(isinstance(run, str) for _, runs in submission.jobs() for run in runs)
            readable.append(submission)
        except (*UNREADABLE, AssertionError):
            warn(f"{path} skipped, because it cannot be read; the status comes from the run directories only")
    return sorted(readable, key=lambda submission: submission.submitted)


def jobs_of_runs(outputs: Path, warn: Callable[[str], None] = note) -> dict[str, Job]:
    """Return run ID → its most recent job, in any sweep."""
    return {
        run: job for submission in submissions(outputs, warn=warn) for job, runs in submission.jobs() for run in runs
    }
