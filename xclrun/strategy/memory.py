"""The replay memory: which training sentences of the languages seen so far are kept.

A memory holds indices into the training splits, never copies of sentences. Its size is a total; every seen language
has an equal share (CCL, section 3.2). Random numbers are arguments.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class BalancedMemory:
    """A memory of ``size`` sentences in all, shared equally by the languages seen, each share a uniform random sample.

    When a language joins, the shares of the others shrink: a prefix of a uniformly permuted sample is again a uniform
    sample, so dropping from the end is what a reservoir with a smaller bound would have kept.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.kept: dict[str, np.ndarray] = {}

    def add(self, language: str, available: int, generator: np.random.Generator) -> None:
        """Take in a language with ``available`` training sentences, and shrink the others to the new share."""
        shares = self.shares([*self.kept, language])
        self.kept = {name: indices[: shares[name]] for name, indices in self.kept.items()}
        self.kept[language] = generator.permutation(available)[: shares[language]]

    def shares(self, languages: list[str]) -> dict[str, int]:
        """Return language → number of sentences it may keep; what does not divide evenly goes to the earliest."""
        share, rest = divmod(self.size, len(languages))
        return {language: share + (i < rest) for i, language in enumerate(languages)}

    def draw(self, language: str, count: int, generator: np.random.Generator) -> np.ndarray:
        """Return ``count`` distinct indices of ``language`` at random, or all where it has fewer."""
        kept = self.kept[language]
        return generator.choice(kept, size=min(count, len(kept)), replace=False)

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
