"""The launchers, as Hydra wants them: each hands on to `xclrun.launch`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hydra.plugins.launcher import Launcher
from omegaconf import OmegaConf


class LocalLauncher(Launcher):
    """Runs the jobs of a sweep on this machine; for settings see `xclrun.launch.local.Local`."""

    def __init__(self, **settings: Any) -> None:
        plain = {key: OmegaConf.to_container(v) if OmegaConf.is_config(v) else v for key, v in settings.items()}
        self.settings = plain

    def setup(self, **context: Any) -> None:
        """Nothing of Hydra's is needed: the jobs are composed already."""

    def launch(self, job_overrides: Sequence[Any], initial_job_idx: int = 0) -> Any:
        """Launch jobs, given as `xclrun.compose.jobs.Composed`."""
        from xclrun.launch.sweep import launch

        launch(job_overrides, self.made())
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
