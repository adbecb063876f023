"""An index of finished runs, so that what is about some runs need not read all that lie beside them.

``<outputs>/cache/finished-<SHA-256>.json``: for each finished run what `xclrun.analysis.beside` tells of it, with size
and time of its DONE as they were when it was read. A run that is not in it, or whose DONE was written since, is read
once more; of the others one file each is looked at, not opened. What is read for its scores is checked like any other.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import XclrunError
from xclrun.core.terminal import note
from xclrun.store.kept import Kept
from xclrun.store.remembered import source
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    from xclrun.analysis.beside import Beside
    from xclrun.analysis.record import RunRecord

# Runs whose first reading takes long enough to be told.
MANY = 2000


def runs_beside(outputs: Path, own: Iterable[RunRecord], warn: Callable[[str], None] = note) -> list[Beside]:
    """Return the finished runs under ``outputs`` but for ``own``, by name.

    Args:
        warn: is called for what cannot be read, and before a long wait.
    """
    from xclrun.analysis.beside import beside

    mine = {record.run_id: record for record in own}
    index = _Index(outputs)
    unknown = []
    for run_id in index.find():
        if (record := mine.get(run_id)) is None:
            unknown.append(run_id)
        elif record.status == "finished":
            index.add(beside(record))
    if len(unknown) >= MANY:
        warn(f"{len(unknown)} other runs are read, once for all; an outputs folder for each study would spare the wait")
    for record in _each(outputs, unknown, warn):
        if record.status == "finished":
            index.add(beside(record))
    index.keep()
    return [run for run_id, run in sorted(index.runs.items()) if run_id not in mine]


def with_references(
    outputs: Path, own: Sequence[RunRecord], warn: Callable[[str], None] = note
) -> tuple[list[RunRecord], list[Beside]]:
    """Return the reference runs under ``outputs`` of ``own``, read, and all other finished runs but ``own``."""
    from xclrun.analysis.reference import reference_key
    from xclrun.store.records import read_records

    runs = runs_beside(outputs, own, warn)
    keys = {reference_key(record) for record in own}
    wanted = {run.run_id for run in runs if run.reference in keys}
    return read_records(outputs, warn, only=wanted), [run for run in runs if run.run_id not in wanted]


def _each(outputs: Path, run_ids: Iterable[str], warn: Callable[[str], None]) -> Iterable[RunRecord]:
    """Yield the records of runs, one at a time: of 10⁵ runs all would be 10 GB."""
    from xclrun.store.counts import CountsOfRuns
    from xclrun.store.records import record

    counts = CountsOfRuns(outputs)
    for directory in counts.sort(RunDirectory(outputs / "runs" / run_id) for run_id in run_ids):
        try:
            yield record(directory, counts)
        except ValueError as error:
            if isinstance(error, UnreadableRun) and error.state == "older":
                continue
            warn(f"{error}; left out")
    counts.keep()


class _Index:
    """The file, and the runs in it whose DONE is the one of then.

    Attributes:
        runs: run id → what is known of it.
    """

    def __init__(self, outputs: Path) -> None:
        self._folder = outputs / "runs"
        self._kept = Kept(outputs / "cache", "finished", ".json")
        self.runs: dict[str, Beside] = {}
        # Run id → size of DONE, and its time in nanoseconds.
        self._states: dict[str, tuple[int, int]] = {}
        self._changed = False

    def find(self) -> list[str]:
        """Look at all runs; return the finished ones of which nothing is known, or only what was true before."""
        from xclrun.analysis.beside import Beside

        known, unknown = self._read(), []
        with contextlib.suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                try:
                    # Not by way of `Path`: these may be a hundred thousand.
                    at = os.stat(f"{entry.path}/DONE")
                except (FileNotFoundError, NotADirectoryError):
                    continue
                state = self._states[entry.name] = at.st_size, at.st_mtime_ns
                if (row := known.get(entry.name)) is not None and tuple(row[:2]) == state:
                    self.runs[entry.name] = Beside(entry.name, *row[2:])
                else:
                    unknown.append(entry.name)
        return unknown

    def add(self, run: Beside) -> None:
        """Note a run; it was read after it was found, so that one that was written meanwhile is read again."""
        self.runs[run.run_id] = run
        self._changed = True

    def keep(self) -> None:
        """Write the file where anything is new; if that fails, the runs are read again next time."""
        if self._changed:
            rows = {run_id: [*self._states[run_id], *astuple(run)[1:]] for run_id, run in self.runs.items()}
            content = {"source": source(), "runs": rows}
            with contextlib.suppress(XclrunError):
                self._kept.write(json.dumps(content, ensure_ascii=False).encode())

    def _read(self) -> dict[str, Any]:
        """Return run id → state and facts; none where other code has written them, which may have told others."""
        from xclrun.analysis.beside import Beside

        if (content := self._kept.read()) is None:
            return {}
        with contextlib.suppress(ValueError, KeyError, TypeError):
            found = json.loads(content)
            width = 1 + len(fields(Beside))
            if found["source"] == source() and all(len(row) == width for row in found["runs"].values()):
                return found["runs"]
        return {}
