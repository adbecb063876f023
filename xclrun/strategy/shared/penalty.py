"""Quadratic penalties: parameters that languages share are held where they were.

From some hop on the loss has a penalty λ/2 · Σ_θ precision[θ] · (θ − anchor[θ])². Its gradient is added to the
gradients before clipping, which equals adding the penalty to the loss; the losses that are noted are the model's own.

| strategy | precision | anchor |
|---|---|---|
| ``l2_init``, ``l2_prev`` | 1 | the weights before any hop; those with which the hop begins |
| ``ewc``, ``ewc_online`` | Fisher information | the weights after each earlier hop; those with which the hop begins |
| ``mas`` | sensitivity of the outputs | those with which the hop begins |
| ``si`` | share in the fall of the loss | those with which the hop begins |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from xclrun.data.batches import Encoded
    from xclrun.model import Model


@dataclass
class PullSettings(ExpandableSettings):
    penalty: float = bounded(at_least=0)


Settings = TypeVar("Settings", bound=PullSettings)


class QuadraticPenalty(Expandable[Settings]):
    """Base of the penalties; by itself it keeps no state.

    Attributes:
        factor: of the precision in the penalty's gradient: 1 for λ/2, 2 for papers that write λ.
        precision: parameter name → how strongly it is held, ≥ 0; same shape as the parameter, or a single number.
        anchor: parameter name → if it is held; same shape.
    """

    factor: ClassVar[float] = 1.0

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.precision: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor]] | None = None

    signature = Expandable.signature

    def active(self) -> bool:
        return self.settings.penalty > 0

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self._terms = None

    def hold(self, weights: Mapping[str, Tensor]) -> None:
        """Hold parameters at ``weights`` (by name), all alike; a language's own parts are free."""
        import torch

        self.anchor = {name: tensor for name, tensor in weights.items() if not self.language_specific(name)}
        self.precision = {name: torch.ones(()) for name in self.anchor}

    def repeats(self) -> bool:
        # What is held stays in its place through a hop, once it is there.
        return self._terms is not None

    def edit_gradients(self, context: Context) -> None:
        """Add the penalty's gradient, over all parameters in a few fused operations."""
        import torch

        if self._terms is None:
            self._terms = [
                (p, self.precision[name].to(p.device), self.anchor[name].to(p.device))
                for name, p in context.model.named_parameters()
                if name in self.precision and p.requires_grad
            ]
        # Heads of another task than the batch's are left unchanged.
        terms = [(p.grad, p, *held) for p, *held in self._terms if p.grad is not None]
        if not terms or not self.active():
            return
        gradients, weights, precision, anchor = (list(column) for column in zip(*terms, strict=True))
        with torch.no_grad():
            away = torch._foreach_sub(weights, anchor)
            torch._foreach_addcmul_(gradients, precision, away, value=self.factor * self.settings.penalty)


class ImportancePenalty(QuadraticPenalty[Settings]):
    """Base of the penalties whose precision is learned hop by hop: the state."""

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.active() else None

    def hold_here(self, context: Context) -> None:
        """Hold what has a precision at the weights as they are."""
        weights = dict(context.model.named_parameters())
        self.anchor = {name: weights[name].detach().clone() for name in self.precision}

    def mean_over_hop(
        self,
        context: Context,
        purpose: str,
        bound: int | None,
        mean: Callable[[Model, Encoded, torch.device], dict[str, Tensor]],
    ) -> dict[str, Tensor]:
        """Return a mean over sentences of the hop that has just been trained, by parameter name.

        Args:
            purpose: of the generator that draws them.
            bound: how many sentences, a random sample; None: all.
            mean: (model, sentences of one task, device) → the mean over these.
        """
        from xclrun.data.batches import by_task
        from xclrun.strategy.shared.inference import frozen

        groups = by_task([context.train[language] for language in context.hop.train])
        sentences, total = [group for group, _ in groups], sum(len(group) for group, _ in groups)
        if bound is not None and bound < total:
            drawn = context.generator(purpose).permutation(total)[:bound]
            place = np.zeros(total, np.int64)
            for group, positions in groups:
                place[positions] = np.arange(len(group))
            sentences = [group.select(place[drawn[np.isin(drawn, positions)]]) for group, positions in groups]
        # A language's own parts are trained in its hop alone; later languages start with fresh ones.
        with frozen([p for name, p in context.model.named_parameters() if self.language_specific(name)]):
            found = [(len(part), mean(context.model, part, context.device)) for part in sentences if len(part)]
        if len(found) == 1:
            return found[0][1]
        seen = sum(n for n, _ in found)
        result: dict[str, Tensor] = {}
        for n, of_task in found:
            for name, values in of_task.items():
                share = values * (n / seen)
                result[name] = result[name] + share if name in result else share
        return result

    def footprint(self) -> dict[str, int]:
        return {"examples": 0, "bytes": sum(tensor.nbytes for tensor in self.state_dict().tensors.values())}

    def state_dict(self) -> State:
        return State(tensors={f"precision/{name}": tensor for name, tensor in self.precision.items()})

    def load_state_dict(self, state: State) -> None:
        self.precision = named(state, "precision")
        self._terms = None


def named(state: State, group: str) -> dict[str, Tensor]:
    """Return the tensors of a state whose keys are ``group/name``, by name."""
    prefix = f"{group}/"
    return {key.removeprefix(prefix): tensor for key, tensor in state.tensors.items() if key.startswith(prefix)}
