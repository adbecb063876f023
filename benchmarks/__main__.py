"""``make bench``: what xclrun costs over doing the same by hand. Prints a table and writes ``benchmarks/results.json``.

- training step: a step of the loop (naive) over a bare loop with the same encoder, heads, batches and optimiser;
- evaluation: prediction rows of a split over bare forward passes and decoding on the same length-sorted batches;
- training step with the whole vocabulary over that with the trimmed one, at mBERT's size, random weights;
- a job whose hops are all shared: seconds over none;
- planning 7,200 runs: seconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xclrun.command.plan import plan_runs
from xclrun.config import Selection
from xclrun.data.encode import Batch, length_sorted_batches
from xclrun.model.network import build
from xclrun.plan import derive
from xclrun.run import Run
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.execute import execute
from xclrun.train.listen import Listener
from xclrun.train.loop import HopTraining
from xclrun.train.making import Maker, encodings
from xclrun.train.optimize import make_optimizer
from xclrun.train.stop import StopFlag

REPETITIONS = 7
MBERT = {"hidden_size": 768, "hidden_layers": 12, "attention_heads": 12, "intermediate_size": 3072}
MBERT |= {"vocab_size": 119_547, "positions": 512}


class Sized:
    """Stands for a tokenizer with as many pieces as mBERT's."""

    def __init__(self, tokenizer: Any) -> None:
        self.pad_token_id = tokenizer.pad_token_id

    def __len__(self) -> int:
        return MBERT["vocab_size"]


def seconds(work: Callable[[], Any]) -> float:
    """Return how long ``work`` takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def ratio(ours: Callable[[], Any], bare: Callable[[], Any]) -> dict[str, float]:
    """Return the median, least and greatest ratio of two things timed in turn, after one round that does not count."""
    ours()
    bare()
    pairs = [(seconds(ours), seconds(bare)) for _ in range(REPETITIONS)]
    ratios = [a / b for a, b in pairs]
    medians = {"ours_s": statistics.median(a for a, _ in pairs), "bare_s": statistics.median(b for _, b in pairs)}
    return {"ratio": statistics.median(ratios), "least": min(ratios), "greatest": max(ratios), **medians}


def training(maker: Maker, folder: Path) -> dict[str, float]:
    """Time one epoch of naive training in the loop against the bare loop."""
    hop = maker.run.stream.hops[1]
    data = maker.encodings.splits[hop.train[0], "train"]
    trainer = maker.run.config.trainer
    trainer.epochs, trainer.selection = 1, Selection.last
    batch_size = trainer.batch_size

    def ours() -> None:
        # Without dev splits: their evaluation is another benchmark.
        training = HopTraining(
            maker._context(hop),
            maker.strategy,
            trainer,
            maker.evaluator,
            {},
            Checkpoints(folder / "none"),
            Listener(),
            StopFlag(),
        )
        training._end_epoch = lambda: setattr(training.position, "epoch", 1)  # type: ignore[method-assign]
        training.run()

    def bare() -> None:
        model = maker.model
        model.train()
        optimizer = make_optimizer(model.parameters(), trainer)
        order = torch.randperm(len(data), generator=torch.Generator().manual_seed(derive(0, "bench"))).numpy()
        for start in range(0, len(order), batch_size):
            batch = data.batch(order[start : start + batch_size])
            optimizer.zero_grad(set_to_none=True)
            model.loss(batch).backward()
            optimizer.step()

    return ratio(ours, bare)


def evaluation(maker: Maker) -> dict[str, float]:
    """Time the evaluation of a split against bare forward passes and decoding."""
    language = maker.run.stream.languages[0]
    data = maker.encodings.splits[language, "test"]
    batches = length_sorted_batches(data.lengths, maker.run.config.evaluate.batch_size)

    def bare() -> None:
        maker.model.eval()
        for indices in batches:
            maker.model.predict(data.batch(indices))

    return ratio(lambda: maker.evaluator.predict(maker.model, data, language, "test"), bare)


def trimming(run: Run) -> dict[str, float]:
    """Time a training step with mBERT's whole vocabulary, random weights, against the same with the trimmed one."""
    found, config = encodings(run), replace(run.config.model, **MBERT)
    indices = range(run.config.trainer.batch_size)
    batch = found.splits[run.stream.languages[0], "train"].batch(indices)
    pieces = np.unique(np.concatenate([split.pieces.values for split in found.splits.values()]))
    renumbered = replace(batch, input_ids=torch.from_numpy(np.searchsorted(pieces, batch.input_ids.numpy())))

    def step(kept: np.ndarray | None, batch: Batch) -> Callable[[], None]:
        classes, tags = len(run.dataset.labels), len(run.dataset.tags)
        model = build(config, Sized(found.tokenizer), classes, tags, 1, kept)
        optimizer = make_optimizer(model.parameters(), run.config.trainer)

        def once() -> None:
            optimizer.zero_grad(set_to_none=True)
            model.loss(batch).backward()
            optimizer.step()

        return once

    return ratio(step(None, batch), step(pieces, renumbered))


def shared_job(outputs: Path) -> float:
    """Return the seconds that a job takes whose hops are all in the store."""
    small = ["experiment=smoke", "tracking=none", f"paths.outputs={outputs}"]
    [first] = plan_runs([*small, "strategy=naive"])
    execute(first, Listener(), StopFlag())
    # With an empty memory every hop of er is naive's.
    runs = [plan_runs([*small, "strategy=er", "strategy.memory=0", f"strategy.every_k={k}"])[0] for k in range(1, 6)]
    return statistics.median(seconds(lambda run=run: execute(run, Listener(), StopFlag())) for run in runs)  # type: ignore[misc]


def planning(outputs: Path) -> float:
    """Return the seconds that planning 7,200 runs takes: 5 strategies, 2 budgets, 6 orders, 3 seeds, 40 buckets."""
    orders = ",".join(f"order{i}" for i in range(1, 7))
    overrides = [
        "strategy=naive,er,inc_joint,multilingual,lang_spec_ft",
        "dataset.replay.memory=20,50",
        f"order={orders}",
    ]
    overrides += ["seed=1,2,3", "bucket=range(0,40)", "dataset.max_train=10", f"paths.outputs={outputs}"]
    return seconds(lambda: plan_runs(overrides))


def main() -> None:
    """Run all benchmarks."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        outputs = Path(folder)
        run: Run = plan_runs(["tracking=none", f"paths.outputs={outputs}"])[0]
        maker = Maker(run, Listener(), StopFlag())
        maker.weights(0)
        results: dict[str, Any] = {
            "training step, naive / bare (mini, tiny)": training(maker, outputs),
            "evaluation / bare forward (mini, tiny)": evaluation(maker),
            "training step, whole / trimmed (mini, mBERT size)": trimming(run),
            "a job whose hops are all shared, seconds": shared_job(outputs / "jobs"),
            "planning 7,200 runs, seconds": planning(outputs / "plan"),
        }
    for name, found in results.items():
        text = (
            f"{found:.2f}"
            if isinstance(found, float)
            else "{ratio:.3f} ({least:.3f} to {greatest:.3f})".format(**found)
        )
        print(f"{name:<48} {text}")
    facts = {"machine": platform.platform(), "torch": torch.__version__, "threads": 1, "results": results}
    given.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
