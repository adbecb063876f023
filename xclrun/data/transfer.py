"""From the host to a device without waiting: one copy for many tensors, out of memory that the device reads by itself.

On a CPU nothing is copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# Bytes at whose multiples each tensor begins: any type of number may then be read there.
ALIGNED = 16

# Name → type, shape and first byte.
Places = dict[str, tuple["torch.dtype", tuple[int, ...], int]]


def sent(tensors: Mapping[str, torch.Tensor], device: torch.device | str) -> dict[str, torch.Tensor]:
    """Return tensors of the host on ``device``; work that is given to the device afterwards finds them there."""
    import torch

    kind = torch.device(device).type
    if all(tensor.device.type == kind for tensor in tensors.values()):
        return dict(tensors)
    if kind != "cuda" or any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return {name: tensor.to(device) for name, tensor in tensors.items()}
    # The allocator keeps the pinned memory until the copy is done.
    together, places = packed(tensors, pinned=True)
    return unpacked(together.to(device, non_blocking=True), places)


def packed(tensors: Mapping[str, torch.Tensor], pinned: bool = False) -> tuple[torch.Tensor, Places]:
    """Return tensors as bytes, (n,) uint8 on the CPU, and where each of them lies; ``pinned``: for a GPU to read."""
    import torch

    places, size = Places(), 0
    for name, tensor in tensors.items():
        places[name] = tensor.dtype, tuple(tensor.shape), size
        size += -(-tensor.nbytes // ALIGNED) * ALIGNED
    together = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
    for (_, into), tensor in zip(_views(together, places), tensors.values(), strict=True):
        into.copy_(tensor)
    return together, places


def unpacked(together: torch.Tensor, places: Places) -> dict[str, torch.Tensor]:
    """Return the tensors that `packed` put together, as views."""
    return dict(_views(together, places))


def _views(together: torch.Tensor, places: Places) -> Iterable[tuple[str, torch.Tensor]]:
    from math import prod

    for name, (kind, shape, start) in places.items():
        size = prod(shape) * kind.itemsize
        yield name, together[start : start + size].view(kind).view(shape)
