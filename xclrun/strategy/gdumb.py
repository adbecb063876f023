"""GDumb: store a class-balanced memory and train from scratch on it.

Prabhu et al. 2020, "GDumb: a simple approach that questions our progress in continual learning", algorithms 1 and 2: a
baseline without forgetting that learns from its memory only. The sampler sees the training sentences of the stream
once, language after language, in random order within a language. Let k be the size of the memory and C the number of
classes so far. A sentence of class c is stored

    if c is new, or the memory has fewer than k / C sentences of c.

If the memory is full, the new sentence replaces a random one of the largest class.

Hop i starts from hop 0 and trains on the contents of the memory after language i. Deviation: the run's trainer is used
instead of the paper's recipe (cosine annealing, CutMix); dev scores use the dev data of all languages so far.

A class is a label of a task. In tasks without a label for the whole sentence (tagging, question answering), the class
is the language. With labels, languages have no fixed shares: once every class has k / C sentences, few sentences of
later languages enter.

Settings: ``memory``, k, in sentences. Cost: each hop trains on at most k sentences. The memory is a function of seed
and languages, so there is no state.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from xclrun.config.schema import StrategyConfig
from xclrun.core.stream import Hop, Stream, growing
from xclrun.strategy.base import Context, Plan, Strategy, bounded


@dataclass
class GDumbSettings(StrategyConfig):
    memory: int = bounded(at_least=1)


class GDumb(Strategy[GDumbSettings]):
    name = "gdumb"
    settings_type = GDumbSettings
    mixes_languages = True

    def stream(self, order: Sequence[str]) -> Stream:
        return growing(order)

    def plan(self, hop: Hop) -> Plan:
        return Plan(train=self.described(), limit=self.settings.memory)

    def choose(self, context: Context) -> Mapping[str, np.ndarray]:
        stream: list[tuple[str, int]] = []
        classes: list[Hashable] = []
        # Generators are seeded by the hop's depth (number of trainings since hop 0). Every hop of this stream starts
        # from hop 0, so its depth is 1 and it repeats the draws of the previous hop, as if the sampler continued.
        for key in context.hop.train:
            train = context.train[key]
            for index in context.generator("gdumb", key).permutation(len(train)):
                label = int(train.labels[index])
                stream.append((key, int(index)))
                classes.append((train.task, label) if label >= 0 else key)
        places = balanced(classes, self.settings.memory, context.generator("gdumb places"))
        chosen: dict[str, list[int]] = {key: [] for key in context.hop.train}
        for key, index in (stream[place] for place in places):
            chosen[key].append(index)
        return {key: np.array(sorted(indices), np.int64) for key, indices in chosen.items()}


def balanced(classes: Sequence[Hashable], size: int, generator: np.random.Generator) -> list[int]:
    """Run the sampler over examples with these classes; return the stored examples' positions, ascending."""
    members: dict[Hashable, list[int]] = {}
    taken = 0
    for place, label in enumerate(classes):
        if label in members and len(members[label]) >= size / len(members):
            continue
        if taken == size:
            largest = max(members.values(), key=len)
            largest.pop(int(generator.integers(len(largest))))
            taken -= 1
        members.setdefault(label, []).append(place)
        taken += 1
    return sorted(place for places in members.values() for place in places)
