"""Synaptic intelligence (SI): a penalty on changes of weights that contributed to the decrease of the loss.

Zenke et al. 2017, "Continual learning through synaptic intelligence", equations 3 to 5. From hop 2 on the loss of hop i
has the penalty

    c · Σ_θ Ω[θ] · (θ − θ*_{i−1})²        Ω = Σ_{j<i} max(0, ω_j / (Δ_j² + ξ))        ω_j = −Σ_t g_t · (θ_{t+1} − θ_t)

with θ*_{i−1} the weights at the beginning of the hop, over body and heads. ω_j sums over the steps t of hop j: g_t is
the gradient of the model's loss, without the penalty and before clipping, and θ_{t+1} − θ_t is the optimiser's update.
Δ_j is the change of the weight over the whole hop. A hop whose term ω_j / (Δ_j² + ξ) is negative contributes 0 to Ω.
The authors' code instead clips the sum over hops, Ω, at 0 after each hop. With ``trainer.selection=best``, ω_j and Δ_j
are computed up to the selected epoch.

Settings, with the paper's values for split MNIST: ``penalty`` c (1), ``damping`` ξ (0.001).

Cost per weight: 20 bytes on the device during training (five tensors: Ω, ω, θ*, and the weights and gradients before
the step). The state that training stores with the selected weights takes 12 bytes (Ω, ω, θ*); `end_hop` reduces it to
4 bytes (Ω), the state for the next hop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Plan, State, bounded
from xclrun.strategy.shared.penalty import ImportancePenalty, PullSettings, tensor_group
from xclrun.strategy.shared.steps import Edit, MeanGradient, Step

if TYPE_CHECKING:
    from torch import Tensor, nn

    from xclrun.data.batches import Batch


@dataclass
class SISettings(PullSettings):
    damping: float = bounded(1e-3, above=0)


class SI(ImportancePenalty[SISettings]):
    """Penalty whose importance is accumulated along the training path.

    Attributes:
        path: parameter name → ω of this hop so far.
        start: parameter name → weights at the beginning of this hop.
    """

    name = "si"
    settings_type = SISettings
    factor = 2.0
    updates_in_training = True

    def __init__(self, settings: SISettings) -> None:
        super().__init__(settings)
        self.path: dict[str, Tensor] = {}
        self.start: dict[str, Tensor] = {}
        # Parameter name → buffers for its value and gradient before an optimiser step.
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        # ω, parameter, value and gradient before the last step.
        self._step: list[tuple[Tensor, nn.Parameter, Tensor, Tensor]] = []
        self._scaled = False

    def plan(self, hop: Hop) -> Plan:
        plan = super().plan(hop)
        if not self.active() or hop.depth != 1:
            return plan
        # Omit c and ξ: hop 1 has no penalty, and its path depends on neither.
        train = {"name": self.name, "version": self.version, "expansion": self.expansion.plan(hop).train}
        return replace(plan, train=train)

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        weights = context.model.named_parameters() if self.active() else ()
        self.start = {
            name: p.detach().clone()
            for name, p in weights
            if p.requires_grad and not self.parameters.language_specific(name)
        }
        self.path = {name: p.new_zeros(p.shape) for name, p in self.start.items()}
        self.anchor, self._step, self._before = self.start, [], {}
        self._scaled = context.precision == "fp16"

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        for step in super().steps(number, main, context):
            yield replace(step, edit=partial(self._edit, step.edit, context)) if self.path else step
            self._end_step()

    def _edit(self, pull: Edit | None, context: Context, mean_gradient: MeanGradient) -> None:
        """Keep the weights and gradients before the step, then add the penalty's gradient."""
        import torch

        stepped = [(n, p, p.grad) for n, p in context.model.named_parameters() if n in self.path and p.grad is not None]
        for name, p, _ in stepped:
            if name not in self._before:
                self._before[name] = torch.empty_like(p.detach()), torch.empty_like(p.detach())
                # After a resume, the path is on the CPU.
                self.path[name] = self.path[name].to(p.device)
        self._step = [(self.path[name], p, *self._before[name]) for name, p, _ in stepped]
        if self._step:
            _, weights, values, gradients = (list(column) for column in zip(*self._step, strict=True))
            with torch.no_grad():
                torch._foreach_copy_(values, weights)
                torch._foreach_copy_(gradients, [gradient for _, _, gradient in stepped])
        if pull is not None:
            pull(mean_gradient)

    def _end_step(self) -> None:
        import torch

        if not self._step:
            return
        path, weights, values, gradients = (list(column) for column in zip(*self._step, strict=True))
        with torch.no_grad():
            moved = torch._foreach_sub(weights, values)
            products = torch._foreach_mul(gradients, moved)
            if self._scaled:
                # A step that the gradient scaler skips gives ∞ · 0 = NaN: count it as 0.
                for product, change in zip(products, moved, strict=True):
                    product.masked_fill_(change == 0, 0.0)
            torch._foreach_sub_(path, products)
        self._step = []

    def end_hop(self, context: Context) -> None:
        for name, parameter in context.model.named_parameters():
            if name in self.path:
                start, path = self.start[name].to(context.device), self.path[name].to(context.device)
                importance = path / ((parameter.detach() - start).square() + self.settings.damping)
                before = self.precision.get(name, importance.new_zeros(()))
                self.precision[name] = before.to(context.device) + importance.clamp(min=0)
        self.path, self.start, self.anchor, self._terms, self._before = {}, {}, {}, None, {}

    def state_dict(self) -> State:
        inside = {f"path/{name}": tensor for name, tensor in self.path.items()}
        inside |= {f"start/{name}": tensor for name, tensor in self.start.items()}
        return State(tensors=super().state_dict().tensors | inside)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.path, self.start = tensor_group(state, "path"), tensor_group(state, "start")
        self._step, self._before = [], {}
