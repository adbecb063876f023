"""Estimate the peak memory of a run on each device from its config, without torch.

The peak in bytes is

    W + O + S + B + max(A, G + E), or W + O + S + B + G + max(A, E) if a device adds gradients of several micro-batches,

where W are the weights, G the gradients, O the optimizer's states, S the strategy's tensors, B a CPU's copy of the best
weights, A the activations of one forward pass, and E the activations of an evaluation batch.

With one micro-batch, the gradients of a layer replace its activations during the backward pass. Activations are counted
per layer and subword; H is the size of a hidden state, and I the size of an inner state of the feed-forward network.
For its backward pass, a transformer layer stores 8 H + 2 I values: inputs of the linear layers, queries, keys and
values, inputs of both norms, and input and output of the activation function. With a gated feed-forward network there
are 8 H + 4 I values. A layer with frozen weights stores 5 H + I values. Dropout adds 2 H bytes. On a CPU, dropout masks
are in fp32, and attention with dropout is not fused: it stores 16 bytes for each head and pair of positions.

tests/test_memory.py and `python -m benchmarks memory` compare the estimate with measured peaks.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.config.schema import Config, Device, FrozenPrecision, Precision, Selection, TrainerConfig
from xclrun.core.errors import UsageError
from xclrun.core.ranks import launched
from xclrun.core.stream import Hop
from xclrun.data.encode import tag_outputs
from xclrun.data.example import Dataset
from xclrun.model.shape import Dimensions, HeadSizes, estimated_sizes
from xclrun.model.structure import layer
from xclrun.strategy import Strategy

if TYPE_CHECKING:
    from xclrun.plan.run import Run

# Bytes of an fp32 number, and of a parameter's two moment estimates (True: with an 8-bit optimizer).
FP32 = 4
MOMENTS: Mapping[bool, int] = {False: 8, True: 2}
# Parameters whose training needs a backward pass through layers: prompts, and those of the encoder. The pooler is not
# one of them, because it reads last states.
BODY = re.compile(r"encoder\.(?!pooler\.)|prompts\.")
# Special tokens of a sentence.
SPECIAL = 2
HALF = (Precision.bf16, Precision.fp16)


@dataclass(frozen=True)
class Memory:
    """Peak memory of a hop on one device, in bytes.

    Attributes:
        strategy: tensors that the strategy stores, such as Fisher information or weights of earlier languages.
        best: copy of the best weights on a CPU. It is 0 on a GPU, because the copy moves to the CPU if GPU memory is
            short.
        activations: activations of a micro-batch's forward pass, and weights copied by autocast.
        evaluation: activations of an evaluation batch.
        adds: whether a device adds the gradients of several micro-batches.
    """

    weights: int
    gradients: int
    optimizer: int
    strategy: int
    best: int
    activations: int
    evaluation: int
    adds: bool

    @property
    def total(self) -> int:
        """The peak, in bytes."""
        training = self.gradients + self.activations if self.adds else max(self.gradients, self.activations)
        passing = max(training, self.gradients + self.evaluation)
        return self.weights + self.optimizer + self.strategy + self.best + passing

    def to_json(self) -> dict[str, int]:
        """Return the attributes and the peak (``total``), in bytes."""
        parts = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "adds"}
        return parts | {"total": self.total}


def peak(
    config: Config,
    trainer: TrainerConfig,
    strategy: Strategy[Any],
    hop: Hop,
    heads: Sequence[HeadSizes],
    *,
    sentences: int,
    length: int,
    vocabulary: int | None = None,
    cuda: bool = False,
) -> Memory:
    """Estimate the peak memory of a hop.

    Args:
        sentences: training sentences of the hop.
        length: subwords of the longest sentence, including special tokens.
        vocabulary: number of word embeddings if the vocabulary is trimmed or learned; None: as in the config.
        cuda: whether the device is a GPU.
    """
    encoder, length = Dimensions.of(config.model), length + strategy.prompt_tokens()
    sizes = strategy.prepared(estimated_sizes(config.model, heads, vocabulary), encoder)
    trains = {name: bool(trainable) and strategy.trains(name, hop) for name, (_, trainable) in sizes.items()}
    trained = sum(number for name, (number, _) in sizes.items() if trains[name])
    specific = sum(number for name, (number, _) in sizes.items() if strategy.language_specific(name))
    stored = strategy.copies(hop) * trained + len(strategy.plan(hop).trains_with) * specific
    half = trainer.precision in HALF
    frozen = 2 if config.model.frozen_precision is FrozenPrecision.bf16 else FP32
    part = trainer.part(sentences)
    # Hops on a frozen encoder read cached features.
    pieces = 0 if strategy.plan(hop).still else part * length
    by_layer = _by_layer(trains, encoder)
    # With prompts, the encoder has no dropout (`xclrun.strategy.shared.prompts`).
    dropout = bool(config.model.dropout) and not strategy.prompt_tokens()
    # Autocast copies the weights of linear layers, and the backward pass needs the copies.
    copied = 1 if trainer.gradient_checkpointing else len(by_layer)
    cast = 2 * encoder.layer * copied if half and pieces and by_layer and frozen == FP32 else 0
    evaluated = config.evaluate.batch_size * length
    if config.evaluate.batch_tokens is not None:
        evaluated = min(evaluated, max(config.evaluate.batch_tokens, length))
    return Memory(
        weights=sum(number * (FP32 if trained else frozen) for number, trained in sizes.values()),
        gradients=FP32 * trained,
        optimizer=MOMENTS[trainer.optimizer.eight_bit] * trained,
        strategy=FP32 * stored,
        best=FP32 * trained if trainer.selection is Selection.best and not cuda else 0,
        activations=pieces * _stored(encoder, trainer, by_layer, length, dropout=dropout, cuda=cuda) + cast,
        # Without a backward pass, only the current layer's values exist: queries, keys and values, or inner states.
        evaluation=evaluated * (2 if half else FP32) * max(5 * encoder.width, 2 * encoder.width + 2 * encoder.inner),
        # Micro-batches of other ranks do not count, because ranks sum their gradients in place.
        adds=trainer.gradient_accumulation > max(launched(), config.runtime.devices),
    )


def _by_layer(trains: Mapping[str, bool], encoder: Dimensions) -> list[bool]:
    """Return, for each layer that the backward pass reaches, whether its weights are trained."""
    trained = {layer(name) for name, trainable in trains.items() if trainable and BODY.match(name)}
    if not encoder.apart:
        return [bool(trained)] * (encoder.layers if trained else 0)
    # To train parameters outside of layers (None), such as embeddings, adapters or prompts, the backward pass reaches
    # all layers.
    lowest = 1 if None in trained else min((number for number in trained if number is not None), default=None)
    return [] if lowest is None else [number in trained for number in range(lowest, encoder.layers + 1)]


def _stored(
    encoder: Dimensions, trainer: TrainerConfig, by_layer: Sequence[bool], length: int, *, dropout: bool, cuda: bool
) -> int:
    """Return the bytes per subword that a forward pass stores for the backward pass."""
    width, inner, half = encoder.width, encoder.inner, trainer.precision in HALF
    states = 2 * width + 2 * encoder.queries + 2 * encoder.keys

    def of_layer(trained: bool) -> int:
        matrices = width + encoder.queries + (4 if encoder.gated else 2) * inner if trained else inner
        # Under autocast, norms read fp32 and linear layers 16-bit inputs.
        stored = 2 * width * FP32 + (states - 2 * width + matrices) * (2 if half else FP32)
        if dropout:
            stored += 2 * width if cuda else 2 * width * FP32 + 16 * encoder.heads * length
        return stored

    layers = [of_layer(trained) for trained in by_layer]
    if trainer.gradient_checkpointing:
        # With checkpointing, only the inputs of all layers are stored, and the values and gradients of one layer at a
        # time.
        layers = [FP32 * width * len(layers), 2 * max(layers, default=0)]
    # Add the embeddings before and after their norm, and the states that heads read.
    return sum(layers) + 4 * width * FP32


def heads_of(run: Run) -> list[HeadSizes]:
    """Return the sizes of a run's heads, one for each task."""
    label_on = run.config.model.label_on
    return [HeadSizes(t.task, len(t.labels), tag_outputs(t.tags, label_on)) for t in run.dataset.targets]


