"""Messages between ranks: JSON, followed by tensors in the safetensors format. Reading a message executes no code."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from xclrun.core.stream import Hop

# Bytes of the length of the JSON part, at the start of a message.
LENGTH = 8


def encode(value: Any) -> bytes:
    """Serialize numbers, text, lists, tuples, dicts, paths, hops, tensors and NumPy arrays without objects.

    Raises:
        TypeError: the value contains another type.
    """
    tensors: dict[str, Tensor] = {}

    def store(kind: str, tensor: Tensor) -> dict[str, str]:
        # A copy, because tensors that share memory cannot be saved.
        tensors[name := str(len(tensors))] = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {kind: name}

    def plain(value: Any) -> Any:
        match value:
            case None | bool() | int() | float() | str():
                return value
            case list():
                return [plain(item) for item in value]
            case tuple():
                return {"tuple": [plain(item) for item in value]}
            case dict():
                return {"dict": [[plain(key), plain(item)] for key, item in value.items()]}
            case Path():
                return {"path": str(value)}
            case Hop():
                return {"hop": plain(asdict(value))}
            case Tensor():
                return store("tensor", value)
            case np.ndarray():
                return store("array", torch.tensor(value))
        raise TypeError(
            f"ranks cannot exchange a value of type {type(value).__name__}; use numbers, text, lists, tuples, dicts, "
            "tensors or arrays"
        )

    text = json.dumps(plain(value)).encode()
    return len(text).to_bytes(LENGTH, "little") + text + save(tensors)


def decode(content: bytes, device: torch.device | str = "cpu") -> Any:
    """Return the value of a message, with its tensors on a device.

    Raises:
        ValueError: the content is not a message.
    """
    try:
        end = LENGTH + int.from_bytes(content[:LENGTH], "little")
        tensors = load(content[end:])
        return _value(json.loads(content[LENGTH:end]), tensors, device)
    except Exception as error:
        raise ValueError(f"not a message of a rank: {error}") from error


def _value(plain: Any, tensors: dict[str, Tensor], device: torch.device | str) -> Any:
    if isinstance(plain, list):
        return [_value(item, tensors, device) for item in plain]
    if not isinstance(plain, dict):
        return plain
    ((kind, content),) = plain.items()
    match kind:
        case "tuple":
            return tuple(_value(item, tensors, device) for item in content)
        case "dict":
            return {_value(key, tensors, device): _value(item, tensors, device) for key, item in content}
        case "path":
            return Path(content)
        case "hop":
            return Hop(**_value(content, tensors, device))
        case "tensor":
            return tensors[content].to(device)
        case "array":
            return tensors[content].numpy()
    raise ValueError(f"unknown kind '{kind}'")
