"""A model with other weights for the length of a call: nothing is copied, and its own stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from torch import Tensor, nn
from torch.func import functional_call

from xclrun.model.network import Model

Result = TypeVar("Result")


class _Call(nn.Module):
    """Applies a function to a model, so that what happens in it is one call of a module."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[[Model], Any]) -> Any:
        return function(self.model)


def with_weights(model: Model, weights: Mapping[str, Tensor], function: Callable[[Model], Result]) -> Result:
    """Return ``function(model)``, computed with ``weights`` in the place of the model's own of those names.

    A backward pass of what comes out reaches the other parameters of the model, and ``weights`` where they ask for it.
    """
    named = {f"model.{name}": tensor for name, tensor in weights.items()}
    result: Result = functional_call(_Call(model), named, (function,), tie_weights=False)
    return result