def of_run(run: Run, *, cuda: bool, config: Config | None = None) -> tuple[Memory, Memory]:
    """Return a lower and an upper estimate for the hop with the largest peak.

    The number of subwords is unknown before encoding. The lower estimate assumes one subword per word, and a single
    word embedding if the vocabulary is trimmed or learned. The upper estimate assumes ``model.max_length`` subwords and
    all word embeddings.

    Args:
        config: the run's config with changed settings; None: unchanged.
    """
    config, heads = config or run.config, heads_of(run)
    strategy, longest = run.strategy(), config.model.max_length

    def at(hop: Hop, length: int, vocabulary: int | None) -> Memory:
        trainer = config.trainer
        if config.protocol is not None and not hop.adapts:
            trainer = config.protocol.source_trainer
        return peak(
            config,
            trainer,
            strategy,
            hop,
            heads,
            sentences=run.sentences(hop),
            length=length,
            vocabulary=vocabulary,
            cuda=cuda,
        )

    unknown = config.model.trim_vocabulary or config.model.from_scratch
    hops = run.stream.hops[1:]
    words = {hop: max(_words(run.dataset, key) for key in hop.train) for hop in hops}
    least = [at(hop, min(longest, words[hop] + SPECIAL), 1 if unknown else None) for hop in hops]
    most = [at(hop, longest, None) for hop in hops]
    return max(least, key=lambda memory: memory.total), max(most, key=lambda memory: memory.total)


