"""``python -m benchmarks.gpu``: training on a GPU, compared with a plain loop and with the limits of the hardware.

One command prints the results and writes ``benchmarks/gpu.json`` with the GPU's name. Measurements that take seconds
and can reveal errors come first. If one fails, its error is reported and the others still run:

- ``rates``: throughput of matrix products (fp32, bf16; FLOP/s) and copies (bytes/s);
- ``broken``: whether a process detects a failed assertion on the device, and insufficient memory;
- ``repeated``: whether a run gives identical predictions when it is repeated, and when it is interrupted in a hop and
  resumed. Measured for ``er``, ``ewc_online`` and long sentences: without and with CUDA graphs, and with PyTorch's
  default kernels instead of deterministic ones;
- ``recorded``: largest difference between the weights after training with CUDA graphs and without;
- ``agreement``: largest difference between the logits and emissions of the GPU and of the CPU, in fp32;
- ``operators``: operators of a step, and those that wait for the device (`benchmarks.operators`);
- ``evaluation``, ``packing``, ``ends``: as in ``make bench``;
- ``steps``: time of a training step / of a step of a plain fp32 Hugging Face loop on the same batch
  (`benchmarks.steps`), and time of a training step / a lower bound. The bound is the time for 6 FLOP per position and
  weight of the encoder's layers, and for the bytes that Adam moves, at the measured rates. Measured in fp32, tf32 and
  bf16, with and without CUDA graphs, and with PyTorch's default kernels instead of deterministic ones. Strategies that
  change the training step are measured at one size, ``naive`` at all sizes;
- ``workers``: seconds of 8 runs in 1, 2, 4 and 8 processes on one GPU.

Models have random weights and a vocabulary learned from the data: 12 layers × 768 (mBERT, XLM-R base) and 24 × 1024
(XLM-R large). ``--cpu`` rehearses all measurements on tiny shapes without a GPU; its numbers are meaningless.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.__main__ import AIMS, TWELVE_LAYERS, data, evaluation
from benchmarks.ends import files_over_training
from benchmarks.operators import of_steps
from benchmarks.packing import packed_over_padded
from benchmarks.steps import Enough, a_hop, training_step
from benchmarks.tape import Tape
from xclrun.command.plan import plan_runs
from xclrun.core.errors import RunError
from xclrun.data.batches import epoch_batches, length_sorted_batches
from xclrun.strategy import STRATEGIES, Strategy
from xclrun.train.execute import execute
from xclrun.train.precision import context_broken, products
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped

Found = dict[str, Any]
LARGE = [*TWELVE_LAYERS, "model.hidden_layers=24", "model.hidden_size=1024", "model.attention_heads=16"]
SIZES = {"12 x 768": TWELVE_LAYERS, "24 x 1024": [*LARGE, "model.intermediate_size=4096"]}
# Width of the square matrices and size of the copy that measure the hardware's rates.
WIDTH, BYTES = 8192, 1 << 30
GRAPHS = "trainer.cuda_graphs=true"
DEFAULT_KERNELS = "runtime.deterministic=false"
# Number of sentences that `long_sentences` joins into one.
JOINED = 8
# Number of runs that ``workers`` distributes over processes.
RUNS = 8
# Adam in fp32 reads weight, gradient and two moment estimates, and writes all but the gradient.
ADAM_BYTES = 28


@dataclass(frozen=True)
class Plan:
    """Settings of the measurements.

    Attributes:
        device: ``cuda``, or ``cpu`` for a rehearsal.
        common: overrides of every run: dataset and device.
        sizes: name → overrides of a model's shape.
        batches: batch sizes in sentences.
        steps: main steps that are timed.
        width, bytes: size of the matrices and of the copy (`WIDTH`, `BYTES`).
        ways: name → overrides of the precision and the kernels.
        workers: numbers of processes.
    """

    device: str
    common: tuple[str, ...]
    sizes: dict[str, list[str]]
    batches: tuple[int, ...]
    steps: int
    width: int
    bytes: int
    ways: dict[str, list[str]]
    workers: tuple[int, ...]

    @classmethod
    def of(cls, rehearsed: bool) -> Plan:
        if rehearsed:
            small = ("dataset.max_train=110", "dataset.max_eval=4", "runtime.device=cpu")
            ways = {"fp32": [], "bf16": ["trainer.precision=bf16"]}
            return cls("cpu", small, {"tiny": []}, (16,), 10, 64, 1 << 16, ways, (1, 2))
        settings = (*data()[1], "runtime.device=cuda")
        ways = {name: [f"trainer.precision={name}"] for name in ("fp32", "tf32", "bf16")}
        ways |= {f"{name} graphs": [*ways[name], GRAPHS] for name in ("fp32", "bf16")}
        ways |= {f"{name} default kernels": [*ways[name], DEFAULT_KERNELS] for name in ("fp32", "bf16")}
        return cls("cuda", settings, SIZES, (4, 16, 32), 60, WIDTH, BYTES, ways, (1, 2, 4, 8))


def rates(plan: Plan) -> Found:
    """Return FLOP/s of matrix products in each precision, and bytes/s of a copy."""
    result = {}
    for name, kind in (("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)):
        a, b = (torch.randn(plan.width, plan.width, device=plan.device, dtype=kind) for _ in range(2))
        with products(name):
            result[name] = 2 * plan.width**3 / _seconds(lambda a=a, b=b: a @ b, plan)  # type: ignore[misc]
    numbers = torch.zeros(plan.bytes // 4, device=plan.device)
    result["bytes"] = 2 * plan.bytes / _seconds(lambda: numbers.clone(), plan)
    return result


def _seconds(work: Callable[[], Any], plan: Plan, repetitions: int = 10) -> float:
    def wait() -> None:
        if plan.device == "cuda":
            torch.cuda.synchronize()

    work()
    wait()
    began = time.perf_counter()
    for _ in range(repetitions):
        work()
    wait()
    return (time.perf_counter() - began) / repetitions


def step(plan: Plan, strategy: str, overrides: Sequence[str], way: str, outputs: Path, measured: Found) -> Found:
    """Return the ratios of a strategy's step time to a plain fp32 loop's and to the lower bound.

    Raises:
        RunError: the rates for the lower bound were not measured.
    """
    if not measured:
        raise RunError("the lower bound needs the hardware's rates; see the error of 'rates'")
    settings, precision = [*plan.common, *overrides, *plan.ways[way]], way.split()[0]
    result = training_step(strategy, settings, plan.steps, outputs)
    # The lower bound is for batches without the padding that CUDA graphs need.
    loop, bench = a_hop("naive", [*settings, "trainer.cuda_graphs=false"], outputs)
    encoder: Any = bench.model.encoder
    body = sum(p.numel() for p in encoder.encoder.parameters())
    weights = sum(p.numel() for p in bench.model.parameters())
    lengths = loop.context.train[loop.context.hop.train[0]].lengths
    batches = epoch_batches(len(lengths), loop.context.batch_size, np.random.default_rng(0))
    positions = float(np.mean([len(indices) * lengths[indices].max() for indices in batches]))
    floor = 6 * body * positions / measured[precision] + ADAM_BYTES * weights / measured["bytes"]
    return result | {"floor_s": floor, "over_floor": result["ours_s"] / floor, "positions": positions}


def agreement(plan: Plan, overrides: Sequence[str], outputs: Path) -> Found:
    """Return the largest difference between GPU and CPU outputs in fp32, and the largest output."""
    _, bench = a_hop("naive", [*plan.common, *overrides], outputs)
    model, sentences = bench.model.eval(), bench.encodings.splits[bench.run.stream.languages[0], "test"]
    batch = sentences.batch(length_sorted_batches(sentences.lengths, 16)[0])
    with torch.no_grad():
        result, expected = model(batch.to(plan.device)), copy.deepcopy(model).cpu()(batch)
    pairs = [(getattr(result, name), getattr(expected, name)) for name in ("logits", "emissions")]
    differences = {
        f: (a.cpu() - b).abs().max().item() for f, (a, b) in zip(("logits", "emissions"), pairs, strict=True)
    }
    return differences | {"largest": max(b.abs().max().item() for _, b in pairs)}


class _Few(Listener):
    """Ends a training after a number of main steps."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def stepped(self, progress: Progress) -> None:
        if progress.step == self.steps:
            raise Enough


