"""L2 to the initial weights: all weights are held alike where they were before any fine-tuning.

Kumar et al. 2023, "Maintaining plasticity in continual learning via regenerative regularization", equation 1 ("L2
Init"); with pretrained weights it is L2-SP (Li et al. 2018, "Explicit inductive bias for transfer learning with
convolutional networks"). In every hop, the first one too, the loss has the penalty

    λ/2 · ‖θ − θ_0‖²

over body and heads, with θ_0 the weights of hop 0: pretrained encoder, fresh heads
(`xclrun.strategy.shared.penalty`). The paper writes λ for our λ/2. L2-SP holds new layers at 0 with their own λ;
here heads have the encoder's.

Settings: ``penalty``, λ, no unit. Cost: 4 bytes per weight, once in memory and once on the device while a hop is
trained; nothing is stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from xclrun.core.stream import Stream
from xclrun.strategy.base import Library
from xclrun.strategy.shared.penalty import PullSettings, QuadraticPenalty

if TYPE_CHECKING:
    from xclrun.model import Model


class L2Init(QuadraticPenalty[PullSettings]):
    """Held where hop 0 is."""

    name = "l2_init"
    settings_type = PullSettings

    signature = QuadraticPenalty.signature
    acts_from = 1

    def prepare(self, model: Model, stream: Stream, library: Library) -> None:
        super().prepare(model, stream, library)
        self.hold({name: p.detach().clone() for name, p in model.named_parameters()})
