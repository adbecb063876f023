"""The local launcher: runs in this process, or in worker processes that share the GPUs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from xclrun.config.checks import TRACKERS
from xclrun.config.schema import Device
from xclrun.core.errors import UsageError
from xclrun.core.terminal import line, note
from xclrun.launch.console import Console
from xclrun.launch.sweep import Launcher, Sweep, conclude
from xclrun.launch.time_left import TimeLeft
from xclrun.launch.workers import work, work_in_processes
from xclrun.run import Run
from xclrun.tracking.background import BackgroundMirror


@dataclass(frozen=True)
class Local(Launcher):
    """Does the runs on this machine.

    Attributes:
        n: maximum number of worker processes; 1: this process does the runs one after another.
        gpus: GPUs of the workers, as CUDA_VISIBLE_DEVICES names them; None: those of the machine, if runs use them.
        per_gpu: maximum number of processes per GPU.
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
        # Do not initialise CUDA in this process, so that each worker can still be assigned a GPU.
        os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
        # Only checked where it can fail, since the check imports torch.
        for config in (run.config for run in runs):
            if config.runtime.device is Device.cuda or any(t.needs_gpu for t in config.trainers.values()):
                from xclrun.train.precision import choose_device

                choose_device(config)

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        started, ids = time.monotonic(), [run.id for run in sweep.runs]
        console = Console(ids, left=TimeLeft(unfinished), blind=sweep.blind)
        with BackgroundMirror(sweep.outputs, sweep.tracking, ids) as mirror:
            gpus = self.gpus_of(unfinished)
            places = self.places(len(unfinished), gpus)
            if self.n == 1 and (most := min(len(gpus), len(unfinished))) > 1:
                note(
                    f"{len(gpus)} GPUs are visible, but hydra.launcher.n=1 trains on one; "
                    f"use hydra.launcher.n={most} to train on {most}"
                )
            if len(places) > 1 or (places and self.gpus):
                work_in_processes(unfinished, console, mirror, places)
            else:
                todo = {run.id for run in unfinished}
                for run in sweep.runs:
                    if run.id not in todo:
                        console.skipped(run)
                work(unfinished, console, mirror)
        if not (sent := mirror.close(timeout=1.0)):
            line(f"sending to {TRACKERS[sweep.tracking.to].title} …")
            sent = mirror.close()
        conclude(sweep, unfinished, time.monotonic() - started, "" if sent else mirror.problem)

    def gpus_of(self, runs: Sequence[Run]) -> list[str]:
        """Return the GPUs for workers; none if no run uses one."""
        if self.gpus is not None:
            return [str(gpu) for gpu in self.gpus]
        if all(run.config.runtime.device is Device.cpu for run in runs):
            return []
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible is not None:
            return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
        # Numbered from 0, also if a container sees only some.
        return [str(i) for i, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]

    def places(self, runs: int, gpus: Sequence[str]) -> list[str | None]:
        """Return the GPU of each worker, assigned in turn; None without GPUs."""
        count = min(self.n, runs)
        return [*(list(gpus) * self.per_gpu)[:count]] if gpus else [None] * count
