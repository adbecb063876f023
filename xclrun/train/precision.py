"""Autocast, and where precisions and recorded steps can be had."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from xclrun.config.schema import Config, Device, Precision
from xclrun.core.errors import UsageError

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which the encoder computes in ``precision``; fp32 changes nothing."""
    return torch.autocast(device.type, dtype=TYPES[precision]) if precision in TYPES else products(precision)


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Let a GPU multiply fp32 matrices as TF32 inside the block where that is the ``precision``, else exactly.

    Unlike autocast it is not noted for the backward pass, which has to be inside the block too; heads are not left out.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def choose_device(config: Config) -> torch.device:
    """Return the device to train on.

    Raises:
        UsageError: cuda is asked for where there is none, or on a CPU what only a GPU has.
    """
    device = config.runtime.device
    if device is Device.cuda and not torch.cuda.is_available():
        raise UsageError("runtime.device=cuda: torch sees no GPU here; use runtime.device=cpu or auto")
    if device is not Device.cpu and torch.cuda.is_available():
        return torch.device("cuda")
    for key, trainer in config.trainers.items():
        if trainer.precision is Precision.fp16:
            raise UsageError(f"{key}.precision=fp16 needs a GPU for its loss scaler; on a CPU use fp32 or bf16")
        if trainer.precision is Precision.tf32:
            raise UsageError(f"{key}.precision=tf32 needs a GPU; on a CPU use fp32 or bf16")
        if trainer.cuda_graphs:
            raise UsageError(f"{key}.cuda_graphs=true needs a GPU; on a CPU use {key}.cuda_graphs=false")
    return torch.device("cpu")


def context_broken() -> bool:
    """Whether the GPU refuses all further work of this process: after a failed assertion on it, or a wrong access.

    No call helps then: what comes next in the process fails with the same error, whatever it is.
    """
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False
