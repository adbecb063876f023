"""The sweeper: all combinations of the values given with commas, handed to the launcher at once.

Hydra's own sweeper composes every job once more to check it, and writes a file; here the launcher composes and checks
the whole sweep before anything runs.
"""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper


class XclrunSweeper(BasicSweeper):
    """Expands the overrides of a command into jobs."""

    def __init__(self, params: dict[str, str] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)

    def sweep(self, arguments: list[str]) -> Any:
        from xclrun.compose.jobs import expand

        assert self.hydra_context is not None
        assert self.launcher is not None
        jobs = expand(arguments, self.hydra_context.config_loader, self.params)
        return self.launcher.launch(jobs, initial_job_idx=0)
