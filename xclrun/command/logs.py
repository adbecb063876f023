"""``xclrun logs``: the Slurm log of a run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.command.common import existing, outputs_parser
from xclrun.core.output import reader_left

if TYPE_CHECKING:
    from xclrun.launch.cluster.slurm import JobState


def main(arguments: Sequence[str]) -> int:
    """Print the log of a run's job; return the exit code."""
    parser = outputs_parser("logs", "Show the log of the latest Slurm job of a run, which covers all runs in that job.")
    parser.add_argument("run", metavar="RUN", help="run ID, or a unique part of it")
    parser.add_argument("--path", action="store_true", help="print the path of the log instead")
    parser.add_argument("--follow", "-f", action="store_true", help="print new lines until the job has ended")
    args = parser.parse_args(arguments)
    outputs = existing(args.outputs)

    from xclrun.core.names import matching
    from xclrun.launch.cluster.lookup import find_jobs

    jobs = find_jobs(outputs)
    job = jobs.of_runs[matching(args.run, jobs.of_runs, where=f"submitted to a cluster from {outputs}")]

    def state() -> JobState:
        return find_jobs(outputs, warn=lambda text: None).states([job])[job.id]

    if args.path:
        print(job.log)
        return 0
    print(f"# {job.log}", file=sys.stderr)
    read = _show(job.log, 0)
    # No answer of Slurm does not mean that the job has ended.
    while args.follow and not reader_left() and ((now := state()).live or not now.state):
        time.sleep(2.0)
        read = _show(job.log, read)
    if args.follow:
        read = _show(job.log, read)
    if not read:
        print(f"# empty so far: {state()}", file=sys.stderr)
    return 0


def _show(log: Path, read: int) -> int:
    """Print a log from byte ``read`` on; return its size."""
    try:
        with log.open("rb") as file:
            file.seek(read)
            content = file.read()
    except OSError:
        return read
    sys.stdout.write(content.decode(errors="replace"))
    sys.stdout.flush()
    return read + len(content)
