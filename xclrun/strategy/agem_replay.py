"""A-GEM with the memory of ``replay``: at intervals, a step must not increase the mean loss on memory examples.

Hussain et al. 2021 ("LL"), section 4, "A-GEM", after Chaudhry et al. 2019 (`xclrun.strategy.agem`). As in
`xclrun.strategy.replay`, memory examples are drawn regardless of their task. The gradient g of the main mini-batch is
edited at every step that completes an interval of ``replay_interval`` training examples. Let r be the mean gradient of
``replay_number`` examples, drawn uniformly from the whole memory. Then

    g ← g − (g · r) / (r · r) · r    if g · r < 0

``replay_interval=1`` edits every step, as Chaudhry et al. do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from xclrun.strategy.agem import project
from xclrun.strategy.base import Context
from xclrun.strategy.replay import Replay, ReplaySettings
from xclrun.strategy.shared.steps import MeanGradient, Step, Term

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


class AGEMReplay(Replay[ReplaySettings]):
    name = "agem_replay"

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        intervals = self.observe(main, context) if self.active() else range(0)
        # If several intervals end in a step, use only the examples drawn for the last interval.
        drawn = self.draw(intervals[-1], "reference", context) if intervals else []
        batches = [batch for part in drawn for batch in self.batches(part, context)]

        def edit(mean_gradient: MeanGradient) -> None:
            parameters = [p for p in context.model.parameters() if p.grad is not None]
            reference = mean_gradient([Term(batch, among=batches) for batch in batches], parameters)
            project([p.grad for p in parameters if p.grad is not None], reference)

        yield Step(main, edit=edit if batches else None)
