"""Choose the device, the precision of its computations, and deterministic algorithms."""

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
# PyTorch's default number of threads, before a run changes it.
THREADS = torch.get_num_threads()
# Warn if a bf16 matrix product takes this many times as long as an fp32 product (about 30 without bf16 instructions).
SLOW = 2.0


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Return a context manager in which the encoder computes in ``precision``."""
    return torch.autocast(device.type, dtype=TYPES[precision]) if precision in TYPES else products(precision)


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """Compute fp32 matrix products in TF32 inside the block if ``precision`` is ``tf32``, else in full fp32.

    Unlike `autocast`, `products` also affects the heads, and the block must include the backward pass.
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
        UsageError: the config needs a GPU, and there is none.
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
        if trainer.optimizer.eight_bit:
            raise UsageError(f"{key}.optimizer={trainer.optimizer.value} needs a GPU; on a CPU use adam or adamw")
        if trainer.cuda_graphs:
            raise UsageError(f"{key}.cuda_graphs=true needs a GPU; on a CPU use {key}.cuda_graphs=false")
    return torch.device("cpu")


def set_deterministic(config: Config, device: torch.device) -> None:
    """Apply ``runtime.deterministic`` to this process; on a CPU the key has no effect.

    If the key is true, an operation without a deterministic algorithm raises RuntimeError.
    """
    if on_gpu := device.type == "cuda":
        # PyTorch reads this variable once, before its first matrix product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # Do not let PyTorch fill new tensors: filling takes time, and no code here reads uninitialised memory.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    deterministic = on_gpu and config.runtime.deterministic
    # The call imports PyTorch's compiler, which takes more than half a second.
    if torch.are_deterministic_algorithms_enabled() != deterministic:
        torch.use_deterministic_algorithms(deterministic)


def device_name(device: torch.device) -> str:
    """Return ``cpu``, or the model of the GPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def device_facts(device: torch.device, driver: Path = Path("/sys/module/nvidia/version")) -> dict[str, str]:
    """Return the manifest's entries for the device: its name; for a GPU, also versions and determinism."""
    facts = {"device": device_name(device)}
    if device.type == "cuda":
        facts["cuda"] = str(torch.version.cuda)
        facts["deterministic"] = str(torch.are_deterministic_algorithms_enabled()).lower()
        if driver.is_file():
            facts["driver"] = driver.read_text(encoding="ascii").strip()
    return facts


def slow_precision(config: Config, device: torch.device, over: Callable[[], float] | None = None) -> str | None:
    """Return a warning if this CPU emulates the precision; None otherwise.

    Args:
        over: function that returns the time of bf16 divided by the time of fp32 (default: `bf16_over_fp32`).
    """
    keys = [key for key, trainer in config.trainers.items() if trainer.precision is Precision.bf16]
    if device.type != "cpu" or not keys or (times := (over or bf16_over_fp32)()) < SLOW:
        return None
    return (
        f"{keys[0]}.precision=bf16: this CPU emulates bf16, and a matrix product takes {times:.0f} times as long as in "
        f"fp32; consider {keys[0]}.precision=fp32"
    )


def bf16_over_fp32(rounds: int = 5) -> float:
    """Return the time of a bf16 matrix product divided by the time of an fp32 product, on the CPU.

    The times are measured (a few hundredths of a second), because PyTorch does not always use a CPU's bf16
    instructions.
    """

    def shortest(dtype: torch.dtype) -> float:
        states, weights = torch.ones(128, 384, dtype=dtype), torch.ones(384, 384, dtype=dtype)
        times = []
        for _ in range(rounds):
            began = time.perf_counter()
            states @ weights
            times.append(time.perf_counter() - began)
        return min(times)

    return shortest(torch.bfloat16) / shortest(torch.float32)


def context_broken() -> bool:
    """Return whether this process can no longer use CUDA, for example after a failed assertion on the device."""
    if not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def set_threads(threads: int | None, processes: int = 1) -> None:
    """Set PyTorch's number of threads; None: ``processes`` on this machine divide its cores equally."""
    torch.set_num_threads(threads or max(1, THREADS // processes))
