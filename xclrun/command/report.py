"""``xclrun report``: tables and figures over finished runs."""

from __future__ import annotations

import argparse
import gc
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.bootstrap import INTERVALS
from xclrun.command.common import Unreadable, check_sweep, existing, outputs_parser
from xclrun.command.reported import (
    Sweep,
    add_mirrored,
    catch_up,
    chosen_runs,
    chosen_sweep,
    commands_of,
    latest,
    left_out,
    read_runs,
)
from xclrun.command.unchanged import Unchanged
from xclrun.config.checks import check_uri
from xclrun.config.files import captions
from xclrun.core.errors import RunError, UsageError, did_you_mean
from xclrun.core.names import check_name, slug
from xclrun.core.plugins import typed_command
from xclrun.core.task import select_metrics
from xclrun.core.terminal import columns, important_lines, many, note
from xclrun.store.files import check_target
from xclrun.store.locks import alone
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import typed_commands

if TYPE_CHECKING:
    from xclrun.data.example import Dataset
    from xclrun.report.report import Report


def main(arguments: Sequence[str]) -> int:
    """Write and print a report; return the exit code."""
    args = _options(arguments)
    width = min(80, columns(sys.stdout))
    unchanged = Unchanged(arguments, args, width)
    if (text := unchanged.text()) is not None:
        print(text)
        return 0
    notes = important_lines()
    outputs, unreadable = args.outputs, Unreadable()
    from xclrun.analysis.fewshot.scores import is_few_shot
    from xclrun.analysis.records import read_gradients, read_predictions
    from xclrun.report.embed import embed, places
    from xclrun.report.fewshot.read import read_few_shot
    from xclrun.report.published import table_of
    from xclrun.report.published.fsxlt import sweep_table
    from xclrun.report.section import Options, Sources
    from xclrun.report.write import write_report
    from xclrun.store.sweeps import sweeps

    all_sweeps: dict[str, Sweep] = {sweep["name"]: sweep for sweep in sweeps(outputs, unreadable)}
    for name in args.sweeps:
        check_sweep(outputs, name, all_sweeps)
    args.sweep = chosen_sweep(args.sweeps, args.only_last, all_sweeps)
    with _excluded_from_collection():
        pool, other_runs = read_runs(args, all_sweeps, unreadable)
        mirror, mirrored = add_mirrored(pool, args, unreadable)
    sweep = None if args.all else all_sweeps[args.sweep] if args.sweep else latest(all_sweeps, pool)
    records, choice = chosen_runs(args, sweep, pool, bool(other_runs))
    unchanged.check()
    if mirror is not None and args.slot_f1 is None:
        catch_up(mirror, records, pool, unreadable)
    unchanged.accept()
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
        of_paper=_of_paper(sweep_name),
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
        commands=commands_of(all_sweeps.values(), choice),
        excluded=left_out(outputs, sweep, records, pool),
        mirrored=mirrored,
    )
    commands = [typed_command(), *([] if sweep is None else [typed_commands(sweep)])]
    with alone(outputs, "report", name) as locked:
        report = write_report(records, outputs / "reports" / name, name, commands, options, sources)
        unchanged.check()
        if mirror is not None:
            try:
                mirror.send_report(name, report.directory, report.to_json())
            except RunError as error:
                note(f"{error}; the report was not sent to MLflow")
        filled = 0
        if args.into is not None:
            filled = embed(args.into, report, lambda runs: read_predictions(outputs, runs, unreadable))
        text = (
            json.dumps(report.to_json(), indent=1)
            if args.json
            else _summary(report, args, sweep, len(all_sweeps), width)
        )
        # Few-shot reports read data that `Unchanged` does not know.
        if locked and important_lines() == notes and not any(map(is_few_shot, records)):
            unchanged.store(name, text)
    print(text)
    if filled and not args.json:
        print(f"{args.into}: {many(filled, 'place')} filled.")
    return unreadable.code


def _summary(report: Report, args: argparse.Namespace, sweep: Sweep | None, sweeps: int, width: int) -> str:
    """Return what the command prints about a report; ``sweeps``: the number of sweeps."""
    from xclrun.report.style import more_formats

    lines = []
    if sweep is not None and not args.sweep:
        hint = f" of {sweeps}; choose another with `xclrun report NAME`, or all with --all"
        lines.append(f"The last sweep{hint if sweeps > 1 else ''}:\n{sweep['name']}: {typed_commands(sweep)}\n")
    lines.append(report.render(width))
    numbers = " and ".join(map(str, report.numbers))
    lines.append(f"\nOpen {report.index}: tables, tests and figures.\nThe numbers are in {numbers}.")
    if more := more_formats(args.formats):
        lines.append(more)
    return "\n".join(lines)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse and check the options; raise a `UsageError` if no run has finished yet."""
    from xclrun.analysis.confirmatory import margin_of, primary_measures

    parser = outputs_parser(
        "report", "Write tables and figures for the finished runs of a sweep, or for all finished runs."
    )
    parser.add_argument(
        "sweeps",
        nargs="*",
        metavar="SWEEP",
        help="name of a sweep, or of several for one report (default: the most recent sweep)",
    )
    parser.add_argument(
        "--only-last",
        action="store_true",
        help="only the runs of the last command with the sweep's name, not those of earlier commands",
    )
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
    parser.add_metrics()
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
        "docs/metrics.md); paper is the interval of the CCL paper, which is based on the standard error of "
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
    select_metrics(args.metrics)
    existing(args.outputs)
    check_uri("--uri", args.uri)
    from xclrun.analysis.filters import parse_filters

    args.filters = parse_filters(args.filter)
    written = ("mlflow.db", "sweeps/*.json", "runs/*/manifest.json")
    if args.uri is None and not any(any(args.outputs.glob(name)) for name in written):
        raise UsageError(
            f"no finished runs in {args.outputs}; create some first, for example: xclrun strategy=naive,er -m"
        )
    if args.all and (args.sweeps or args.only_last):
        raise UsageError(f"report {' '.join(args.sweeps) or '--only-last'} --all: choose one of the two")
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
    scored += [f"metric={name}" for name in args.metrics]
    return str(args.name or slug("-".join([sweep or "all", *args.filter, *selected, *scored])))


def _of_paper(sweep_name: str) -> bool:
    """Return whether a sweep's name begins with the abbreviation of a paper: ``ccl_table8``, ``ll``."""
    return sweep_name.partition("_")[0] in {paper for paper, *_ in captions()}


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
