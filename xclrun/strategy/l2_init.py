"""L2 regularisation towards the initial weights.

Kumar et al. 2023, "Maintaining plasticity in continual learning via regenerative regularization", equation 1 ("L2
Init"); with pretrained weights, the method is L2-SP (Li et al. 2018, "Explicit inductive bias for transfer learning
with convolutional networks"). In every hop the loss has the penalty

    λ/2 · ‖θ − θ_0‖²

over body and heads. θ_0 are the weights of hop 0: pretrained encoder, initial heads (`xclrun.strategy.shared.penalty`).
Deviations: the paper's penalty has the factor λ instead of λ/2, so λ here is twice the paper's λ; L2-SP pulls new
layers towards 0 with a separate λ.

Settings: ``penalty`` λ. Cost: 4 bytes per weight in memory and on the device during training.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xclrun.core.stream import Stream
from xclrun.strategy.base import Library
from xclrun.strategy.shared.penalty import PullSettings, QuadraticPenalty

if TYPE_CHECKING:
    from xclrun.model.network import Model


class L2Init(QuadraticPenalty[PullSettings]):
    name = "l2_init"
    settings_type = PullSettings
    acts_from = 1

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        super().prepare(model, stream, library)
        self.set_anchor({name: p.detach().clone() for name, p in model.named_parameters()})
