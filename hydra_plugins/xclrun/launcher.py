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
    """Runs the jobs of a sweep on this machine; for settings see `xclrun.launch.local.Local`."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {key: _plain(value) for key, value in settings.items()}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.config = hydra_context, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from xclrun.launch.sweep import launch

        launch(_composed(self, job_overrides), self.made())
        return []

    def made(self) -> Any:
        """Return xclrun's own launcher."""
        from xclrun.launch.local import Local

        return Local(**self.settings)


class SlurmLauncher(LocalLauncher):
    """Submits the jobs of a sweep to a Slurm cluster; for settings see `xclrun.launch.cluster.launcher.Slurm`."""

    def made(self) -> Any:
        from xclrun.launch.cluster.launcher import Slurm

        return Slurm(**self.settings)
