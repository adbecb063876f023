"""Ratios of times: packed / padded batches in training, batches of similar lengths / in random order in evaluation.

Both sides of a ratio process the same sentences alternately. With one thread, times are CPU seconds, which other
processes hardly affect. With several threads, they are wall-clock seconds, because waiting threads use CPU time too. A
training step is a forward pass, a backward pass and Adam's update.

The gain varies between batches, because all sentences of a batch are padded to its longest sentence. So both ratios
compare the total time of all batches, not medians over batches.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import summary
from xclrun.command.plan import plan_runs
from xclrun.data.batches import Encoded, epoch_batches, length_sorted_batches
from xclrun.data.packing import Packing
from xclrun.model.network import Model
from xclrun.train.optimize import make_optimizer
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import Workbench

SENTENCES = 256


def now() -> float:
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def packed_over_padded(overrides: Sequence[str], steps: int, outputs: Path) -> dict[str, Any]:
    """Return the ratio of total times, packed / padded, the median ratio of batches, and shares of filled positions."""
    bench, sentences, batches = _made(overrides, steps, outputs)
    batches = [indices for indices in batches if len(indices) == len(batches[0])]
    sides = [_step(copy.deepcopy(bench.model), bench, sentences, packs) for packs in (True, False)]
    pairs = [(sides[0](indices), sides[1](indices)) for indices in batches]
    lengths, shape = [sentences.lengths[indices] for indices in batches], bench.model.encoder.config
    linear = 2 * shape.hidden_size + shape.intermediate_size  # type: ignore[union-attr,operator]
    pieces = sum(int(n.sum()) for n in lengths)
    rows = sum(Packing.of(n, int(n.max()), linear).source.size for n in lengths)
    padded = sum(len(n) * int(n.max()) for n in lengths)
    # Skip the first step, which also allocates memory and chooses kernels.
    packed_s, padded_s = (sum(side) for side in zip(*pairs[1:], strict=True))
    filled = {"filled_packed": pieces / rows, "filled_padded": pieces / padded}
    median = summary(pairs[1:])
    return median | {"ratio": packed_s / padded_s, "median_batch": median["ratio"]} | filled


def sorted_over_mixed(overrides: Sequence[str], outputs: Path, rounds: int = 3) -> dict[str, Any]:
    """Return the ratio of evaluation times, batches of similar lengths / batches in random order, all padded.

    ``packed_over_sorted`` is the ratio of times for batches of similar lengths, packed / padded. xclrun itself never
    packs in evaluation.
    """
    bench, _, _ = _made(overrides, 1, outputs)
    sentences = bench.encodings.splits[bench.run.stream.languages[0], "test"]
    model, size = bench.model.eval(), bench.run.config.evaluate.batch_size
    like = length_sorted_batches(sentences.lengths, size)
    mixed = epoch_batches(len(sentences), size, np.random.default_rng(0))

    def passes(batches: Sequence[np.ndarray], packs: bool) -> float:
        began = now()
        with torch.no_grad():
            for indices in batches:
                # In eval mode `encode` never packs.
                model.encode(sentences.batch(indices)) if not packs else model._encode_packed(sentences.batch(indices))
        return now() - began

    passes(like[:1], False)
    times = [(passes(like, False), passes(mixed, False), passes(like, True)) for _ in range(rounds)]
    packed = summary([(packed, alike) for alike, _, packed in times])["ratio"]
    filled = {
        name: float(sentences.lengths.sum()) / sum(len(b) * int(sentences.lengths[b].max()) for b in batches)
        for name, batches in (("filled_sorted", like), ("filled_mixed", mixed))
    }
    return (
        summary([(alike, as_they_come) for alike, as_they_come, _ in times]) | filled | {"packed_over_sorted": packed}
    )


def _made(overrides: Sequence[str], steps: int, outputs: Path) -> tuple[Workbench, Encoded, list[np.ndarray]]:
    """Return a workbench, training sentences of its first language, and batches of them."""
    [run] = plan_runs([*overrides, "tracking=none", f"paths.outputs={outputs}"])
    bench = StageGraph(run, Listener(), StopFlag()).bench
    sentences = bench.encodings.splits[run.stream.languages[0], "train"]
    sentences = sentences.select(np.arange(min(SENTENCES, len(sentences))))
    generator, batches = np.random.default_rng(0), list[np.ndarray]()
    while len(batches) <= steps:
        batches += epoch_batches(len(sentences), run.config.trainer.batch_size or 16, generator)
    return bench, sentences, batches[: steps + 1]


def _step(model: Model, bench: Workbench, sentences: Encoded, packs: bool) -> Callable[[np.ndarray], float]:
    """Return a function that runs a training step on a batch and returns its seconds."""
    model.train()
    model.packs = packs
    optimizer = make_optimizer(model.parameters(), bench.run.config.trainer)

    def step(indices: np.ndarray) -> float:
        began = now()
        optimizer.zero_grad(set_to_none=True)
        model.loss(sentences.batch(indices)).backward()
        optimizer.step()
        return now() - began

    return step
