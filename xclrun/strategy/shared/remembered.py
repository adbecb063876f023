"""Batches of what earlier hops learnt, for strategies that draw from several languages at once.

A batch has the heads of one task, and where languages have parts of their own, sentences of one language. What is drawn
for one step may so be several batches: `remembered`. Terms that a main step's loss has of them are taken in as many
parts as the main batch is where gradients are accumulated: `Beside`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

if TYPE_CHECKING:
    from xclrun.data.batches import Batch
    from xclrun.strategy.base import Context

Taught = TypeVar("Taught")


def grouped(languages: Sequence[str], context: Context, together: bool) -> list[list[str]]:
    """Return languages in groups that can be in one batch.

    Args:
        together: whether all languages share the whole model; then those of a task are one group, else each is one.
    """
    groups: dict[str, list[str]] = {}
    for language in languages:
        groups.setdefault(context.train[language].task if together else language, []).append(language)
    return list(groups.values())


def remembered(drawn: Mapping[str, np.ndarray], context: Context, together: bool) -> list[tuple[str, Batch]]:
    """Return training sentences, language → indices, as batches on the device: (first language, batch).

    Args:
        together: as of `grouped`.
    """
    from xclrun.data.batches import concat

    found = []
    for group in grouped(list(drawn), context, together):
        sentences = concat([context.train[language].select(drawn[language]) for language in group])
        found.append((group[0], sentences.batch(range(len(sentences))).to(context.device)))
    return found


class Beside(Generic[Taught]):
    """Batches whose mean enters the loss of one main step, part by part.

    Args:
        groups: (language, batch, what belongs to the batch); the mean is over the sentences of all.
        size: sentences of the main batch.
    """

    def __init__(self, groups: Sequence[tuple[str, Batch, Taught]], size: int) -> None:
        self.groups, self.size, self.done = groups, size, 0
        self.total = sum(batch.size for _, batch, _ in groups)

    def take(self, main: Batch, context: Context) -> Iterator[tuple[str, Batch, Taught, slice, float]]:
        """Yield what goes with the next part of the main batch: language, batch, what belongs to it, rows, factor.

        The batch is that of the rows alone. A mean over it, times the factor, is its share of the mean over all: of the
        loss of this part, which the loop weighs by the part's share of the main batch.
        """
        start, self.done = self.done, self.done + main.size
        for language, batch, taught in self.groups:
            rows = slice(batch.size * start // self.size, batch.size * self.done // self.size)
            if (count := rows.stop - rows.start) == 0:
                continue
            part = batch.at(rows)
            context.beside(part)
            yield language, part, taught, rows, (count / self.total) * (self.size / main.size)
