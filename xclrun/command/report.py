"""``xclrun report``: tables and figures over what has run."""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Unreadable, add_tracking, check_lost, choose, existing, parser
from xclrun.config.checks import check_uri
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError
from xclrun.core.names import check_name, slug
from xclrun.core.secret import redact

if TYPE_CHECKING:
    from xclrun.analysis.base_scores import Predictions
    from xclrun.analysis.record import RunRecord
    from xclrun.tracking.mirror import Mirror

# Ways to make an interval of resampled values: see `xclrun.analysis.bootstrap`.
INTERVALS = ("basic", "centred", "percentile", "bca", "paper")


def main(arguments: Sequence[str]) -> int:
    """Write and print a report; return the exit code."""
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
    options.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    options.add_argument(
        "--baseline",
        metavar="LABEL",
        help="strategy that significance marks compare with, as tables name it (default: naive, else the first tested)",
    )
    options.add_argument("--json", action="store_true", help="print facts as JSON instead of tables")
    options.add_argument("--from-runs", action="store_true", help="read the run directories instead of MLflow")
    options.add_argument(
        "--unpaired",
        action="store_true",
        help="means over all runs of each strategy, not only over the orders and seeds that all have finished",
    )
    options.add_argument(
        "--interval",
        choices=INTERVALS,
        default="basic",
        help="of the bootstrap over test sentences (default: %(default)s; paper: the standard error of its mean)",
    )
    options.add_argument(
        "--full", action="store_true", help="bootstrap resamples as large as the test set, instead of 600 at most"
    )
    add_tracking(options)
    given = options.parse_args(arguments)
    outputs = existing(given.outputs)
    check_uri("--uri", given.uri)
    written = ("mlflow.db", "sweeps/*.json", "runs/*/manifest.json")
    if given.uri is None and not any(any(outputs.glob(name)) for name in written):
        raise UsageError(
            f"no finished runs; make some first, for example: xclrun strategy=naive,er -m ({outputs} holds none)"
        )

    from xclrun.analysis.fewshot import is_few_shot
    from xclrun.analysis.reference import References
    from xclrun.analysis.settings import filtered, parse_filters
    from xclrun.command.behind import read_behind
    from xclrun.launch.sweep import command
    from xclrun.report import Options, write_report
    from xclrun.report.notes import unfinished
    from xclrun.report.published import table_of
    from xclrun.report.published.fsxlt import sweep_table
    from xclrun.store.records import read_predictions, sweeps

    if given.all and given.sweep:
        raise UsageError(f"report {given.sweep} --all: give the name of a sweep, or --all")
    unreadable = Unreadable()
    known = {sweep["name"]: sweep for sweep in sweeps(outputs, unreadable)}
    if given.sweep:
        check_lost(outputs, given.sweep, known)
        choose("sweep", given.sweep, known, str(outputs))
    filters = parse_filters(given.filter)
    with _lasting():
        mirror, pool = _records(outputs, given, unreadable)
    sweep = None if given.all else known[given.sweep] if given.sweep else _last(known, pool)
    records, commands = pool, [command()]
    if sweep is not None:
        wanted = set(sweep["runs"])
        records = [r for r in pool if r.run_id in wanted]
        commands.append(redact(sweep["command"]))
    records = filtered(records, filters)
    if sweep is not None and not any(r.status == "finished" for r in records):
        what = f"no finished runs in {'' if given.sweep else 'the last sweep, '}{sweep['name']}{unfinished(records)}"
        if any(r.status == "finished" for r in pool):
            raise UsageError(
                f"{what}; `xclrun report NAME` is of another (`xclrun status all` names them), --all of everything"
            )
        raise UsageError(f"{what}; its command goes on from there: {redact(sweep['command'])}")
    if sweep is not None or filters:
        # The runs that their transfer is measured by, wherever they were run; a run that is there twice counts once.
        records += References(pool).of(records)
    name = slug("-".join(["all" if sweep is None else sweep["name"], *given.filter]))
    if given.name is not None:
        name = given.name
        check_name("--name", name)
        if not name.replace("-", "").replace("_", "").replace(".", "").isalnum():
            raise UsageError(f"--name {name}: letters, digits, '-', '_' and '.' only")
    of = "" if sweep is None else sweep["name"]
    tables = table_of(of), sweep_table(of)
    how = Options(given.unpaired, given.interval, given.full, *tables, given.baseline)
    folder = outputs / "reports" / name
    behind = read_behind(outputs, records)
    # Of few-shot runs see `read_behind`.
    finished = [r for r in records if r.status == "finished" and not is_few_shot(r)]

    def predictions() -> dict[str, Predictions]:
        return read_predictions(outputs, finished, unreadable)

    started = {run_id: redact(one["command"]) for one in known.values() for run_id in one["runs"]}
    made = write_report(records, folder, name, commands, predictions, pool, how, behind, started)
    if mirror is not None:
        try:
            mirror.send_report(name, folder, made.to_json())
        except RunError as error:
            print(f"note: {error}; the report itself is not in MLflow", file=sys.stderr)
    if given.json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        if sweep is not None and not given.sweep:
            others = (
                f" of {len(known)}; `xclrun report NAME` is of another, --all of everything" if len(known) > 1 else ""
            )
            print(f"The last sweep{others}:\n{sweep['name']}: {redact(sweep['command'])}\n")
        print(made.render(min(100, shutil.get_terminal_size((80, 24)).columns)))
        told = " and ".join(map(str, made.numbers))
        print(f"\nOpen {made.index}: tables, tests and figures.\nThe numbers are in {told}.")
    return unreadable.code


@contextmanager
def _lasting() -> Iterator[None]:
    """Make objects that live until the end of the command: garbage is neither looked for among them nor meanwhile.

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
    from xclrun.analysis.reference import REFERENCE

    compared = {r.run_id for r in pool if r.strategy.partition("+")[0] != REFERENCE}
    latest = list(known.values())[::-1]
    return next((sweep for sweep in latest if compared & set(sweep["runs"])), next(iter(latest), None))


def _records(outputs: Path, given: argparse.Namespace, tell: Unreadable) -> tuple[Mirror | None, list[RunRecord]]:
    """Return the records in MLflow, after sending what it lacks; where it fails, those of the run directories."""
    from xclrun.store.records import read_records

    if not given.from_runs:
        from xclrun.tracking.mirror import Mirror

        try:
            mirror = Mirror(outputs, TrackingConfig(uri=given.uri, experiment=given.experiment))
            mirror.send_all(tell=tell)
            return mirror, mirror.records(tell)
        except RunError as error:
            print(f"note: {error}; reading the run directories instead", file=sys.stderr)
    return None, read_records(outputs, tell)
