"""The batches of a hop's own data, determined only by (seed, `Hop.depth`, position).

A batch holds examples of one task. `Passes` iterates over all examples; if a hop has several tasks, each pass shuffles
the batches of all tasks together. `Mixed` draws the key of every batch uniformly, whatever the keys' sizes ("random
curriculum" in Yogatama et al. 2019, "Learning and evaluating general linguistic intelligence", section 4).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from xclrun.data.batches import Batch, Encoded, by_task, epoch_batches


class Passes:
    """Passes over all examples, each in a separate random order.

    Args:
        parts: the hop's training splits, in the order of its keys.
        size: examples per batch; the last batch of a task can be smaller.
        epochs: number of passes.
        generator: returns the random generator of a pass.
        by_length: whether batches have examples of similar lengths (`xclrun.data.batches.epoch_batches`).

    Attributes:
        steps: batches per pass.
    """

    def __init__(
        self,
        parts: Sequence[Encoded],
        size: int,
        epochs: int,
        generator: Callable[[int], np.random.Generator],
        by_length: bool = False,
    ) -> None:
        self.groups, self.size, self.epochs, self.generator = by_task(parts), size, epochs, generator
        self.by_length = by_length
        self.examples = sum(len(examples) for examples, _ in self.groups)
        self.steps = sum(math.ceil(len(examples) / size) for examples, _ in self.groups)
        self._drawn: tuple[int, list[tuple[int, np.ndarray]]] | None = None

    def batches(self, epoch: int, begin: int) -> Iterator[Batch]:
        """Yield a pass's batches from number ``begin``, on the CPU; ``indices`` are for the concatenated parts."""
        for group, rows in self._order(epoch)[begin:]:
            examples, places = self.groups[group]
            yield replace(examples.batch(rows), indices=places[rows])

    def seen(self, step: int) -> int:
        """Return the number of examples in the first ``step`` batches, counted over all passes."""
        epoch, within = divmod(step, self.steps)
        whole = epoch * self.examples
        if len(self.groups) == 1 or not within:
            return whole + within * self.size
        return whole + sum(len(rows) for _, rows in self._order(epoch)[:within])

    def _order(self, epoch: int) -> list[tuple[int, np.ndarray]]:
        """Return (index of the task, rows of the task's examples) for each batch of a pass."""
        if self._drawn is None or self._drawn[0] != epoch:
            generator = self.generator(epoch)
            order = [
                (group, rows)
                for group, (examples, _) in enumerate(self.groups)
                for rows in epoch_batches(
                    len(examples), self.size, generator, examples.lengths if self.by_length else None
                )
            ]
            if len(self.groups) > 1:
                order = [order[i] for i in generator.permutation(len(order))]
            self._drawn = epoch, order
        return self._drawn[1]


class Mixed:
    """One pass of full batches, each from a uniformly drawn key; a key's examples are reshuffled when exhausted.

    Args:
        parts: the hop's training splits, in the order of its keys; none is empty.
        names: the hop's keys.
        size: examples per batch.
        steps: number of batches.
        generator: returns a random generator, to draw the keys (arguments: ``"keys"``) or to shuffle a key's examples
            (arguments: ``"shuffle"``, key, pass).

    Attributes:
        drawn: (steps,) index of each step's key among the parts.
    """

    epochs = 1

    def __init__(
        self,
        parts: Sequence[Encoded],
        names: Sequence[str],
        size: int,
        steps: int,
        generator: Callable[..., np.random.Generator],
    ) -> None:
        self.parts, self.names, self.size, self.steps, self.generator = parts, names, size, steps, generator
        self.starts = np.cumsum([0, *(len(part) for part in parts)])
        self.drawn = generator("keys").integers(len(parts), size=steps)
        self._orders: dict[tuple[int, int], np.ndarray] = {}

    def batches(self, epoch: int, begin: int) -> Iterator[Batch]:
        """Yield the batches from number ``begin``, as `Passes.batches` does."""
        taken = np.bincount(self.drawn[:begin], minlength=len(self.parts))
        for key in self.drawn[begin:]:
            rows = self._rows(int(key), int(taken[key]) * self.size)
            taken[key] += 1
            yield replace(self.parts[key].batch(rows), indices=self.starts[key] + rows)

    def seen(self, step: int) -> int:
        """Return the number of examples in the first ``step`` batches."""
        return step * self.size

    def _rows(self, key: int, begin: int) -> np.ndarray:
        """Return the rows of a key's next batch; ``begin``: number of the key's examples in all earlier batches."""
        n = len(self.parts[key])
        times, within = np.divmod(np.arange(begin, begin + self.size), n)
        return np.concatenate([self._order(key, int(time))[within[times == time]] for time in np.unique(times)])

    def _order(self, key: int, times: int) -> np.ndarray:
        if (key, times) not in self._orders:
            # Forget this key's earlier passes, which no later batch needs.
            self._orders = {at: order for at, order in self._orders.items() if at[0] != key or at[1] >= times - 1}
            generator = self.generator("shuffle", self.names[key], times)
            self._orders[key, times] = generator.permutation(len(self.parts[key]))
        return self._orders[key, times]
