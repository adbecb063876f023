"""``xclrun status``: where the runs of a sweep stand."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.command.common import Unreadable, chosen_sweeps, parser
from xclrun.core.errors import UsageError

if TYPE_CHECKING:
    from xclrun.launch.status import RunStatus

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def main(arguments: Sequence[str]) -> int:
    """Print where runs stand; return 1 if any failed, was lost or is damaged, or something cannot be read."""
    options = parser("status", "Where the runs of a sweep stand. Exit code 1 if any failed, was lost or is damaged.")
    options.add_argument("sweep", nargs="?", help="name of a sweep, or `all` (default: the one that was started last)")
    options.add_argument("--json", action="store_true", help="print facts as JSON")
    options.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=5.0,
        metavar="SECONDS",
        help="print it again every SECONDS (default: 5), until nothing runs or waits any more",
    )
    given = options.parse_args(arguments)
    if given.watch is not None and (given.json or given.watch <= 0):
        raise UsageError("--watch: a number of seconds above 0, and without --json")
    unreadable = Unreadable()
    sweeps = chosen_sweeps(given.outputs, given.sweep, unreadable)
    if given.watch is None:
        return _tell(given.outputs, sweeps, given.json, unreadable)[1]
    calm = 0
    # Twice in a row: on a network file system the last writes of a job may appear late.
    while True:
        going, code = _tell(given.outputs, sweeps, False, unreadable, CLEAR if sys.stdout.isatty() else "")
        calm = 0 if going else calm + 1
        if calm == 2:
            return code
        time.sleep(given.watch)


def _tell(
    outputs: Path, sweeps: Sequence[dict[str, Any]], as_json: bool, unreadable: Unreadable, before: str = ""
) -> tuple[bool, int]:
    """Print where sweeps stand; return whether anything goes on, and the exit code."""
    from xclrun.launch import status

    found: list[tuple[dict[str, Any], list[RunStatus]]] = [
        (sweep, status.sweep_status(outputs, sweep["runs"], unreadable)) for sweep in sweeps
    ]
    if as_json:
        told = [
            {"sweep": sweep["name"], "command": sweep["command"], "runs": status.to_json(runs)} for sweep, runs in found
        ]
        print(json.dumps(told, indent=1))
    else:
        tables = [status.render(sweep["name"], sweep["command"], runs) for sweep, runs in found]
        print(before + "\n".join(tables), flush=True)
    every = [run for _, runs in found for run in runs]
    return any(run.busy for run in every), max(unreadable.code, int(any(run.state in status.BAD for run in every)))
