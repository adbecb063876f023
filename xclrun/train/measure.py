"""Measure memory and time of a run on this device: a few steps of each hop, on the longest training sentences."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from xclrun.config.schema import Config, TrainerConfig
from xclrun.core.plugins import one_line
from xclrun.core.stream import Hop
from xclrun.data.example import Example
from xclrun.plan import Run
from xclrun.train.encodings import encodings
from xclrun.train.execute import translated
from xclrun.train.precision import device_name
from xclrun.train.progress import Listener, Progress
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

STEPS = 3


@dataclass(frozen=True)
class HopCost:
    """The measured cost of a hop's training.

    Attributes:
        peak_bytes: peak memory (`xclrun.train.peak`).
        seconds: time of the last step, with the steps that the strategy adds to it.
    """

    hop: int
    name: str
    peak_bytes: int
    seconds: float


@dataclass(frozen=True)
class Measured:
    """The measured costs of a run.

    Attributes:
        device: name of the device, as in the costs of stored trainings.
        capacity: memory of a GPU in bytes; None on a CPU.
        hops: the hops measured before an ``error``.
        error: why a hop cannot be trained, such as too little memory.
    """

    device: str
    capacity: int | None
    hops: tuple[HopCost, ...]
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Clock(Listener):
    """Keeps the seconds of the last step on the device, without the evaluations between steps."""

    def __init__(self) -> None:
        self.before, self.seconds = 0.0, 0.0

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.before = _device_time()

    def stepped(self, progress: Progress) -> None:
        now = _device_time()
        self.seconds, self.before = now - self.before, now

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        self.before = _device_time()


def _device_time() -> float:
    """Return the time in seconds at which a GPU has finished all launched work; steps only launch their work."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.monotonic()


def measure(run: Run) -> Measured:
    """Train `STEPS` steps of each hop in a temporary folder, and return what they took.

    Batches consist of the longest training sentences, and dev splits are cut to their longest sentences. Strategies
    with a memory use it at each step.
    """
    clock, hops = _Clock(), list[HopCost]()
    with tempfile.TemporaryDirectory(prefix="xclrun-measure-") as folder:
        short = _shortened(run, Path(folder))
        graph = StageGraph(short, clock, StopFlag())
        device = graph.bench.device
        capacity = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
        error = None
        try:
            for hop in short.stream.hops[1:]:
                graph.weights(hop.index)
                training = graph.store.facts(short.stages[hop.index].train)["training"]
                hops.append(HopCost(hop.index, hop.name, training["peak_bytes"], clock.seconds))
                graph.state(hop.index)
        except (RuntimeError, MemoryError) as raised:
            error = one_line(translated(raised, run))
        return Measured(device_name(device), capacity, tuple(hops), error)


def _shortened(run: Run, outputs: Path) -> Run:
    """Return a run whose batches consist of the longest sentences of each split, with another outputs folder."""
    alone = replace(run, config=_settings(run.config, outputs))
    splits = encodings(alone).splits

    def cut(key: str, split: str) -> tuple[Example, ...]:
        examples, encoded = run.dataset.splits[key, split], splits[key, split]
        batches = [trainer.batch(len(examples)) for trainer in run.config.trainers.values()]
        count = max(batches) if split == "train" else run.config.evaluate.batch_size
        # An example can have several windows, which are rows.
        lengths = encoded.lengths if encoded.windows is None else np.array([len(e.tokens) for e in examples])
        return tuple(examples[i] for i in np.argsort(-lengths, kind="stable")[:count])

    # Label sets and the vocabulary remain those of the whole dataset.
    dataset = replace(run.dataset, splits={name: cut(*name) for name in run.dataset.splits}, whole=run.dataset.origin)
    return replace(alone, dataset=dataset)


def _settings(config: Config, outputs: Path) -> Config:
    """Return the config with an epoch for each step, without shared folders, evaluation points and further devices."""

    def short(trainer: TrainerConfig) -> TrainerConfig:
        steps = None if trainer.mixture_steps is None else STEPS
        return replace(trainer, epochs=STEPS, mixture_steps=steps, patience=None)

    protocol = config.protocol
    # With these settings, strategies use their memory at each step.
    at_once: dict[str, Any] = {"every_k": 1, "replay_interval": config.trainer.batch(1), "replay_write": 1.0}
    names = {field.name for field in fields(config.strategy)}
    return replace(
        config,
        trainer=short(config.trainer),
        protocol=protocol and replace(protocol, source_trainer=short(protocol.source_trainer)),
        strategy=replace(config.strategy, **{key: value for key, value in at_once.items() if key in names}),
        evaluate=replace(config.evaluate, every_examples=None, every_share=None, keep_points=None),
        runtime=replace(config.runtime, devices=1),
        paths=replace(config.paths, outputs=str(outputs), store=None),
    )
