"""``xclrun report``: tables and figures over what has run."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.bootstrap import INTERVALS
from xclrun.command.common import Unreadable, add_tracking, check_lost, choose, existing, parser
from xclrun.config.checks import check_uri
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.names import check_name, slug
from xclrun.core.task import BY_NAME
from xclrun.core.terminal import columns, note
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    from xclrun.analysis.base_scores import Predictions
    from xclrun.analysis.beside import Beside
    from xclrun.analysis.record import RunRecord
    from xclrun.analysis.tuning import Choice
    from xclrun.data.example import Dataset
    from xclrun.tracking.mirror import Mirror


def main(arguments: Sequence[str]) -> int:
    """Write and print a report; return the exit code."""
    given = _options(arguments)
    outputs, unreadable = given.outputs, Unreadable()
    from xclrun.analysis.filters import parse_filters
    from xclrun.launch.sweep import command
    from xclrun.report import Options, write_report
    from xclrun.report.embed import embed, places
    from xclrun.report.fewshot.read import read_few_shot
    from xclrun.report.published import table_of
    from xclrun.report.published.fsxlt import sweep_table
    from xclrun.report.style import more_formats
    from xclrun.store.records import read_gradients, read_predictions, sweeps

    known = {sweep["name"]: sweep for sweep in sweeps(outputs, unreadable)}
    if given.sweep:
        check_lost(outputs, given.sweep, known)
        choose("sweep", given.sweep, known, str(outputs))
    filters = parse_filters(given.filter)
    with _lasting():
        mirror, pool, beside = _read(outputs, given, known, unreadable)
    sweep = None if given.all else known[given.sweep] if given.sweep else _last(known, pool)
    searched = _searched(sweep)
    select_on = given.select_on or searched
    records, choice = _chosen(pool, sweep, filters, bool(given.sweep), select_on, bool(beside))
    if mirror is not None and given.slot_f1 is None:
        _catch_up(mirror, records, pool, unreadable)
    of = "" if sweep is None else sweep["name"]
    name = _name(given, of)
    if given.into is not None:
        # Said before what takes long.
        places(given.into, name)
    made = write_report(
        records,
        outputs / "reports" / name,
        name,
        [command(), *([] if sweep is None else [sweep["command"]])],
        lambda: _predictions(outputs, records, unreadable),
        pool,
        Options(
            given.unpaired,
            given.interval,
            given.full,
            table_of(of),
            sweep_table(of),
            given.baseline,
            given.formats,
            choice,
            given.primary,
            command(),
        ),
        read_few_shot(outputs, records, _dataset),
        _commands(known.values(), choice),
        lambda: read_gradients(outputs, records, unreadable),
        beside,
        _left_out(outputs, sweep, records, pool),
    )
    if mirror is not None:
        try:
            mirror.send_report(name, made.directory, made.to_json())
        except RunError as error:
            note(f"{error}; the report itself is not in MLflow")
    filled = None
    if given.into is not None:
        filled = embed(given.into, made, lambda runs: read_predictions(outputs, runs, unreadable))
    if given.json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        if sweep is not None and not given.sweep:
            others = f" of {len(known)}; `xclrun report NAME` is of another, --all of everything"
            print(f"The last sweep{others if len(known) > 1 else ''}:\n{of}: {sweep['command']}\n")
        print(made.render(min(100, columns(sys.stdout))))
        numbers = " and ".join(map(str, made.numbers))
        print(f"\nOpen {made.index}: tables, tests and figures.\nThe numbers are in {numbers}.")
        if more := more_formats(given.formats):
            print(more)
        if filled:
            print(f"{given.into}: {filled} place{'s' if filled > 1 else ''} filled.")
    return unreadable.code


def _parser() -> argparse.ArgumentParser:
    """Return what reads the options."""
    options = parser("report", "Tables and figures over the finished runs of a sweep, or over all; read from MLflow.")
    options.add_argument("sweep", nargs="?", help="name of a sweep (default: the last one that was started)")
    options.add_argument("--all", action="store_true", help="over all runs, of whatever sweep")
    options.add_argument(
        "--filter",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this value, or one of several with commas, as in trainer.epochs=5 or strategy=naive,er; "
        "may be given several times",
    )
    options.add_argument(
        "--select-on",
        nargs=2,
        metavar=("dev", "KEYS"),
        help="choose each strategy's settings of these keys, as in trainer.lr,strategy.weight, by dev scores, and "
        "report the test scores of the chosen ones alone; dev: FP on dev where evaluate.every_… measured it, else "
        "dev_learnt, right after each language's own hop; by name also dev_fp, dev_f, … (docs/reports.md)",
    )
    options.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    options.add_argument(
        "--baseline",
        metavar="LABEL",
        help="strategy that significance marks compare with, as tables name it (default: naive, else the first tested)",
    )
    options.add_argument(
        "--primary",
        default="F,FP",
        metavar="MEASURES",
        help="measures on which each strategy is compared with the baseline: significance marks and “What was found” "
        "are corrected over these comparisons (default: %(default)s)",
    )
    options.add_argument(
        "--into",
        type=Path,
        metavar="PAGE",
        help="also put tables and figures into a Markdown page, where comments such as "
        "<!-- report: NAME/tables/FILE.md --> ask for them (docs/reports.md)",
    )
    options.add_argument("--json", action="store_true", help="print facts as JSON instead of tables")
    options.add_argument(
        "--from",
        dest="source",
        choices=("mlflow", "runs"),
        default="mlflow",
        help="where runs are read: MLflow, which also has those of other machines, or the run directories alone; "
        "scores of runs that are here come from their checked prediction files either way (default: %(default)s)",
    )
    options.add_argument("--from-runs", dest="source", action="store_const", const="runs", help="as --from runs")
    options.add_argument(
        "--slot-f1",
        choices=("span_micro", "tag_macro"),
        help="how F1 of spans is computed, from stored predictions (default: as each run's evaluate.slot_f1 says)",
    )
    options.add_argument(
        "--unpaired",
        action="store_true",
        help="means over all runs of each strategy, not only over the orders and seeds that all have finished",
    )
    options.add_argument(
        "--interval",
        choices=tuple(INTERVALS),
        help="kind of bootstrap interval over test sentences (default: by measure, see docs/statistics.md; paper: the "
        "standard error of the bootstrap mean)",
    )
    options.add_argument(
        "--full", action="store_true", help="bootstrap resamples as large as the test set, instead of 600 at most"
    )
    options.add_argument(
        "--formats",
        default="",
        metavar="pdf,png",
        help="save figures in these formats too, beside SVG; slower (default: SVG alone, which the page shows)",
    )
    add_tracking(options)
    return options


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options, checked.

    Raises:
        UsageError: one that cannot be, or nothing has run yet.
    """
    given = _parser().parse_args(arguments)
    existing(given.outputs)
    check_uri("--uri", given.uri)
    written = ("mlflow.db", "sweeps/*.json", "runs/*/manifest.json")
    if given.uri is None and not any(any(given.outputs.glob(name)) for name in written):
        raise UsageError(
            f"no finished runs; make some first, for example: xclrun strategy=naive,er -m ({given.outputs} holds none)"
        )
    if given.all and given.sweep:
        raise UsageError(f"report {given.sweep} --all: give the name of a sweep, or --all")
    if given.name is not None:
        check_name("--name", given.name)
        if not given.name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise UsageError(f"--name {given.name}: letters, digits, '-', '_' and '.' only")
    given.formats = _formats(given.formats)
    given.primary = _primary(given.primary)
    return given


