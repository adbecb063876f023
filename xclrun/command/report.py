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
from xclrun.core.terminal import columns, note
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    from xclrun.analysis.base_scores import Predictions
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
    from xclrun.analysis.filters import parse_filters
    from xclrun.report import Options, write_report
    from xclrun.report.embed import embed, places
    from xclrun.report.fewshot.read import read_few_shot
    from xclrun.report.published import table_of
    from xclrun.report.published.fsxlt import sweep_table
    from xclrun.report.style import more_formats
    from xclrun.store.records import read_gradients, read_predictions, sweeps

    known = {sweep["name"]: sweep for sweep in sweeps(outputs, unreadable)}
    if args.sweep:
        check_sweep(outputs, args.sweep, known)
    filters = parse_filters(args.filter)
    with _excluded_from_collection():
        pool, outside = _read_runs(outputs, args, known, unreadable)
        mirror = _add_mirrored(pool, outputs, args, unreadable)
    sweep = None if args.all else known[args.sweep] if args.sweep else _latest(known, pool)
    searched = _search(sweep)
    records, choice = _chosen(pool, sweep, filters, bool(args.sweep), args.select_on or searched, bool(outside))
    if mirror is not None and args.slot_f1 is None:
        _catch_up(mirror, records, pool, unreadable)
    sweep_name = "" if sweep is None else sweep["name"]
    name = _name(args, sweep_name)
    if args.into is not None:
        # Check the page before the long work.
        places(args.into, name)
    report = write_report(
        records,
        outputs / "reports" / name,
        name,
        commands=[typed_command(), *([] if sweep is None else [sweep["command"]])],
        predictions=lambda: _predictions(outputs, records, unreadable),
        pool=pool,
        options=Options(
            unpaired=args.unpaired,
            interval=args.interval,
            full=args.full,
            table=table_of(sweep_name),
            few_shot_table=sweep_table(sweep_name),
            baseline=args.baseline,
            formats=args.formats,
            choice=choice,
            primary=args.primary,
            command=typed_command(),
        ),
        few_shot_data=read_few_shot(outputs, records, _dataset),
        commands_of_runs=_commands(known.values(), choice),
        gradients=lambda: read_gradients(outputs, records, unreadable),
        other_runs=outside,
        excluded=_left_out(outputs, sweep, records, pool),
    )
    if mirror is not None:
        try:
            mirror.send_report(name, report.directory, report.to_json())
        except RunError as error:
            note(f"{error}; the report itself is not in MLflow")
    filled = 0
    if args.into is not None:
        filled = embed(args.into, report, lambda runs: read_predictions(outputs, runs, unreadable))
    if args.json:
        print(json.dumps(report.to_json(), indent=1))
        return unreadable.code
    if sweep is not None and not args.sweep:
        others = f" of {len(known)}; `xclrun report NAME` is of another, --all of everything"
        print(f"The last sweep{others if len(known) > 1 else ''}:\n{sweep_name}: {sweep['command']}\n")
    print(report.render(min(100, columns(sys.stdout))))
    numbers = " and ".join(map(str, report.numbers))
    print(f"\nOpen {report.index}: tables, tests and figures.\nThe numbers are in {numbers}.")
    if more := more_formats(args.formats):
        print(more)
    if filled:
        print(f"{args.into}: {filled} place{'s' if filled > 1 else ''} filled.")
    return unreadable.code


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the options; a `UsageError` also where nothing has run yet."""
    parser = outputs_parser("report", "Tables and figures over the finished runs of a sweep, or over all.")
    parser.add_argument("sweep", nargs="?", help="name of a sweep (default: the most recent sweep)")
    parser.add_argument("--all", action="store_true", help="report all runs, of whatever sweep")
    parser.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this value, or one of several with commas, as in trainer.epochs=5 or strategy=naive,er; "
        "may be given several times",
    )
    parser.add_argument(
        "--select-on",
        nargs=2,
        metavar=("dev", "KEYS"),
        help="choose each strategy's settings of these keys, as in trainer.lr,strategy.weight, by dev scores, and "
        "report only the test scores of the chosen ones; dev: FP on dev where evaluate.every_… measured it, else "
        "dev_learnt, right after each language's own hop; by name also dev_fp, dev_f, … (docs/reports.md)",
    )
    parser.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    parser.add_argument(
        "--baseline",
        metavar="LABEL",
        help="strategy that significance marks compare with, as tables name it (default: naive, else the first tested)",
    )
    parser.add_argument(
        "--primary",
        type=_primary,
        default="F,FP",
        metavar="MEASURES",
        help="measures on which each strategy is compared with the baseline: significance marks and “What was found” "
        "are corrected over these comparisons (default: %(default)s)",
    )
    parser.add_argument(
        "--into",
        type=Path,
        metavar="PAGE",
        help="also put tables and figures into a Markdown page, where comments such as "
        "<!-- report: NAME/tables/FILE.md --> ask for them (docs/reports.md)",
    )
    parser.add_json("print facts as JSON instead of tables")
    parser.add_argument(
        "--from",
        dest="source",
        choices=("mlflow", "runs"),
        default="mlflow",
        help="where runs are read: MLflow, which also has those of other machines, or only the run directories; "
        "scores of local runs always come from their checked prediction files (default: %(default)s)",
    )
    parser.add_argument("--from-runs", dest="source", action="store_const", const="runs", help="as --from runs")
    parser.add_argument(
        "--slot-f1",
        choices=("span_micro", "tag_macro"),
        help="how span F1 is computed from stored predictions (default: as each run's evaluate.slot_f1)",
    )
    parser.add_argument(
        "--unpaired",
        action="store_true",
        help="average all runs of each strategy, not only the orders and seeds that all strategies have finished",
    )
    parser.add_argument(
        "--interval",
        choices=tuple(INTERVALS),
        help="kind of bootstrap interval over test sentences (default: by measure, see docs/statistics.md; paper: the "
        "standard error of the bootstrap mean)",
    )
    parser.add_argument(
        "--full", action="store_true", help="bootstrap resamples as large as the test set, instead of 600 at most"
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
    written = ("mlflow.db", "sweeps/*.json", "runs/*/manifest.json")
    if args.uri is None and not any(any(args.outputs.glob(name)) for name in written):
        raise UsageError(
            f"no finished runs; make some first, for example: xclrun strategy=naive,er -m ({args.outputs} holds none)"
        )
    if args.all and args.sweep:
        raise UsageError(f"report {args.sweep} --all: give the name of a sweep, or --all")
    if args.name is not None:
        check_name("--name", args.name)
        if not re.fullmatch(r"[\w.-]+", args.name):
            raise UsageError(f"--name {args.name}: letters, digits, '-', '_' and '.' only")
    return args


def _primary(text: str) -> tuple[str, ...]:
    """Parse ``--primary``."""
    from xclrun.analysis.measures import headlines

    names, known = [name.strip() for name in text.split(",")], [measure.name for measure in headlines()]
    if unknown := next((name for name in names if name not in known), None):
        raise UsageError(f"--primary {text}: unknown measure '{unknown}'; {did_you_mean(unknown, known)}")
    return tuple(dict.fromkeys(names))


def _formats(text: str) -> tuple[str, ...]:
    """Parse ``--formats``: the formats in addition to SVG."""
    from xclrun.report.style import FURTHER

    names = [name for name in (part.strip().lower() for part in text.split(",")) if name not in ("", "svg")]
    if unknown := next((name for name in names if name not in FURTHER), None):
        raise UsageError(f"--formats {text}: '{unknown}' is none; {did_you_mean(unknown, ('svg', *FURTHER))}")
    return tuple(dict.fromkeys(names))


def _name(args: argparse.Namespace, sweep: str) -> str:
    """Return the name of the report's folder."""
    scored = [] if args.slot_f1 is None else [f"slot_f1={args.slot_f1}"]
    selected = [] if args.select_on is None else ["=".join(args.select_on)]
    return str(args.name or slug("-".join([sweep or "all", *args.filter, *selected, *scored])))


