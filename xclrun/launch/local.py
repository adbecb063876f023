"""The local launcher: executes runs in this process or in worker processes that share the GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.config.checks import TRACKERS
from xclrun.config.schema import Device
from xclrun.core.errors import UsageError
from xclrun.core.ranks import launched, launched_here
from xclrun.core.terminal import line, note
from xclrun.launch.sweep import Launcher, Sweep, conclude
from xclrun.plan import Run
from xclrun.plan.checks import check_ranks

if TYPE_CHECKING:
    from xclrun.tracking.background import BackgroundMirror


@dataclass(frozen=True)
class Local(Launcher):
    """Executes runs on this machine.

    Attributes:
        n: maximum number of worker processes; 1: this process executes the runs one after another.
        gpus: GPUs of the workers, as in CUDA_VISIBLE_DEVICES; None: all GPUs of the machine, if runs use GPUs.
        per_gpu: maximum number of workers per GPU. A worker uses ``runtime.devices`` GPUs.
    """

    n: int = 1
    gpus: Sequence[str | int] | None = None
    per_gpu: int = 1

    def check(self) -> None:
        for key in ("n", "per_gpu"):
            value = getattr(self, key)
            if type(value) is not int or value < 1:
                raise UsageError(f"hydra.launcher.{key}={value}: must be a number of processes of at least 1")
        if self.gpus is not None and (isinstance(self.gpus, str) or not isinstance(self.gpus, Sequence)):
            raise UsageError(f"hydra.launcher.gpus={self.gpus}: must be a list, as in [0,1]")

    def check_runs(self, runs: Sequence[Run]) -> None:
        # Check for CUDA without initializing it here, so that workers can still be assigned GPUs.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        # Skip the check if it cannot fail, since it imports torch.
        for config in (run.config for run in runs):
            if config.runtime.device is Device.cuda or any(t.needs_gpu for t in config.trainers.values()):
                from xclrun.train.precision import choose_device

                choose_device(config)
        gpus, devices = self.gpus_of(runs), devices_of(runs)
        if launched() > 1:
            self._check_launched(runs, launched(), len(gpus))
        elif 0 < len(gpus) < devices:
            raise UsageError(f"runtime.devices={devices}: exceeds the number of GPUs; use at most {len(gpus)}")
        elif self.gpus and devices > 1 and len(set(gpus)) < len(gpus):
            raise UsageError(
                f"hydra.launcher.gpus=[{','.join(gpus)}]: repeats a GPU, but a run with runtime.devices={devices} "
                "needs different ones; name each GPU once, and set hydra.launcher.per_gpu to share GPUs"
            )

    def _check_launched(self, runs: Sequence[Run], ranks: int, gpus: int) -> None:
        """Check that the ranks that torchrun or another launcher started can train the runs."""
        if self.n > 1 or self.gpus:
            raise UsageError(
                f"a launcher started {ranks} ranks, which train each run together; use hydra.launcher.n=1 without "
                "hydra.launcher.gpus, or start no ranks"
            )
        on_machine = launched_here()
        # With a single visible GPU, the launcher may have assigned a different one to each rank.
        if 1 < gpus < on_machine:
            raise UsageError(
                f"a launcher started {on_machine} ranks on a machine with {gpus} GPUs; start at most {gpus}, or set "
                "runtime.device=cpu"
            )
        for run in runs:
            check_ranks(run.config, ranks)

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        # `xclrun plan` uses the launcher, but sends nothing.
        from xclrun.tracking.background import BackgroundMirror

        started, ids = time.monotonic(), [run.id for run in sweep.runs]
        with BackgroundMirror(sweep.outputs, sweep.tracking, ids) as mirror:
            if unfinished:
                self._execute(sweep, unfinished, mirror)
        if not (sent := mirror.close(timeout=1.0)):
            line(f"sending to {TRACKERS[sweep.tracking.to]} …")
            sent = mirror.close()
        conclude(sweep, unfinished, time.monotonic() - started, "" if sent else mirror.problem)

    def _execute(self, sweep: Sweep, unfinished: Sequence[Run], mirror: BackgroundMirror) -> None:
        """Execute runs in this process, or in worker processes."""
        from xclrun.launch import workers
        from xclrun.launch.console import Console
        from xclrun.launch.time_left import TimeLeft

        console = Console([run.id for run in sweep.runs], time_left=TimeLeft(unfinished), blind=sweep.blind)
        gpus, devices = self.gpus_of(unfinished), devices_of(unfinished)
        places = self.places(len(unfinished), gpus, devices)
        # Ranks that a launcher started use all GPUs.
        if self.n == 1 and launched() == 1 and (n := min(len(gpus) // devices, len(unfinished))) > 1:
            used = "one" if devices == 1 else str(devices)
            advice = f"set hydra.launcher.n={n} to use {n * devices}"
            note(f"{len(gpus)} GPUs are visible, but hydra.launcher.n=1 uses only {used}; {advice}")
        if len(places) > 1 or self.gpus:
            workers.work_in_processes(unfinished, console, mirror, places)
        else:
            workers.work(unfinished, console, mirror)

    def gpus_of(self, runs: Sequence[Run]) -> list[str]:
        """Return the GPUs for workers; empty if no run uses a GPU."""
        if self.gpus is not None:
            return [str(gpu) for gpu in self.gpus]
        if all(run.config.runtime.device is Device.cpu for run in runs):
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            # CUDA ignores -1 and all GPUs after it.
            return list(takewhile(lambda gpu: gpu not in ("", "-1"), (gpu.strip() for gpu in visible.split(","))))
        # CUDA numbers the visible GPUs from 0, even in a container that has only some GPUs of the machine.
        return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]

    def places(self, runs: int, gpus: Sequence[str], devices: int = 1) -> list[str | None]:
        """Return the GPUs of each worker (``0,1``), ``devices`` per worker; None for a worker without a GPU."""
        count = min(self.n, runs)
        groups = [",".join(gpus[i : i + devices]) for i in range(0, len(gpus) - devices + 1, devices)]
        return [*(groups * self.per_gpu)[:count]] if gpus else [None] * count


def devices_of(runs: Sequence[Run]) -> int:
    """Return the largest ``runtime.devices`` of runs."""
    return max((run.config.runtime.devices for run in runs), default=1)
