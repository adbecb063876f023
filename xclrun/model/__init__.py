"""The model: an encoder with heads, which `build` creates from a config and a seed.

Importing this package does not import torch. Submodules: `source` (where an encoder comes from), `vocabulary`
(tokenizers), `encoder`, `heads`, `network` (the trained module).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xclrun.model.network import Model, build, redrawn_heads

__all__ = ["Model", "build", "redrawn_heads"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from xclrun.model import network

        return getattr(network, name)
    raise AttributeError(f"module 'xclrun.model' has no attribute '{name}'")
