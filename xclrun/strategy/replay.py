"""Replay of lifelong learning: examples are written into a memory while they are seen, and trained on at intervals.

Hussain et al. 2021 ("LL"), section 4, "Replay"; d'Autume et al. 2019, "Episodic memory in lifelong language learning".
After every ``replay_interval``-th example of a hop, ``replay_number`` examples are drawn uniformly from the whole
memory (`xclrun.strategy.shared.written`), and extra optimiser steps are taken on them, in batches of the run's size.
The rate of replay is number / interval: 10 % in the paper.

Other than ``er`` the key that is being learnt is in memory too, and so hop 1 replays; shares of keys are as they come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from xclrun.strategy.base import Context
from xclrun.strategy.shared.written import Settings, WrittenSettings, WrittenStrategy

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


class Replay(WrittenStrategy[Settings]):
    """Replay of the memory of lifelong learning, in steps of its own."""

    name = "replay"
    settings_type = WrittenSettings
    signature = WrittenStrategy.signature

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        intervals = self.see(main, context) if self.active() else range(0)
        yield main
        for interval in intervals:
            for drawn in self.draw(interval, "replay", context):
                yield from self.batches(drawn, context)
