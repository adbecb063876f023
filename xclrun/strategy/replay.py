"""Replay of lifelong learning: examples are written into a memory while they are seen, and trained on at intervals.

Hussain et al. 2021, "Towards a robust experimental framework and benchmark for lifelong language learning" ("LL"),
section 4, "Replay"; d'Autume et al. 2019, "Episodic memory in lifelong language learning". Each training example is
written with the probability ``replay_write``, and never dropped: memory grows linearly. After every
``replay_interval``-th example of a hop, ``replay_number`` examples are drawn uniformly and without replacement from the
whole memory, and extra optimiser steps are taken on them, in batches of the run's size. The rate of replay is
number / interval: 10 % in the paper.

Other than ``er`` the key that is being learned is in memory too, the examples just seen included, and so hop 1 replays;
shares of keys are as they come.

What is written is a function of (seed, depth of the hop, key, index of the example), so that a hop that was interrupted
or comes from the store writes what an undisturbed one would. Inside a hop the memory holds what earlier hops wrote, and
of the hop's own written examples those that were seen. Its order is that of the hops, then of the training split. It
holds indices into the training splits, never copies of examples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Length, State, Strategy, bounded
from xclrun.strategy.shared.memory import places

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


@dataclass
class ReplaySettings(StrategyConfig):
    replay_write: float = bounded(at_least=0, at_most=1)
    replay_interval: int = bounded(at_least=1)
    replay_number: int = bounded(at_least=0)


Settings = TypeVar("Settings", bound=ReplaySettings)


class Replay(Strategy[Settings]):
    """Replay of the memory of lifelong learning, in its own steps.

    Attributes:
        earlier: key → indices, ascending, of what earlier hops wrote; keys in the order of the hops.
        fresh: the same of this hop, of the examples seen so far.
        examples: how many examples of the hop's own data were seen, each epoch's counted.
    """

    name = "replay"
    settings_type = ReplaySettings

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.earlier: dict[str, np.ndarray] = {}
        self.fresh: dict[str, np.ndarray] = {}
        self.examples = 0

    def active(self) -> bool:
        """Whether training differs from plain fine-tuning."""
        return self.settings.replay_write > 0 and self.settings.replay_number > 0

    def signature(self, hop: Hop) -> dict[str, Any]:
        # The memory is used in the hop that fills it, so from the first one on.
        return self.described() if hop.depth > 0 and self.active() else {}

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.active() else None

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        interval = self.settings.replay_interval
        without = [length.examples for length in lengths if length.examples < interval]
        if not self.active() or not without:
            return ()
        examples = f"{min(without)}" if len(set(without)) == 1 else f"{min(without)} to {max(without)}"
        return [
            f"strategy={self.settings.name} does not use its memory in {len(without)} of the {len(lengths)} hops: "
            f"strategy.replay_interval={interval} exceeds their {examples} training examples, counted over all epochs. "
            f"Set it to {max(1, min(without))} or less."
        ]

    def begin_hop(self, context: Context) -> None:
        self.fresh, self.examples = {}, 0

    def replay(self, step: int, main: Batch, context: Context) -> Iterable[Batch]:
        intervals = self.see(main, context) if self.active() else range(0)
        yield main
        for interval in intervals:
            for drawn in self.draw(interval, "replay", context):
                yield from self.batches(drawn, context)

    def end_hop(self, context: Context) -> None:
        # Anew, and not from what was seen: the hop's training may come from the store.
        for key in context.hop.train:
            self.earlier[key] = self.written(key, context)
        self.fresh, self.examples = {}, 0

    def written(self, key: str, context: Context) -> np.ndarray:
        """Return the indices of all examples of a key that this hop writes, ascending."""
        drawn = context.generator("write", key).random(len(context.train[key]))
        return np.flatnonzero(drawn < self.settings.replay_write)

    def see(self, main: Batch, context: Context) -> range:
        """Take note of a mini-batch of the hop's own data: write of it what is to be written.

        Returns:
            The numbers of the intervals, from 1, that end with this mini-batch; mostly none.
        """
        start = 0
        for key in context.hop.train:
            size = len(context.train[key])
            seen = main.indices[(main.indices >= start) & (main.indices < start + size)] - start
            known = self.fresh.get(key, np.empty(0, np.int64))
            self.fresh[key] = np.union1d(known, np.intersect1d(self.written(key, context), seen))
            start += size
        before, self.examples = self.examples, self.examples + main.size
        interval = self.settings.replay_interval
        return range(before // interval + 1, self.examples // interval + 1)

    @property
    def memory(self) -> dict[str, np.ndarray]:
        """Key → indices of everything in memory now, in its order."""
        return {**self.earlier, **self.fresh}

    def draw(self, interval: int, purpose: str, context: Context) -> list[dict[str, np.ndarray]]:
        """Return the examples that are drawn at the end of an interval, in batches of the run's size: key → indices.

        All of the memory where it has no more than are wanted.
        """
        memory = self.memory
        total = sum(len(indices) for indices in memory.values())
        generator = context.generator(purpose, interval)
        rows = generator.choice(total, size=min(self.settings.replay_number, total), replace=False)
        starts = range(0, len(rows), context.batch_size)
        return [places(memory, rows[start : start + context.batch_size]) for start in starts]

    def batches(self, drawn: Mapping[str, np.ndarray], context: Context) -> list[Batch]:
        """Return examples of several keys as one batch on the device; of several tasks, as one for each."""
        from xclrun.data.batches import by_task

        groups = by_task([context.train[key].select(indices) for key, indices in drawn.items()])
        return [examples.batch(range(len(examples))).to(context.device) for examples, _ in groups]

    def footprint(self) -> dict[str, int]:
        kept = self.memory.values()
        return {"examples": sum(map(len, kept)), "bytes": sum(indices.nbytes for indices in kept)}

    def state_dict(self) -> State:
        kept, fresh = ([[k, indices.tolist()] for k, indices in part.items()] for part in (self.earlier, self.fresh))
        return State({"kept": kept, "fresh": fresh, "examples": self.examples})

    def load_state_dict(self, state: State) -> None:
        self.earlier, self.fresh = (
            {key: np.array(indices, np.int64) for key, indices in state.facts[part]} for part in ("kept", "fresh")
        )
        self.examples = state.facts["examples"]
