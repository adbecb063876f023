"""Shell code of a job: the lines before its command, and the command."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

# Signals that stop a job do not end its script before the job handles them.
GUARD = "trap '' INT TERM HUP USR1 USR2"
# A line of `setup` that fails ends the job. The trap does not act on failures inside functions and sourced files.
CHECK = (
    "trap 'code=$?; [ ${#BASH_SOURCE[@]} -gt 1 ] || "
    '{ echo "xclrun: hydra.launcher.setup failed (exit code $code): $BASH_COMMAND" >&2; exit $code; }\' ERR'
)
# Options that xclrun sets; jobs are found by their name.
RESERVED = ("job-name", "array", "output", "error", "wrap", "parsable", "test-only", "wait")


def before(setup: Sequence[str]) -> list[str]:
    """Return the lines before the command of a job, with the lines of ``setup``."""
    return [GUARD, *([CHECK, *setup, "trap - ERR"] if setup else [])]


def script(setup: Sequence[str], command: str) -> str:
    """Return the script of a job that is not submitted: the lines of ``setup``, then a command."""
    return "\n".join(["#!/bin/bash", *before(setup), command, ""])


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
