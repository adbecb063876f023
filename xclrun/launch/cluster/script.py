"""The shell script of a job, and the options of ``sbatch``."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

# Signals that stop a job do not end its script before the job handles them.
GUARD = "trap '' INT TERM HUP USR1 USR2"
# A line of `setup` that fails ends the job. The trap does not act on failures inside functions and sourced files.
CHECK = (
    "trap 'code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || "
    '{ echo "xclrun: hydra.launcher.setup failed (exit code $code): $BASH_COMMAND" >&2; exit $code; }\' ERR'
)
# Options that xclrun sets; jobs are found by their name.
RESERVED = ("job-name", "array", "output", "error", "wrap", "parsable", "test-only", "wait")


def script(setup: Sequence[str], command: str) -> str:
    """Return the script of a job: the lines of ``setup``, then a command."""
    checked = [CHECK, *setup, "trap - ERR"] if setup else []
    return "\n".join(["#!/bin/bash", GUARD, *checked, command, ""])


def tasks(command: Sequence[str], log: str, cpus: int | None) -> str:
    """Return the shell command that starts the tasks of a job, each with its own log (`log_pattern`)."""
    options = ["--unbuffered", f"--output={log}"]
    # srun does not take it from sbatch (since Slurm 22.05).
    options += [f"--cpus-per-task={cpus}"] if cpus is not None else []
    # A new process begins with the default actions for signals.
    start = ["bash", "-c", f'{GUARD}; exec "$@"', "bash"]
    return shlex.join(["srun", *options, *start, *command])


def log_pattern(folder: Path, jobs: int, task: str) -> str:
    """Return the path of the logs as a pattern of Slurm; a single job is not an array."""
    return f"{str(folder).replace('%', '%%')}/{'%j' if jobs == 1 else '%A_%a'}_{task}_log.out"


def options(parameters: Mapping[str, Any]) -> list[str]:
    """Return options of ``sbatch``; True is an option without a value, False and None are left out."""
    return [
        f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}")
        for key, value in parameters.items()
        if value is not None and value is not False
    ]
