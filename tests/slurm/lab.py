"""Commands against a Slurm, and what they say."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.commands import XCLRUN, small, wait_for

SLURM = ("hydra/launcher=slurm", "hydra.launcher.signal_delay=30")
# Runs of some seconds, so that there is something to disturb: 24 steps an epoch.
LONG = small("dataset.max_train=32", "trainer.epochs=60")


@dataclass
class Lab:
    """A Slurm of one node.

    Attributes:
        folder: with its configuration, logs and process ids.
        environment: of commands that talk to it; its ``sacct`` has no accounting to read, and fails.
    """

    folder: Path
    environment: dict[str, str] = field(init=False)

    def __post_init__(self) -> None:
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}

    def call(self, *command: str) -> str:
        """Run a command of Slurm; return what it prints."""
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    def xclrun(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Give a command of xclrun."""
        return subprocess.run(
            [*XCLRUN, *arguments],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )

    def submit(self, outputs: Path, *arguments: str, **environment: str) -> str:
        """Submit a sweep; return what was said."""
        done = self.xclrun(*arguments, *SLURM, f"paths.outputs={outputs}", "-m", **environment)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def status(self, outputs: Path) -> list[dict[str, Any]]:
        """Return where the runs of the last sweep stand."""
        found: list[dict[str, Any]] = json.loads(self.xclrun("status", "--json", "--outputs", str(outputs)).stdout)[0][
            "runs"
        ]
        return found

    def wait(self, outputs: Path, *states: str, seconds: float = 90.0) -> list[dict[str, Any]]:
        """Wait until all runs are in one of the states (default: until nothing goes on); return where they stand."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = self.status(outputs)
            now = {run["state"] for run in found}
            return now <= set(states) if states else not now & {"running", "waiting"}

        wait_for(there, seconds)
        return found

    def jobs(self, outputs: Path) -> dict[str, str]:
        """Return job id → state, of all jobs of a folder, ended ones too."""
        told = self.call("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i|%T").splitlines()
        known = {job.id for s in _submissions(outputs) for job, _ in s.jobs()}
        return {job: state for job, _, state in (line.partition("|") for line in told) if job in known}

    def ended(self, outputs: Path) -> dict[str, str]:
        """Wait until all jobs of a folder have ended; return job id → state."""
        live = {"PENDING", "RUNNING", "COMPLETING"}
        wait_for(lambda: not live & set(self.jobs(outputs).values()), 60)
        return self.jobs(outputs)

    def training(self, outputs: Path) -> str:
        """Wait until a job trains; return its id."""
        [job] = wait_for(lambda: [job for job, state in self.jobs(outputs).items() if state == "RUNNING"], 60)
        wait_for(lambda: list(outputs.glob("runs/*/progress.json")), 60)
        return job


def _submissions(outputs: Path) -> list[Any]:
    from xclrun.cluster.submission import submissions

    return submissions(outputs)
