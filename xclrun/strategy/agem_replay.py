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

from xclrun.strategy.agem import mean_gradient, project
from xclrun.strategy.base import Context
from xclrun.strategy.replay import Replay, ReplaySettings

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch


class AGEMReplay(Replay[ReplaySettings]):
    name = "agem_replay"
    _intervals = range(0)
    _largest = 0

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        self._intervals, self._largest = self.observe(main, context) if self.active() else range(0), 0
        return (main,)

    def capturable(self) -> bool:
        return not self._intervals

    def loss(self, batch: Batch, context: Context) -> Tensor:
        # Remember the largest micro-batch, because memory batches are split into parts of this size.
        self._largest = max(self._largest, batch.size)
        return super().loss(batch, context)

    def skip(self, batch: Batch, context: Context) -> None:
        self._largest = max(self._largest, batch.size)

    def edit_gradients(self, context: Context) -> None:
        # If several intervals end in a step, use only the examples drawn for the last interval.
        if not self._intervals or not any(len(indices) for indices in self.memory.values()):
            return
        drawn = self.draw(self._intervals[-1], "reference", context)
        batches = [("memory", batch) for part in drawn for batch in self.batches(part, context)]
        parameters = [p for p in context.model.parameters() if p.grad is not None]

        def loss(_: str, part: Batch, context: Context) -> Tensor:
            return context.model.loss(part)

        reference = mean_gradient(batches, parameters, self._largest, loss, context)
        project([p.grad for p in parameters if p.grad is not None], reference)
