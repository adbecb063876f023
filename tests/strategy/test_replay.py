"""Replay of lifelong learning: what is written, when it is drawn, which steps follow, and that nothing else matters."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from xclrun.data.batches import epoch_batches
from xclrun.plan import Run
from xclrun.strategy import State
from xclrun.strategy.replay import Replay, ReplaySettings

from .real import state

Make = Callable[..., Run]
Do = Callable[..., Run]
SIZES = {"en": 40, "de": 30, "es": 25}
# On 22, 18 and 13 sentences, 2 epochs.
USED = ("strategy.replay_write=0.4", "strategy.replay_interval=10", "strategy.replay_number=6")


@dataclass
class Main:
    """Stands for a mini-batch."""

    indices: np.ndarray

    @property
    def size(self) -> int:
        return len(self.indices)


class Noting(Replay):
    """Draws (key, index) pairs in place of batches."""

    def batches(self, drawn: Any, context: Any) -> Any:
        return [[(key, int(i)) for key, indices in drawn.items() for i in indices]]


def replay(write: float = 0.3, interval: int = 10, number: int = 7) -> Noting:
    return Noting(ReplaySettings("replay", write, interval, number))


def mini_batches(context: Any, epochs: int = 2) -> Iterator[Main]:
    """The hop's mini-batches, shuffled anew in each epoch."""
    n = sum(len(context.train[key]) for key in context.hop.train)
    for epoch in range(epochs):
        for indices in epoch_batches(n, context.batch_size, context.generator("shuffle", epoch)):
            yield Main(indices)


def extras(strategy: Noting, context: Any) -> list[list[list[tuple[str, int]]]]:
    """Train a hop; return for each main step the batches of its extra steps."""
    strategy.begin_hop(context)
    found = []
    for step, main in enumerate(mini_batches(context), start=1):
        first, *extra = (taken.batch for taken in strategy.steps(step, main, context))
        assert first is main
        found.append(extra)
    return found


def test_each_example_is_written_with_the_probability_by_seed_depth_key_and_index_alone(context: Any) -> None:
    strategy, sizes = replay(0.3), dict.fromkeys(("en", "de"), 2000)

    def written(hop: int, key: str, seed: int = 1, **other: int) -> set[int]:
        return set(strategy.indices_to_write(key, context(hop, sizes | other, seed=seed)).tolist())

    first = written(1, "en")
    assert stats.binomtest(len(first), 2000, 0.3).pvalue > 1e-3
    others = [written(2, "en"), written(1, "de"), written(1, "en", seed=2)]
    for other in others:
        # Independent: a pair is in both with probability 0.09.
        assert stats.binomtest(len(first & other), 2000, 0.09).pvalue > 1e-3
    # The first 500 examples of a longer split, and after other hops were learnt: the same.
    assert written(1, "en", en=500) == {i for i in first if i < 500}
    strategy.end_hop(context(1, sizes))
    assert written(2, "en") == others[0]


