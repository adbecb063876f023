"""Calls of a model with other weights: nothing is copied, and the model's weights do not change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.func import functional_call

from xclrun.model.network import Model

Result = TypeVar("Result")


class _Call(nn.Module):
    """Makes a function of a model one call of a module, as `functional_call` needs it."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Model], Any]) -> Any:
        return function(self.model)


def with_weights(model: Model, weights: Mapping[str, Tensor], function: Callable[[Model], Result]) -> Result:
    """Return ``function(model)`` with ``weights`` in place of the parameters of those names; gradients reach both."""
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    result: Result = functional_call(_Call(model), named, (function,), tie_weights=False)
    return result
