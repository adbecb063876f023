"""L2 regularisation towards the weights at the beginning of the hop.

The baseline of Kirkpatrick et al. 2017, "Overcoming catastrophic forgetting in neural networks", section 2.1 and figure
2 ("L2"): EWC with equal importance of all parameters. From hop 2 on the loss has the penalty

    λ/2 · ‖θ − θ*_{i−1}‖²

over body and heads, with θ*_{i−1} the weights after the previous hop (`xclrun.strategy.shared.penalty`).

Settings: ``penalty`` λ, for which the paper gives no value. Cost: 4 bytes per weight on the device during training.
"""

from __future__ import annotations

from xclrun.strategy.base import Context
from xclrun.strategy.shared.penalty import PullSettings, QuadraticPenalty


class L2Prev(QuadraticPenalty[PullSettings]):
    name = "l2_prev"
    settings_type = PullSettings

    def begin_hop(self, context: Context) -> None:
        super().begin_hop(context)
        # Hop 1 has no penalty, because nothing has been learned before it.
        later = context.hop.depth > 1
        self.set_anchor({name: p.detach().clone() for name, p in context.model.named_parameters()} if later else {})
