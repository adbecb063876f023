"""``python -m benchmarks.scale 1000 10000 100000``: cost of commands on simulated outputs with 1,000 (…) runs.

Each command is a separate process. The script prints CPU seconds, wall-clock seconds and peak memory. It also prints
the CPU seconds of the command divided by the CPU seconds of a constant workload (`benchmarks.timing.calibration`),
which runs before and after the command. For a report it prints the cost divided by the limits. A report reads the
counts of each run. A second sweep has 62 of the runs; its first report also indexes all other runs. ``--keep DIR``
stores the folders and reuses them; ``--massive`` adds a folder with the runs of ``sweep=massive``, each with 51
languages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.outputs import fill_store, simulate, simulate_massive
from benchmarks.timing import calibration

COMMANDS = {
    "status": ("status", "made"),
    "store ls": ("store", "ls"),
    "store verify": ("store", "verify"),
    "report": ("report", "made", "--from-runs"),
    "one sweep: status": ("status", "seed1"),
    "one sweep: first report": ("report", "seed1", "--from-runs"),
    "one sweep: report": ("report", "seed1", "--from-runs"),
    "first sync": ("mlflow", "sync"),
    "sync": ("mlflow", "sync"),
    "report, MLflow": ("report", "made"),
}


# Maximum number of runs → limits of a report: CPU seconds, GB.
BARS = {1100: (30.0, 4.0), 10_100: (120.0, 4.0)}


@dataclass(frozen=True)
class Taken:
    """Cost of a command.

    Attributes:
        code: exit code.
        cpu, wall: seconds.
        memory: largest peak memory of the command's processes, in GB.
    """

    code: int
    cpu: float
    wall: float
    memory: float


# Prints the cost of a command and its child processes on the last line. The caller's children include other commands,
# so the caller cannot measure this cost.
_RUN = """
import resource, sys
from xclrun.cli import main
code = main(sys.argv[1:])
sys.stdout.flush()
both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(code, sum(u.ru_utime + u.ru_stime for u in both), max(u.ru_maxrss for u in both) / 1e6, file=sys.__stderr__)
"""


def command(arguments: Sequence[str], folder: Path | None = None, user: Path | None = None) -> Taken:
    """Run xclrun in a separate process, in ``folder``; ``user`` replaces the user's cache folder."""
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *arguments], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, cwd=folder, env=None if user is None else {**os.environ, "XCLRUN_CACHE": str(user)},
    )  # fmt: skip
    wall = time.perf_counter() - began
    try:
        code, cpu, memory = done.stderr.splitlines()[-1].split()
        return Taken(int(code), float(cpu), wall, float(memory))
    except (IndexError, ValueError):
        raise SystemExit(f"xclrun {' '.join(arguments)} failed: {done.stderr[-2000:]}") from None


def _share(name: str, runs: int, taken: Taken) -> str:
    """Return the cost of a report as fractions of its limits, if this number of runs has limits."""
    bar = next((bar for most, bar in BARS.items() if runs <= most), None)
    if not name.endswith("report") or name.startswith("one sweep") or bar is None:
        return ""
    return f"  limits: {taken.cpu / bar[0]:.2f} of {bar[0]:g} s, {taken.memory / bar[1]:.2f} of {bar[1]:g} GB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale", description=__doc__)
    parser.add_argument("runs", type=int, nargs="*", default=[1000], help="runs of each folder (default: 1000)")
    parser.add_argument("--keep", type=Path, help="folder to store and reuse (default: temporary)")
    parser.add_argument(
        "--only",
        action="append",
        metavar="COMMAND",
        choices=COMMANDS,
        help="measure only this command; may be repeated",
    )
    parser.add_argument("--massive", action="store_true", help="add the runs of sweep=massive (51 languages)")
    options = parser.parse_args()
    folders: dict[str, Callable[[Path], int]] = {str(n): partial(simulate, runs=n) for n in options.runs}
    if options.massive:
        folders["massive"] = simulate_massive
    with tempfile.TemporaryDirectory(prefix="xclrun-scale-") as temporary:
        for folder, make in folders.items():
            outputs = (options.keep or Path(temporary)) / folder
            outputs.mkdir(parents=True, exist_ok=True)
            began = time.perf_counter()
            run_count = make(outputs)
            # The runs of sweep=massive have no second sweep, so skip its commands.
            massive = make is simulate_massive
            only = [name for name in options.only or COMMANDS if not (massive and name.startswith("one sweep"))]
            stages = fill_store(outputs) if any(name.startswith("store") for name in only) else 0
            print(f"{run_count} runs, {stages} stages; made in {time.perf_counter() - began:.0f} s", flush=True)
            for name in only:
                _measure(name, outputs, None if massive else run_count)


def _measure(name: str, outputs: Path, runs: int | None) -> None:
    """Print the cost of a command; ``runs`` is the folder's number of runs, if a report's limits depend on it."""
    before = calibration()
    usage = command([*COMMANDS[name], "--outputs", str(outputs)])
    ratio = usage.cpu / ((before + calibration()) / 2)
    share = "" if runs is None else _share(name, runs, usage)
    print(
        f"  {name:<18} {usage.cpu:8.1f} s of CPU, {ratio:.1f} × calibration {usage.wall:8.1f} s"
        f" {usage.memory:6.2f} GB  exit code {usage.code}  load {os.getloadavg()[0]:.1f}{share}",
        flush=True,
    )


if __name__ == "__main__":
    main()