def _primary(text: str) -> tuple[str, ...]:
    """Return the measures of ``--primary``, each once.

    Raises:
        UsageError: one is not among the measures of tables.
    """
    from xclrun.analysis.measures import headlines

    names, known = [name.strip() for name in text.split(",")], [one.name for one in headlines()]
    if unknown := next((name for name in names if name not in known), None):
        raise UsageError(f"--primary {text}: unknown measure '{unknown}'; {did_you_mean(unknown, known)}")
    return tuple(dict.fromkeys(names))


def _formats(text: str) -> tuple[str, ...]:
    """Return the formats of figures that ``--formats`` asks for, besides SVG, each once.

    Raises:
        UsageError: there is no such format.
    """
    from xclrun.report.style import FURTHER

    asked = [name for name in (part.strip().lower() for part in text.split(",")) if name not in ("", "svg")]
    if unknown := next((name for name in asked if name not in FURTHER), None):
        raise UsageError(f"--formats {text}: '{unknown}' is none; {did_you_mean(unknown, ('svg', *FURTHER))}")
    return tuple(dict.fromkeys(asked))


def _name(given: argparse.Namespace, sweep: str) -> str:
    """Return the name of the report's folder."""
    scored = [] if given.slot_f1 is None else [f"slot_f1={given.slot_f1}"]
    chosen = [] if given.select_on is None else ["=".join(given.select_on)]
    return str(given.name or slug("-".join([sweep or "all", *given.filter, *chosen, *scored])))


