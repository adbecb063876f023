"""Memory aware synapses (MAS): a penalty on changes of weights that affect the outputs strongly.

Aljundi et al. 2018, "Memory aware synapses: learning what (not) to forget", equations 2 to 4. From hop 2 on the loss
has the penalty

    λ · Σ_θ Ω[θ] · (θ − θ*_{i−1})²        Ω = Σ_{j<i} Ω_j        Ω_j[θ] = 1/n Σ_x |∂ ‖F(x)‖² / ∂θ|

The sum runs over the parameters of body and heads; θ*_{i−1} are the weights at the beginning of the hop. F(x) are the
raw outputs for training sentence x of hop j, computed after the hop in eval mode. Depending on the task, F(x) contains
the class logits, the tag scores of all words before the CRF, class logits and tag scores together, or start and end
scores. The parameters of the CRF do not enter F and are not penalised. Deviation: absolute values are averaged over
sentences (`xclrun.strategy.shared.fisher`); the authors' code averages them over batches.

Settings: ``penalty`` λ (1 in the paper); ``examples``, the number of sentences drawn at random from a hop for Ω_j
(null: all sentences). Cost: a forward and backward pass over these sentences after each hop; 8 bytes per weight on the
device during training, and 4 bytes per weight in the stored state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context, bounded
from xclrun.strategy.shared.penalty import ImportancePenalty, PullSettings, mean_over_hop

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from xclrun.data.batches import Batch, Encoded
    from xclrun.model.network import Model


@dataclass
class MASSettings(PullSettings):
    examples: int | None = bounded(None, at_least=1)


class MAS(ImportancePenalty[MASSettings]):
    name = "mas"
    settings_type = MASSettings
    factor = 2.0

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        self.anchor_here(context)

    def end_hop(self, context: Context) -> None:
        total = mean_over_hop(
            context, "sensitivity", self.settings.examples, sensitivity, self.parameters.language_specific
        )
        for name, before in self.precision.items():
            total[name] = before.to(context.device) + total[name] if name in total else before
        self.precision, self.anchor, self._terms = total, {}, None


def sensitivity(model: Model, sentences: Encoded, device: torch.device) -> dict[str, Tensor]:
    """Return parameter name → mean over sentences of |∂ ‖outputs‖² / ∂θ|, same shape, float32 on the device."""
    from torch import Tensor

    from xclrun.strategy.shared.fisher import mean_over

    return mean_over(model, sentences, device, _squared_outputs, Tensor.abs_)


def _squared_outputs(model: Model, batch: Batch) -> Tensor:
    output = model(batch)
    parts = [] if output.logits is None else [output.logits]
    parts += [] if output.emissions is None else [output.emissions[batch.word_mask]]
    if output.states is not None:
        parts.append(model.head_of(batch.task).score_states(batch.word_rows(output.states)))
    return sum((part.square().sum() for part in parts[1:]), parts[0].square().sum())
