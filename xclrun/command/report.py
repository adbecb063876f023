"""``xclrun report``: tables and figures over finished runs."""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.bootstrap import INTERVALS
from xclrun.command.common import Unreadable, check_sweep, existing, outputs_parser
from xclrun.config.checks import check_uri
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.names import check_name, slug
from xclrun.core.plugins import typed_command
from xclrun.core.task import BY_NAME
from xclrun.core.terminal import columns, many, note
from xclrun.store.files import check_target
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    from xclrun.analysis.finished import FinishedRun
    from xclrun.analysis.record import RunRecord
    from xclrun.analysis.tuning import Choice
    from xclrun.data.example import Dataset
    from xclrun.tracking.mirror import Mirror

Sweep = Mapping[str, Any]


def main(arguments: Sequence[str]) -> int:
    """Write and print a report; return the exit code."""
    args = _options(arguments)
    outputs, unreadable = args.outputs, Unreadable()
    from xclrun.analysis.fewshot.scores import is_few_shot
    from xclrun.analysis.records import read_gradients, read_predictions
    from xclrun.report.embed import embed, places
    from xclrun.report.fewshot.read import read_few_shot
    from xclrun.report.published import table_of
    from xclrun.report.published.fsxlt import sweep_table
    from xclrun.report.section import Options, Sources
    from xclrun.report.style import more_formats
    from xclrun.report.write import write_report
    from xclrun.store.sweeps import sweeps

    all_sweeps: dict[str, Sweep] = {sweep["name"]: sweep for sweep in sweeps(outputs, unreadable)}
    if args.sweep:
        check_sweep(outputs, args.sweep, all_sweeps)
    with _excluded_from_collection():
        pool, other_runs = _read_runs(args, all_sweeps, unreadable)
        mirror, mirrored = _add_mirrored(pool, args, unreadable)
    sweep = None if args.all else all_sweeps[args.sweep] if args.sweep else _latest(all_sweeps, pool)
    records, choice = _chosen(args, sweep, pool, bool(other_runs))
    if mirror is not None and args.slot_f1 is None:
        _catch_up(mirror, records, pool, unreadable)
    sweep_name = "" if sweep is None else sweep["name"]
    name = _name(args, sweep_name)
    if args.into is not None:
        # Check the page before the long work.
        places(args.into, name)
        check_target(args.into.parent, "choose another page with --into FILE")
    check_target(outputs / "reports" / name, "choose another folder with --outputs DIR")
    options = Options(
        unpaired=args.unpaired,
        interval=args.interval,
        full=args.full,
        table=table_of(sweep_name),
        few_shot_table=sweep_table(sweep_name),
        formats=args.formats,
        choice=choice,
        command=typed_command(),
        **_comparisons(args, {} if sweep is None else sweep.get("comparisons", {})),
    )
    sources = Sources(
        pool=pool,
        other_runs=other_runs,
        predictions=lambda: read_predictions(
            outputs, [r for r in records if r.finished and not is_few_shot(r)], unreadable
        ),
        gradients=lambda: read_gradients(outputs, records, unreadable),
        few_shot=read_few_shot(outputs, records, _dataset),
        commands=_commands(all_sweeps.values(), choice),
        excluded=_left_out(outputs, sweep, records, pool),
        mirrored=mirrored,
    )
    commands = [typed_command(), *([] if sweep is None else [sweep["command"]])]
    report = write_report(records, outputs / "reports" / name, name, commands, options, sources)
    if mirror is not None:
        try:
            mirror.send_report(name, report.directory, report.to_json())
        except RunError as error:
            note(f"{error}; the report was not sent to MLflow")
    filled = 0
    if args.into is not None:
        filled = embed(args.into, report, lambda runs: read_predictions(outputs, runs, unreadable))
    if args.json:
        print(json.dumps(report.to_json(), indent=1))
        return unreadable.code
    if sweep is not None and not args.sweep:
        hint = f" of {len(all_sweeps)}; choose another with `xclrun report NAME`, or all with --all"
        print(f"The last sweep{hint if len(all_sweeps) > 1 else ''}:\n{sweep_name}: {sweep['command']}\n")
    print(report.render(min(100, columns(sys.stdout))))
    numbers = " and ".join(map(str, report.numbers))
    print(f"\nOpen {report.index}: tables, tests and figures.\nThe numbers are in {numbers}.")
    if more := more_formats(args.formats):
        print(more)
    if filled:
        print(f"{args.into}: {many(filled, 'place')} filled.")
    return unreadable.code


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the options; raise a `UsageError` if no run has finished yet."""
    from xclrun.analysis.confirmatory import margin_of, primary_measures

    parser = outputs_parser(
        "report", "Write tables and figures for the finished runs of a sweep, or for all finished runs."
    )
    parser.add_argument("sweep", nargs="?", help="name of a sweep (default: the most recent sweep)")
    parser.add_argument("--all", action="store_true", help="report the runs of all sweeps")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this value or one of these values, as in trainer.epochs=5 or strategy=naive,er; "
        "repeatable",
    )
    parser.add_argument(
        "--select-on",
        nargs=2,
        metavar=("dev", "KEYS"),
        help="select the values of KEYS, as in trainer.lr,strategy.weight, by their dev scores; each strategy is "
        "reported with its best values only. dev means final performance on dev (dev_fp) if evaluate.every_… was set, "
        "otherwise the dev score right after each language's hop (dev_learnt). More: docs/reports.md",
    )
    parser.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    parser.add_argument(
        "--baseline",
        metavar="LABEL",
        help="strategy that all others are compared with, as named in tables (default: that of the sweep, otherwise "
        "naive or the first)",
    )
    parser.add_argument(
        "--primary",
        type=primary_measures,
        metavar="MEASURES",
        help="measures on which each strategy is compared with the baseline; p-values are corrected for the number of "
        "these comparisons (default: those of the sweep, otherwise F,FP)",
    )
    parser.add_argument(
        "--margin",
        type=margin_of,
        metavar="POINTS",
        help="also test whether each strategy differs from the baseline by less than this number of points "
        "(equivalence tests)",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="PAGE",
        help="also insert tables and figures into a Markdown page, at comments such as "
        "<!-- report: NAME/tables/FILE.md --> (docs/reports.md)",
    )
    parser.add_json("print JSON instead of tables")
    parser.add_argument(
        "--from",
        dest="source",
        choices=("mlflow", "runs"),
        default="mlflow",
        help="source of the runs: with mlflow, also runs that other outputs folders sent to the server; runs of this "
        "folder always count from their verified files (default: %(default)s)",
    )
    parser.add_argument("--from-runs", dest="source", action="store_const", const="runs", help="same as --from runs")
    parser.add_argument(
        "--slot-f1",
        choices=("span_micro", "tag_macro"),
        help="definition of span F1, computed from the stored predictions (default: each run's evaluate.slot_f1)",
    )
    parser.add_argument(
        "--unpaired",
        action="store_true",
        help="average all runs of each strategy, including orders and seeds that other strategies lack",
    )
    parser.add_argument(
        "--interval",
        choices=tuple(INTERVALS),
        help="kind of bootstrap interval over test sentences (default: depends on the measure, see "
        "docs/statistics.md); paper is the interval of the CCL paper, which is based on the standard error of "
        "the bootstrap mean",
    )
    parser.add_argument(
        "--full", action="store_true", help="resample as many sentences as the test set has (default: at most 600)"
    )
    parser.add_argument(
        "--formats",
        type=_formats,
        default="",
        metavar="pdf,png",
        help="also save figures in these formats, in addition to SVG; slower",
    )
    parser.add_tracking()
    args = parser.parse_args(arguments)
    existing(args.outputs)
    check_uri("--uri", args.uri)
    from xclrun.analysis.filters import parse_filters

    args.filters = parse_filters(args.filter)
    written = ("mlflow.db", "sweeps/*.json", "runs/*/manifest.json")
    if args.uri is None and not any(any(args.outputs.glob(name)) for name in written):
        raise UsageError(
            f"no finished runs in {args.outputs}; create some first, for example: xclrun strategy=naive,er -m"
        )
    if args.all and args.sweep:
        raise UsageError(f"report {args.sweep} --all: choose one of the two")
    if args.name is not None:
        check_name("--name", args.name)
        if not re.fullmatch(r"[\w.-]+", args.name):
            raise UsageError(f"--name {args.name}: letters, digits, '-', '_' and '.' only")
    return args


def _comparisons(args: argparse.Namespace, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Options` for the primary comparisons; ``recorded``: those of the sweep."""
    from xclrun.analysis.confirmatory import PRIMARY, departures

    baseline, primary, margin = args.baseline, args.primary, args.margin
    baseline = recorded.get("baseline") if baseline is None else baseline
    primary = tuple(recorded.get("primary", PRIMARY)) if primary is None else primary
    margin = recorded["margin"] / 100 if margin is None and "margin" in recorded else margin
    changed = departures(recorded, baseline, primary, margin)
    return {"baseline": baseline, "primary": primary, "margin": margin, "departures": tuple(changed)}


