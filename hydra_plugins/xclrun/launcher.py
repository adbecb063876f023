"""Launchers as plug-ins of Hydra; `xclrun.launch` implements them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf


class LocalLauncher(Launcher):
    """Run the jobs of a sweep on this machine; see `xclrun.launch.local.Local` for the settings."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {k: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for k, v in settings.items()}

    def setup(self, **context: Any) -> None:
        """Do nothing: the jobs are already composed."""

    def launch(self, job_overrides: Sequence[Any], initial_job_idx: int = 0) -> Any:
        """Launch jobs of type `xclrun.compose.jobs.Composed`."""
        from xclrun.launch.sweep import launch

        launch(job_overrides, self.implementation())
        return []

    def implementation(self) -> Any:
        """Return the launcher in `xclrun.launch`."""
        from xclrun.launch.local import Local

        return Local(**self.settings)


class SlurmLauncher(LocalLauncher):
    """Submit the jobs of a sweep to a Slurm cluster; see `xclrun.launch.cluster.launcher.Slurm` for the settings."""

    def implementation(self) -> Any:
        from xclrun.launch.cluster.launcher import Slurm

        return Slurm(**self.settings)