def recorded(plan: Plan, overrides: Sequence[str], outputs: Path) -> Found:
    """Return the largest difference between weights trained with and without CUDA graphs, and the largest change.

    A rehearsal emulates the graphs on the CPU (`benchmarks.tape`).
    """
    settings = [*plan.common, *overrides, *([] if plan.device == "cpu" else [GRAPHS])]
    weights = []
    for records in (False, True):
        loop, bench = a_hop("er", settings, outputs)
        loop.listener = _Few(plan.steps)
        if plan.device == "cpu" and records:
            loop.capture(Tape())
        elif not records:
            loop.captured = None
        before = _weights(bench.model)
        try:
            loop.run()
        except Enough:
            weights.append(_weights(bench.model))
    [single, other] = weights
    return {"weights": (single - other).abs().max().item(), "moved": (single - before).abs().max().item()}


def _weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().flatten().cpu() for p in model.parameters()])


def workers(plan: Plan, overrides: Sequence[str], outputs: Path) -> Found:
    """Return the seconds of the runs in each number of processes on one GPU, including start and evaluation."""
    settings = [*plan.common, *overrides, "order=[en,de]", "trainer.epochs=1", "tracking=none"]
    seeds = ",".join(map(str, range(1, 1 + (RUNS if plan.device == "cuda" else 2))))
    result = {}
    for n in plan.workers:
        place = [f"paths.outputs={outputs / f'workers-{n}'}", f"hydra.launcher.n={n}", f"hydra.launcher.per_gpu={n}"]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "xclrun", *settings, *place, f"seed={seeds}", "-m"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{n} workers: {(done.stderr.strip() or done.stdout.strip()).splitlines()[-1]}")
        result[f"{n}"] = time.perf_counter() - began
    return result


