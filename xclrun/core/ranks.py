"""Ranks that torchrun, Slurm or another launcher started, from the environment variables that launchers set."""

from __future__ import annotations

import os
from dataclasses import dataclass

from xclrun.core.errors import UsageError

ADVICE = "a launcher such as torchrun sets it; unset WORLD_SIZE if no launcher started this process"


def launched() -> int:
    """Return the number of ranks that a launcher started; 1 if there is no launcher.

    Raises:
        UsageError: the launcher's variable is not a number; this applies to all functions of this module.
    """
    return number("WORLD_SIZE", 1, low=1)


def launched_here() -> int:
    """Return the number of ranks that a launcher started on this machine."""
    return number("LOCAL_WORLD_SIZE", launched(), low=1, high=launched())


def number(name: str, default: int | None, low: int = 0, high: int | None = None) -> int:
    """Return the number in an environment variable, or ``default`` if it is not set.

    Raises:
        UsageError: the value is not a number from ``low`` to ``high``, or there is no value and no default.
    """
    text = os.environ.get(name, "").strip()
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and low <= int(text) <= (high or 10**9)):
        limits = f"from {low} to {high}" if high else f"of at least {low}"
        shown = f"{name}={text[:40]!r}" if text else f"{name} is not set"
        raise UsageError(f"{shown}: must be a whole number {limits}; {ADVICE}")
    return int(text)


@dataclass(frozen=True)
class Place:
    """The place of this process among the ranks of a launcher.

    Attributes:
        rank: number of this process, from 0.
        size: number of ranks.
        local: number of this process on its machine.
        together: whether the launcher started all ranks on this machine.
        address: machine of rank 0.
        port: port of the store on this machine.
    """

    rank: int
    size: int
    local: int
    together: bool
    address: str
    port: int


def place() -> Place:
    """Return the place of this process among the ranks that a launcher started."""
    size = launched()
    if not (address := os.environ.get("MASTER_ADDR", "").strip()):
        raise UsageError(f"MASTER_ADDR is not set: must be the name of rank 0's machine; {ADVICE}")
    rank = number("RANK", None, high=size - 1)
    local = number("LOCAL_RANK", rank)
    # Without the variable, ranks may run on other machines.
    together = "LOCAL_WORLD_SIZE" in os.environ and launched_here() == size
    return Place(rank, size, local, together, address, number("MASTER_PORT", None, low=1, high=65535))
