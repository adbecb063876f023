"""Settings that train faster on this machine, for ``xclrun plan``: only those that are not chosen already.

Measured on a CPU with bf16 instructions, with one thread and 16 MTOP sentences per batch: a step in bf16 takes 0.41 of
the time in fp32 with 12 layers of width 384, and 0.31 with width 768. For small encoders, bf16 saves little, so there
is no hint. Packed runs of `tiny` end 0.1 to 0.2 points lower in bf16, within the noise (docs/results/performance.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from xclrun.config.schema import Precision
from xclrun.core.errors import UsageError
from xclrun.core.surroundings import cores
from xclrun.launch.local import Local
from xclrun.model.families import number
from xclrun.model.source import settings_of
from xclrun.plan import Run
from xclrun.plan.checks import check_graphs
from xclrun.strategy import adds_parameters

# Maximum number of hints.
HINTS = 2
# Width of the smallest encoder for which bf16 and threads have been found to be much faster.
WIDE = 384
# Flags of processors that multiply matrices in bf16.
BF16 = {"avx512_bf16", "amx_bf16"}


@dataclass(frozen=True)
class Processor:
    """The CPU: number of cores of this process, and whether it has bf16 instructions."""

    cores: int
    bf16: bool


def this_processor(flags: Path = Path("/proc/cpuinfo")) -> Processor:
    """Return this machine's CPU; without the file of its flags, it counts as one without bf16 instructions."""
    try:
        lines = flags.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    known = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    return Processor(cores(), not BF16.isdisjoint(known))


def hints(todo: Sequence[Run], launcher: Local, processor: Processor) -> list[str]:
    """Return at most `HINTS` settings that would train the unfinished runs ``todo`` faster on this machine."""
    if not todo:
        return []
    of_a_run = _on_gpu if launcher.gpus_of(todo) else _on_cpu
    # One run of each kind, because a study can have thousands.
    kinds = {repr([run.resolved[key] for key in ("model", "trainer", "protocol")]): run for run in todo}
    found = [hint for run in kinds.values() for hint in of_a_run(run, processor)]
    return list(islice(dict.fromkeys([*found, *_of_all(todo, launcher, processor)]), HINTS))


def _on_gpu(run: Run, processor: Processor) -> Iterator[str]:
    keys = _fp32(run)
    if not keys:
        return
    evaluate = "" if run.config.evaluate.batch_tokens else " evaluate=gpu"
    # The preset replaces the trainer, which a protocol chooses for its phases.
    if run.config.protocol is None and _capturable(run):
        yield f"trainer=gpu{evaluate}: bf16, CUDA graphs and large evaluation batches suit a GPU; other run IDs"
    else:
        yield f"{' '.join(f'{key}.precision=bf16' for key in keys)}{evaluate}: bf16 suits a GPU; other run IDs"


def _on_cpu(run: Run, processor: Processor) -> Iterator[str]:
    if processor.bf16 and _wide(run) and (keys := _fp32(run)):
        yield (
            f"{' '.join(f'{key}.precision=bf16' for key in keys)}: this CPU has bf16 instructions; steps took 0.3 to "
            "0.4 of the time with 12 layers; other run IDs"
        )


def _of_all(todo: Sequence[Run], launcher: Local, processor: Processor) -> Iterator[str]:
    """Yield what uses the idle cores of a CPU."""
    runtimes = [run.config.runtime for run in todo]
    if launcher.n > 1 or launcher.gpus_of(todo) or any(r.threads != 1 or r.devices > 1 for r in runtimes):
        return
    if len(todo) > 1 and (n := min(len(todo), processor.cores)) > 1:
        yield f"hydra.launcher.n={n}: trains {n} runs at the same time; each holds its model in memory"
    elif len(todo) == 1 and processor.cores > 1 and _wide(todo[0]):
        yield f"runtime.threads={processor.cores}: for a single run with a large encoder; other rounding"


def _fp32(run: Run) -> list[str]:
    """Return the keys of the trainers that compute in fp32."""
    return [key for key, trainer in run.config.trainers.items() if trainer.precision is Precision.fp32]


def _wide(run: Run) -> bool:
    return (number(settings_of(run.config.model), "width") or 0) >= WIDE


def _capturable(run: Run) -> bool:
    """Whether steps of a run can be captured in CUDA graphs."""
    strategy = run.strategy()
    try:
        check_graphs(replace(run.config, trainer=replace(run.config.trainer, cuda_graphs=True)))
    except UsageError:
        return False
    return not adds_parameters(strategy) or bool(strategy.parameters.prompt_tokens)
