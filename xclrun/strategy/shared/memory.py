"""The replay memory: which training sentences of earlier languages are kept, and the batches that are drawn from it.

A memory holds indices into the training splits, never copies of sentences. Its size is a total; every seen language
has an equal share (CCL, section 3.2). Random numbers are arguments.

Which sentences fill a share is a ranking of the language's training split, most wanted first; a share is its beginning,
so a share that shrinks when a language joins drops what the smaller share would never have had:

- ``reservoir``: a random order, so that every share is a uniform sample (CCL; Vitter 1985).
- ``ring``: equally many of each class, the latest in the training split (Chaudhry et al. 2019, "On tiny episodic
  memories in continual learning", section 4, "ring buffer": one first-in-first-out buffer per class).
- ``herding``: equally many of each class, chosen one by one so that their mean stays nearest to the mean of the class
  (Rebuffi et al. 2017, "iCaRL", algorithm 4), in the space of the encoder's [CLS] after the hop, scaled to length 1.

A batch has the heads of one task, and with language-specific parts the sentences of one language. What is drawn for one
step may so be several batches: `remembered`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from xclrun.core.stream import Hop
from xclrun.strategy.base import Context, Length, State, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings

if TYPE_CHECKING:
    from xclrun.core.task import Task
    from xclrun.data.batches import Batch, Encoded

Taught = TypeVar("Taught")


class MemorySelection(Enum):
    reservoir = "reservoir"
    ring = "ring"
    herding = "herding"


def ring(labels: np.ndarray) -> np.ndarray:
    """Return all indices of ``labels`` (n,): the latest of every class first, then the second latest of every class, …

    Among equals the later index comes first.
    """
    latest_first = np.arange(len(labels))[::-1]
    return latest_first[np.argsort(_turns(labels[latest_first]), kind="stable")]


def herding(labels: np.ndarray, features: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Return indices of ``labels`` (n,), best first and the classes in turn (larger classes first in each turn).

    Within a class, the k-th index is the one that brings the mean of the first k features (unit vectors along the rows
    of ``features``, (n, H)) nearest to the mean of the class; of equals the lower index.

    Args:
        limit: how many indices are needed; None: all.
    """
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    classes, counts = np.unique(labels, return_counts=True)
    chosen: list[np.ndarray] = []
    for label in classes[np.argsort(-counts, kind="stable")]:
        members = np.flatnonzero(labels == label)
        chosen.append(members[_nearest_to_mean(unit[members], len(labels) if limit is None else limit)])
    indices = np.concatenate(chosen) if chosen else np.empty(0, np.int64)
    return indices[np.argsort(_turns(labels[indices]), kind="stable")][:limit]


