"""The launchers, as Hydra wants them: each hands on to `xclrun.launch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep on this machine, in ``n`` processes."""

    def __init__(self, n: int = 1) -> None:
        self.n = n

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from xclrun.compose import compose_jobs
        from xclrun.launch import launch_local

        composed = compose_jobs(job_overrides, self.hydra_context.config_loader, self._hydra_overrides())
        launch_local(composed, self.n)
        return []

    def _hydra_overrides(self) -> list[Any]:
        return list(self.config.hydra.overrides.hydra)