def _read_here(
    outputs: Path, given: argparse.Namespace, known: Mapping[str, dict[str, Any]], warn: Unreadable
) -> tuple[list[RunRecord], list[Beside]]:
    """Return the records of those runs under ``outputs`` that the report needs, and the finished ones beside them.

    Of one sweep these are its own and their reference runs; of anything else all.
    """
    from xclrun.store.beside import with_references
    from xclrun.store.records import read_records

    name = given.sweep or next(iter([*known][::-1]), None)
    # Scored in another way, runs have other settings than those that are noted of them.
    if name is not None and not given.all and given.slot_f1 is None:
        own = read_records(outputs, warn, only=known[name]["runs"])
        if given.sweep or _compared(own):
            references, beside = with_references(outputs, own, warn)
            return [*own, *references], beside
    return read_records(outputs, warn, given.slot_f1), []


def _read(
    outputs: Path, given: argparse.Namespace, known: Mapping[str, dict[str, Any]], warn: Unreadable
) -> tuple[Mirror | None, list[RunRecord], list[Beside]]:
    """Return the mirror, where one is wanted and can be reached, and what `_read_here` does, with runs elsewhere too.

    Scores of runs that are here are computed from their prediction files, whether MLflow has them or not.
    """
    records, beside = _read_here(outputs, given, known, warn)
    if given.source == "runs" or not _mirrored(outputs, given.uri, records):
        return None, records, beside
    from xclrun.tracking.mirror import Mirror

    try:
        mirror = Mirror(outputs, TrackingConfig(uri=given.uri, experiment=given.experiment))
        elsewhere = mirror.records_elsewhere(warn)
    except RunError as error:
        note(f"{error}; reading the run directories instead")
        return None, records, beside
    for record in elsewhere:
        way = record.config.get("evaluate", {}).get("slot_f1")
        if given.slot_f1 in (None, way) or not any(BY_NAME[metric].span_f1 for metric in record.scores):
            records.append(record)
        else:
            warn(f"{record.run_id} is scored by slot_f1={way} in MLflow, and its predictions are not here; left out")
    return mirror, records, beside


def _mirrored(outputs: Path, uri: str | None, records: Sequence[RunRecord]) -> bool:
    """Whether there is a mirror, or a run that was asked to have one; otherwise a report makes none."""
    tracking = [record.config.get("tracking", {}) for record in records]
    asked = any(of.get("enabled", True) and of.get("to", "mlflow") == "mlflow" for of in tracking)
    return uri is not None or (outputs / "mlflow.db").exists() or asked


def _chosen(
    pool: Sequence[RunRecord],
    sweep: Mapping[str, Any] | None,
    filters: dict[str, set[str]],
    named: bool,
    select_on: Sequence[str] | None = None,
    more: bool = False,
) -> tuple[list[RunRecord], Choice | None]:
    """Return the records of a sweep (None: of all) that the filters leave, with those that transfer is measured by.

    Where settings are chosen on dev, those of the chosen ones alone, and the choice.

    Args:
        named: whether the sweep was asked for by name.
        select_on: objective and keys of the choice.
        more: whether runs have finished that were not read.

    Raises:
        UsageError: none has finished, or settings cannot be chosen among.
    """
    from xclrun.analysis.filters import filtered
    from xclrun.analysis.reference import References
    from xclrun.report.caveats import unfinished

    # Of a search, those of the settings that could be done.
    own: list[str] = [] if sweep is None else sweep.get("search", sweep)["runs"]
    wanted = None if sweep is None else set(own)
    records = filtered([record for record in pool if wanted is None or record.run_id in wanted], filters)
    if sweep is not None and not any(r.status == "finished" for r in records):
        what = f"no finished runs in {'' if named else 'the last sweep, '}{sweep['name']}{unfinished(records)}"
        if more or any(r.status == "finished" for r in pool):
            raise UsageError(
                f"{what}; `xclrun report NAME` is of another (`xclrun status all` names them), --all of everything"
            )
        raise UsageError(f"{what}; its command goes on from there: {sweep['command']}")
    choice = None
    if select_on is not None and any(record.status == "finished" for record in records):
        begun = {record.run_id for record in pool}
        absent = [run_id for run_id in own if run_id not in begun]
        choice = _choice(records, absent, *select_on)
        records = choice.runs
    if sweep is not None or filters or choice:
        # Wherever they were run; a run that is there twice counts once.
        records += References(pool).of(records)
    return records, choice


def _left_out(
    outputs: Path, sweep: Mapping[str, Any] | None, records: Sequence[RunRecord], pool: Sequence[RunRecord]
) -> dict[str, tuple[str, str]]:
    """Return run id → state and reason of the runs that a report is about and that do not count.

    Args:
        sweep: whose runs the report is about; None: all.
        records: of the report.
        pool: all that were read: the others of them were not asked for.
    """
    from xclrun.launch.status import run_status
    from xclrun.store.records import run_directories

    wanted = {record.run_id for record in records}
    known = {record.run_id for record in records if record.status == "finished"}
    known |= {record.run_id for record in pool if record.run_id not in wanted}
    every = [one.run_id for one in run_directories(outputs)] if sweep is None else sweep.get("search", sweep)["runs"]
    found = {}
    for run_id in dict.fromkeys(run_id for run_id in every if run_id not in known):
        directory = RunDirectory(outputs / "runs" / run_id)
        status = run_status(directory)
        found[run_id] = status.state, status.detail
        with suppress(UnreadableRun):
            # A glance at sizes does not see a changed byte.
            if status.state in ("finished", "damaged") and (wrong := directory.damaged(thorough=True)) is not None:
                found[run_id] = "damaged", f"{wrong.relative_to(directory.path)} is missing or damaged"
    return found