class _StopAt(Listener):
    """Stops the run after a number of main steps."""

    def __init__(self, step: int) -> None:
        self.flag, self.left = StopFlag(), step

    def stepped(self, progress: Progress) -> None:
        self.left -= 1
        if self.left == 0:
            self.flag.number = 15


def long_sentences(folder: Path) -> list[str]:
    """Join every `JOINED` sentences of the dataset ``mini`` into one; return the overrides that select the new dataset.

    Short sentences would not test repeatability as real data does: with long sentences, attention and the CRF use other
    kernels, and each embedding sums many gradients.
    """
    chosen = ["dataset=mini", "order=[en,de]", "dataset.max_train=256", "dataset.max_eval=64", "tracking=none"]
    [run] = plan_runs([*chosen, f"paths.outputs={folder / 'none'}"])
    for language in run.stream.languages:
        for split in ("train", "dev", "test"):
            examples, rows = run.dataset.split(language, split), []
            for start in range(0, len(examples) - JOINED + 1, JOINED):
                parts = examples[start : start + JOINED]
                tokens, tags = ([x for part in parts for x in getattr(part, name)] for name in ("tokens", "tags"))
                rows.append({"id": str(start), "tokens": tokens, "tags": tags, "label": parts[0].label})
            path = folder / language / f"{split}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    sizes = ["dataset.max_train=null", "dataset.max_eval=null", "model.max_length=128", "trainer.batch_size=8"]
    return ["dataset=jsonl", f"dataset.root={folder}", "strategy=er", *sizes]


def repeated(plan: Plan, overrides: Sequence[str], outputs: Path) -> Found:
    """Return whether predictions are identical if a run is repeated, and if it is stopped and resumed."""
    small = ["experiment=smoke", "dataset.replay.every_k=2", f"runtime.device={plan.device}", *overrides]

    def predictions(name: str, stop_at: int | None = None) -> str:
        [run] = plan_runs([*small, "tracking=none", f"paths.outputs={outputs / name}"])
        if stop_at is not None:
            listener = _StopAt(stop_at)
            try:
                execute(run, listener, listener.flag)
            except Stopped:
                pass
            else:
                raise RuntimeError("the run ended before it was stopped")
        execute(run, Listener(), StopFlag())
        files = sorted((run.directory.path / "predictions").iterdir())
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()

    first = predictions("first")
    return {"again": predictions("again") == first, "stopped": predictions("stopped", stop_at=6) == first}


def _breaks() -> bool:
    """Fail an assertion on the device; return whether `context_broken` detects it."""
    table = torch.zeros(4, device="cuda")
    try:
        table[torch.tensor([9], device="cuda")].sum().item()
    except RuntimeError:
        return context_broken()
    return False


def _runs_out() -> bool:
    """Allocate more memory than the GPU has; return whether the process can continue."""
    try:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        return not context_broken() and bool((torch.ones(3, device="cuda") * 2).sum().item() == 6)
    return False


def broken(plan: Plan) -> Found:
    """Return whether a process detects a failed assertion on the device, and insufficient memory.

    Each failure occurs in a new process, because a failed assertion makes the GPU unusable for its process.
    """
    if plan.device == "cpu":
        return {"rehearsed": True}
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        return {"assertion": pool.apply(_breaks), "memory": pool.apply(_runs_out)}