def test_memory_and_draws_against_brute_force(context: Any) -> None:
    """Example by example: what was written and seen so far; every draw is from it, distinct, and of the size."""
    strategy, earlier = replay(), []
    for hop in (1, 2, 3):
        given = context(hop, SIZES, batch_size=4)
        [key] = given.hop.train
        will, seen, memory = set(strategy.indices_to_write(key, given).tolist()), 0, list(earlier)
        strategy.begin_hop(given)
        for step, main in enumerate(mini_batches(given), start=1):
            due = 0
            for index in main.indices.tolist():
                seen += 1
                due += seen % 10 == 0
                if index in will and (key, index) not in memory:
                    memory.append((key, index))
            _, *extra = (taken.batch for taken in strategy.steps(step, main, given))
            assert [(k, i) for k, indices in strategy.memory.items() for i in indices] == sorted(
                memory, key=lambda pair: (list(SIZES).index(pair[0]), pair[1])
            )
            wanted = min(7, len(memory))
            sizes = [4] * (wanted // 4) + [wanted % 4] * (wanted % 4 > 0)
            assert [len(batch) for batch in extra] == sizes * due
            for turn in range(due):
                drawn = [pair for batch in extra[turn * len(sizes) : (turn + 1) * len(sizes)] for pair in batch]
                assert len(set(drawn)) == wanted
                assert set(drawn) <= set(memory)
        strategy.end_hop(given)
        earlier += [(key, index) for index in sorted(will)]
        assert sorted(memory) == sorted(earlier), "every example of a hop is seen"
    assert strategy.footprint() == {"examples": len(earlier), "bytes": 8 * len(earlier)}


def test_draws_are_uniform_over_the_whole_memory(context: Any) -> None:
    strategy = replay(1.0, 1, 10)
    for hop in (1, 2, 3):
        strategy.end_hop(context(hop, SIZES))
    counts = dict.fromkeys([(key, i) for key, size in SIZES.items() for i in range(size)], 0)
    given = context(3, SIZES)
    for interval in range(1, 400):
        for part in strategy.draw(interval, "replay", given):
            for pair in strategy.batches(part, given)[0]:
                counts[pair] += 1
    assert sum(counts.values()) == 399 * 10
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3
    # Which of them share a batch is chance too: keys are not kept apart.
    [batches] = zip(*(strategy.batches(part, given) for part in strategy.draw(1, "replay", given)), strict=True)
    assert any(len({key for key, _ in batch}) > 1 for batch in batches)


def test_draws_depend_on_seed_hop_and_interval_alone(context: Any) -> None:
    def third(seed: int = 1, before: bool = True) -> Any:
        strategy = replay()
        for hop in (1, 2):
            if before:
                extras(strategy, context(hop, SIZES, seed=seed))
            strategy.end_hop(context(hop, SIZES, seed=seed))
        return extras(strategy, context(3, SIZES, seed=seed))

    assert third() == third(before=False), "hops from the store leave what trained ones do"
    again, given = replay(), context(1, SIZES)
    assert extras(again, given) == extras(again, given), "what a hop left that was given up counts for nothing"
    assert third() != third(seed=2)
    drawn = [str(extra) for extra in third() if extra]
    assert len(drawn) == len(set(drawn)) == 5


def test_a_hop_that_goes_on_from_a_state_draws_what_it_would_have(context: Any) -> None:
    """The state inside a hop, through JSON, into another object; after every step."""
    given, whole = context(2, SIZES, batch_size=4), replay()
    whole.end_hop(context(1, SIZES))
    start, wanted = whole.state_dict(), extras(whole, given)
    current, found = replay(), []
    current.load_state_dict(start)
    current.begin_hop(given)
    for step, main in enumerate(mini_batches(given), start=1):
        found.append([taken.batch for taken in current.steps(step, main, given)][1:])
        other = replay()
        other.begin_hop(given)
        other.load_state_dict(State(json.loads(json.dumps(current.state_dict().facts))))
        current = other
    assert found == wanted
    assert sum(map(bool, found)) == 6  # 60 examples


def test_a_whole_run(make_run: Make, do: Do) -> None:
    """Real batches: sentences and steps counted by hand; and the state that is stored."""
    wanted = do(make_run("strategy=replay", *USED))
    counted = wanted.directory.read_manifest()["stages"][1:]
    # 44, 36 and 26 sentences in 12, 10 and 8 steps; 4, 3 and 2 replays of 4 + 2 sentences once so many are written.
    facts = [state(wanted, hop).facts for hop in (1, 2, 3)]
    assert [len(f["kept"]) for f in facts] == [1, 2, 3]
    assert all(f["fresh"] == [] and f["examples"] == 0 for f in facts)
    assert len(facts[0]["kept"][0][1]) >= 6
    assert [stage["training"]["updates"] for stage in counted[1:]] == [10 + 2 * 3, 8 + 2 * 2]
    assert [stage["training"]["examples"] for stage in counted[1:]] == [36 + 6 * 3, 26 + 6 * 2]
    assert counted[0]["training"]["updates"] > 12, "hop 1 replays its own language"
