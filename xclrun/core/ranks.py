"""Ranks that torchrun, Slurm or another launcher started, from the environment variables that launchers set."""

from __future__ import annotations

import os


def launched() -> int:
    """Return the number of ranks that a launcher started; 1 if there is no launcher."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def launched_here() -> int:
    """Return the number of ranks that a launcher started on this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", launched()))
