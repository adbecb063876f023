"""In which batches a hop sees its own data: a function of (seed, depth of the hop, position) alone.

A batch holds examples of one task. Where a hop learns several tasks, each pass cuts the examples of every task into
batches, in an order of their own, and shuffles these batches: a task has its share of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from xclrun.data.encode import Batch, Encoded, by_task, epoch_batches


class Passes:
    """Passes over all examples, each in an order of its own.

    Args:
        parts: the hop's training splits, in its order.
        size: examples of a batch; the last one of a task may be smaller.
        epochs: number of passes.
        generator: gives that of a pass.

    Attributes:
        steps: batches of a pass.
    """

    def __init__(
        self,
        parts: Sequence[Encoded],
        size: int,
        epochs: int,
        generator: Callable[[int], np.random.Generator],
    ) -> None:
        self.groups, self.size, self.epochs, self.generator = by_task(parts), size, epochs, generator
        self.examples = sum(len(examples) for examples, _ in self.groups)
        self.steps = sum(math.ceil(len(examples) / size) for examples, _ in self.groups)
        self._drawn: tuple[int, list[tuple[int, np.ndarray]]] | None = None

    def batches(self, epoch: int, begin: int) -> Iterator[Batch]:
        """Yield the batches of a pass from the one at ``begin`` on, on the CPU.

        ``indices`` of a batch are the places of its examples in all parts, one after the other.
        """
        for group, rows in self._order(epoch)[begin:]:
            examples, places = self.groups[group]
            yield replace(examples.batch(rows), indices=places[rows])

    def seen(self, step: int) -> int:
        """Return how many examples the first ``step`` batches have, those of earlier passes included."""
        epoch, within = divmod(step, self.steps)
        whole = epoch * self.examples
        if len(self.groups) == 1 or not within:
            return whole + within * self.size
        return whole + sum(len(rows) for _, rows in self._order(epoch)[:within])

    def _order(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Return group and rows of each batch of a pass."""
        if self._drawn is None or self._drawn[0] != epoch:
            generator = self.generator(epoch)
            found = [
                (group, rows)
                for group, (examples, _) in enumerate(self.groups)
                for rows in epoch_batches(len(examples), self.size, generator)
            ]
            if len(self.groups) > 1:
                found = [found[i] for i in generator.permutation(len(found))]
            self._drawn = epoch, found
        return self._drawn[1]
