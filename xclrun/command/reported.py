"""The runs of a report: read from the outputs and from MLflow, chosen by sweep, filter and dev scores."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Unreadable
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError
from xclrun.core.task import BY_NAME
from xclrun.core.terminal import note
from xclrun.store.rundir import RunDirectory, UnreadableRun
from xclrun.store.sweeps import commands_of as parts_of
from xclrun.store.sweeps import joined, typed_commands

if TYPE_CHECKING:
    from xclrun.analysis.finished import FinishedRun
    from xclrun.analysis.record import RunRecord
    from xclrun.analysis.tuning import Choice
    from xclrun.tracking.mirror import Mirror


Sweep = Mapping[str, Any]


def read_runs(
    args: argparse.Namespace, all_sweeps: dict[str, Sweep], warn: Unreadable
) -> tuple[list[RunRecord], list[FinishedRun]]:
    """Read the runs that the report needs; return their records, and the index entries of all other finished runs.

    A report on one sweep needs the runs of the sweep and their reference runs; other reports need all runs.
    """
    from xclrun.analysis.finished import with_references
    from xclrun.analysis.records import read_records

    outputs, name = args.outputs, args.sweep or next(reversed(all_sweeps), None)
    # Index entries match references by each run's own slot_f1; with --slot-f1, read all runs instead.
    if name is not None and not args.all and args.slot_f1 is None:
        records = read_records(outputs, warn, only=all_sweeps[name]["runs"])
        if args.sweep or _without_references(records):
            references, outside = with_references(outputs, records, warn)
            return [*records, *references], outside
    return read_records(outputs, warn, args.slot_f1), []


def _without_references(records: Iterable[RunRecord]) -> set[str]:
    """Return the IDs of the runs that are not reference runs."""
    from xclrun.analysis.reference import REFERENCE

    return {record.run_id for record in records if record.strategy.partition("+")[0] != REFERENCE}


def add_mirrored(
    records: list[RunRecord], args: argparse.Namespace, warn: Unreadable
) -> tuple[Mirror | None, frozenset[str]]:
    """Append the runs that only MLflow has; return the mirror and the IDs of these runs.

    The mirror is None if it is not used or cannot be reached.
    """
    tracking = [record.config.get("tracking", {}) for record in records]
    wanted_by_runs = any(config.get("enabled", True) and config.get("to", "mlflow") == "mlflow" for config in tracking)
    # Create no mirror if tracking was disabled for all runs.
    exists = args.uri is not None or (args.outputs / "mlflow.db").exists() or wanted_by_runs
    if args.source == "runs" or not exists:
        return None, frozenset()
    from xclrun.tracking.mirror import Mirror

    try:
        mirror = Mirror(args.outputs, TrackingConfig(uri=args.uri, experiment=args.experiment))
        elsewhere = mirror.records_elsewhere(warn)
    except RunError as error:
        note(f"{error}; reading the run directories instead")
        return None, frozenset()
    added = []
    for record in elsewhere:
        way = record.config.get("evaluate", {}).get("slot_f1")
        if args.slot_f1 in (None, way) or not any(BY_NAME[metric].span_f1 for metric in record.metrics):
            records.append(record)
            added.append(record.run_id)
        else:
            why = f"MLflow has only its scores with slot_f1={way}, not its predictions"
            warn(f"{record.run_id}: skipped, because {why}; omit --slot-f1 to include it")
    return mirror, frozenset(added)


def catch_up(mirror: Mirror, records: Sequence[RunRecord], pool: Sequence[RunRecord], warn: Unreadable) -> None:
    """Send the reported runs that MLflow lacks."""
    from xclrun.analysis.reference import References

    unique = {record.run_id: record for record in records}
    try:
        if sent := mirror.send_records(unique.values(), References(pool), warn):
            runs = "1 run was" if sent == 1 else f"{sent} runs were"
            note(f"MLflow was not up to date; {runs} sent to {mirror.uri}")
    except RunError as error:
        note(f"{error}; the report uses the run directories")


def latest(all_sweeps: dict[str, Sweep], pool: Sequence[RunRecord]) -> Sweep | None:
    """Return the most recent sweep, preferring sweeps with runs other than references; None if there is no sweep."""
    compared = _without_references(pool)
    latest = list(reversed(all_sweeps.values()))
    return next((sweep for sweep in latest if compared & set(sweep["runs"])), next(iter(latest), None))


def chosen_runs(
    args: argparse.Namespace, sweep: Sweep | None, pool: Sequence[RunRecord], more: bool
) -> tuple[list[RunRecord], Choice | None]:
    """Return the records to report, including the reference runs for transfer, and the settings selected on dev.

    Args:
        sweep: None: all runs.
        more: whether some finished runs were not read.
    """
    from xclrun.analysis.filters import filtered
    from xclrun.analysis.reference import References
    from xclrun.report.caveats import unfinished

    # `_search` comes first, because it refuses to report a running search.
    searched = _search(sweep)
    select_on = args.select_on or searched
    run_ids = [record.run_id for record in pool] if sweep is None else _run_ids(sweep)
    chosen = set(run_ids)
    records = filtered([record for record in pool if record.run_id in chosen], args.filters)
    finished = any(record.finished for record in records)
    if sweep is not None and not finished:
        states = unfinished(records, left_out(args.outputs, sweep, records, pool))
        where = f"{'' if args.sweep else 'the last sweep, '}{sweep['name']}{states}"
        if more or any(record.finished for record in pool):
            raise UsageError(
                f"no finished runs in {where}; report another sweep with `xclrun report NAME` (`xclrun status all` "
                "lists them), or all runs with --all"
            )
        raise UsageError(f"no finished runs in {where}; re-run its command to resume: {typed_commands(sweep)}")
    choice = None
    if select_on is not None and finished:
        choice = _choice(records, sorted(chosen - {record.run_id for record in pool}), *select_on)
        records = choice.runs
    if sweep is not None or args.filters or choice:
        records += References(pool).needed_by(records)
    return records, choice


def _run_ids(sweep: Sweep) -> list[str]:
    """Return the runs of a sweep; of a search, only the runs of the settings that have a dev score."""
    run_ids: list[str] = sweep.get("search", sweep)["runs"]
    return run_ids


def chosen_sweep(names: Sequence[str], only_last: bool, all_sweeps: dict[str, Sweep]) -> str | None:
    """Return the name of the sweep to report; None: the most recent one.

    Several sweeps are added to ``all_sweeps`` as one.

    Args:
        only_last: omit runs of earlier commands with the same name.
    """
    for name, sweep in all_sweeps.items() if only_last else ():
        all_sweeps[name] = {**sweep, **(last := parts_of(sweep)[-1]), "commands": [last]}
    if len(names) < 2:
        return next(iter(names), None)
    sweeps = [all_sweeps[name] for name in dict.fromkeys(names)]
    if search := next((sweep["name"] for sweep in sweeps if "search" in sweep), None):
        raise UsageError(f"report {' '.join(names)}: {search} is a search, which needs a report of its own")
    whole = joined(sweeps)
    planned = [sweep.get("comparisons", {}) for sweep in sweeps]
    if any(comparisons != planned[0] for comparisons in planned):
        note("the sweeps recorded different primary comparisons; the report has those of its options and the defaults")
        whole.pop("comparisons", None)
    name = "+".join(sweep["name"] for sweep in sweeps)
    all_sweeps[name] = {**whole, "name": name}
    return name


def _search(sweep: Sweep | None) -> list[str] | None:
    """Return objective and keys of a sweep that is a search; else None."""
    if sweep is None or (search := sweep.get("search")) is None:
        return None
    if not search["ended"]:
        raise UsageError(
            f"{sweep['name']} is a search with {search['made']} of {search['trials']} trials; test scores are hidden "
            f"until it has finished; re-run its command to resume: {sweep['command']}"
        )
    return [search["objective"], ",".join(search["keys"])]


def _choice(records: Sequence[RunRecord], absent: Sequence[str], objective: str, keys: str) -> Choice:
    """Choose settings on dev.

    Args:
        absent: runs of the sweep that have no record.
    """
    from xclrun.analysis.tuning import choose

    names = [key for part in keys.split(",") if (key := part.strip())]
    if not names:
        raise UsageError(f"--select-on {objective} '{keys}': needs config keys, as in trainer.lr,strategy.weight")
    if absent:
        count = f"{len(absent)} of the sweep's runs {'is' if len(absent) == 1 else 'are'}"
        raise UsageError(
            f"--select-on {objective} {keys}: {count} missing or unreadable ({absent[0]}), but all runs must have "
            "finished; re-run the sweep's command to resume"
        )
    return choose(records, names, objective)


def left_out(
    outputs: Path, sweep: Sweep | None, records: Sequence[RunRecord], pool: Sequence[RunRecord]
) -> dict[str, tuple[str, str]]:
    """Return run ID → (state, reason) for each run that is missing from the report because it cannot be used.

    Args:
        sweep: None: all runs.
        records: records of the report.
        pool: all records that were read; those not in ``records`` were not selected.
    """
    from xclrun.launch.status import run_status
    from xclrun.store.rundir import run_directories

    reported = {record.run_id for record in records}
    usable = {record.run_id for record in pool if record.finished or record.run_id not in reported}
    every = [directory.run_id for directory in run_directories(outputs)] if sweep is None else _run_ids(sweep)
    reasons = {}
    for run_id in dict.fromkeys(run_id for run_id in every if run_id not in usable):
        directory = RunDirectory(outputs / "runs" / run_id)
        status = run_status(directory)
        reasons[run_id] = status.state, status.detail
        with suppress(UnreadableRun):
            # The status compares sizes only, which do not reveal a changed byte.
            if status.state in ("finished", "damaged") and (wrong := directory.damaged(thorough=True)) is not None:
                reasons[run_id] = "damaged", f"{wrong.relative_to(directory.path)} is missing or damaged"
    return reasons


def commands_of(all_sweeps: Iterable[Sweep], choice: Choice | None) -> dict[str, str]:
    """Return run ID → the command that made the run.

    For settings selected on dev, the command has only the selected values.
    """
    from xclrun.analysis.reference import command_of_setting

    parts = [part for sweep in all_sweeps for part in parts_of(sweep)]
    commands = {run_id: part["command"] for part in parts for run_id in part["runs"]}
    for tuned in () if choice is None else choice.tuned:
        best = tuned.trials[0]
        for run in best.runs:
            if run.run_id in commands:
                commands[run.run_id] = command_of_setting(commands[run.run_id], best.set)
    return commands
