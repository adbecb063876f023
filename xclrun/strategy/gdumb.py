"""GDumb: keep a memory that is balanced over classes, and train from scratch on it alone.

Prabhu et al. 2020, "GDumb: a simple approach that questions our progress in continual learning", algorithms 1 and 2. A
yardstick: it forgets nothing, and learns nothing that its memory does not hold. The sampler sees the training sentences
of the stream once, language after language, each in a random order. With k places and C classes seen so far, a sentence
of class c is kept

    where c is new, or has fewer than k / C places;        when all places are taken, one of the largest class goes

at random. Hop i trains the model of hop 0 on what is in memory after language i: the encoder as pretrained, and fresh
heads. The paper's learner has its own recipe (cosine annealing, CutMix); here it is the run's trainer, with the
dev data of the languages seen.

Classes are those of the sentence's label, of its own task if there are several. Where a task has no labels (tags,
answers) the classes are the languages, so that each has an equal share. Otherwise languages have no shares: once every
class has its k / C places, sentences of later languages hardly enter (docs/fidelity.md).

Settings: ``memory``, k, in sentences. Cost: each hop trains on k sentences at most. What is in memory is a function
of (seed, languages seen), so nothing is stored.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop, Stream, growing
from xclrun.strategy.base import Context, Strategy, bounded


@dataclass
class GDumbSettings(StrategyConfig):
    memory: int = bounded(at_least=1)


class GDumb(Strategy[GDumbSettings]):
    """Plain fine-tuning from hop 0, on the memory."""

    name = "gdumb"
    settings_type = GDumbSettings
    signature = Strategy.signature
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return growing(order)

    def limit(self, hop: Hop) -> int | None:
        return self.settings.memory

    def choose(self, context: Context) -> Mapping[str, np.ndarray]:
        stream: list[tuple[str, int]] = []
        classes: list[Hashable] = []
        # Every hop starts from hop 0, so it draws what the one before has drawn, and then more.
        for key in context.hop.train:
            train = context.train[key]
            for index in context.generator("gdumb", key).permutation(len(train)):
                label = int(train.labels[index])
                stream.append((key, int(index)))
                classes.append((train.task, label) if label >= 0 else key)
        kept = balanced(classes, self.settings.memory, context.generator("gdumb places"))
        found: dict[str, list[int]] = {key: [] for key in context.hop.train}
        for key, index in (stream[place] for place in kept):
            found[key].append(index)
        return {key: np.array(sorted(indices), np.int64) for key, indices in found.items()}


def balanced(classes: Sequence[Hashable], size: int, generator: np.random.Generator) -> list[int]:
    """Return which of a stream of examples are in memory at its end, ascending (algorithm 1).

    Args:
        classes: the class of each example.
        size: places of the memory, at least 1.
    """
    members: dict[Hashable, list[int]] = {}
    taken = 0
    for place, of in enumerate(classes):
        if of in members and len(members[of]) >= size / len(members):
            continue
        if taken == size:
            largest = max(members.values(), key=len)
            largest.pop(int(generator.integers(len(largest))))
            taken -= 1
        members.setdefault(of, []).append(place)
        taken += 1
    return sorted(place for places in members.values() for place in places)
