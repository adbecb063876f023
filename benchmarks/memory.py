"""Memory of training: estimates for models and settings, and measured peaks.

``python -m benchmarks.memory`` prints the estimated peaks on a GPU (`xclrun.plan.memory`) as a Markdown table, in GB.
``python -m benchmarks memory`` measures two ratios of peaks: training with language-specific parameters / naive
fine-tuning, and measured / estimated.

On a GPU: torch's maximum allocated memory. On a CPU: the increase of the maximum resident size of a separate process
after the model is created. ``ru_maxrss`` cannot be used: on Linux a process inherits it from its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from xclrun.data.batches import Encoded, Ragged

# Index of the measured hop, the first that has the language-specific parameters of an earlier hop.
HOP = 2
STEPS = 3
STATUS = Path("/proc/self/status")


def measurable() -> bool:
    """Whether the system reports the memory of a process, as Linux does."""
    return STATUS.is_file()


def peak(strategy: str, overrides: Sequence[str]) -> int:
    """Return the peak memory in bytes of a few steps of a strategy's second hop, measured in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (strategy, list(overrides)))


def _measure(strategy: str, overrides: Sequence[str]) -> int:
    import torch

    from benchmarks.steps import Enough
    from xclrun.command.plan import plan_runs
    from xclrun.train.checkpoint import Checkpoints
    from xclrun.train.loop import HopTraining
    from xclrun.train.progress import Listener, Progress
    from xclrun.train.stages import StageGraph
    from xclrun.train.stop import StopFlag

    class Few(Listener):
        def stepped(self, progress: Progress) -> None:
            if progress.step == STEPS:
                raise Enough

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        arguments = [f"strategy={strategy}", "trainer.selection=last", "tracking=none", f"paths.outputs={folder}"]
        [run] = plan_runs([*arguments, *overrides])
        bench = StageGraph(run, Few(), StopFlag()).bench
        assert bench.encodings
        before = _forget_peak()
        for hop in run.stream.hops[1 : HOP + 1]:
            bench.strategy.begin_hop(bench.context(hop))
        context, checkpoints = bench.context(run.stream.hops[HOP]), Checkpoints(Path(folder) / "none")
        with contextlib.suppress(Enough):
            HopTraining(bench, context, checkpoints).run()
        if bench.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated())
        return _resident("VmHWM") - before


def _resident(name: str) -> int:
    """Return the current (``VmRSS``) or maximum (``VmHWM``) resident size of this process in bytes."""
    lines = STATUS.read_text(encoding="ascii").splitlines()
    [line] = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def _forget_peak() -> int:
    """Reset the maximum resident size if the system allows it; return the current size in bytes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _resident("VmRSS")


def over_estimate(overrides: Sequence[str], length: int) -> dict[str, Any]:
    """Return the ratio of the measured to the estimated peak of the first hop's training, and both in bytes.

    The hop's sentences have ``length`` random subwords each, as assumed by the estimate.
    """
    # malloc then returns freed blocks to the system at once, so fragmentation of the heap does not count.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        estimated, measured = pool.apply(_measure_sentences, (list(overrides), length))
    return {"ratio": measured / estimated, "measured_bytes": measured, "estimated_bytes": estimated}


def _measure_sentences(overrides: Sequence[str], length: int) -> tuple[int, int]:
    import torch

    from benchmarks.steps import Enough
    from xclrun.command.plan import plan_runs
    from xclrun.plan.memory import heads_of, peak
    from xclrun.train.checkpoint import Checkpoints
    from xclrun.train.loop import HopTraining
    from xclrun.train.progress import Listener, Progress
    from xclrun.train.stages import StageGraph
    from xclrun.train.stop import StopFlag

    class Few(Listener):
        def stepped(self, progress: Progress) -> None:
            if progress.step == STEPS:
                raise Enough

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        fixed = ["trainer.selection=last", "tracking=none", "evaluate.batch_size=1", f"paths.outputs={folder}"]
        [run] = plan_runs([*overrides, *fixed, f"model.max_length={length}"])
        bench, hop = StageGraph(run, Few(), StopFlag()).bench, run.stream.hops[1]
        [key], trainer = hop.train, run.trainer(hop)
        sentences = _random(
            bench.encodings.splits[key, "train"], STEPS * trainer.batch(len(run.dataset.split(key, "train"))), length
        )
        # Read after building the model, which imports libraries. The estimate includes the weights, so subtract them.
        weights = sum(parameter.nbytes for parameter in bench.model.parameters())
        before = _forget_peak() - weights
        context = bench.context(hop)
        context.train = {**context.train, key: sentences}
        bench.strategy.begin_hop(context)
        vocabulary = bench.model.encoder.get_input_embeddings().num_embeddings  # type: ignore[union-attr,operator]
        with contextlib.suppress(Enough):
            HopTraining(bench, context, Checkpoints(Path(folder) / "none")).run()
        cuda = bench.device.type == "cuda"
        measured = int(torch.cuda.max_memory_allocated()) if cuda else _resident("VmHWM") - before
        estimate = peak(
            run.config,
            trainer,
            run.strategy(),
            hop,
            heads_of(run),
            sentences=len(sentences),
            length=length,
            vocabulary=vocabulary,
            cuda=cuda,
        )
        return estimate.total, measured


def _random(sentences: Encoded, count: int, length: int) -> Encoded:
    """Return ``count`` sentences of ``length`` random subwords, each of which is a word."""
    generator, sizes = np.random.default_rng(0), np.full(count, length)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    known = np.unique(sentences.pieces.values)

    def ragged(values: np.ndarray) -> Ragged:
        return Ragged(values.astype(np.int32), offsets)

    zeros = ragged(np.zeros(count * length))
    return replace(
        sentences.select(np.arange(count) % len(sentences)),
        pieces=ragged(generator.choice(known, count * length)),
        types=zeros,
        word_pieces=ragged(np.tile(np.arange(length), count)),
        tags=zeros,
        words=sizes,
    )


def over_naive(strategy: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the ratio of a strategy's peak to naive's, and both in bytes."""
    ours, naive = peak(strategy, overrides), peak("naive", overrides)
    return {"ratio": ours / naive, "ours_bytes": ours, "naive_bytes": naive}