def _searched(sweep: Mapping[str, Any] | None) -> list[str] | None:
    """Return objective and keys of the search that a sweep is; None where it is none.

    Raises:
        UsageError: the search is under way: test scores must not be seen before it has chosen.
    """
    if sweep is None or (search := sweep.get("search")) is None:
        return None
    if not search["ended"]:
        raise UsageError(
            f"{sweep['name']} is a search that has made {search['made']} of {search['trials']} trials; test scores are "
            f"shown when it has chosen: its command goes on from there: {sweep['command']}"
        )
    return [search["objective"], ",".join(search["keys"])]


def _choice(records: Sequence[RunRecord], absent: Sequence[str], what: str, keys: str) -> Choice:
    """Choose settings on dev among the records of a sweep, without those of its runs that are ``absent``.

    Raises:
        UsageError: they cannot be chosen among, or some are absent.
    """
    from xclrun.analysis.tuning import choose

    given = [key for part in keys.split(",") if (key := part.strip())]
    if not given:
        raise UsageError(f"--select-on {what} '{keys}': needs keys of the config, as in trainer.lr,strategy.weight")
    if absent:
        count = f"{len(absent)} of the sweep's runs {'has' if len(absent) == 1 else 'have'}"
        raise UsageError(
            f"--select-on {what} {keys}: {count} not begun, or cannot be read ({absent[0]}); settings are compared "
            "when all have finished: the sweep's command goes on from there"
        )
    return choose(records, given, what)


def _commands(known: Iterable[Mapping[str, Any]], choice: Choice | None) -> dict[str, str]:
    """Return run id → the command that made it: of settings that were chosen, one that makes these alone."""
    from xclrun.analysis.reference import command_of_setting

    commands = {run_id: one["command"] for one in known for run_id in one["runs"]}
    for tuned in () if choice is None else choice.tuned:
        best = tuned.trials[0]
        for run in best.runs:
            if run.run_id in commands:
                commands[run.run_id] = command_of_setting(commands[run.run_id], best.set)
    return commands


def _catch_up(mirror: Mirror, records: Sequence[RunRecord], pool: Sequence[RunRecord], warn: Unreadable) -> None:
    """Send what MLflow lacks of the runs that are reported, and say so."""
    from xclrun.analysis.reference import References

    unique = {record.run_id: record for record in records}
    try:
        if sent := mirror.send_records(unique.values(), References(pool), warn):
            runs = "1 run was" if sent == 1 else f"{sent} runs were"
            note(f"MLflow was behind: {runs} sent to {mirror.uri}")
    except RunError as error:
        note(f"{error}; the numbers are those of the run directories")


def _predictions(outputs: Path, records: Sequence[RunRecord], warn: Unreadable) -> dict[str, Predictions]:
    """Return run id → predictions of the finished runs; those of few-shot runs `read_few_shot` reads."""
    from xclrun.analysis.fewshot.scores import is_few_shot
    from xclrun.store.records import read_predictions

    return read_predictions(outputs, [r for r in records if r.status == "finished" and not is_few_shot(r)], warn)


def _dataset(directory: RunDirectory) -> Dataset:
    # Only few-shot runs need it, and planning imports much.
    from xclrun.run import thaw

    return thaw(directory).dataset


@contextmanager
def _lasting() -> Iterator[None]:
    """Make long-lived objects without garbage collection, and exclude them from later collections.

    Of a thousand runs there are so many that looking takes a fifth of a report's time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _last(known: Mapping[str, dict[str, Any]], pool: Sequence[RunRecord]) -> dict[str, Any] | None:
    """Return the sweep whose command was given last; one of reference runs alone serves an earlier one.

    None where no sweep is known: then all runs are meant.
    """
    compared = _compared(pool)
    latest = list(known.values())[::-1]
    return next((sweep for sweep in latest if compared & set(sweep["runs"])), next(iter(latest), None))


def _compared(records: Iterable[RunRecord]) -> set[str]:
    """Return the ids of the runs that are no reference runs."""
    from xclrun.analysis.reference import REFERENCE

    return {record.run_id for record in records if record.strategy.partition("+")[0] != REFERENCE}
