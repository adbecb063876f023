"""Index of the finished runs under some outputs, so a report of one sweep need not read all other runs.

``<outputs>/cache/finished-<SHA-256>.json`` has, for each finished run, the size and the modification time of DONE, and
the fields of its `FinishedRun`. Runs that are missing in the index, or whose DONE has changed,
are read again.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from xclrun.analysis.grouping import config_settings
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import each_record, read_records
from xclrun.analysis.reference import is_reference_run, reference_key
from xclrun.core.errors import XclrunError
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.store.cache import CachedFile, source_hash

# Reading this many runs takes minutes, so a note is printed first.
MANY = 2000


@dataclass(frozen=True)
class FinishedRun:
    """Index entry of a finished run.

    Attributes:
        strategy: see `tuned_name`.
        settings: digest of the settings that must be equal in all runs of an average.
        reference: the run's `reference_key` if it is a reference run; otherwise empty.
        tried: digests like ``settings`` of the settings that were compared to choose a merge (`RunRecord.tried`).
    """

    run_id: str
    dataset: str
    model: str
    strategy: str
    settings: str
    reference: str
    tried: Sequence[str] = ()


def finished_run(record: RunRecord) -> FinishedRun:
    key = reference_key(record) if is_reference_run(record) else ""
    settings = digest(config_settings(record))
    configs = [{**record.config, "strategy": {**record.config["strategy"], **values}} for values in record.tried]
    tried = [digest(config_settings(replace(record, config=config))) for config in configs]
    return FinishedRun(record.run_id, record.dataset, record.model, tuned_name(record), settings, key, tried)


def tuned_name(record: RunRecord) -> str:
    """Return the name under which configurations are counted: the strategy, and the method of a merge."""
    method = record.config.get("strategy", {}).get("method")
    return record.strategy if method is None else f"{record.strategy}({method})"


def tuning_trials(runs: Iterable[FinishedRun]) -> dict[tuple[str, str, str], int]:
    """Return (dataset, model, strategy) → number of different configurations that were run or compared on dev data."""
    trials: dict[tuple[str, str, str], set[str]] = {}
    for run in runs:
        trials.setdefault((run.dataset, run.model, run.strategy), set()).update((run.settings, *run.tried))
    return {key: len(settings) for key, settings in trials.items()}


def finished_runs(
    outputs: Path, excluded: Iterable[RunRecord], warn: Callable[[str], None] = note
) -> list[FinishedRun]:
    """Return the index entries of the finished runs under ``outputs`` that are not excluded, sorted by run ID.

    Args:
        warn: called with a line about each unreadable run.
    """
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
