"""Replay memory: a sample of the training sentences of earlier languages, and the batches drawn from it.

A memory contains indices into the training splits. Its size is a total, shared equally by the learned languages (CCL,
section 3.2). A language's sentences are ranked once. The language's share is the beginning of this ranking; when the
share shrinks, its last sentences are dropped:

- ``reservoir``: a random order, so that every share is a uniform sample (CCL; Vitter 1985).
- ``ring``: equally many sentences of each class, the last ones in the training split (Chaudhry et al. 2019, "On tiny
  episodic memories in continual learning", section 4: one first-in-first-out buffer per class).
- ``herding``: equally many sentences of each class, chosen one by one so that their mean stays closest to the class
  mean (Rebuffi et al. 2017, "iCaRL", algorithm 4), in the space of the encoder's normalised [CLS] states after the hop.

A batch has sentences of one task and, with language-specific parameters, of one language; one draw can therefore need
several batches (`to_batches`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xclrun.strategy.base import Context, Length, State, bounded
from xclrun.strategy.shared.expansion import Expandable, ExpandableSettings

if TYPE_CHECKING:
    from xclrun.core.task import Task
    from xclrun.data.batches import Batch, Encoded

Payload = TypeVar("Payload")


class MemorySelection(Enum):
    reservoir = "reservoir"
    ring = "ring"
    herding = "herding"


def ring(labels: np.ndarray) -> np.ndarray:
    """Return all indices of ``labels`` (n,): the last index of every class, then the second to last of every class, …

    Ties: the later index comes first.
    """
    latest_first = np.arange(len(labels))[::-1]
    return latest_first[np.argsort(_turns(labels[latest_first]), kind="stable")]


def herding(labels: np.ndarray, features: np.ndarray, limit: int | None = None) -> np.ndarray:
    """Return indices of ``labels`` (n,), best first, alternating between classes (larger classes first).

    Rows of ``features`` (n, H) are scaled to unit length. Within a class, each index is chosen so that the mean of the
    chosen vectors stays closest to the class mean; ties: the lower index.

    Args:
        limit: maximum number of indices; None: all.
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
    """Return for each element how many elements of its class precede it."""
    order = np.argsort(labels, kind="stable")
    _, first, counts = np.unique(labels[order], return_index=True, return_counts=True)
    turns = np.empty(len(labels), np.int64)
    turns[order] = np.arange(len(labels)) - np.repeat(first, counts)
    return turns


def _nearest_to_mean(unit: np.ndarray, limit: int) -> np.ndarray:
    """Return the indices of the first ``limit`` rows that herding picks from unit vectors (n, H), in this order."""
    mean, total = unit.mean(axis=0), np.zeros(unit.shape[1])
    available, picked = np.ones(len(unit), bool), []
    for k in range(1, min(limit, len(unit)) + 1):
        # |mean − (total + u) / k|² is smallest where (k · mean − total) · u is largest, since |u| = 1.
        index = int(np.argmax(np.where(available, unit @ (k * mean - total), -np.inf)))
        available[index], total = False, total + unit[index]
        picked.append(index)
    return np.array(picked, np.int64)


