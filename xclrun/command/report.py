"""``xclrun report``: tables and figures over what has run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from xclrun.command.common import add_tracking, choose, existing, parser
from xclrun.config import TrackingConfig
from xclrun.errors import RunError, UsageError


def main(arguments: Sequence[str]) -> int:
    """Write and print a report; return the exit code."""
    options = parser(
        "report", "Tables and figures over all finished runs, or over those of one sweep; read from MLflow."
    )
    options.add_argument("sweep", nargs="?", help="name of a sweep (default: all runs)")
    options.add_argument("--name", help="folder under <outputs>/reports (default: the sweep's name, or all)")
    options.add_argument("--json", action="store_true", help="print facts as JSON instead of tables")
    options.add_argument("--from-runs", action="store_true", help="read the run directories instead of MLflow")
    add_tracking(options)
    given = options.parse_args(arguments)
    outputs = existing(given.outputs)

    from xclrun.analysis.reference import REFERENCE
    from xclrun.launch import command
    from xclrun.report import write_report

    chosen = _sweep_runs(outputs, given.sweep) if given.sweep else None
    records = _records(outputs, given)
    if chosen is not None:
        # Reference runs serve the runs of the sweep wherever they were run.
        records = [r for r in records if r.run_id in chosen or r.strategy.startswith(REFERENCE)]
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
    choose("sweep", name, known, str(outputs))
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