def _turns(labels: np.ndarray) -> np.ndarray:
    """Return for each element how many of the same class come before it."""
    order = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    turns = np.empty(len(labels), np.int64)
    turns[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return turns


def _nearest_to_mean(unit: np.ndarray, limit: int) -> np.ndarray:
    """Return the order in which herding picks the rows of ``unit`` (n, H), unit vectors; at most ``limit`` of them."""
    mean, total = unit.mean(axis=0), np.zeros(unit.shape[1])
    left, picked = np.ones(len(unit), bool), []
    for k in range(1, min(limit, len(unit)) + 1):
        # |mean − (total + u) / k|² is smallest where (k · mean − total) · u is largest, since |u| = 1.
        index = int(np.argmax(np.where(left, unit @ (k * mean - total), -np.inf)))
        left[index], total = False, total + unit[index]
        picked.append(index)
    return np.array(picked, np.int64)


def places(memory: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return key → indices, of the examples that are in the given rows of a memory, keys and indices in its order."""
    ends = np.cumsum([len(indices) for indices in memory.values()])
    rows = np.sort(rows)
    parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    starts = [0, *ends[:-1]]
    found = zip(memory.items(), parts, starts, strict=True)
    return {key: indices[part - start] for (key, indices), part, start in found if len(part)}


class BalancedMemory:
    """A memory of ``size`` sentences in all, shared equally by the languages seen.

    When a language joins, the shares of the others shrink. A prefix of a uniformly permuted sample is again a uniform
    sample, so dropping from the end is what a reservoir with a smaller bound would have kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: dict[str, np.ndarray] = {}

    def admit(self, language: str, ranking: np.ndarray) -> None:
        """Add the first of a language's ranked training sentences, and shrink the other languages to the new share."""
        shares = self.shares([*self.kept, language])
        self.kept = {name: indices[: shares[name]] for name, indices in self.kept.items()}
        self.kept[language] = ranking[: shares[language]]

    def shares(self, languages: list[str]) -> dict[str, int]:
        """Return language → number of sentences it may keep; what does not divide evenly goes to the earliest."""
        share, rest = divmod(self.size, len(languages))
        return {language: share + (i < rest) for i, language in enumerate(languages)}

    def draw(self, language: str, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return ``count`` distinct indices of ``language`` at random, or all where it has fewer."""
        return self.kept[language][self.draw_rows(language, count, generator)]

    def draw_rows(self, language: str, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return where in ``kept[language]`` the indices of `draw` stand."""
        available = len(self.kept[language])
        return generator.choice(available, size=min(count, available), replace=False)

    def draw_from_all(self, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return language → distinct indices, ``count`` in all (or all), drawn uniformly from the whole memory."""
        return places(self.kept, generator.choice(len(self), size=min(count, len(self)), replace=False))

    def __len__(self) -> int:
        return sum(len(indices) for indices in self.kept.values())

    def to_facts(self) -> dict[str, Any]:
        """Return the memory as JSON-able facts, languages in the order in which they came."""
        return {"size": self.size, "kept": [[language, indices.tolist()] for language, indices in self.kept.items()]}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> BalancedMemory:
        """Rebuild a memory from `to_facts`."""
        memory = cls(facts["size"])
        memory.kept = {language: np.array(indices, dtype=np.int64) for language, indices in facts["kept"]}
        return memory


def gathered(drawn: Mapping[str, Sequence[int] | np.ndarray], context: Context) -> Encoded:
    """Return training sentences, language → indices, one language after the other."""
    from xclrun.data.batches import concat

    return concat([context.train[language].select(indices) for language, indices in drawn.items()])


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
    found = []
    for group in grouped(list(drawn), context, together):
        sentences = gathered({language: drawn[language] for language in group}, context)
        found.append((group[0], sentences.batch(range(len(sentences))).to(context.device)))
    return found


class MemoryBatches(Generic[Taught]):
    """Batches of a memory whose mean enters the loss of one main step.

    Where gradients are accumulated, they are taken in as many parts as the main batch.

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

    def skip(self, main: Batch) -> None:
        """Pass over what goes with a part of the main batch that another process computes."""
        self.done += main.size


@dataclass
class MemorySettings(ExpandableSettings):
    memory: int = bounded(at_least=0)
    every_k: int = bounded(at_least=1)
    selection: MemorySelection = MemorySelection.reservoir


Settings = TypeVar("Settings", bound=MemorySettings)


class MemoryStrategy(Expandable[Settings]):
    """Base of the strategies that keep a balanced memory, filled after each hop and used in the later ones."""

    revisits = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.memory = BalancedMemory(settings.memory)

    def active(self) -> bool:
        return self.settings.memory > 0

    def state_signature(self, hop: Hop) -> dict[str, Any] | None:
        return self.described() if self.active() else None

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        k, name, expansion = self.settings.every_k, self.settings.name, self.settings.expansion
        # In the first training there is nothing to remember yet.
        later = [length for length in lengths if length.hop.depth > 1]
        without = [length.steps for length in later if length.steps < k]
        if not self.active() or not without:
            return ()
        steps = f"{min(without)}" if len(set(without)) == 1 else f"{min(without)} to {max(without)}"
        set_to = f"Set strategy.every_k to {max(1, min(without))} or less"
        if len(without) == len(later):
            return [
                f"strategy={name} never uses its memory: strategy.every_k={k} exceeds the {steps} steps per hop, so "
                f"{name} equals {expansion.name if expansion else 'naive'}. {set_to}."
            ]
        total, sentences = sum(length.steps // k for length in later), sum(length.sentences for length in lengths)
        room = self.settings.memory >= sentences
        everything = f"; strategy.memory={self.settings.memory} has room for all {sentences} sentences"
        return [
            f"strategy={name} does not use its memory in {len(without)} of the {len(later)} hops after the first: "
            f"strategy.every_k={k} exceeds their {steps} steps. {set_to}; with {k}, each language seen is used "
            f"{total} times in the whole run{everything if room else ''}."
        ]

    def due(self, step: int) -> list[str]:
        """Return the languages that are replayed at a step: those with a memory, at every k-th step."""
        if step % self.settings.every_k:
            return []
        return [language for language, kept in self.memory.kept.items() if len(kept)]

    def end_hop(self, context: Context) -> None:
        for language in context.hop.train:
            self.memory.admit(language, self._ranking(language, context))

    def unfit(self, tasks: Sequence[Task]) -> str | None:
        if self.settings.selection is not MemorySelection.reservoir and any(task.label is None for task in tasks):
            return f"strategy.selection={self.settings.selection.value} chooses by class, which not all tasks have"
        return None

    def _ranking(self, language: str, context: Context) -> np.ndarray:
        train, selection = context.train[language], self.settings.selection
        if selection is MemorySelection.ring:
            return ring(train.labels)
        if selection is MemorySelection.herding:
            import torch

            from xclrun.strategy.shared.distillation import record

            cls = record(context, train, torch.float64, lambda output, batch: {"cls": output.cls})
            return herding(train.labels, cls["cls"].numpy(), self.settings.memory)
        return context.generator("memory", language).permutation(len(train))

    def footprint(self) -> dict[str, int]:
        kept = sum(tensor.nbytes for tensor in self.state_dict().tensors.values())
        return {"examples": len(self.memory), "bytes": kept + sum(i.nbytes for i in self.memory.kept.values())}

    def state_dict(self) -> State:
        return State(facts=self.memory.to_facts())

    def load_state_dict(self, state: State) -> None:
        self.memory = BalancedMemory.from_facts(state.facts)
