"""What an emulated GPU needs beyond its tensors: memory, events, names, and CUDA graphs (`benchmarks.tape`).

A file that is not part of the project emulates the tensors: ``XCLRUN_EMULATED_GPU`` names it. Its function ``install``
replaces functions of PyTorch in the whole process. An emulation tests commands, copies between devices and captured
steps. It cannot test speed, kernels, rounding, determinism or memory.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import torch

NAME = "emulated GPU"
# Bytes of the emulated memory.
MEMORY = 1 << 36


class Event:
    """An event of a device that does its work at once."""

    def __init__(self, **options: Any) -> None: ...

    def record(self, *stream: Any) -> None: ...

    def synchronize(self) -> None: ...


class Memory:
    """The memory of the device: what a process may use, as `torch.cuda.set_per_process_memory_fraction` sets it."""

    def __init__(self) -> None:
        self.free = MEMORY

    def set_fraction(self, fraction: float, device: Any = None) -> None:
        self.free = int(fraction * MEMORY)

    def info(self, device: Any = None) -> tuple[int, int]:
        return self.free, MEMORY


def install(file: Path) -> None:
    """Emulate a GPU in this process, which must not have imported xclrun's training code."""
    spec = importlib.util.spec_from_file_location("emulated_gpu", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    handle, casts = module.handle, torch.ops.aten._to_copy.default

    def on_device(function: Any, args: Any, options: Any) -> Any:
        # The gradient of a cast goes to the device that PyTorch knows, which is the CPU.
        if function is casts and args[0].is_cuda and options.get("device") == torch.device("cpu"):
            options = {name: value for name, value in options.items() if name != "device"}
        return handle(function, args, options)

    module.handle = on_device
    module.install(graphs=False)
    os.environ["CUDA_VISIBLE_DEVICES"] = "0"
    memory, cuda = Memory(), torch.cuda
    for name, function in {
        "get_device_name": lambda *device: NAME,
        "Event": Event,
        "mem_get_info": memory.info,
        "set_per_process_memory_fraction": memory.set_fraction,
        "reset_peak_memory_stats": lambda *device: None,
        "max_memory_allocated": lambda *device: 1 << 20,
        "set_device": lambda device: None,
    }.items():
        setattr(cuda, name, function)

    move = torch.Tensor.to

    def to(self: torch.Tensor, *args: Any, **options: Any) -> torch.Tensor:
        result = move(self, *args, **options)
        if result.is_cuda and not self.is_cuda and result.nbytes > memory.free:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate …")
        return result

    torch.Tensor.to = to  # type: ignore[method-assign]
    from benchmarks.tape import Tape
    from xclrun.train import loop

    loop.CudaCapturer = Tape  # type: ignore[misc, assignment]
