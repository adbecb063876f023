"""The surroundings of a process: containers, cron jobs and daemons may lack a home directory or a working directory."""

from __future__ import annotations

import getpass
import os
from pathlib import Path

from xclrun.core.errors import UsageError

# A folder that nobody can create, so `~/outputs` without a home directory is an error that names the variable.
NO_HOME = "/dev/null/HOME-is-not-set"


def check_surroundings() -> None:
    """Check the working directory, and set the variables without which libraries fail, send data or slow down.

    MLflow and matplotlib look for the home directory when they are imported, and PyTorch for the name of the user,
    although they rarely use them. MLflow would also send usage statistics to its makers. PyTorch's threads would spin
    between operators, which multiplies the time of a step if another process needs their cores; libgomp reads the
    variable when it is loaded, and jobs on a cluster and other children inherit it.

    Raises:
        UsageError: the working directory was deleted.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(
            f"the working directory does not exist ({error.strerror}); change to another folder"
        ) from error
    if not os.environ.get("HOME"):
        os.environ.pop("HOME", None)
        try:
            Path.home()
        except RuntimeError:
            os.environ["HOME"] = NO_HOME
    try:
        getpass.getuser()
    # KeyError before Python 3.13.
    except (OSError, KeyError):
        os.environ["LOGNAME"] = str(os.getuid())
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def cores() -> int:
    """Return the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
