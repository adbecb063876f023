"""Ratio of times: file operations at the end of a hop / training of the hop.

The files are checkpoints, stages, predictions and files of the run.

Measured on a short hop, where file operations matter most. Not included: evaluation, work of the strategy (memory,
Fisher information), and sending runs to MLflow, which a separate process does during the next hop.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

from xclrun.command.plan import plan_runs
from xclrun.store import predictions, rundir, stages
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.execute import execute
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener
from xclrun.train.stop import StopFlag

# Functions that write and read files at the end of a hop.
FILES: tuple[tuple[Any, str], ...] = (
    (stages.StageStore, "put"),
    (stages.StageStore, "get"),
    (Checkpoints, "save"),
    (Checkpoints, "clear"),
    (predictions, "write"),
    (predictions, "read"),
    (rundir.RunDirectory, "write_manifest"),
    (rundir.RunDirectory, "event"),
)


class _Clock:
    """Measures the seconds of calls; nested calls count once."""

    def __init__(self) -> None:
        self.seconds, self.depth = 0.0, 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            self.depth += 1
            began = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.depth -= 1
                if self.depth == 0:
                    self.seconds += time.perf_counter() - began

        return timed


def files_over_training(strategy: str, overrides: Sequence[str], outputs: Path) -> dict[str, Any]:
    """Return the ratio of seconds for file operations / training, over the hops of a run."""
    arguments = [f"strategy={strategy}", *overrides, "tracking=none", f"paths.outputs={outputs}"]
    [run] = plan_runs(arguments)
    files, training = _Clock(), _Clock()
    with ExitStack() as stack:
        for owner, name in FILES:
            stack.enter_context(patch.object(owner, name, files.timed(getattr(owner, name))))
        stack.enter_context(patch.object(HopTraining, "run", training.timed(HopTraining.run)))
        execute(run, Listener(), StopFlag())
    hops = len(run.stream.hops) - 1
    return {
        "ratio": files.seconds / training.seconds,
        "ours_s": files.seconds / hops,
        "bare_s": training.seconds / hops,
    }
