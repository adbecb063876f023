"""Files of a submission to the cluster: packs of runs, one per job, and how each attempt at a pack ended.

<outputs>/slurm/<sweep>/<time>/submission.json    the arrays of jobs
                              /<array>/<i>.json   of job i: its pack; <i>.tries.jsonl: its attempts
                                                  also the files of Submitit, and the job's log
<outputs>/slurm/code/<hash>/                      the code that the jobs run
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from xclrun.core.terminal import note
from xclrun.store.files import append_event, read_events, read_json, write_json

# The job id of arrays that are done in place.
DEBUG = "debug"


@dataclass(frozen=True)
class Pack:
    """What one job does.

    Attributes:
        runs: run ids, in order.
        stages: (run id, hop) of the stages to make ahead of the runs that share them.
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
        # Thousands are written at once, and a submission counts only when it is noted: no flushing one by one.
        self.path.write_text(json.dumps(asdict(pack)), encoding="utf-8")

    def read(self) -> Pack:
        content = read_json(self.path)
        return Pack(tuple(content["runs"]), tuple((run, hop) for run, hop in content["stages"]))

    def add_event(self, event: str, **facts: Any) -> None:
        """Append to the events of the attempts."""
        append_event(self.path.with_suffix(".tries.jsonl"), event, **facts)

    def events(self) -> list[dict[str, Any]]:
        return list(read_events(self.path.with_suffix(".tries.jsonl")))

    def errors(self) -> dict[str, str] | None:
        """Return run id → error of the last attempt; None where it has not ended."""
        events = self.events()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if events and events[-1]["event"] == "ended":
                return dict(events[-1]["errors"])
        return None


@dataclass(frozen=True)
class Job:
    """One job of a submission.

    Attributes:
        id: Slurm's: ``<job>``, or ``<job>_<index>`` in an array.
        files: of its pack.
        log: of its standard output and errors.
        submitted: seconds since the epoch.
    """

    id: str
    files: PackFiles
    log: Path
    submitted: float

    @property
    def on_cluster(self) -> bool:
        """Whether Slurm runs it."""
        return not self.id.startswith(DEBUG)


@dataclass
class Submission:
    """The arrays of jobs that one command submitted.

    Attributes:
        folder: ``<outputs>/slurm/<sweep>/<time>``.
        arrays: of each array the name, Slurm's number (``job``), the job ids and the run ids of each job's pack.
        submitted: seconds since the epoch.
    """

    folder: Path
    arrays: list[dict[str, Any]] = field(default_factory=list)
    submitted: float = field(default_factory=time.time)

    @classmethod
    def new(cls, outputs: Path, sweep: str) -> Submission:
        """Make the folder of a new submission."""
        while True:
            folder = outputs / "slurm" / sweep / time.strftime("%Y%m%d-%H%M%S")
            try:
                folder.mkdir(parents=True)
                return cls(folder)
            except FileExistsError:
                # Another command submitted the sweep in this second.
                time.sleep(1)

    def write_packs(self, packs: Sequence[Pack]) -> list[PackFiles]:
        """Write the packs of the next array."""
        folder = (self.folder / f"array-{len(self.arrays)}").absolute()
        folder.mkdir()
        files = [PackFiles(folder / f"{i}.json") for i in range(len(packs))]
        for one, pack in zip(files, packs, strict=True):
            one.write(pack)
        return files

    def add_array(self, jobs: Sequence[str], packs: Sequence[Pack]) -> None:
        """Note that an array was submitted, so that status knows it even if the next one is refused."""
        facts = {"name": f"array-{len(self.arrays)}", "job": jobs[0].partition("_")[0], "jobs": list(jobs)}
        self.arrays.append({**facts, "packs": [list(pack.runs) for pack in packs]})
        write_json(self.folder / "submission.json", {"submitted": self.submitted, "arrays": self.arrays})

    def jobs(self) -> Iterator[tuple[Job, list[str]]]:
        """Yield each job and its run ids."""
        for array in self.arrays:
            folder = self.folder / array["name"]
            # Earlier versions made arrays of single jobs too, and did not list the ids.
            ids = array.get("jobs") or [f"{array['job']}_{i}" for i in range(len(array["packs"]))]
            for i, (name, runs) in enumerate(zip(ids, array["packs"], strict=True)):
                yield Job(name, PackFiles(folder / f"{i}.json"), folder / f"{name}_0_log.out", self.submitted), runs


def submissions(outputs: Path, sweep: str = "*", warn: Callable[[str], None] = note) -> list[Submission]:
    """Return the submissions of a sweep (default: of all), the latest last; ``warn`` is called for unreadable ones."""
    readable = []
    for path in sorted((outputs / "slurm").glob(f"{sweep}/*/submission.json")):
        try:
            content = read_json(path)
            submission = Submission(path.parent, list(content["arrays"]), float(content["submitted"]))
            # Read completely here, so that a damaged file is reported.
            assert all(isinstance(run, str) for _, runs in submission.jobs() for run in runs)
            readable.append(submission)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            warn(f"{path} cannot be read: left out; the status of its jobs comes from the runs alone")
    return sorted(readable, key=lambda submission: submission.submitted)


def jobs_of_runs(outputs: Path, warn: Callable[[str], None] = note) -> dict[str, Job]:
    """Return run id → its latest job, whichever sweep submitted it."""
    return {
        run: job for submission in submissions(outputs, warn=warn) for job, runs in submission.jobs() for run in runs
    }
