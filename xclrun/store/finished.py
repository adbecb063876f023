"""Index of the finished runs under some outputs, so a report of one sweep need not read all other runs.

``<outputs>/cache/finished-<SHA-256>.json`` has, for each finished run, the size and the modification time of DONE, and
the fields of its `xclrun.analysis.finished.FinishedRun`. Runs that are missing in the index, or whose DONE has changed,
are read again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.core.errors import XclrunError
from xclrun.core.terminal import note
from xclrun.store.cache import CachedFile, source_hash

if TYPE_CHECKING:
    from xclrun.analysis.finished import FinishedRun
    from xclrun.analysis.record import RunRecord

# Reading this many runs takes minutes, so a note is printed first.
MANY = 2000


def finished_runs(
    outputs: Path, excluded: Iterable[RunRecord], warn: Callable[[str], None] = note
) -> list[FinishedRun]:
    """Return the index entries of the finished runs under ``outputs`` that are not excluded, sorted by run ID.

    Args:
        warn: called with a line about each unreadable run.
    """
    from xclrun.analysis.finished import FinishedRun, finished_run
    from xclrun.store.records import each_record

    file, states = CachedFile(outputs / "cache", "finished", ".json"), _done_states(outputs / "runs")
    content = json.loads(file.read() or b"{}")
    rows = content["runs"] if content.get("source") == source_hash() else {}
    rows = {run_id: row for run_id, row in rows.items() if row[0] == states.get(run_id)}
    excluded_ids = {record.run_id for record in excluded}
    unread = sorted(states.keys() - rows.keys() - excluded_ids)
    if len(unread) >= MANY:
        # Not `warn`: a command that calls it ends with exit code 1.
        note(
            f"indexing {len(unread)} finished runs under {outputs} (each is read only once); to avoid this wait, use a "
            "separate outputs folder for each study"
        )
    # Read one record at a time: the records of 10⁵ runs would take 10 GB.
    for record in each_record(outputs, unread, warn, None, []):
        if record.status == "finished":
            rows[record.run_id] = [states[record.run_id], *astuple(finished_run(record))]
    if unread:
        # If the index is not writable, the runs are read again next time.
        with contextlib.suppress(XclrunError):
            file.write(json.dumps({"source": source_hash(), "runs": rows}, ensure_ascii=False).encode())
    return [FinishedRun(*row[1:]) for run_id, row in sorted(rows.items()) if run_id not in excluded_ids]


def with_references(
    outputs: Path, records: Sequence[RunRecord], warn: Callable[[str], None] = note
) -> tuple[list[RunRecord], list[FinishedRun]]:
    """Return records of the runs that ``records`` refer to, and index entries of the remaining finished runs.

    The records are those of reference runs and of the runs whose models were merged.
    """
    from xclrun.analysis.reference import reference_key
    from xclrun.store.records import read_records

    runs = finished_runs(outputs, records, warn)
    keys = {reference_key(record) for record in records}
    sources = {record.merged_from for record in records}
    references = {run.run_id for run in runs if run.reference in keys or run.run_id in sources}
    return read_records(outputs, warn, only=references), [run for run in runs if run.run_id not in references]


def _done_states(folder: Path) -> dict[str, list[int]]:
    """Return run ID → size and modification time (ns) of DONE, for the finished runs in a folder."""
    states = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            # Without `Path`, which is slow for 10⁵ entries.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                done = os.stat(f"{entry.path}/DONE")
                states[entry.name] = [done.st_size, done.st_mtime_ns]
    return states
