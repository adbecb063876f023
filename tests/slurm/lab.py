"""Commands against a Slurm, and what they say."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from recovery.commands import XCLRUN, small, wait_for

from xclrun.launch.cluster.files import submissions
from xclrun.launch.status import RunStatus, sweep_status
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import sweeps

SLURM = ("hydra/launcher=slurm", "hydra.launcher.signal_delay=30")
# Runs of some seconds, so that there is something to disturb: 8 steps an epoch.
LONG = small("dataset.max_train=32", "trainer.epochs=30")


@dataclass
class Lab:
    """A Slurm of one node.

    Attributes:
        folder: with its configuration, logs and process ids.
        environment: of commands that talk to it; its ``sacct`` has no accounting to read, and fails.
        daemons: started again by tests.
    """

    folder: Path
    environment: dict[str, str] = field(init=False)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

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

    def submit(self, outputs: Path, *arguments: str) -> str:
        """Submit a sweep, from this process; return what was said."""
        from xclrun.cli import main

        with contextlib.redirect_stderr(io.StringIO()) as printed:
            code = main([*arguments, *SLURM, f"paths.outputs={outputs}", "-m"])
        assert code == 0, printed.getvalue()
        return printed.getvalue()

    def status(self, outputs: Path) -> list[RunStatus]:
        """Return where the runs of the last sweep stand."""
        return sweep_status(outputs, sweeps(outputs)[-1]["runs"])

    def wait(self, outputs: Path, *states: str, seconds: float = 240.0) -> list[RunStatus]:
        """Wait until all runs are in one of the states (default: until nothing goes on); return where they stand."""
        result: list[RunStatus] = []

        def there() -> bool:
            time.sleep(0.3)
            result[:] = self.status(outputs)
            return all(run.state in states if states else not run.busy for run in result)

        wait_for(there, seconds)
        return result

    def jobs(self, outputs: Path) -> dict[str, str]:
        """Return job id → state, of all jobs of a folder, ended ones too."""
        output = self.call("squeue", "-h", "-a", "-r", "-t", "all", "-o", "%i|%T").splitlines()
        existing = {job.id for s in submissions(outputs) for job, _ in s.jobs()}
        return {job: state for job, _, state in (line.partition("|") for line in output) if job in existing}

    def ended(self, outputs: Path) -> dict[str, str]:
        """Wait until all jobs of a folder have ended; return job id → state."""
        live = {"PENDING", "RUNNING", "COMPLETING"}
        wait_for(lambda: not live & set(self.jobs(outputs).values()), 60)
        return self.jobs(outputs)

    def training(self, outputs: Path) -> str:
        """Wait until a job trains; return its id."""
        wait_for(lambda: "RUNNING" in self.jobs(outputs).values(), 60)
        wait_for(lambda: list(outputs.glob("runs/*/progress.json")), 200)
        return next(job for job, state in self.jobs(outputs).items() if state == "RUNNING")

    def worker(self, outputs: Path) -> int:
        """Return the number of the process that does the only run of a folder."""
        [path] = (outputs / "runs").iterdir()
        owner = RunDirectory(path).lease.owner()
        assert owner is not None
        return owner.pid