def indices_at(memory: Mapping[str, np.ndarray], rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return the examples at ``rows`` of a memory, counted over all keys: key → indices."""
    ends = np.cumsum([len(indices) for indices in memory.values()])
    rows = np.sort(rows)
    parts = np.split(rows, np.searchsorted(rows, ends[:-1]))
    starts = [0, *ends[:-1]]
    triples = zip(memory.items(), parts, starts, strict=True)
    return {key: indices[part - start] for (key, indices), part, start in triples if len(part)}


class BalancedMemory:
    """A memory of ``size`` sentences, shared equally by the learned languages: language → indices.

    A prefix of a random permutation is a uniform sample, so a share without its end is a smaller reservoir.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.indices: dict[str, np.ndarray] = {}

    def admit(self, language: str, ranking: np.ndarray) -> None:
        """Add a language's best-ranked training sentences and reduce the shares of the other languages."""
        shares = self.shares([*self.indices, language])
        self.indices = {name: indices[: shares[name]] for name, indices in self.indices.items()}
        self.indices[language] = ranking[: shares[language]]

    def shares(self, languages: list[str]) -> dict[str, int]:
        """Return language → size of its share; the earliest languages get the remainder."""
        share, rest = divmod(self.size, len(languages))
        return {language: share + (i < rest) for i, language in enumerate(languages)}

    def draw(self, language: str, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return ``count`` distinct random indices of ``language``, or all if its share is smaller."""
        return self.indices[language][self.draw_rows(language, count, generator)]

    def draw_rows(self, language: str, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return ``count`` distinct random positions in the language's share, or all if the share is smaller."""
        available = len(self.indices[language])
        return generator.choice(available, size=min(count, available), replace=False)

    def draw_from_all(self, count: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Return language → distinct indices; ``count`` (at most all) are drawn uniformly from the whole memory."""
        return indices_at(self.indices, generator.choice(len(self), size=min(count, len(self)), replace=False))

    def __len__(self) -> int:
        return sum(len(indices) for indices in self.indices.values())

    def to_facts(self) -> dict[str, Any]:
        """Return the memory as JSON values, languages in the order of their arrival."""
        return {"size": self.size, "kept": [[language, indices.tolist()] for language, indices in self.indices.items()]}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> BalancedMemory:
        """Rebuild a memory from `to_facts`."""
        memory = cls(facts["size"])
        memory.indices = {language: np.array(indices, dtype=np.int64) for language, indices in facts["kept"]}
        return memory


def select_sentences(drawn: Mapping[str, Sequence[int] | np.ndarray], context: Context) -> Encoded:
    """Return the training sentences with these indices (language → indices), one language after the other."""
    from xclrun.data.batches import concat

    return concat([context.train[language].select(indices) for language, indices in drawn.items()])


def group_keys(languages: Sequence[str], context: Context, together: bool) -> list[list[str]]:
    """Return groups of languages whose sentences can be in one batch.

    Args:
        together: whether languages share the whole model. The languages of a task then form one group; otherwise each
            language is a group.
    """
    groups: dict[str, list[str]] = {}
    for language in languages:
        groups.setdefault(context.train[language].task if together else language, []).append(language)
    return list(groups.values())


def to_batches(drawn: Mapping[str, np.ndarray], context: Context, together: bool) -> list[tuple[str, Batch]]:
    """Return training sentences (language → indices) as batches on the device: (first language, batch).

    Args:
        together: see `group_keys`.
    """
    batches = []
    for group in group_keys(list(drawn), context, together):
        sentences = select_sentences({language: drawn[language] for language in group}, context)
        batches.append((group[0], sentences.batch(range(len(sentences))).to(context.device)))
    return batches


@dataclass
class MemorySettings(ExpandableSettings):
    memory: int = bounded(at_least=0)
    every_k: int = bounded(at_least=1)
    selection: MemorySelection = MemorySelection.reservoir


Settings = TypeVar("Settings", bound=MemorySettings)


class MemoryStrategy(Expandable[Settings]):
    """Base of the strategies with a balanced memory, filled after each hop and used in later hops."""

    revisits = True
    stateful = True

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.memory = BalancedMemory(settings.memory)

    def active(self) -> bool:
        return self.settings.memory > 0

    def notes(self, lengths: Sequence[Length]) -> Sequence[str]:
        k, name, expansion = self.settings.every_k, self.settings.name, self.settings.expansion
        # Ignore the first hop: its memory is empty.
        later = [length for length in lengths if length.hop.depth > 1]
        without = [length.steps for length in later if length.steps < k]
        if not self.active() or not without:
            return ()
        steps = f"{min(without)}" if len(set(without)) == 1 else f"{min(without)} to {max(without)}"
        set_to = f"Set dataset.replay.every_k, its default, to {max(1, min(without))} or less"
        if len(without) == len(later):
            return [
                f"strategy={name} never uses its memory: strategy.every_k={k} exceeds the {steps} steps per hop, so "
                f"{name} equals {expansion.name if expansion else 'naive'}. {set_to}."
            ]
        total, all_steps = sum(length.steps // k for length in later), sum(length.steps for length in later)
        sentences = sum(length.sentences for length in lengths)
        room = self.settings.memory >= sentences
        everything = f"; strategy.memory={self.settings.memory} has room for all {sentences} sentences"
        return [
            f"strategy={name} does not use its memory in {len(without)} of the {len(later)} hops after the first: "
            f"strategy.every_k={k} exceeds their {steps} steps. {set_to}; with {k}, the memory is used "
            f"in {total} of {all_steps} steps{everything if room else ''}."
        ]

    def due(self, step: int) -> list[str]:
        """Return the languages to replay at a step: all in memory at every k-th step, otherwise none."""
        if step % self.settings.every_k:
            return []
        return [language for language, indices in self.memory.indices.items() if len(indices)]

    def end_hop(self, context: Context) -> None:
        for language in context.hop.train:
            self.memory.admit(language, self._ranking(language, context))

    def unsupported(self, tasks: Sequence[Task]) -> str | None:
        if self.settings.selection is not MemorySelection.reservoir and any(task.label is None for task in tasks):
            return f"strategy.selection={self.settings.selection.value} chooses by class, but a task has no classes"
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
        indices = sum(array.nbytes for array in self.memory.indices.values())
        tensors = sum(tensor.nbytes for tensor in self.state_dict().tensors.values())
        return {"examples": len(self.memory), "bytes": indices + tensors}

    def state_dict(self) -> State:
        return State(facts=self.memory.to_facts())

    def load_state_dict(self, state: State) -> None:
        self.memory = BalancedMemory.from_facts(state.facts)
