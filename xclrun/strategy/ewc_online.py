"""Online elastic weight consolidation (EWC-Online): weights that mattered for earlier languages are held back.

CCL, section 3.2 ("EWC-Online"), after Schwarz et al. 2018, "Progress & Compress", section 4.2 ("online EWC"). From
hop 2 on the loss of hop i has a penalty around the weights with which the hop begins:

    λ/2 · Σ_θ F̃_i[θ] · (θ − θ_prev)²        F̃_i = γ · F̃_{i−1} + F_{i−1}        F̃_1 = 0

F_j is the diagonal empirical Fisher information of hop j's training data after the hop, over body and heads
(`xclrun.strategy.shared.fisher`). The penalty's gradient λ F̃ (θ − θ_prev) is added to the gradients before clipping,
which equals adding the penalty to the loss; the losses that are noted are the model's own.

Settings: ``penalty``, λ, no unit; ``gamma``, γ from 0 to 1, no unit; ``fisher_examples``, sentences of a hop that F is
averaged over, a random sample, or null: all.

Cost: 8 bytes per weight on the device while a hop is trained (F̃ and θ_prev), 4 in the stored state (F̃).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xclrun.core.errors import UsageError
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, State
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass
class PenaltySettings(ExpandableSettings):
    penalty: float = 20.0
    fisher_examples: int | None = None


Settings = TypeVar("Settings", bound=PenaltySettings)


class QuadraticPenalty(Expandable[Settings]):
    """Base of both kinds of EWC: λ/2 · Σ_θ precision[θ] · (θ − anchor[θ])², over the parameters that languages share.

    Attributes:
        precision: parameter name → how strongly it is held, ≥ 0; same shape as the parameter.
        anchor: parameter name → where it is held; same shape.
    """

    def __init__(self, settings: Settings) -> None:
        if settings.penalty < 0:
            raise UsageError(f"strategy.penalty={settings.penalty}: must be at least 0")
        if settings.fisher_examples is not None and settings.fisher_examples < 1:
            raise UsageError(
                f"strategy.fisher_examples={settings.fisher_examples}: must be a number of sentences of at least 1, or "
                "null for all"
            )
        super().__init__(settings)
        self.precision: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}
        self._terms: list[tuple[nn.Parameter, Tensor, Tensor]] | None = None

    def signature(self, hop: Hop) -> dict[str, Any]:
        # Nothing has been learnt before the first training, so nothing is held.
        return self.described() if hop.depth > 1 and self.settings.penalty > 0 else super().signature(hop)

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.settings.penalty > 0 else None

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self._terms = None

    def edit_gradients(self, context: Context) -> None:
        """Add the penalty's gradient, over all parameters in a few fused operations."""
        import torch

        if self._terms is None:
            self._terms = [
                (p, self.precision[name].to(p.device), self.anchor[name].to(p.device))
                for name, p in context.model.named_parameters()
                if name in self.precision and p.requires_grad
            ]
        # Heads of another task than the batch's are left as they are.
        terms = [(p.grad, p, *held) for p, *held in self._terms if p.grad is not None]
        if not terms or not self.settings.penalty:
            return
        gradients, weights, precision, anchor = (list(column) for column in zip(*terms, strict=True))
        with torch.no_grad():
            away = torch._foreach_sub(weights, anchor)
            torch._foreach_addcmul_(gradients, precision, away, value=self.settings.penalty)

    def fisher(self, context: Context) -> dict[str, Tensor]:
        """Return the Fisher information of the hop that has just been trained, by parameter name."""
        from xclrun.data.encode import by_task
        from xclrun.strategy.shared.fisher import diagonal_fisher
        from xclrun.strategy.shared.inference import frozen

        groups = by_task([context.train[language] for language in context.hop.train])
        sentences, total = [group for group, _ in groups], sum(len(group) for group, _ in groups)
        if (bound := self.settings.fisher_examples) is not None and bound < total:
            drawn = context.generator("fisher").permutation(total)[:bound]
            place = np.zeros(total, np.int64)
            for group, positions in groups:
                place[positions] = np.arange(len(group))
            sentences = [group.select(place[drawn[np.isin(drawn, positions)]]) for group, positions in groups]
        # A language's own parts are trained in its hop alone; later languages start with fresh ones.
        with frozen([p for name, p in context.model.named_parameters() if self.language_specific(name)]):
            found = [
                (len(part), diagonal_fisher(context.model, part, context.device)) for part in sentences if len(part)
            ]
        if len(found) == 1:
            return found[0][1]
        seen = sum(n for n, _ in found)
        mean: dict[str, Tensor] = {}
        for n, of_task in found:
            for name, squares in of_task.items():
                share = squares * (n / seen)
                mean[name] = mean[name] + share if name in mean else share
        return mean

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


@dataclass
class EWCOnlineSettings(PenaltySettings):
    gamma: float = 1.0


class EWCOnline(QuadraticPenalty[EWCOnlineSettings]):
    """One running Fisher information, around the weights with which the hop begins."""

    name = "ewc_online"
    settings_type = EWCOnlineSettings
    signature, state_signature = QuadraticPenalty.signature, QuadraticPenalty.state_signature

    def __init__(self, settings: EWCOnlineSettings) -> None:
        if not 0 <= settings.gamma <= 1:
            raise UsageError(f"strategy.gamma={settings.gamma}: must be from 0 (the last hop alone) to 1 (all alike)")
        super().__init__(settings)

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        weights = dict(context.model.named_parameters())
        self.anchor = {name: weights[name].detach().clone() for name in self.precision}

    def end_hop(self, context: Context) -> None:
        before, self.precision = self.precision, self.fisher(context)
        for name, tensor in before.items():
            held = self.settings.gamma * tensor.to(context.device)
            self.precision[name] = held + self.precision[name] if name in self.precision else held
        self._terms, self.anchor = None, {}
