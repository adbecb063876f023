"""An index of finished runs, so that a report of some runs need not read all others under the same outputs.

``<outputs>/cache/finished-<SHA-256>.json``: for each finished run an `xclrun.analysis.finished.FinishedRun`, with size
and time of its DONE as they were when it was read. A run that is not in it, or whose DONE was written since, is read
once more.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.errors import XclrunError
from xclrun.core.terminal import note
from xclrun.store.kept import Kept
from xclrun.store.remembered import source

if TYPE_CHECKING:
    from xclrun.analysis.finished import FinishedRun
    from xclrun.analysis.record import RunRecord

# Runs whose first reading takes long enough for a note.
MANY = 2000


def runs_beside(outputs: Path, own: Iterable[RunRecord], warn: Callable[[str], None] = note) -> list[FinishedRun]:
    """Return the finished runs under ``outputs`` but for ``own``, by name.

    Args:
        warn: is called for what cannot be read, and before a long wait.
    """
    from xclrun.analysis.finished import FinishedRun, finished_run
    from xclrun.store.records import each_record

    kept, states = Kept(outputs / "cache", "finished", ".json"), _states(outputs / "runs")
    rows = {run_id: row for run_id, row in _read(kept).items() if row[0] == states.get(run_id)}
    mine = {record.run_id for record in own}
    unknown = sorted(states.keys() - rows.keys() - mine)
    if len(unknown) >= MANY:
        warn(f"{len(unknown)} other runs are read, once for all; an outputs folder for each study would spare the wait")
    # One at a time: the records of 10⁵ runs would take 10 GB.
    for record in each_record(outputs, unknown, warn, None, []):
        if record.status == "finished":
            rows[record.run_id] = [states[record.run_id], *astuple(finished_run(record))]
    if unknown:
        # If it cannot be written, the runs are read again next time.
        with contextlib.suppress(XclrunError):
            kept.write(json.dumps({"source": source(), "runs": rows}, ensure_ascii=False).encode())
    return [FinishedRun(*row[1:]) for run_id, row in sorted(rows.items()) if run_id not in mine]


def with_references(
    outputs: Path, own: Sequence[RunRecord], warn: Callable[[str], None] = note
) -> tuple[list[RunRecord], list[FinishedRun]]:
    """Return the reference runs under ``outputs`` of ``own``, read, and all other finished runs but ``own``."""
    from xclrun.analysis.reference import reference_key
    from xclrun.store.records import read_records

    runs = runs_beside(outputs, own, warn)
    keys = {reference_key(record) for record in own}
    wanted = {run.run_id for run in runs if run.reference in keys}
    return read_records(outputs, warn, only=wanted), [run for run in runs if run.run_id not in wanted]


def _states(folder: Path) -> dict[str, list[int]]:
    """Return run id → size and time (ns) of DONE, of the finished runs in a folder."""
    states = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            # Not by way of `Path`: these may be a hundred thousand.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                at = os.stat(f"{entry.path}/DONE")
                states[entry.name] = [at.st_size, at.st_mtime_ns]
    return states


def _read(kept: Kept) -> dict[str, Any]:
    """Return run id → [state of DONE, fields of `FinishedRun`]; none where other code has written them."""
    content = json.loads(kept.read() or b"{}")
    return content["runs"] if content.get("source") == source() else {}
