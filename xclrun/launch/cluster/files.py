"""Files of a submission to the cluster: packs of runs, one per job, and how each attempt at a pack ended.

<outputs>/slurm/<sweep>/<time>/submission.json    the arrays of jobs
                              /<array>/<i>.json   the pack of job i; beside it <i>.tries.jsonl and the job's log
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
from xclrun.launch.cluster.slurm import log_path
from xclrun.store.files import append_event, read_events, read_json, write_json

# Stands for Slurm's job id where packs are done in place.
DEBUG = "debug"


@dataclass(frozen=True)
class Pack:
    """What one job does.

    Attributes:
        runs: ids of the runs that it does, one after another.
        stages: [run id, hop]: stages that it makes ahead of the runs that share them.
    """

    runs: tuple[str, ...] = ()
    stages: tuple[tuple[str, int], ...] = ()

    @property
    def concerned(self) -> tuple[str, ...]:
        """The runs whose directories the job reads."""
        return tuple(dict.fromkeys([*self.runs, *(run for run, _ in self.stages)]))


@dataclass(frozen=True)
class PackFiles:
    """The files of one pack.

    Attributes:
        path: ``<array>/<i>.json``.
    """

    path: Path

    @property
    def outputs(self) -> Path:
        return self.path.parents[4]

    @property
    def tries(self) -> Path:
        return self.path.with_suffix(".tries.jsonl")

    def write(self, pack: Pack) -> None:
        """Write the pack."""
        # Thousands are written at once, and a submission counts only when it is noted: no flushing one by one.
        self.path.write_text(json.dumps(asdict(pack)), encoding="utf-8")

    def read(self) -> Pack:
        """Read the pack."""
        content = read_json(self.path)
        return Pack(tuple(content["runs"]), tuple((run, hop) for run, hop in content["stages"]))

    def add_event(self, event: str, **facts: Any) -> None:
        """Append what happened to a try."""
        append_event(self.tries, event, **facts)

    def events(self) -> list[dict[str, Any]]:
        """Return what happened, in order."""
        return list(read_events(self.tries))

    def errors(self) -> dict[str, str] | None:
        """Return the errors of the runs with which the last try ended; None where no try has ended for good."""
        events = self.events()
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if events and events[-1]["event"] == "ended":
                return dict(events[-1]["errors"])
        return None


@dataclass(frozen=True)
class Job:
    """One job of a submission.

    Attributes:
        id: Slurm's ``<array job>_<index>``.
        files: of its pack.
        log: where it writes what it says.
        submitted: seconds of the epoch.
    """

    id: str
    files: PackFiles
    log: Path
    submitted: float

    @property
    def on_cluster(self) -> bool:
        """Whether Slurm knows it; not when it was run in place, for debugging."""
        return not self.id.startswith(DEBUG)


@dataclass
class Submission:
    """The arrays of jobs that one command submitted.

    Attributes:
        folder: ``<outputs>/slurm/<sweep>/<time>``.
        arrays: name, Slurm's job id, size and run ids of the packs of each.
        submitted: seconds of the epoch.
    """

    folder: Path
    arrays: list[dict[str, Any]] = field(default_factory=list)
    submitted: float = field(default_factory=time.time)

    @classmethod
    def new(cls, outputs: Path, sweep: str) -> Submission:
        """Make the folder of a new submission."""
        parent, stamp = outputs / "slurm" / sweep, time.strftime("%Y%m%d-%H%M%S")
        parent.mkdir(parents=True, exist_ok=True)
        for i in range(1000):
            folder = parent / (f"{stamp}-{i}" if i else stamp)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return cls(folder)
        raise FileExistsError(parent)

    def write_packs(self, name: str, packs: Sequence[Pack]) -> Path:
        """Write the packs of an array; return its folder."""
        folder = self.folder / name
        folder.mkdir()
        for i, pack in enumerate(packs):
            PackFiles(folder / f"{i}.json").write(pack)
        return folder

    def add_array(self, name: str, array: str, packs: Sequence[Pack]) -> None:
        """Note that an array was submitted, so that it is found even if the next one is refused."""
        self.arrays.append({"name": name, "job": array, "packs": [list(pack.runs) for pack in packs]})
        write_json(self.folder / "submission.json", {"submitted": self.submitted, "arrays": self.arrays})

    def jobs(self) -> Iterator[tuple[Job, list[str]]]:
        """Yield each job, and the ids of the runs that it does."""
        for array in self.arrays:
            folder = self.folder / array["name"]
            for i, runs in enumerate(array["packs"]):
                files, log = PackFiles(folder / f"{i}.json"), log_path(folder, array["job"], i)
                yield Job(f"{array['job']}_{i}", files, log, self.submitted), runs


def submissions(outputs: Path, sweep: str = "*", warn: Callable[[str], None] = note) -> list[Submission]:
    """Return the submissions of a sweep (default: of all), the latest last; ``warn`` is called for unreadable ones."""
    found = []
    for path in sorted((outputs / "slurm").glob(f"{sweep}/*/submission.json")):
        try:
            content = read_json(path)
            submission = Submission(path.parent, list(content["arrays"]), float(content["submitted"]))
            # Read completely here, so that a damaged file fails nowhere else.
            assert all(isinstance(run, str) for _, runs in submission.jobs() for run in runs)
            found.append(submission)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError):
            warn(f"{path} cannot be read: left out; the status of its jobs comes from the runs alone")
    return sorted(found, key=lambda submission: submission.submitted)


def jobs_of_runs(outputs: Path, warn: Callable[[str], None] = note) -> dict[str, Job]:
    """Return run id → its latest job, whichever sweep submitted it."""
    return {
        run: job for submission in submissions(outputs, warn=warn) for job, runs in submission.jobs() for run in runs
    }
