"""Peak memory of training with language-specific parameters / of naive fine-tuning.

On a GPU: torch's maximum allocated memory. On a CPU: the increase of the maximum resident size of a separate process
after the model is created. ``ru_maxrss`` cannot be used: on Linux a process inherits it from its parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
            HopTraining(bench.work(context), checkpoints).run()
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


def over_naive(strategy: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the ratio of a strategy's peak to naive's, and both in bytes."""
    ours, naive = peak(strategy, overrides), peak("naive", overrides)
    return {"ratio": ours / naive, "ours_bytes": ours, "naive_bytes": naive}
