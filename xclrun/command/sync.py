"""``xclrun mlflow sync``: send new runs to MLflow or another tracker."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from xclrun.command.common import Unreadable, existing, outputs_parser, repeated
from xclrun.config.checks import TRACKERS, check_tracker, check_uri
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError
from xclrun.core.plugins import flags
from xclrun.core.task import select_metrics
from xclrun.core.terminal import note


def main(arguments: Sequence[str]) -> int:
    """Send runs; return the exit code."""
    parser = outputs_parser(
        "mlflow sync",
        "Send new and changed runs to MLflow, or to another tracker. Unchanged runs are not sent again.",
    )
    parser.add_argument(
        "--to", default="mlflow", metavar="TRACKER", help=f"{', '.join(TRACKERS)} (default: %(default)s)"
    )
    parser.add_argument(
        "--rebuild",
        action="store_true",
        help="send all runs again; first rename an mlflow.db that is damaged, not writable or from another version of "
        "MLflow, or restore a deleted experiment",
    )
    parser.add_watch("send again", 60.0)
    parser.add_metrics()
    parser.add_tracking()
    args = parser.parse_args(arguments)
    select_metrics(args.metrics)
    outputs = existing(args.outputs)
    check_tracker("--to", args.to)
    check_uri("--uri", args.uri)
    if args.uri is not None and args.to != "mlflow":
        raise UsageError(f"--uri {args.uri}: applies only to MLflow; omit it with --to {args.to}")
    from xclrun.tracking.mirror import DeletedExperiment, UnusableDatabase
    from xclrun.tracking.trackers import tracker

    if args.watch is not None and args.watch <= 0:
        raise UsageError("--watch: must be a number of seconds above 0")
    tracking = TrackingConfig(to=args.to, uri=args.uri, experiment=args.experiment)
    unreadable = Unreadable()

    def send() -> bool:
        # Before sending: runs that end meanwhile are sent in the next round.
        active = args.watch is not None and _has_active_runs(outputs, unreadable)
        try:
            mirror = tracker(outputs, tracking)
            sent = mirror.send_all(rebuild=args.rebuild, warn=unreadable)
            mirror.close()
            print(f"{sent} run{'' if sent == 1 else 's'} sent to {mirror.place}", flush=True)
        except RunError as error:
            if args.watch is None or (args.rebuild and isinstance(error, UnusableDatabase | DeletedExperiment)):
                raise
            # Continue watching: the server may come back.
            note(str(error))
        args.rebuild = False
        return active

    try:
        try:
            repeated(send, args.watch)
        except DeletedExperiment as error:
            if not args.rebuild:
                raise
            note(f"experiment '{error.restore()}' is restored")
            repeated(send, args.watch)
    except UnusableDatabase as error:
        if not args.rebuild:
            raise
        note(f"{error.path} is renamed to {error.move_aside()}")
        # In a new process, since MLflow keeps its connections to the old file in this one.
        command = [sys.executable, "-m", "xclrun", *flags(), "sync", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        print(done.stdout, end="")
        return done.returncode
    return unreadable.code


def _has_active_runs(outputs: Path, warn: Unreadable) -> bool:
    """Whether a run of any sweep is running or waiting."""
    from xclrun.launch.status import sweep_status
    from xclrun.store.sweeps import sweeps

    every = (status for sweep in sweeps(outputs, warn) for status in sweep_status(outputs, sweep["runs"], warn))
    return any(status.busy for status in every)