def in_steps() -> list[str]:
    """Return plain fine-tuning and the strategies that override `Strategy.steps`."""
    return ["naive", *(name for name, cls in STRATEGIES.items() if cls.steps is not Strategy.steps)]


def parts(plan: Plan, outputs: Path) -> Iterator[tuple[str, Callable[[Found], Found]]]:
    """Yield the name and the function of each measurement; quick measurements that can reveal errors come first.

    The functions take the hardware's rates.
    """
    shape = next(iter(plan.sizes.values()))
    yield "broken", lambda _: broken(plan)
    cases = {s: lambda s=s: [f"strategy={s}"] for s in ("er", "ewc_online")}  # type: ignore[misc]
    cases |= {"long sentences": lambda: long_sentences(outputs / "long")}
    ways = {"": [], ", graphs": [GRAPHS], ", default kernels": [DEFAULT_KERNELS]} if plan.device == "cuda" else {"": []}
    for number, (way, case) in enumerate((way, case) for way in ways for case in cases):
        place = outputs / f"repeated-{number}"
        yield (
            f"repeated, {case}{way}",
            lambda _, c=case, w=way, p=place: repeated(plan, [*cases[c](), *ways[w]], p),  # type: ignore[misc]
        )
    yield "recorded", lambda _: recorded(plan, shape, outputs)
    yield "agreement", lambda _: agreement(plan, shape, outputs)
    for strategy in AIMS:
        yield f"operators, {strategy}", lambda _, s=strategy: _counts(of_steps(s, plan.common, outputs))  # type: ignore[misc]
    yield "evaluation", lambda _: evaluation([*plan.common, *shape], outputs)
    yield "packing", lambda _: packed_over_padded([*plan.common, *shape], plan.steps, outputs)
    ends = ["order=[en,de]", "trainer.epochs=2"]
    yield "ends", lambda _: files_over_training("er", [*plan.common, *shape, *ends], outputs / "ends")
    for size, shape_ in plan.sizes.items():
        for batch in plan.batches:
            settings = [*shape_, f"trainer.batch_size={batch}"]
            # All strategies are measured on the first model at the paper's batch size, only naive elsewhere.
            first = batch == 16 and size == next(iter(plan.sizes))
            for way in plan.ways:
                # A rehearsal goes through each strategy once.
                for strategy in in_steps() if first and (plan.device == "cuda" or way == "fp32") else ["naive"]:
                    yield (
                        f"steps, {size}, batch {batch}, {way}, {strategy}",
                        lambda m, s=strategy, g=settings, w=way: step(plan, s, g, w, outputs, m),  # type: ignore[misc]
                    )
    yield "workers", lambda _: workers(plan, shape, outputs)


def _counts(result: Found) -> Found:
    return {name: value for name, value in result.items() if name != "most"}


def _machine(plan: Plan) -> Found:
    if plan.device == "cpu":
        return {"gpu": None, "rehearsal": True, "torch": torch.__version__}
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    )
    facts = torch.cuda.get_device_properties(0)
    return {
        "gpu": facts.name,
        "memory_bytes": facts.total_memory,
        "driver": driver.stdout.strip(),
        "cuda": torch.version.cuda,
        "torch": torch.__version__,
        "host_cores": os.cpu_count(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all measurements, or those whose names contain a word; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="words in the names of benchmarks; default: all")
    parser.add_argument("--cpu", action="store_true", help="rehearse on tiny shapes, without a GPU")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "gpu.json")
    options = parser.parse_args(arguments)
    if not options.cpu and not torch.cuda.is_available():
        print("benchmarks.gpu: torch sees no GPU here; use --cpu to rehearse on tiny shapes", file=sys.stderr)
        return 2
    plan = Plan.of(options.cpu)
    results: Found = {"machine": _machine(plan), "rates": {}, "results": {}, "failed": {}}
    with tempfile.TemporaryDirectory(prefix="xclrun-gpu-") as folder:
        for name, measure in [("rates", lambda _: rates(plan)), *parts(plan, Path(folder))]:
            if name != "rates" and options.only and not any(word in name for word in options.only):
                continue
            # GPU time is limited, so an error in one part must not prevent the others.
            try:
                result = measure(results["rates"])
                results |= {"rates": result} if name == "rates" else {"results": {**results["results"], name: result}}
            except Exception as error:
                results["failed"][name] = result = f"{type(error).__name__}: {error}".splitlines()[0]
            print(f"{name:<50} {result}", flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            if context_broken():
                results["failed"]["CUDA"] = f"'{name}' broke the CUDA context; later parts did not run"
                options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
                break
    return 1 if results["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
