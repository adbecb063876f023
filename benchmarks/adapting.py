"""Ratio of MbPA's prediction times for a batch of test examples: adapting all examples together / one at a time.

Both methods take L steps of gradient descent on K neighbours of each example, then predict the example. The choice of
neighbours does not affect times, so the features that select neighbours are random.

On one CPU core there is no gain with K = 25 neighbours, which already use the core fully (ratios of 1.0 to 1.3); with
K = 4 the ratio is 0.6. The ratio has not been measured on a GPU.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import ratio
from xclrun.command.plan import plan_runs
from xclrun.data.batches import concat
from xclrun.strategy.mbpa import MbPA, nearest
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

# Number of test examples: one batch of the evaluation.
EXAMPLES = 64


def adapted_over_one_by_one(overrides: Sequence[str], outputs: Path) -> dict[str, Any]:
    """Return the ratio of times for one batch of test examples, after the first hop."""
    arguments = [*overrides, "strategy=mbpa", "tracking=none", f"paths.outputs={outputs}"]
    [run] = plan_runs(arguments)
    graph = StageGraph(run, Listener(), StopFlag())
    model, hop, strategy = graph.bench.model.eval(), run.stream.hops[1], graph.strategy
    assert isinstance(strategy, MbPA)
    context = graph.bench.context(hop)
    strategy.end_hop(context)
    [(key, indices)] = strategy.memory.items()
    test, generator = graph.bench.encodings.splits[key, "test"], np.random.default_rng(1)
    for split, sentences in (("train", context.train[key]), ("test", test)):
        strategy.features[key, split] = generator.normal(size=(len(sentences), 8))
    examples = np.argsort(-test.lengths, kind="stable")[:EXAMPLES]
    s, keys = strategy.settings, strategy.features
    rows = nearest(keys[key, "test"][examples], keys[key, "train"][indices], s.neighbours, s.distance)
    memory, clone = concat([context.train[key].select(indices)]), copy.deepcopy(model)
    both = zip(clone.parameters(), model.parameters(), strict=True)
    pairs = [(ours, original) for ours, original in both if original.requires_grad]

    def together() -> None:
        strategy.predict(test.batch(examples).to(context.device), key, "test", context)

    def one_by_one() -> None:
        for i, near in zip(examples, rows, strict=True):
            with torch.no_grad():
                for p, start in pairs:
                    p.copy_(start)
            for _ in range(s.adapt_steps):
                clone.zero_grad()
                clone.loss(memory.batch(near).to(context.device)).backward()
                with torch.no_grad():
                    for p, start in pairs:
                        if p.grad is not None:
                            p -= s.adapt_lr * (p.grad + 2 * s.adapt_penalty * (p - start))
            clone.predict(test.batch([i]).to(context.device))

    return {**ratio(together, one_by_one), "examples": len(examples), "together": s.adapt_together, "K": rows.shape[1]}