def _formats(text: str) -> tuple[str, ...]:
    """Parse ``--formats``: the formats in addition to SVG."""
    from xclrun.report.style import FURTHER

    names = [name for name in (part.strip().lower() for part in text.split(",")) if name not in ("", "svg")]
    if unknown := next((name for name in names if name not in FURTHER), None):
        raise UsageError(f"--formats {text}: unknown format '{unknown}'; {did_you_mean(unknown, ('svg', *FURTHER))}")
    return tuple(dict.fromkeys(names))


def _name(args: argparse.Namespace, sweep: str) -> str:
    """Return the name of the report's folder."""
    scored = [] if args.slot_f1 is None else [f"slot_f1={args.slot_f1}"]
    selected = [] if args.select_on is None else ["=".join(args.select_on)]
    return str(args.name or slug("-".join([sweep or "all", *args.filter, *selected, *scored])))


def _read_runs(
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


def _add_mirrored(
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
        if args.slot_f1 in (None, way) or not any(BY_NAME[metric].span_f1 for metric in record.scores):
            records.append(record)
            added.append(record.run_id)
        else:
            why = f"MLflow has only its scores with slot_f1={way}, not its predictions"
            warn(f"{record.run_id}: skipped, because {why}; omit --slot-f1 to include it")
    return mirror, frozenset(added)


def _run_ids(sweep: Sweep) -> list[str]:
    """Return the runs of a sweep; of a search, only the runs of the settings that have a dev score."""
    run_ids: list[str] = sweep.get("search", sweep)["runs"]
    return run_ids


def _chosen(
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
        states = unfinished(records, _left_out(args.outputs, sweep, records, pool))
        where = f"{'' if args.sweep else 'the last sweep, '}{sweep['name']}{states}"
        if more or any(record.finished for record in pool):
            raise UsageError(
                f"no finished runs in {where}; report another sweep with `xclrun report NAME` (`xclrun status all` "
                "lists them), or all runs with --all"
            )
        raise UsageError(f"no finished runs in {where}; re-run its command to resume: {sweep['command']}")
    choice = None
    if select_on is not None and finished:
        choice = _choice(records, sorted(chosen - {record.run_id for record in pool}), *select_on)
        records = choice.runs
    if sweep is not None or args.filters or choice:
        records += References(pool).needed_by(records)
    return records, choice


def _left_out(
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


def _commands(all_sweeps: Iterable[Sweep], choice: Choice | None) -> dict[str, str]:
    """Return run ID → the command that made the run.

    For settings selected on dev, the command has only the selected values.
    """
    from xclrun.analysis.reference import command_of_setting

    commands = {run_id: sweep["command"] for sweep in all_sweeps for run_id in sweep["runs"]}
    for tuned in () if choice is None else choice.tuned:
        best = tuned.trials[0]
        for run in best.runs:
            if run.run_id in commands:
                commands[run.run_id] = command_of_setting(commands[run.run_id], best.set)
    return commands


def _catch_up(mirror: Mirror, records: Sequence[RunRecord], pool: Sequence[RunRecord], warn: Unreadable) -> None:
    """Send the reported runs that MLflow lacks."""
    from xclrun.analysis.reference import References

    unique = {record.run_id: record for record in records}
    try:
        if sent := mirror.send_records(unique.values(), References(pool), warn):
            runs = "1 run was" if sent == 1 else f"{sent} runs were"
            note(f"MLflow was not up to date; {runs} sent to {mirror.uri}")
    except RunError as error:
        note(f"{error}; the report uses the run directories")


def _dataset(directory: RunDirectory) -> Dataset:
    # Imported for few-shot runs only, because the import is slow.
    from xclrun.plan import thaw

    return thaw(directory).dataset


@contextmanager
def _excluded_from_collection() -> Iterator[None]:
    """Exclude objects created in this block from garbage collection.

    With a thousand runs, collection would otherwise take a fifth of a report's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _latest(all_sweeps: dict[str, Sweep], pool: Sequence[RunRecord]) -> Sweep | None:
    """Return the most recent sweep, preferring sweeps with runs other than references; None if there is no sweep."""
    compared = _without_references(pool)
    latest = list(reversed(all_sweeps.values()))
    return next((sweep for sweep in latest if compared & set(sweep["runs"])), next(iter(latest), None))


def _without_references(records: Iterable[RunRecord]) -> set[str]:
    """Return the IDs of the runs that are not reference runs."""
    from xclrun.analysis.reference import REFERENCE

    return {record.run_id for record in records if record.strategy.partition("+")[0] != REFERENCE}