def _read_runs(
    outputs: Path, args: argparse.Namespace, known: Mapping[str, Sweep], warn: Unreadable
) -> tuple[list[RunRecord], list[FinishedRun]]:
    """Read the runs that the report needs; return their records, and the index entries of all other finished runs.

    For one sweep, these are its runs and their reference runs; otherwise all runs.
    """
    from xclrun.store.finished import with_references
    from xclrun.store.records import read_records

    name = args.sweep or next(iter(list(known)[::-1]), None)
    # With another --slot-f1, runs have other settings than their index entries.
    if name is not None and not args.all and args.slot_f1 is None:
        records = read_records(outputs, warn, only=known[name]["runs"])
        if args.sweep or _without_references(records):
            references, outside = with_references(outputs, records, warn)
            return [*records, *references], outside
    return read_records(outputs, warn, args.slot_f1), []


def _add_mirrored(records: list[RunRecord], outputs: Path, args: argparse.Namespace, warn: Unreadable) -> Mirror | None:
    """Append the runs that only MLflow has; return the mirror, or None if it is not used or cannot be reached."""
    tracking = [record.config.get("tracking", {}) for record in records]
    asked = any(config.get("enabled", True) and config.get("to", "mlflow") == "mlflow" for config in tracking)
    # A report creates no mirror for runs that were not asked to have one.
    exists = args.uri is not None or (outputs / "mlflow.db").exists() or asked
    if args.source == "runs" or not exists:
        return None
    from xclrun.tracking.mirror import Mirror

    try:
        mirror = Mirror(outputs, TrackingConfig(uri=args.uri, experiment=args.experiment))
        elsewhere = mirror.records_elsewhere(warn)
    except RunError as error:
        note(f"{error}; reading the run directories instead")
        return None
    for record in elsewhere:
        way = record.config.get("evaluate", {}).get("slot_f1")
        if args.slot_f1 in (None, way) or not any(BY_NAME[metric].span_f1 for metric in record.scores):
            records.append(record)
        else:
            warn(f"{record.run_id} is scored by slot_f1={way} in MLflow, and its predictions are not here; left out")
    return mirror


