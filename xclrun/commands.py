"""The subcommands: what each takes, and the work it hands on. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from xclrun.config import TrackingConfig, choices
from xclrun.errors import RunError, UsageError, did_you_mean


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line and exit code 2."""

    def error(self, message: str) -> Any:
        raise UsageError(f"{self.prog.removeprefix('xclrun ')}: {message}; see `{self.prog} --help`")


def _parser(name: str, description: str) -> Parser:
    parser = Parser(prog=f"xclrun {name}", description=description)
    default = os.environ.get("XCLRUN_OUTPUTS", "outputs")
    parser.add_argument(
        "--outputs",
        type=Path,
        default=Path(default),
        metavar="DIR",
        help="what xclrun wrote (default: XCLRUN_OUTPUTS, else outputs)",
    )
    return parser


def _tracking(parser: Parser) -> None:
    parser.add_argument("--uri", metavar="URI", help="MLflow tracking server (default: the SQLite file in the outputs)")
    parser.add_argument(
        "--experiment",
        default=TrackingConfig.experiment,
        metavar="NAME",
        help="MLflow experiment (default: %(default)s)",
    )


def _existing(outputs: Path) -> Path:
    if not outputs.is_dir():
        raise UsageError(
            f"--outputs {outputs}: there is no such folder; run something first, or name the folder that it wrote"
        )
    return outputs


def report(arguments: Sequence[str]) -> int:
    """tables and figures over what has run"""
    parser = _parser(
        "report", "Tables and figures over all finished runs, or over those of one sweep; read from MLflow."
    )
    parser.add_argument("sweep", nargs="?", help="name of a sweep (default: all runs)")
    parser.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    parser.add_argument("--json", action="store_true", help="print facts as JSON instead of tables")
    parser.add_argument("--from-runs", action="store_true", help="read the run directories instead of MLflow")
    _tracking(parser)
    given = parser.parse_args(arguments)
    outputs = _existing(given.outputs)

    from xclrun.launch import command
    from xclrun.report import write_report

    chosen = _sweep_runs(outputs, given.sweep) if given.sweep else None
    records = _records(outputs, given)
    if chosen is not None:
        # Reference runs serve the runs of the sweep wherever they were run.
        records = [r for r in records if r.run_id in chosen or r.strategy == "lang_spec_ft"]
    name = given.name or given.sweep or "all"
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or name.startswith("."):
        raise UsageError(f"--name {name}: letters, digits, '-', '_' and '.' only")
    made = write_report(records, outputs / "reports" / name, name, command())
    if given.json:
        print(json.dumps(made.to_json(), indent=1))
    else:
        print(made.render())
        print(f"\nOpen {made.summary_md} (tables and figures); the numbers are in {made.summary_csv}")
    return 0


def _sweep_runs(outputs: Path, name: str) -> set[str]:
    from xclrun.records import sweeps

    known = {sweep["name"]: sweep for sweep in sweeps(outputs)}
    if name not in known:
        raise UsageError(
            f"no sweep is called '{name}' in {outputs}; " + (did_you_mean(name, known) if known else "there is none")
        )
    return set(known[name]["runs"])


def _records(outputs: Path, given: argparse.Namespace) -> list[Any]:
    """Return the records in MLflow, after sending what it lacks; where it fails, those of the run directories."""
    from xclrun.records import read_records

    if not given.from_runs:
        from xclrun.track import Mirror

        try:
            mirror = Mirror(outputs, TrackingConfig(uri=given.uri, experiment=given.experiment))
            mirror.send_all()
            return mirror.records()
        except RunError as error:
            print(f"note: {error}; reading the run directories instead", file=sys.stderr)
    return read_records(outputs)


def ui(arguments: Sequence[str]) -> int:
    """open MLflow's pages on the runs"""
    parser = _parser("ui", "Open MLflow's pages on the runs; ends with Ctrl-C.")
    parser.add_argument("--port", type=int, default=5000, help="port on this machine (default: %(default)s)")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    given = parser.parse_args(arguments)
    outputs = _existing(given.outputs)
    if not (outputs / "mlflow.db").is_file():
        raise UsageError(f"--outputs {outputs}: holds no mlflow.db yet; run something first, or `xclrun sync`")
    from xclrun.track import tracking_uri

    print(f"MLflow on http://{given.host}:{given.port} (Ctrl-C ends it)", file=sys.stderr, flush=True)
    server = [sys.executable, "-m", "mlflow", "ui", "--backend-store-uri", tracking_uri(outputs, None)]
    os.execv(sys.executable, [*server, "--host", given.host, "--port", str(given.port)])


def sync(arguments: Sequence[str]) -> int:
    """send to MLflow what it does not have yet"""
    parser = _parser(
        "sync", "Send runs to MLflow that it does not have, or has in an older state. Sending twice changes nothing."
    )
    _tracking(parser)
    given = parser.parse_args(arguments)
    outputs = _existing(given.outputs)
    from xclrun.track import Mirror

    mirror = Mirror(outputs, TrackingConfig(uri=given.uri, experiment=given.experiment))
    sent = mirror.send_all()
    print(f"{sent} run{'' if sent == 1 else 's'} sent to {mirror.uri}")
    return 0


COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {"report": report, "ui": ui, "sync": sync}


def run(name: str, arguments: Sequence[str]) -> int:
    """Run a subcommand; return the exit code."""
    return COMMANDS[name](arguments)


def overview() -> str:
    """Return the text of ``xclrun --help``: usage, subcommands, groups and choices."""
    found = choices()
    lines = [
        "xclrun: cross-lingual continual learning experiments",
        "",
        "usage: xclrun KEY=VALUE … [-m]          run jobs; several values make a sweep: strategy=naive,er seed=1,2 -m",
        "       xclrun COMMAND [--help]",
        "",
        "commands:",
        *(f"  {name:<10} {command.__doc__}" for name, command in COMMANDS.items()),
        "",
        "choices (GROUP=CHOICE):",
    ]
    for group in sorted(found, key=lambda g: _ORDER.index(g) if g in _ORDER else len(_ORDER)):
        lines.append(f"  {group}")
        lines += [f"    {choice:<13} {comment}"[:158] for choice, comment in found[group].items()]
    lines += [
        "",
        "values (KEY=VALUE), for example: trainer.epochs=3 trainer.lr=1e-4 dataset.max_train=500 order=[en,de,th]",
        "  xclrun --cfg job                   every value, with strategy=… and the like as they would be run",
        '  xclrun -sc install=bash            shell completion: eval "$(xclrun -sc install=bash)"',
        "  XCLRUN_OUTPUTS=DIR, paths.outputs=DIR   where everything is written (default: outputs)",
        "  XCLRUN_DEBUG=1                     full tracebacks",
    ]
    return "\n".join(lines)


_ORDER = (
    "dataset",
    "order",
    "strategy",
    "model",
    "trainer",
    "evaluate",
    "tracking",
    "experiment",
    "hydra/launcher",
    "sweep",
)
