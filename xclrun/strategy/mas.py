"""Memory aware synapses (MAS): weights to which the outputs are sensitive are held back; no label is needed.

Aljundi et al. 2018, "Memory aware synapses: learning what (not) to forget", equations 2 to 4. From hop 2 on the loss of
hop i has the penalty

    λ · Σ_θ Ω[θ] · (θ − θ*_{i−1})²        Ω = Σ_{j<i} Ω_j        Ω_j[θ] = 1/n Σ_x |∂ ‖F(x)‖² / ∂θ|

around the weights with which the hop begins, over body and heads. F(x) are the model's raw outputs for sentence x of
hop j's training data, after the hop and in eval mode: the logits of its class, and the emissions of all its words
(tags before a CRF, or start and end of an answer); the CRF's own parameters do not enter them and are free. The mean of
absolute values is taken over sentences, exactly (`xclrun.strategy.shared.fisher`); the paper's code takes it over
batches.

Settings: ``penalty``, λ, no unit (the paper: 1); ``examples``, sentences of a hop that Ω_j is averaged over, a random
sample, or null: all.

Cost: one forward and backward pass over these after each hop; 8 bytes per weight on the device while a hop is trained,
4 in the stored state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.shared.penalty import ImportancePenalty, PullSettings

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model import Model


@dataclass
class MASSettings(PullSettings):
    examples: int | None = bounded(None, at_least=1)


class MAS(ImportancePenalty[MASSettings]):
    """Importance by the sensitivity of the outputs."""

    name = "mas"
    settings_type = MASSettings
    signature, state_signature = ImportancePenalty.signature, ImportancePenalty.state_signature
    factor = 2.0

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self.hold_here(context)

    def end_hop(self, context: Context) -> None:
        found = self.mean_over_hop(context, "sensitivity", self.settings.examples, sensitivity)
        for name, before in self.precision.items():
            found[name] = before.to(context.device) + found[name] if name in found else before
        self.precision, self.anchor, self._terms = found, {}, None


def sensitivity(model: Model, sentences: Encoded, device: torch.device) -> dict[str, Tensor]:
    """Return parameter name → mean over sentences of |∂ ‖outputs‖² / ∂θ|, same shape, float32 on the device."""
    from torch import Tensor

    from xclrun.strategy.shared.fisher import mean_over

    return mean_over(model, sentences, device, _squared_outputs, Tensor.abs_)


def _squared_outputs(model: Model, batch: Batch) -> Tensor:
    """Return the sum over the sentences of a batch of the squared norm of their outputs."""
    output = model(batch)
    parts = [] if output.logits is None else [output.logits]
    parts += [] if output.emissions is None else [output.emissions[batch.word_mask]]
    return sum((part.square().sum() for part in parts[1:]), parts[0].square().sum())