def _run_ids(sweep: Sweep) -> list[str]:
    """Return the runs of a sweep; of a search, only those of settings that could be run."""
    run_ids: list[str] = sweep.get("search", sweep)["runs"]
    return run_ids


def _chosen(
    pool: Sequence[RunRecord],
    sweep: Sweep | None,
    filters: dict[str, set[str]],
    named: bool,
    select_on: Sequence[str] | None = None,
    more: bool = False,
) -> tuple[list[RunRecord], Choice | None]:
    """Return the records to report, including the reference runs for transfer, and the choice of settings on dev.

    Args:
        sweep: None: all runs.
        named: whether the user named the sweep.
        select_on: objective and keys of the choice.
        more: whether there are finished runs that were not read.
    """
    from xclrun.analysis.filters import filtered
    from xclrun.analysis.reference import References
    from xclrun.report.caveats import unfinished

    run_ids = None if sweep is None else set(_run_ids(sweep))
    records = filtered([record for record in pool if run_ids is None or record.run_id in run_ids], filters)
    finished = any(record.finished for record in records)
    if sweep is not None and not finished:
        what = f"no finished runs in {'' if named else 'the last sweep, '}{sweep['name']}{unfinished(records)}"
        if more or any(record.finished for record in pool):
            raise UsageError(
                f"{what}; `xclrun report NAME` is of another (`xclrun status all` names them), --all of everything"
            )
        raise UsageError(f"{what}; re-run its command to resume: {sweep['command']}")
    choice = None
    if select_on is not None and finished:
        begun = {record.run_id for record in pool}
        absent = [] if sweep is None else [run_id for run_id in _run_ids(sweep) if run_id not in begun]
        choice = _choice(records, absent, *select_on)
        records = choice.runs
    if sweep is not None or filters or choice:
        records += References(pool).needed_by(records)
    return records, choice


