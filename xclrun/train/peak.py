"""Measure the peak memory of a training.

- On a GPU: the most bytes in tensors at a time (``torch.cuda.max_memory_allocated``), weights included. The allocator's
  unused blocks, the CUDA context (about half a GB) and other processes are not included.
- On a CPU: the maximum resident size of the process during the training, including libraries and data. Pages that
  workers share with the process that started them count in each worker.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
# proc(5): resets the maximum resident size to the current size.
RESET = "5"


def reset_peak(device: torch.device) -> None:
    """Begin a measurement. Where the system cannot reset a process's maximum, it includes what ran before."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with contextlib.suppress(OSError):
        CLEAR.write_text(RESET, encoding="ascii")


def peak_bytes(device: torch.device) -> int:
    """Return the peak since `reset_peak`, in bytes."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        lines = STATUS.read_text(encoding="ascii", errors="replace").splitlines()
        # ru_maxrss is not used on Linux, because a process inherits it from its parent.
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError, IndexError):
        maximum = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return maximum if sys.platform == "darwin" else maximum * 1024
