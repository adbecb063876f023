"""What a sweep would cost: GPU-hours, disk, and wall time when so many jobs run side by side. From measured trainings.

Time is that of trainings with their selection on dev; the evaluation on test, loading, and waiting in a queue come on
top. The wall time follows the order in which jobs are submitted: shared trainings first, then the runs.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from xclrun.launch.cluster.packing import shared_first
from xclrun.launch.console import duration
from xclrun.launch.forecast import Costs
from xclrun.launch.remaining import needed
from xclrun.run import Run


@dataclass(frozen=True)
class Budget:
    """The cost of the runs that are not finished.

    Attributes:
        runs: how many those are.
        trainings: hop trainings that they need, each once.
        width: jobs that run side by side.
        seconds: of all trainings, one after another: GPU time where they run on GPUs; None where it is not known.
        wall: seconds until all are done, ``width`` at a time; None where it is not known.
        bytes: disk for the weights; None where it is not known.
    """

    runs: int
    trainings: int
    width: int
    seconds: float | None
    wall: float | None
    bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Return the facts for ``--json``."""
        return asdict(self)

    def render(self) -> str:
        """Return the budget for a person."""
        lines = [f"{self.runs} runs to do, {self.trainings} hop trainings after sharing"]
        if self.seconds is None or self.wall is None or self.bytes is None:
            why = "unknown: nothing alike has been trained here; do one run of this model first"
            return "\n".join([*lines, f"GPU-hours, disk and wall time are {why}"])
        lines.append(f"GPU-hours  {self.seconds / 3600:.2f}")
        lines.append(f"disk       {self.bytes / 1e9:.2f} GB of weights")
        lines.append(
            f"wall time  {duration(self.wall)} with {self.width} jobs side by side, without waiting in the queue"
        )
        return "\n".join(lines)


def budget(runs: Sequence[Run], width: int) -> Budget:
    """Return what doing the unfinished ones of these runs would cost, ``width`` at a time."""
    todo = [run for run in runs if not run.directory.finished]
    if not todo:
        return Budget(0, 0, width, 0.0, 0.0, 0)
    store, by_id = todo[0].store, {run.id: run for run in todo}
    costs, there = Costs(store), set(store.all_keys())
    seconds: dict[str, float | None] = {}
    sizes: dict[str, int | None] = {}

    def jobs(pieces: Iterable[list[tuple[Run, int]]]) -> list[list[str]]:
        """Return the trainings that each job does: those that no job before it does."""
        found = []
        for piece in pieces:
            new = []
            for run, hop in piece:
                stage = run.stages[hop]
                if stage.train not in seconds:
                    cost = run.cost(stage.hop)
                    seconds[stage.train] = costs.seconds(cost, run.trainer(stage.hop).epochs)
                    sizes[stage.train] = costs.bytes(cost)
                    new.append(stage.train)
            found.append(new)
        return found

    wanted = {run.id: needed(run, there) for run in todo}
    ahead = [[(by_id[run], hop) for run, hop in pack.stages if hop in wanted[run]] for pack in shared_first(todo)]
    waves = [jobs(ahead), jobs([(run, hop) for hop in sorted(wanted[run.id])] for run in todo)]
    known = {key: value for key, value in seconds.items() if value is not None}
    whole = len(known) == len(seconds)
    return Budget(
        runs=len(todo),
        trainings=len(seconds),
        width=width,
        seconds=sum(known.values()) if whole else None,
        wall=sum(makespan([sum(known[k] for k in job) for job in wave], width) for wave in waves) if whole else None,
        bytes=sum(size for size in sizes.values() if size is not None) if None not in sizes.values() else None,
    )


def makespan(seconds: Sequence[float], width: int) -> float:
    """Return when the last of some jobs ends, where ``width`` run at a time and start in order.

    >>> makespan([3, 1, 1, 2], 2)
    4.0
    """
    free = [0.0] * width
    for job in seconds:
        heapq.heapreplace(free, free[0] + job)
    return max(free)
