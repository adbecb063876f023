"""Joint replay: all data of earlier hops is kept, and replayed at a rate.

Replay without the limit of a memory: what a small rate of old data is worth where storage is no matter (Scialom et al.
2022, "Fine-tuned language models are continual learners": 1 % of the earlier data; Ibrahim et al. 2024, "Simple and
scalable strategies to continually pre-train large language models": 1 to 50 % of each batch). From hop 2 on, after
main mini-batch s of a hop,

    ⌊r s⌋ − ⌊r (s − 1)⌋

extra optimiser steps are taken, each on a batch drawn uniformly, without replacement, from the training data of all
earlier hops together: r replayed batches to one of the hop's own. A batch of several tasks, or of languages with parts
of their own, is one step for each.

Settings: ``rate``, r, from 0; 0.1 is the rate of lifelong replay (`xclrun.strategy.replay`). Cost: r steps more to each
step; all training data stays at hand, and nothing is stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor
from typing import TYPE_CHECKING

import numpy as np

from xclrun.strategy.base import Context, Length, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.memory import places, remembered

if TYPE_CHECKING:
    from torch import Tensor

    from xclrun.data.batches import Batch


@dataclass
class JointReplaySettings(ExpandableSettings):
    rate: float = bounded(0.1, at_least=0)


class JointReplay(Expandable[JointReplaySettings]):
    """Replay of everything that was learned, in its own steps."""

    name = "joint_replay"
    settings_type = JointReplaySettings
    signature = Expandable.signature
    revisits = True
    _replayed: str | None = None

    def active(self) -> bool:
        return self.settings.rate > 0

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        rate = self.settings.rate
        short = [length.steps for length in lengths if length.hop.depth > 1 and length.steps * rate < 1]
        if not rate or not short:
            return ()
        return [
            f"strategy={self.settings.name}: nothing is replayed in {len(short)} hops: strategy.rate={rate}, and the "
            f"shortest has {min(short)} steps"
        ]

    def due(self, step: int) -> int:
        """Return how many batches are replayed after a main step, from 1."""
        return floor(self.settings.rate * step) - floor(self.settings.rate * (step - 1))

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        yield main
        hops = context.stream.hops[1 : context.hop.index] if context.hop.depth > 1 else ()
        earlier = {key: np.arange(len(context.train[key])) for hop in hops for key in hop.train}
        total = sum(map(len, earlier.values()))
        for place in range(self.due(step) if total else 0):
            generator = context.generator("joint replay", step, place)
            rows = generator.choice(total, size=min(context.batch_size, total), replace=False)
            together = self.settings.expansion is None
            for self._replayed, batch in remembered(places(earlier, rows), context, together):
                yield batch
        self._replayed = None

    def repeats(self) -> bool:
        return self._replayed is None or self.settings.expansion is None

    def skip(self, batch: Batch, context: Context) -> None:
        """Nothing counts parts."""

    def loss(self, batch: Batch, context: Context) -> Tensor:
        if self._replayed is None:
            return super().loss(batch, context)
        return self.loss_of(self._replayed, batch, context)
