"""Replay as in lifelong language learning: a memory of random training examples is replayed at intervals.

Hussain et al. 2021, "Towards a robust experimental framework and benchmark for lifelong language learning" ("LL"),
section 4, "Replay"; d'Autume et al. 2019, "Episodic memory in lifelong language learning". Each training example is
written into the memory with probability ``replay_write`` and never removed. After every ``replay_interval``-th example
of a hop, ``replay_number`` examples are drawn uniformly, without replacement, from the whole memory, and extra
optimiser steps are taken on them, in batches of the run's size. The replay rate is ``replay_number`` /
``replay_interval``: 10 % in the paper.

Unlike in ``er``, the memory includes the current key, so hop 1 replays too. Keys have no fixed shares. Whether an
example is written depends only on (seed, depth of the hop, key, index), so interruptions and hops loaded from the store
do not change the memory. The memory contains indices into the training splits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Length, Plan, State, Strategy, bounded
from xclrun.strategy.shared.memory import indices_at
from xclrun.strategy.shared.steps import Step

if TYPE_CHECKING:
    from xclrun.data.batches import Batch


@dataclass
class ReplaySettings(StrategyConfig):
    replay_write: float = bounded(at_least=0, at_most=1)
    replay_interval: int = bounded(at_least=1)
    replay_number: int = bounded(at_least=0)


Settings = TypeVar("Settings", bound=ReplaySettings)


class Replay(Strategy[Settings]):
    """Replay from a memory in extra optimiser steps.

    Attributes:
        earlier: key → indices, ascending, written in earlier hops; keys in the order of the hops.
        fresh: key → indices written in this hop so far.
        examples: number of the hop's training examples processed so far, over all epochs, without replayed examples.
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

    def plan(self, hop: Hop) -> Plan:
        described = self.described()
        # The memory is used from the first hop on.
        return Plan(
            train=described if hop.depth > 0 and self.active() else {}, state=described if self.active() else None
        )

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

    def steps(self, number: int, main: Batch, context: Context) -> Iterable[Step]:
        intervals = self.observe(main, context) if self.active() else range(0)
        yield Step(main)
        for interval in intervals:
            for drawn in self.draw(interval, "replay", context):
                yield from map(Step, self.batches(drawn, context))

    def end_hop(self, context: Context) -> None:
        # Draw the indices again: if the hop was loaded from the store, no batch was observed.
        for key in context.hop.train:
            self.earlier[key] = self.indices_to_write(key, context)
        self.fresh, self.examples = {}, 0

    def indices_to_write(self, key: str, context: Context) -> np.ndarray:
        """Return the indices of a key's examples that this hop writes into the memory, ascending."""
        drawn = context.generator("write", key).random(len(context.train[key]))
        return np.flatnonzero(drawn < self.settings.replay_write)

    def observe(self, main: Batch, context: Context) -> range:
        """Write examples of a main mini-batch into the memory; return which replay intervals end in the mini-batch.

        Replay intervals are numbered from 1.
        """
        start = 0
        for key in context.hop.train:
            size = len(context.train[key])
            seen = main.indices[(main.indices >= start) & (main.indices < start + size)] - start
            before = self.fresh.get(key, np.empty(0, np.int64))
            self.fresh[key] = np.union1d(before, np.intersect1d(self.indices_to_write(key, context), seen))
            start += size
        start, self.examples = self.examples, self.examples + main.size
        interval = self.settings.replay_interval
        return range(start // interval + 1, self.examples // interval + 1)

    @property
    def memory(self) -> dict[str, np.ndarray]:
        """Key → indices of all examples in memory."""
        return {**self.earlier, **self.fresh}

    def draw(self, interval: int, purpose: str, context: Context) -> list[dict[str, np.ndarray]]:
        """Draw the examples to replay at the end of an interval; return batches of them, each as key → indices."""
        memory = self.memory
        total = sum(len(indices) for indices in memory.values())
        generator = context.generator(purpose, interval)
        rows = generator.choice(total, size=min(self.settings.replay_number, total), replace=False)
        starts = range(0, len(rows), context.batch_size)
        return [indices_at(memory, rows[start : start + context.batch_size]) for start in starts]

    def batches(self, drawn: Mapping[str, np.ndarray], context: Context) -> list[Batch]:
        """Return examples of several keys as batches on the device, one per task."""
        from xclrun.data.batches import by_task

        groups = by_task([context.train[key].select(indices) for key, indices in drawn.items()])
        return [examples.batch(range(len(examples))).to(context.device) for examples, _ in groups]

    def footprint(self) -> dict[str, int]:
        indices = self.memory.values()
        return {"examples": sum(map(len, indices)), "bytes": sum(array.nbytes for array in indices)}

    def state_dict(self) -> State:
        earlier, fresh = ([[k, indices.tolist()] for k, indices in part.items()] for part in (self.earlier, self.fresh))
        return State({"kept": earlier, "fresh": fresh, "examples": self.examples})

    def load_state_dict(self, state: State) -> None:
        self.earlier, self.fresh = (
            {key: np.array(indices, np.int64) for key, indices in state.facts[part]} for part in ("kept", "fresh")
        )
        self.examples = state.facts["examples"]
