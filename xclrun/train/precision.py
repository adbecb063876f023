"""The device: autocast, deterministic algorithms, and where precisions and recorded steps can be had."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import torch
import torch.utils.deterministic

from xclrun.config.schema import Config, Device, Precision
from xclrun.core.errors import UsageError

TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# A bf16 product that takes so many times as long as an fp32 one is told of: on a CPU without instructions for it 30.
SLOW = 2.0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return the context in which the encoder computes in ``precision``; fp32 changes nothing."""
    return torch.autocast(device.type, dtype=TYPES[precision]) if precision in TYPES else products(precision)


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Let a GPU multiply fp32 matrices as TF32 inside the block if that is the ``precision``, else exactly.

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
        UsageError: cuda is asked for if there is none, or on a CPU what only a GPU has.
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


def set_deterministic(config: Config, device: torch.device) -> None:
    """Set which algorithms a GPU may use in this process (``runtime.deterministic``); on a CPU nothing changes.

    With PyTorch's setting, sums over colliding rows (`index_add_` in the Fisher information) have a fixed order, and
    attention takes deterministic kernels. An operation without a deterministic algorithm raises RuntimeError.
    """
    if on_gpu := device.type == "cuda":
        # PyTorch reads it once, before its first matrix product, and needs it for deterministic ones.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Nothing here reads memory before it is written.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(on_gpu and config.runtime.deterministic)


def device_name(device: torch.device) -> str:
    """Return ``cpu``, or the model of a GPU: what times are comparable by."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_facts(device: torch.device, driver: Path = Path("/sys/module/nvidia/version")) -> dict[str, str]:
    """Return what a manifest says of the device: its name, and of a GPU the versions of CUDA and driver.

    Args:
        driver: the file in which Linux shows the version of NVIDIA's driver.
    """
    facts = {"device": device_name(device)}
    if device.type == "cuda":
        facts["cuda"] = str(torch.version.cuda)
        facts["deterministic"] = str(torch.are_deterministic_algorithms_enabled()).lower()
        if driver.is_file():
            facts["driver"] = driver.read_text(encoding="ascii").strip()
    return facts


def slow_precision(config: Config, device: torch.device, over: Callable[[], float] | None = None) -> str | None:
    """Return what a person should know of a precision that this CPU only emulates; None if there is nothing.

    It is the same run, so nothing is refused: another machine may have begun it, or end it.

    Args:
        over: how many times as long as an fp32 product a bf16 one takes (default: `bf16_over_fp32`).
    """
    asked = [key for key, trainer in config.trainers.items() if trainer.precision is Precision.bf16]
    if device.type != "cpu" or not asked or (times := (over or bf16_over_fp32)()) < SLOW:
        return None
    return (
        f"{asked[0]}.precision=bf16: this CPU has no instructions for it, and a product takes {times:.0f} times as "
        f"long as in fp32 ({asked[0]}.precision=fp32)"
    )


def bf16_over_fp32(rounds: int = 5) -> float:
    """Return how many times as long as in fp32 a matrix product of a small encoder's size takes in bf16, on the CPU.

    It is measured, in some hundredths of a second at most: which instructions a processor has does not say which
    the library uses.
    """

    def least(dtype: torch.dtype) -> float:
        states, weights = torch.ones(128, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)
        found = []
        for _ in range(rounds):
            began = time.perf_counter()
            states @ weights
            found.append(time.perf_counter() - began)
        return min(found)

    return least(torch.bfloat16) / least(torch.float32)


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
