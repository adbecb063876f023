"""``xclrun status``: the state of the runs of a sweep."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from xclrun.command.common import Unreadable, chosen_sweeps, outputs_parser, repeated
from xclrun.core.errors import UsageError
from xclrun.store.sweeps import typed_commands

CLEAR = "\x1b[H\x1b[2J\x1b[3J"


def main(arguments: Sequence[str]) -> int:
    """Print the state of runs; return 1 if any failed, was lost, is damaged or is unknown, or a file is unreadable."""
    parser = outputs_parser(
        "status", "Show the state of a sweep's runs. Exit code 1 if any failed, was lost, is damaged or is unknown."
    )
    parser.add_sweep()
    parser.add_json()
    parser.add_watch("refresh", 5.0)
    args = parser.parse_args(arguments)
    if args.watch is not None and (args.json or args.watch <= 0):
        raise UsageError("--watch: must be a number of seconds above 0, and cannot be combined with --json")
    unreadable = Unreadable()
    sweeps = chosen_sweeps(args.outputs, args.sweep, unreadable)
    from xclrun.launch.status import BAD, RunStatus, render, sweep_status

    before = CLEAR if args.watch is not None and sys.stdout.isatty() else ""
    runs: list[RunStatus] = []

    def show() -> bool:
        """Print the sweeps; return whether a run is running or waiting."""
        states = [(s["name"], typed_commands(s), sweep_status(args.outputs, s["runs"], unreadable)) for s in sweeps]
        if args.json:
            facts = [
                {"sweep": name, "command": command, "runs": [*map(asdict, each)]} for name, command, each in states
            ]
            print(json.dumps(facts, indent=1))
        else:
            print(before + "\n".join(render(*sweep) for sweep in states), flush=True)
        runs[:] = [run for *_, each in states for run in each]
        return any(run.busy for run in runs)

    repeated(show, args.watch)
    return max(unreadable.code, int(any(run.state in (*BAD, "unknown") for run in runs)))
