"""Ratio of times: training step of a strategy / step of a plain loop.

The plain loop has the same encoder, heads, optimiser, precision and batches. The timed hop follows three
languages, the mean number for hops 2 to 6 of six languages. After each step of xclrun's loop, including the strategy's
work, the plain loop takes a step on a copy of the model with the same sentences. These two steps form a pair. Steps
without and with replay have separate ratios, ``plain`` and ``due``. The paper replays every k = 100 steps, so the
combined ratio is (99 · plain + due) / 100.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.timing import summary
from xclrun.command.plan import plan_runs
from xclrun.data.batches import Batch, epoch_batches
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.loop import HopTraining
from xclrun.train.optimize import make_optimizer
from xclrun.train.precision import products
from xclrun.train.progress import Listener, Progress
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import Workbench

# Index of the timed hop.
HOP = 4
# Main steps between two uses of the memory: here, and in the paper (`K`).
EVERY_K = 5
K = 100


class Enough(Exception):
    """Ends a training when enough steps have been measured."""


class _Pairs(Listener):
    """Takes a plain step after each step of the loop, and records the seconds of both steps."""

    def __init__(self, bench: Workbench, steps: int, replayed: Callable[[int], Sequence[Batch]]) -> None:
        self.replayed = replayed
        context, trainer = bench.context(bench.run.stream.hops[HOP]), bench.run.config.trainer
        self.steps, self.device, self.pairs = steps, context.device, list[tuple[float, float]]()
        self.data = context.train[context.hop.train[0]]
        self.batches = [
            indices
            for epoch in range(trainer.epochs)
            for indices in epoch_batches(len(self.data), context.batch_size, context.generator("shuffle", epoch))
        ]
        self.model = copy.deepcopy(bench.model).train()
        plain = replace(trainer, cuda_graphs=False)
        self.optimizer = make_optimizer([p for p in self.model.parameters() if p.requires_grad], plain)
        self.began = time.perf_counter()

    def stepped(self, progress: Progress) -> None:
        self._wait()
        ours = time.perf_counter() - self.began
        began = time.perf_counter()
        batch = self.data.batch(self.batches[progress.step - 1]).to(self.device)
        replayed = self.replayed(progress.step)
        self.optimizer.zero_grad(set_to_none=True)
        with products("fp32"):
            for part in (batch, *replayed):
                self.model.loss(part).backward()
        self.optimizer.step()
        self._wait()
        self.pairs.append((ours, time.perf_counter() - began))
        if progress.step == self.steps:
            raise Enough
        self.began = time.perf_counter()

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        # Exclude the evaluation on dev.
        self.began = time.perf_counter()

    def _wait(self) -> None:
        if self.device.type == "cuda":
            import torch

            torch.cuda.synchronize()


def training_step(
    strategy: str, overrides: Sequence[str], steps: int, outputs: Path, two_passes: bool = False
) -> dict[str, Any]:
    """Return the ratios of ``plain`` steps and of steps with replay (``due``), and the combined ``ratio``.

    Args:
        overrides: dataset and model.
        steps: pairs to take, a multiple of `EVERY_K`.
        two_passes: the plain loop also trains on the memory batch that the strategy has just drawn.
    """
    loop, bench = a_hop(strategy, overrides, outputs)
    context, drawn = loop.context, getattr(loop.strategy, "memory_batches", None)

    def replayed(number: int) -> Sequence[Batch]:
        # The draw depends only on the step, so drawing again returns the batch that the strategy used.
        return [batch.to(context.device) for _, batch in drawn(number, context)] if two_passes and drawn else ()

    pairs = _Pairs(bench, steps, replayed)
    loop.listener = pairs
    try:
        loop.run()
    except Enough:
        return _found(pairs.pairs, every_k=getattr(loop.strategy.settings, "every_k", None))
    raise RuntimeError(f"the training has fewer than {steps} steps; measure fewer steps")


def a_hop(strategy: str, overrides: Sequence[str], outputs: Path) -> tuple[HopTraining, Workbench]:
    """Return the training of a hop after three languages, ready to run, and its workbench."""
    # With 300 sentences, the memory holds more than a batch of each earlier language.
    arguments = [f"strategy={strategy}", "dataset.replay.memory=300", f"dataset.replay.every_k={EVERY_K}", *overrides]
    [run] = plan_runs([*arguments, "trainer.selection=last", "tracking=none", f"paths.outputs={outputs}"])
    bench = StageGraph(run, Listener(), StopFlag()).bench
    strategy_, hops = bench.strategy, run.stream.hops
    # Skip the training of earlier hops, which does not affect the time of a step.
    for hop in hops[1:HOP]:
        bench.model.train()
        strategy_.begin_hop(bench.context(hop))
        strategy_.end_hop(bench.context(hop))
    context = bench.context(hops[HOP])
    strategy_.begin_hop(context)
    return HopTraining(bench.work(context), Checkpoints(outputs / "no-checkpoints")), bench


def _found(pairs: Sequence[tuple[float, float]], every_k: int | None) -> dict[str, Any]:
    # Skip the first steps, which also allocate memory and choose kernels.
    numbered = list(enumerate(pairs, 1))[EVERY_K:]
    due = [pair for step, pair in numbered if every_k and step % every_k == 0]
    plain = [pair for step, pair in numbered if not (every_k and step % every_k == 0)]
    parts = {name: summary(some) for name, some in (("plain", plain), ("due", due)) if some}
    if not due or not plain:
        [only] = parts.values()
        return {**only, **parts}
    at_k = ((K - 1) * parts["plain"]["ratio"] + parts["due"]["ratio"]) / K
    return {**parts["plain"], "ratio": at_k, **parts}
