"""Joint replay: store all data of earlier hops and replay it at a fixed rate.

Replay without a memory limit. Scialom et al. 2022, "Fine-tuned language models are continual learners", replay 1 % of
the earlier data. Ibrahim et al. 2024, "Simple and scalable strategies to continually pre-train large language models",
replay in 1 to 50 % of each batch. From hop 2 on, after main mini-batch s of a hop,

    ⌊r s⌋ − ⌊r (s − 1)⌋

extra optimiser steps are taken, each on a batch drawn uniformly, without replacement, from the training data of all
earlier hops. If the batch has several tasks, one step is taken per task. If languages have their own parameters, one
step is taken per language.

Settings: ``rate`` r ≥ 0, the number of replayed batches per main batch. Lifelong replay (`xclrun.strategy.replay`) has
the rate 0.1. Cost: r extra steps per main step; no state, but all earlier training data must be kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Length, Plan, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings
from xclrun.strategy.shared.memory import indices_at, to_batches
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


@dataclass
class JointReplaySettings(ExpandableSettings):
    rate: float = bounded(0.1, at_least=0)


class JointReplay(Expandable[JointReplaySettings]):
    name = "joint_replay"
    settings_type = JointReplaySettings
    revisits = True

    def active(self) -> bool:
        return self.settings.rate > 0

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        rate = self.settings.rate
        later = [length.steps for length in lengths if length.hop.depth > 1]
        short = [steps for steps in later if steps * rate < 1]
        if not rate or not short:
            return ()
        # Rounded up: the suggested rate must give at least one replayed batch.
        enough = ceil(10_000 / min(short)) / 10_000
        return [
            f"strategy={self.settings.name} does not replay in {len(short)} of the {len(later)} hops after the first: "
            f"strategy.rate={rate} is too low for the shortest hop, which has {min(short)} steps. "
            f"Set strategy.rate to {enough:g} or more."
        ]

    def plan(self, hop: Hop) -> Plan:
        return replace(super().plan(hop), rereads=range(1, hop.index) if hop.depth > 1 and self.active() else ())

    def due(self, step: int) -> int:
        """Return the number of batches replayed after a main step (from 1)."""
        return floor(self.settings.rate * step) - floor(self.settings.rate * (step - 1))

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        yield Step(main)
        hops = [context.stream.hops[index] for index in self.plan(context.hop).rereads]
        earlier = {key: np.arange(len(context.train[key])) for hop in hops for key in hop.train}
        total = sum(map(len, earlier.values()))
        for place in range(self.due(number) if total else 0):
            generator = context.generator("joint replay", number, place)
            rows = generator.choice(total, size=min(context.batch_size, total), replace=False)
            together = self.settings.expansion is None
            for language, batch in to_batches(indices_at(earlier, rows), context, together):
                yield Step(batch, self.loss_of(language, context))
