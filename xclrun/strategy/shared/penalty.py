"""Quadratic penalties on changes of shared parameters.

The loss has the penalty λ/2 · Σ_θ precision[θ] · (θ − anchor[θ])². Instead of the penalty itself, its gradient is added
before clipping. This is equivalent, but logged losses do not contain the penalty.

| strategy | precision | anchor |
|---|---|---|
| ``l2_init`` | 1 | the weights of hop 0 |
| ``l2_prev`` | 1 | the weights at the beginning of the hop |
| ``ewc`` | Fisher information | the weights after each earlier hop |
| ``ewc_online`` | Fisher information | the weights at the beginning of the hop |
| ``mas`` | sensitivity of the outputs | the weights at the beginning of the hop |
| ``si`` | contribution to the decrease of the loss | the weights at the beginning of the hop |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeVar

import numpy as np

from xclrun.strategy.base import Context, State, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.steps import MeanGradient, Step, repeatable

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.network import Model


@dataclass
class PullSettings(ExpandableSettings):
    penalty: float = bounded(at_least=0)


Settings = TypeVar("Settings", bound=PullSettings)


class QuadraticPenalty(Expandable[Settings]):
    """Base of the penalties; it has no state.

    Attributes:
        factor: multiplies the penalty's gradient; 1 for papers that write λ/2, 2 for papers that write λ.
        precision, anchor: parameter name → tensor of the parameter's shape. A precision is ≥ 0, and can also be a
            scalar.
    """

    factor: ClassVar[float] = 1.0

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.precision: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor]] | None = None

    def active(self) -> bool:
        return self.settings.penalty > 0

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self._terms = None

    def set_anchor(self, weights: Mapping[str, Tensor]) -> None:
        """Use ``weights`` (by name) as the anchors of shared parameters, with precision 1."""
        import torch

        self.anchor = {name: tensor for name, tensor in weights.items() if not self.parameters.language_specific(name)}
        self.precision = {name: torch.ones(()) for name in self.anchor}

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        if self._terms is None:
            # The tensors keep their addresses during the hop.
            self._terms = [
                (p, self.precision[name].to(p.device), self.anchor[name].to(p.device))
                for name, p in context.model.named_parameters()
                if name in self.precision and p.requires_grad
            ]
        yield Step(main, edit=self.add_gradient if self._terms and self.active() else None)

    @repeatable
    def add_gradient(self, mean_gradient: MeanGradient) -> None:
        """Add the penalty's gradient, for all parameters in a few fused operations."""
        import torch

        # Heads of tasks that are not in the batch have no gradient.
        terms = [(p.grad, p, *term) for p, *term in self._terms or () if p.grad is not None]
        if not terms:
            return
        gradients, weights, precision, anchor = (list(column) for column in zip(*terms, strict=True))
        with torch.no_grad():
            change = torch._foreach_sub(weights, anchor)
            torch._foreach_addcmul_(gradients, precision, change, value=self.factor * self.settings.penalty)


class ImportancePenalty(QuadraticPenalty[Settings]):
    """Base of the penalties whose precision is updated after each hop; the precision is the strategy's state."""

    stateful = True

    def anchor_here(self, context: Context) -> None:
        """Use the current weights as the anchors of all parameters that have a precision."""
        weights = dict(context.model.named_parameters())
        self.anchor = {name: weights[name].detach().clone() for name in self.precision}

    def state_dict(self) -> State:
        return State(tensors={f"precision/{name}": tensor for name, tensor in self.precision.items()})

    def load_state_dict(self, state: State) -> None:
        self.precision = tensor_group(state, "precision")
        self._terms = None


def mean_over_hop(
    context: Context,
    purpose: str,
    bound: int | None,
    mean: Callable[[Model, Encoded, torch.device], dict[str, Tensor]],
    language_specific: Callable[[str], bool] = lambda name: False,
) -> dict[str, Tensor]:
    """Return parameter name → mean over the hop's training sentences, for example the Fisher information.

    Args:
        purpose: purpose of the generator that draws the sample (`Context.generator`).
        bound: size of a random sample of sentences; None: all.
        mean: (model, sentences of one task, device) → mean over these sentences.
        language_specific: function that returns whether a parameter (by name) is excluded because only one hop trains
            it.
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
    with frozen([p for name, p in context.model.named_parameters() if language_specific(name)]):
        means = [(len(part), mean(context.model, part, context.device)) for part in sentences if len(part)]
    if len(means) == 1:
        return means[0][1]
    count = sum(n for n, _ in means)
    result: dict[str, Tensor] = {}
    for n, task_mean in means:
        for name, values in task_mean.items():
            share = values * (n / count)
            result[name] = result[name] + share if name in result else share
    return result


def tensor_group(state: State, group: str) -> dict[str, Tensor]:
    """Return name → tensor for all tensors of a state with the key ``group/name``."""
    prefix = f"{group}/"
    return {key.removeprefix(prefix): tensor for key, tensor in state.tensors.items() if key.startswith(prefix)}
