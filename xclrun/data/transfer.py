"""Copy many tensors between host and device at once, through pinned memory, asynchronously; no-op without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Alignment of each tensor in bytes, enough for every dtype.
ALIGNED = 16
# Maximum bytes of the tensors that `in_blocks` copies together.
BLOCK = 1 << 26

# Name → type, shape and offset of the first byte.
Places = dict[str, tuple["torch.dtype", tuple[int, ...], int]]


def to_device(tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Copy host tensors to ``device`` asynchronously, in order with later work on the device."""
    import torch

    kind = torch.device(device).type
    if all(tensor.device.type == kind for tensor in tensors.values()):
        return dict(tensors)
    if kind != "cuda" or any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    # The pinned memory may be freed here: the allocator reuses it only after the copy.
    together, places = packed(tensors, pinned=True)
    return unpacked(together.to(device, non_blocking=True), places)


def in_blocks(tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> Iterator[dict[str, torch.Tensor]]:
    """Yield all tensors on ``device``, copied in blocks of at most `BLOCK` bytes, or of one tensor.

    A GPU is waited for once per block instead of once per tensor, and needs memory for one block only. Tensors that
    are on the device already are not copied.
    """
    import torch

    kind = torch.device(device).type
    block, size = dict[str, torch.Tensor](), 0
    if present := {name: tensor.detach() for name, tensor in tensors.items() if tensor.device.type == kind}:
        yield present
    for name, tensor in tensors.items():
        if name in present:
            continue
        if block and size + tensor.nbytes > BLOCK:
            yield _moved(block, device)
            block, size = {}, 0
        block[name], size = tensor.detach(), size + tensor.nbytes
    if block:
        yield _moved(block, device)


def moved(tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return all tensors on ``device``; see `in_blocks`."""
    return {name: tensor for block in in_blocks(tensors, device) for name, tensor in block.items()}


def _moved(block: Mapping[str, torch.Tensor], device: torch.device | str) -> dict[str, torch.Tensor]:
    if len(block) == 1:
        return {name: tensor.to(device) for name, tensor in block.items()}
    together, places = packed(block)
    return unpacked(together.to(device), places)


def copy_to_host(tensors: Mapping[str, torch.Tensor]) -> Callable[[], dict[str, torch.Tensor]]:
    """Start copying tensors to the host; return a function that waits for the copies and then returns them."""
    import torch

    if not tensors or any(tensor.device.type != "cuda" for tensor in tensors.values()):
        copies = {name: tensor.cpu() for name, tensor in tensors.items()}
        return lambda: copies
    together, places = packed(tensors)
    host = torch.empty(together.shape, dtype=torch.uint8, pin_memory=True)
    host.copy_(together, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def read() -> dict[str, torch.Tensor]:
        done.synchronize()
        return unpacked(host, places)

    return read


def packed(tensors: Mapping[str, torch.Tensor], pinned: bool = False) -> tuple[torch.Tensor, Places]:
    """Concatenate the bytes of tensors in one uint8 tensor on their device; return this tensor and their `Places`."""
    import torch

    places, size = Places(), 0
    for name, tensor in tensors.items():
        places[name] = tensor.dtype, tuple(tensor.shape), size
        size += -(-tensor.nbytes // ALIGNED) * ALIGNED
    device = next((tensor.device for tensor in tensors.values()), torch.device("cpu"))
    together = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pinned)
    for (_, into), tensor in zip(_views(together, places), tensors.values(), strict=True):
        into.copy_(tensor)
    return together, places


def unpacked(together: torch.Tensor, places: Places) -> dict[str, torch.Tensor]:
    """Undo `packed`; the returned tensors are views of ``together``."""
    return dict(_views(together, places))


def _views(together: torch.Tensor, places: Places) -> Iterable[tuple[str, torch.Tensor]]:
    from math import prod

    for name, (kind, shape, start) in places.items():
        size = prod(shape) * kind.itemsize
        yield name, together[start : start + size].view(kind).view(shape)
