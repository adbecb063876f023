"""``xclrun rm``: delete a run or a sweep."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.command.common import Unreadable, existing, outputs_parser
from xclrun.config.checks import check_uri
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError, XclrunError
from xclrun.core.names import matching
from xclrun.core.terminal import many, note, size

if TYPE_CHECKING:
    from xclrun.store.prune import Entry
    from xclrun.store.removal import Removal

# Maximum number of runs that the question names.
NAMED = 20


def main(arguments: Sequence[str]) -> int:
    """Delete a run or the runs of a sweep, after a question; return the exit code."""
    parser = outputs_parser(
        "rm",
        "Delete a run, or a sweep with all runs that no other sweep contains: the run directories, their copies in "
        "MLflow and TensorBoard, and what only these runs use in the store. Reports stay.",
    )
    parser.add_argument("name", metavar="RUN|SWEEP", help="run ID, a unique part of it, or the name of a sweep")
    parser.add_argument("--yes", action="store_true", help="delete without a question")
    parser.add_argument("--dry-run", action="store_true", help="print what would be deleted")
    parser.add_tracking()
    args = parser.parse_args(arguments)
    outputs, unreadable = existing(args.outputs), Unreadable()
    check_uri("--uri", args.uri)
    removal = _removal(outputs, args.name, unreadable)
    _check_idle(removal, unreadable)
    refused: list[str] = []
    entries = list(removal.entries(unreadable, refused.append))
    if refused:
        entries = []
        note(f"nothing is removed from the store: {refused[0]}")
    print(_described(removal, entries))
    if args.dry_run:
        return unreadable.code
    if not args.yes:
        if not sys.stdin.isatty():
            raise UsageError("rm: asks before it deletes; without a terminal, add --yes")
        print("Delete? [y/N] ", end="", flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            print("Nothing is deleted.")
            return 1
    from xclrun.store.prune import remove

    # The configs name the trackers, and are gone later.
    trackings = _trackings(removal, TrackingConfig(uri=args.uri, experiment=args.experiment))
    removal.remove_files()
    failed = [not _remove_copies(removal, tracking) for tracking in trackings]
    for entry in entries:
        remove(entry)
    print("Deleted.")
    return max(unreadable.code, int(any(failed)))


def _removal(outputs: Path, name: str, unreadable: Unreadable) -> Removal:
    """Return what to delete; raise a `UsageError` if the name fits no sweep and no or several runs."""
    from xclrun.store.removal import Removal
    from xclrun.store.sweeps import sweeps

    by_name = {sweep["name"]: list(sweep["runs"]) for sweep in sweeps(outputs, unreadable)}
    if name in by_name:
        others = {run for other, runs in by_name.items() if other != name for run in runs}
        runs = list(dict.fromkeys(by_name[name]))
        mine = [run for run in runs if run not in others]
        return Removal(outputs, mine, name, [run for run in runs if run in others])
    if (outputs / "sweeps" / f"{name}.json").is_file():
        raise RunError(f"the file of sweep '{name}' is unreadable; re-run the command that started the sweep")
    # A run whose directory is gone may still have copies.
    names = {path.name for path in (outputs / "runs").glob("*") if path.is_dir()}
    names |= {path.stem for path in outputs.glob("tracked/*/*/*.json")}
    # Shell completion appends a slash to a folder.
    return Removal(outputs, [matching(name.rstrip("/"), names, "run or sweep", f"in {outputs}")])


def _check_idle(removal: Removal, unreadable: Unreadable) -> None:
    """Raise a `UsageError` if a run, or a Slurm job of the sweep, is running or waiting.

    Jobs of the sweep can also train runs that other sweeps contain; they need the sweep's files.
    """
    from xclrun.launch.status import sweep_status

    jobs = (removal.outputs / "slurm" / removal.sweep).resolve() if removal.sweep else None
    for status in sweep_status(removal.outputs, [*removal.run_ids, *removal.kept], unreadable):
        mine = status.run_id in removal.run_ids or (status.log and jobs in Path(status.log).resolve().parents)
        if status.busy and mine:
            stop = "xclrun cancel SWEEP" if status.job else "Ctrl-C"
            raise UsageError(f"{status.run_id} is {status.state}; stop it first ({stop}); nothing is deleted")


def _described(removal: Removal, entries: Sequence[Entry]) -> str:
    """Return the lines that describe a removal."""
    lines = [f"  {run_id}" for run_id in removal.run_ids[:NAMED]]
    lines += [f"  and {len(removal.run_ids) - NAMED} more"] if len(removal.run_ids) > NAMED else []
    used = sum(path.stat().st_size for d in removal.directories for path in d.path.rglob("*") if path.is_file())
    stored = sum(entry.bytes for entry in entries)
    of_sweep = f" and the sweep {removal.sweep}" if removal.sweep else ""
    what = f"{many(len(removal.run_ids), 'run')}{of_sweep} ({size(used)})"
    lines.insert(0, f"To delete: {what}, and {many(len(entries), 'entry', 'entries')} of the store ({size(stored)})")
    if removal.kept:
        lines.append(f"Not deleted, because other sweeps contain them: {many(len(removal.kept), 'run')}")
    return "\n".join(lines)


def _trackings(removal: Removal, default: TrackingConfig) -> list[TrackingConfig]:
    """Return the trackers that may have copies of the runs: those of their configs, and the default."""
    return list({(t.to, t.uri, t.experiment): t for t in [default, *_configured(removal)]}.values())


def _configured(removal: Removal) -> Iterator[TrackingConfig]:
    import yaml

    from xclrun.store.rundir import UNREADABLE_RUN

    for directory in removal.directories:
        try:
            config = yaml.load(directory.read_config(), Loader=yaml.CSafeLoader)["tracking"]
            tracking = TrackingConfig(to=config["to"], uri=config["uri"], experiment=config["experiment"])
        except UNREADABLE_RUN:
            continue
        yield tracking


def _remove_copies(removal: Removal, tracking: TrackingConfig) -> bool:
    """Remove the copies of the runs in a tracker; return whether none can remain."""
    from xclrun.tracking.trackers import DATABASE, tracker

    if tracking.to == "mlflow" and tracking.uri is None and not (removal.outputs / DATABASE).is_file():
        return True
    try:
        place = tracker(removal.outputs, tracking)
        if not place.remove(removal.run_ids, removal.sweep):
            note(f"{place.place} keeps its copies of the runs; delete them there")
        return True
    except XclrunError as error:
        note(f"{error}; copies of the runs may remain there, but do not count")
        return False