# Column of the table → overrides. The decoders have the sizes of Llama 3.2 1B and Llama 3.1 8B.
DECODER = (
    "model=mbert", "model.hub=null", "model.family=llama", "model.vocab_size=128256", "model.attention_heads=32",
    "model.settings={num_key_value_heads: 8}",
)  # fmt: skip
MODELS = {
    "mBERT": ("model=mbert",),
    "XLM-R large": ("model=xlmr_large",),
    "XLM-R XL": (
        "model=xlmr_large", "model.hub=null", "model.family=xlm-roberta-xl", "model.vocab_size=250880",
        "model.hidden_size=2560", "model.hidden_layers=36", "model.attention_heads=32", "model.intermediate_size=10240",
    ),
    "decoder, 1B": (*DECODER, "model.hidden_size=2048", "model.hidden_layers=16", "model.intermediate_size=8192"),
    "decoder, 8B": (*DECODER, "model.hidden_size=4096", "model.hidden_layers=32", "model.intermediate_size=14336"),
}  # fmt: skip
LORA = ("strategy=lang_spec_lora_f", "trainer.precision=bf16")
FROZEN, RECOMPUTED = "model.frozen_precision=bf16", "trainer.gradient_checkpointing=true"
# Row of the table → overrides.
SETTINGS = {
    "`naive`, fp32, Adam": (),
    "`trainer.gradient_checkpointing=true`": (RECOMPUTED,),
    "`trainer.batch_size=2 trainer.gradient_accumulation=8`": (
        "trainer.batch_size=2", "trainer.gradient_accumulation=8",
    ),
    "`trainer.precision=bf16`": ("trainer.precision=bf16",),
    "`trainer.optimizer=adam_8bit`": ("trainer.optimizer=adam_8bit",),
    "bf16, 8 bits, checkpointing": ("trainer.precision=bf16", "trainer.optimizer=adam_8bit", RECOMPUTED),
    "`ewc_online`": ("strategy=ewc_online",),
    "`si`": ("strategy=si",),
    "`lang_spec_lora_f`, bf16": LORA,
    "`lang_spec_lora_f`, bf16, `model.frozen_precision=bf16`": (*LORA, FROZEN),
    "the same, checkpointing": (*LORA, FROZEN, RECOMPUTED),
}  # fmt: skip
# Sentences in a batch of the table, and subwords in a sentence.
SENTENCES, LENGTH = 16, 128


def estimates() -> Iterator[tuple[str, list[float]]]:
    """Yield each setting and, for each model, the estimated peak of the second hop on a GPU in GB."""
    from xclrun.compose.jobs import compose_command
    from xclrun.core.stream import sequence
    from xclrun.core.task import INTENT_SLOTS
    from xclrun.model.shape import HeadSizes
    from xclrun.plan.memory import peak
    from xclrun.strategy import make

    hop, heads = sequence(("en", "de")).hops[2], [HeadSizes(INTENT_SLOTS, 100, 80)]
    for name, settings in SETTINGS.items():
        values = []
        for model in MODELS.values():
            [job] = compose_command([*model, *settings, f"model.max_length={LENGTH}", "evaluate.batch_size=16"])
            config, strategy = job.config, make(job.config.strategy)
            where = {"sentences": SENTENCES, "length": LENGTH, "cuda": True}
            values.append(peak(config, config.trainer, strategy, hop, heads, **where).total / 1e9)
        yield name, values


def main() -> None:
    """Print the table."""
    print("| setting |", *(f"{name} |" for name in MODELS))
    print("|---|" + "---:|" * len(MODELS))
    for name, values in estimates():
        print(f"| {name} |", *(f"{value:.1f} |" for value in values))


if __name__ == "__main__":
    main()
