"""A real Slurm of one node, brought up for these tests and down after them; where that cannot be, they are skipped."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from recovery.conftest import undisturbed  # noqa: F401  a fixture of these tests too

from .lab import Lab

REPOSITORY = Path(__file__).resolve().parents[2]
MAX_ARRAY = 3


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Slurm's daemons, started by the scripts beside the project (or where XCLRUN_SLURM points)."""
    scripts = Path(os.environ.get("XCLRUN_SLURM", REPOSITORY.parent / "shared" / "slurm"))
    if not (scripts / "start.sh").is_file():
        pytest.skip(f"{scripts}: the scripts that bring up Slurm are not there")
    if missing := [name for name in ("slurmctld", "slurmd", "munged", "sbatch") if shutil.which(name) is None]:
        pytest.skip(f"Slurm is not installed here: no {', '.join(missing)}")
    if os.getuid() != 0:
        pytest.skip("Slurm's daemons need root here")
    # Its ports are fixed: one Slurm at a time on a machine.
    with (Path(tempfile.gettempdir()) / "xclrun-slurm.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder = Path(tempfile.mkdtemp(prefix="xclrun-slurm-"))
        environment = {**os.environ, "LAB": str(folder), "CPUS": "4"}
        # Arrays of a few jobs at the most, so that every sweep of some runs must be split.
        start = (scripts / "start.sh").read_text()
        (folder / "start.sh").write_text(re.sub(r"^MaxArraySize=\d+$", f"MaxArraySize={MAX_ARRAY}", start, flags=re.M))
        started = subprocess.run(
            ["bash", str(folder / "start.sh")],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        try:
            if started.returncode != 0:
                pytest.skip(f"Slurm cannot be brought up here: {(started.stdout + started.stderr)[-300:]}")
            up = Lab(folder)
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("SLURM_CONF", up.environment["SLURM_CONF"])
                patch.setenv("HYDRA_FULL_ERROR", "1")  # commands in this process set it
                yield up
        finally:
            subprocess.run(
                ["bash", str(scripts / "stop.sh")], env=environment, capture_output=True, timeout=120, check=False
            )
            for daemon in up.daemons if started.returncode == 0 else ():
                daemon.wait(30)
            shutil.rmtree(folder, ignore_errors=True)
