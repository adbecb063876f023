"""The launchers, as Hydra wants them: each hands on to `xclrun.launch.sweep`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


def _composed(launcher: Any, jobs: Sequence[Sequence[str]]) -> list[Any]:
    from xclrun.compose.jobs import compose_jobs

    return compose_jobs(jobs, launcher.hydra_context.config_loader, list(launcher.config.hydra.overrides.hydra))


def _plain(value: Any) -> Any:
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep on this machine, in up to ``n`` processes, each with a GPU of its own or a share."""

    def __init__(self, n: int = 1, gpus: Sequence[Any] | None = None, per_gpu: int = 1) -> None:
        self.n, self.gpus, self.per_gpu = n, gpus, per_gpu

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from xclrun.launch.sweep import launch_local

        gpus = _plain(self.gpus)
        launch_local(_composed(self, job_overrides), self.n, gpus, self.per_gpu)
        return []


class SlurmLauncher(Launcher):
    """Submits the jobs of a sweep to a Slurm cluster; for settings see `xclrun.launch.cluster.submit.SlurmSettings`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {key: _plain(value) for key, value in settings.items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from xclrun.launch.cluster.submit import SlurmSettings, launch_slurm

        launch_slurm(_composed(self, job_overrides), SlurmSettings(**self.settings))
        return []
