"""Ratio of the times of a training step on the same micro-batches: two ranks / one rank, one thread per rank.

Rank 0's process alternates rounds with two ranks and with one rank, with the same settings. While it trains alone,
rank 1 waits without using its core. CPU seconds are those of rank 0's process. They include its communication, exclude
waiting for the other rank, and hardly depend on the load of the machine.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import summary
from xclrun.command.plan import plan_runs
from xclrun.plan import freeze
from xclrun.train import others
from xclrun.train.precision import set_threads
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import Workbench

DEVICES = 2
# Steps of a round; the first ones allocate memory and do not count.
STEPS, FIRST = 6, 2
ROUNDS = 4


class _Steps(Listener):
    """Records wall-clock and CPU seconds at every step."""

    def __init__(self) -> None:
        self.at: list[tuple[float, float]] = []

    def stepped(self, progress: Progress) -> None:
        self.at.append((time.perf_counter(), time.process_time()))

    def median(self) -> tuple[float, float]:
        """Return the median wall-clock and CPU seconds of the counted steps."""
        at = self.at[FIRST - 1 :]
        took = [(b[0] - a[0], b[1] - a[1]) for a, b in pairwise(at)]
        return statistics.median(wall for wall, _ in took), statistics.median(cpu for _, cpu in took)


def two_over_one(overrides: Sequence[str], outputs: Path, batch: int = 16) -> dict[str, Any]:
    """Return the `summary` of the wall-clock seconds of steps; ``cpu`` has the summary of CPU seconds.

    Args:
        overrides: dataset and model.
        batch: sentences per micro-batch; each rank has one micro-batch per step.
    """
    settings = [
        *overrides,
        "strategy=naive",
        f"trainer.batch_size={batch}",
        f"trainer.gradient_accumulation={DEVICES}",
        f"dataset.max_train={STEPS * batch * DEVICES}",
        "dataset.max_eval=16",
        "trainer.epochs=1",
        "trainer.selection=last",
        "runtime.device=cpu",
        "runtime.threads=1",
        "tracking=none",
        f"paths.outputs={outputs}",
    ]
    [alone], [several] = plan_runs(settings), plan_runs([*settings, f"runtime.devices={DEVICES}"])
    freeze(several)
    group, hop = others.ranks_of(several), alone.stream.hops[1]
    set_threads(several.config.runtime.threads, group.on_machine)
    group.begin(several)
    benches = [Workbench(several, Listener(), StopFlag(), group), Workbench(alone, Listener(), StopFlag())]
    took: list[tuple[tuple[float, float], ...]] = []
    try:
        for number in range(ROUNDS + 1):
            pair = []
            for bench in benches:
                bench.listener = steps = _Steps()
                bench.reset()
                bench.train(hop, outputs / "no-checkpoints", None)
                pair.append(steps.median())
            # The first round also starts threads and reads files.
            took += [tuple(pair)] if number else []
    finally:
        group.close()
    wall, cpu = ([(two[i], one[i]) for two, one in took] for i in (0, 1))
    return {**summary(wall), "cpu": summary(cpu), "load": os.getloadavg()[0], "threads": torch.get_num_threads()}