def _left_out(
    outputs: Path, sweep: Sweep | None, records: Sequence[RunRecord], pool: Sequence[RunRecord]
) -> dict[str, tuple[str, str]]:
    """Return run ID → state and reason of the runs of a report that do not count.

    Args:
        sweep: None: all runs.
        records: of the report.
        pool: all records that were read; those not in ``records`` were not asked for.
    """
    from xclrun.launch.status import run_status
    from xclrun.store.records import run_directories

    run_ids = {record.run_id for record in records}
    counted = {record.run_id for record in records if record.finished}
    counted |= {record.run_id for record in pool if record.run_id not in run_ids}
    every = [one.run_id for one in run_directories(outputs)] if sweep is None else _run_ids(sweep)
    reasons = {}
    for run_id in dict.fromkeys(run_id for run_id in every if run_id not in counted):
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


def _choice(records: Sequence[RunRecord], absent: Sequence[str], what: str, keys: str) -> Choice:
    """Choose settings on dev.

    Args:
        absent: runs of the sweep that have no record.
    """
    from xclrun.analysis.tuning import choose

    names = [key for part in keys.split(",") if (key := part.strip())]
    if not names:
        raise UsageError(f"--select-on {what} '{keys}': needs keys of the config, as in trainer.lr,strategy.weight")
    if absent:
        count = f"{len(absent)} of the sweep's runs {'has' if len(absent) == 1 else 'have'}"
        raise UsageError(
            f"--select-on {what} {keys}: {count} not begun, or cannot be read ({absent[0]}); settings are compared "
            "when all runs have finished; re-run the sweep's command"
        )
    return choose(records, names, what)


def _commands(known: Iterable[Sweep], choice: Choice | None) -> dict[str, str]:
    """Return run ID → the command that made it; for chosen settings, a command that makes only these."""
    from xclrun.analysis.reference import command_of_setting

    commands = {run_id: sweep["command"] for sweep in known for run_id in sweep["runs"]}
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
            note(f"MLflow was behind: {runs} sent to {mirror.uri}")
    except RunError as error:
        note(f"{error}; the numbers are those of the run directories")


def _predictions(outputs: Path, records: Sequence[RunRecord], warn: Unreadable) -> dict[str, Predictions]:
    """Return run ID → predictions of the finished runs, without few-shot runs (see `read_few_shot`)."""
    from xclrun.analysis.fewshot.scores import is_few_shot
    from xclrun.store.records import read_predictions

    return read_predictions(outputs, [r for r in records if r.finished and not is_few_shot(r)], warn)


def _dataset(directory: RunDirectory) -> Dataset:
    # Imported for few-shot runs only: planning imports much.
    from xclrun.run import thaw

    return thaw(directory).dataset


@contextmanager
def _excluded_from_collection() -> Iterator[None]:
    """Exclude the objects made inside from garbage collection.

    With a thousand runs, collection would otherwise take a fifth of a report's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _latest(known: Mapping[str, Sweep], pool: Sequence[RunRecord]) -> Sweep | None:
    """Return the most recent sweep, if possible one that has more than reference runs; None: no sweep is known."""
    compared = _without_references(pool)
    latest = list(known.values())[::-1]
    return next((sweep for sweep in latest if compared & set(sweep["runs"])), next(iter(latest), None))


def _without_references(records: Iterable[RunRecord]) -> set[str]:
    """Return the IDs of the runs that are not reference runs."""
    from xclrun.analysis.reference import REFERENCE

    return {record.run_id for record in records if record.strategy.partition("+")[0] != REFERENCE}
