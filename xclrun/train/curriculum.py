"""In which batches a hop sees its own data: a function of (seed, depth of the hop, position) alone.

A batch holds examples of one task. `Passes` go over all examples; where a hop learns several tasks, each pass cuts the
examples of every task into batches, in their own order, and shuffles these batches: a task has its share of the
steps. `Mixed` takes steps of whole batches, each of one key, whatever the keys' sizes (GLI = "Learning and Evaluating
General Linguistic Intelligence", Yogatama et al. 2019, section 4: "random curriculum").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from xclrun.data.batches import Batch, Encoded, by_task, epoch_batches


class Passes:
    """Passes over all examples, each in its own order.

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


class Mixed:
    """Steps of whole batches, each of a key that is drawn uniformly, from the key's own shuffled order.

    The order of a key begins anew, shuffled anew, when it is exhausted; a batch may hold its end and its beginning. All
    is one pass.

    Args:
        parts: the hop's training splits, in its order; none is empty.
        names: their keys.
        size: examples of a batch.
        steps: number of batches.
        generator: gives those of the draws of keys (``keys``), and of a key's order (``shuffle``, key, times before).

    Attributes:
        drawn: for each step the place of its key among the parts, (steps,).
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
        """Yield the batches from the one at ``begin`` on, on the CPU; ``indices`` as those of `Passes`."""
        taken = np.bincount(self.drawn[:begin], minlength=len(self.parts))
        for key in self.drawn[begin:]:
            rows = self._rows(int(key), int(taken[key]) * self.size)
            taken[key] += 1
            yield replace(self.parts[key].batch(rows), indices=self.starts[key] + rows)

    def seen(self, step: int) -> int:
        """Return how many examples the first ``step`` batches have."""
        return step * self.size

    def _rows(self, key: int, begin: int) -> np.ndarray:
        """Return the rows of a key at the places from ``begin`` on in its order, of which there is no end."""
        n = len(self.parts[key])
        times, within = np.divmod(np.arange(begin, begin + self.size), n)
        return np.concatenate([self._order(key, int(time))[within[times == time]] for time in np.unique(times)])

    def _order(self, key: int, times: int) -> np.ndarray:
        if (key, times) not in self._orders:
            # Earlier ones are not needed again.
            self._orders = {at: order for at, order in self._orders.items() if at[0] != key or at[1] >= times - 1}
            generator = self.generator("shuffle", self.names[key], times)
            self._orders[key, times] = generator.permutation(len(self.parts[key]))
        return self._orders[key, times]
