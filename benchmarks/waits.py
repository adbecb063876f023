"""Waiting times of users: median CPU seconds of commands in separate processes.

Commands that read runs get simulated runs (`benchmarks.outputs`), except that one small sweep is trained.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.outputs import Maker, Study, simulate, write_sweep
from benchmarks.scale import command
from benchmarks.timing import calibration
from xclrun.command.plan import plan_runs

TIMES = 3
# With tracking, which is the default.
SMALL = ("experiment=smoke", "strategy=naive", "-m")
DEMO = ("strategy=naive,er,lang_spec_ft", "order=h2l,l2h", "seed=1,2")

# Name of the wait, its limit in CPU seconds, and the function that measures it.
Wait = tuple[str, float, Callable[[], dict[str, Any]]]


def waits(folder: Path) -> Iterator[Wait]:
    """Yield name, limit and measurement of each wait; ``folder`` must be empty."""
    created = folder / "made"

    def of(
        *arguments: str, ready: Callable[[], object] | None = None, code: int = 0, times: int = TIMES
    ) -> Callable[[], dict[str, Any]]:
        return partial(_taken, arguments, folder, ready, code, times)

    # With MLflow, which is the default; the first report sends the runs to MLflow.
    demo = ("report", "made", "--outputs", str(folder / "demo"))
    yield "--help", 0.3, of("--help")
    yield "list", 1.0, of("list")
    yield "plan", 1.0, of("plan", "strategy=naive,er")
    yield "status", 1.0, of("status", "--outputs", str(folder / "demo"), ready=partial(demo_runs, folder / "demo"))
    yield "params", 2.0, of("plan", "--params", "strategy=naive")
    yield "report, nothing there", 0.5, of("report", "--outputs", str(folder / "none"), code=2)
    yield "a sweep that has finished", 1.5, of(*SMALL, ready=lambda: command(SMALL, folder))
    yield "report of the demo", 8.0, of(*demo, ready=partial(demo_runs, folder / "demo"))
    large = ("report", "made", "--from-runs", "--outputs", str(created))
    # Measured once: the CPU seconds of a command that takes half a minute vary little.
    yield "report of 1,000 runs", 30.0, of(*large, ready=partial(simulate, created, 1000), times=1)


def demo_runs(outputs: Path) -> None:
    """Write simulated runs of the demo."""
    runs = plan_runs([*DEMO, "dataset=mini", f"paths.outputs={outputs}"])
    study = Study(runs[0])
    write_sweep(outputs, [Maker(run, study).write(run.config.seed, finished=True) for run in runs])


def _taken(
    arguments: tuple[str, ...], folder: Path, ready: Callable[[], object] | None, code: int, times: int
) -> dict[str, Any]:
    """Return the median CPU seconds of a command; its first call fills caches and does not count."""
    folder.mkdir(parents=True, exist_ok=True)
    if ready is not None:
        ready()
    before = calibration()
    every = [command(arguments, folder, folder / "user") for _ in range(times + 1)]
    if any(first.code != code for first in every):
        raise SystemExit(f"xclrun {' '.join(arguments)}: exit code {every[0].code}, expected {code}")
    later = [first.cpu for first in every[1:]]
    taken = statistics.median(later)
    facts = {"first": every[0].cpu, "gigabytes": max(first.memory for first in every)}
    return {"seconds": taken, "calibrated": taken / ((before + calibration()) / 2), **facts}