# Fingerprint of a split → number of words of its longest sentence.
_longest: dict[str, int] = {}


def _words(dataset: Dataset, key: str) -> int:
    """Return the number of words of the longest training sentence; unlimited for texts split into windows."""
    if dataset.task_of(key).answers:
        return sys.maxsize
    fingerprint = dataset.fingerprints[key, "train"]
    if fingerprint not in _longest:
        _longest[fingerprint] = max((len(example.tokens) for example in dataset.split(key, "train")), default=0)
    return _longest[fingerprint]


def of_runs(runs: Iterable[Run]) -> dict[str, tuple[Memory, Memory]]:
    """Return strategy → the estimates of its run with the largest peak."""
    largest: dict[str, tuple[Memory, Memory]] = {}
    distinct = {
        repr([run.config.model, run.config.trainers, run.config.strategy, run.dataset.name]): run for run in runs
    }
    for run in distinct.values():
        cuda = run.config.runtime.device is not Device.cpu and gpu_memory() is not None
        memory, name = of_run(run, cuda=cuda), run.strategy_name
        if name not in largest or memory[1].total > largest[name][1].total:
            largest[name] = memory
    return largest


@cache
def gpu_memory() -> int | None:
    """Return the memory of the largest visible GPU in bytes, without initializing CUDA; None if no GPU is found."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    query = ["nvidia-smi", "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return largest(done.stdout, os.environ.get("CUDA_VISIBLE_DEVICES"))


def largest(rows: str, visible: str | None) -> int | None:
    """Return the bytes of the largest visible GPU, from nvidia-smi (index, UUID, MiB) and CUDA_VISIBLE_DEVICES."""
    names = None if visible is None else {name.strip() for name in visible.split(",")}
    gpus = [[cell.strip() for cell in row.split(",")] for row in rows.splitlines()]
    sizes = [int(size) for index, uuid, size in gpus if size.isdigit() and (names is None or names & {index, uuid})]
    return max(sizes) * 2**20 if sizes else None


def check_memory(runs: Sequence[Run], available: Callable[[], int | None] = gpu_memory) -> None:
    """Refuse runs that cannot fit in the memory of the visible GPU.

    Raises:
        UsageError: the lower estimate of a run exceeds the GPU's memory; the message names settings that need less
            memory.
    """
    for run in runs:
        if run.config.runtime.device is Device.cpu or (size := available()) is None:
            continue
        memory, _ = of_run(run, cuda=True)
        if memory.total > size:
            remedies = (_changed(run.config, change) for change in REMEDIES)
            remedy = next(
                (text for text, config in remedies if of_run(run, cuda=True, config=config)[0].total <= size),
                "a smaller model, or a strategy with a frozen encoder, such as lang_spec_lora_f",
            )
            raise UsageError(
                f"model={run.config.model.name} strategy={run.strategy_name}: needs at least {memory.total / 1e9:.1f} "
                f"GB, but the GPU has {size / 1e9:.1f} GB; use {remedy}"
            )


def _smaller(trainer: TrainerConfig, factor: int) -> dict[str, Any]:
    """Return settings with smaller micro-batches and an unchanged number of sentences per update."""
    accumulation = trainer.gradient_accumulation * factor
    if trainer.batch_size is None:
        return {"gradient_accumulation": accumulation}
    return {"batch_size": max(1, trainer.batch_size // factor), "gradient_accumulation": accumulation}


# Changes of trainer settings that save memory, ordered by their effect on results.
REMEDIES: Sequence[Callable[[TrainerConfig], dict[str, Any]]] = (
    lambda trainer: {"gradient_checkpointing": True},
    *(lambda trainer, factor=factor: _smaller(trainer, factor) for factor in (2, 4, 8, 16)),
    lambda trainer: {"gradient_checkpointing": True} | _smaller(trainer, 16),
    lambda trainer: {"precision": Precision.bf16},
)


def _changed(config: Config, change: Callable[[TrainerConfig], dict[str, Any]]) -> tuple[str, Config]:
    """Change the trainers of a config; return the settings as on the command line, and the new config."""
    changes = {key: change(trainer) for key, trainer in config.trainers.items()}
    text = " ".join(
        f"{key}.{name}={_shown(value)}" for key, values in changes.items() for name, value in values.items()
    )
    config = replace(config, trainer=replace(config.trainer, **changes["trainer"]))
    if config.protocol is not None:
        source = replace(config.protocol.source_trainer, **changes["protocol.source_trainer"])
        config = replace(config, protocol=replace(config.protocol, source_trainer=source))
    return text, config


def _shown(value: Any) -> str:
    return str(value.value if isinstance(value, Enum) else value).lower()
