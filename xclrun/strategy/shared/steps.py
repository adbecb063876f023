"""Training steps as data: what a strategy trains on, and how the loss and the gradients of a step are made.

The training loop alone divides a step into micro-batches and among devices, weights and counts them, and captures
steps in CUDA graphs (`xclrun.train.gradients`, `xclrun.train.graphs`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch

# (examples of a batch, their rows in the batch) → mean loss over these examples, or over the units of their head
# (scalar).
Loss = Callable[["Batch", slice], "Tensor"]
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Term:
    """A mean loss over memory sentences, added to the loss of a step.

    Attributes:
        batch: memory sentences on the device.
        loss: loss of some examples of ``batch``; None: the model's own.
        weight: factor of the mean loss.
        among: batches over which the mean is taken, if the sentences of one mean are in several batches, each with its
            own term; None: ``batch`` alone.
        size: weight of a part of the batch in the mean, such as its sentences; None: the units of its head
            (`xclrun.model.heads.Head.units`), as in the model's own loss.
    """

    batch: Batch
    loss: Loss | None = None
    weight: float = 1.0
    among: Sequence[Batch] | None = None
    size: Callable[[Batch], float] | None = None


class MeanGradient(Protocol):
    """Computes gradients of memory sentences for an edit; counts the sentences."""

    def __call__(
        self, terms: Sequence[Term], parameters: Sequence[torch.nn.Parameter], at_most: int | None = None
    ) -> list[Tensor]:
        """Return the gradient of the sum of the terms, one tensor per parameter.

        Args:
            at_most: sentences in a forward pass of an undivided batch; None: as many as in the step's own.
        """


Edit = Callable[[MeanGradient], None]


@dataclass(frozen=True, eq=False)
class Step:
    """One optimizer step.

    Attributes:
        batch: the batch to train on.
        loss: loss of some examples of ``batch``; None: the model's own.
        terms: terms on memory sentences.
        edit: changes the gradients in place, after the backward pass and before clipping and the optimizer's step.
        rows: row of ``batch`` → value, if ``loss`` records a value for each example. After the step the dictionary
            also has the values of the examples that other devices computed.
    """

    batch: Batch
    loss: Loss | None = None
    terms: Sequence[Term] = ()
    edit: Edit | None = None
    rows: dict[int, Any] | None = None

    @property
    def repeats(self) -> bool:
        """Whether a CUDA graph of the step can be replayed: its functions are those of the model, or `repeatable`."""
        functions = [function for function in (self.loss, self.edit) if function is not None]
        return not self.terms and self.rows is None and all(getattr(f, "repeatable", False) for f in functions)


def repeatable(function: Function) -> Function:
    """Mark a loss or an edit whose effect depends only on its batch, and on tensors at fixed addresses.

    Only the first calls run the function: later steps replay what it did on the device. The function must be the same
    object in each step: a method, not a closure in `Strategy.steps`.
    """
    function.repeatable = True  # type: ignore[attr-defined]
    return function
