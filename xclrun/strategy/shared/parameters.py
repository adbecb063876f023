"""How many parameters a strategy's finished model has: the counts of the CCL paper's Table 7.

A shared parameter counts once, a language-specific one once for every language of the stream. Needs the sizes of the
model's parameters alone, so it neither imports torch nor builds anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from xclrun.core.stream import Stream
from xclrun.model.structure import EMBEDDING, LAYER
from xclrun.strategy.base import Strategy

if TYPE_CHECKING:
    from torch import nn

# Name of a parameter → how many numbers it has, and whether it may be trained.
Sizes = Mapping[str, Sequence[int]]

# Bytes of a number: weights are kept in fp32 whatever the precision of training.
BYTES = 4

# Substring of a parameter's name → its part of the model. The first match counts.
PLACES = {
    r"adapter|\.loras\.|prefix_tuning\.|shared_parameters\.": ("adapters", "body"),
    rf"^{EMBEDDING.pattern}": ("embeddings", "body"),
    rf"^{LAYER.pattern}": ("layer", "body"),
    r"^encoder\.pooler\.": ("pooler", "body"),
    r"^encoder\.": ("encoder, other", "body"),
    r"^(?:tasks\.[^.]+\.)?intent\.": ("intent head", "heads"),
    r"^(?:tasks\.[^.]+\.)?pooler\.": ("pooler", "heads"),
    r"^(?:tasks\.[^.]+\.)?classifier\.": ("class head", "heads"),
    r"^(?:tasks\.[^.]+\.)?tagger\.": ("tag head", "heads"),
    r"^(?:tasks\.[^.]+\.)?span\.": ("span head", "heads"),
    r"": ("other", "other"),
}


@dataclass(frozen=True)
class Part:
    """One part of the model.

    Attributes:
        name: for a person: ``embeddings``, ``layers 1-9``, ``tag head``.
        of: ``body``, ``heads`` or ``other``.
        specific: whether every language has its own.
        trained: the hops that train it, from 1.
        parameters: of one copy.
        copies: number of languages if it is specific, else 1.
    """

    name: str
    of: str
    specific: bool
    trained: tuple[int, ...]
    parameters: int
    copies: int


@dataclass(frozen=True)
class Count:
    """The parameters of a strategy's model.

    Attributes:
        parts: the parts of the model.
        languages: number of languages of the stream.
        hops: number of its hops, without that before any fine-tuning.
    """

    parts: tuple[Part, ...]
    languages: int
    hops: int

    @property
    def total(self) -> int:
        """All parameters that serve the languages of the stream after its last hop."""
        return sum(part.parameters * part.copies for part in self.parts)

    @property
    def by_hop(self) -> tuple[int, ...]:
        """Parameters that each hop trains."""
        return tuple(sum(p.parameters for p in self.parts if hop in p.trained) for hop in range(1, self.hops + 1))

    @property
    def trained(self) -> int:
        """Parameters that a hop trains: the mean over hops, to the next whole number."""
        return round(sum(self.by_hop) / self.hops)

    @property
    def learnt(self) -> int:
        """Parameters that are trained in some hop: all but what is frozen throughout. What the paper counts."""
        return sum(part.parameters * part.copies for part in self.parts if part.trained)

    @property
    def stored(self) -> int:
        """Bytes of all parameters, in fp32."""
        return BYTES * self.total

    @classmethod
    def from_json(cls, counts: Mapping[str, Any]) -> Count:
        """Return the count that `to_json` gave."""
        parts = (Part(**{**part, "trained": tuple(part["trained"])}) for part in counts["parts"])
        return cls(tuple(parts), counts["languages"], len(counts["trained_by_hop"]))

    def to_json(self) -> dict[str, Any]:
        """Return the counts for ``--json`` and for the manifest."""
        counts = {"total": self.total, "trained": self.trained, "learnt": self.learnt, "stored_bytes": self.stored}
        shape = {"trained_by_hop": list(self.by_hop), "languages": self.languages}
        return {**counts, **shape, "parts": [{**asdict(part), "trained": list(part.trained)} for part in self.parts]}


def sizes(model: nn.Module) -> dict[str, list[int]]:
    """Return the sizes of a model's parameters, JSON-able: name → [numbers, 1 where it may be trained]."""
    return {name: [p.numel(), int(p.requires_grad)] for name, p in model.named_parameters()}


def keeps_parameters(strategy: Strategy[Any]) -> bool:
    """Return whether `Strategy.prepare` is known to add and freeze no parameters: those of the encoder's shape are all.

    Of the package's strategies only language adapters do either. Nothing is known of a plug-in's own `prepare`.
    """
    both = (strategy, getattr(strategy, "expansion", strategy))
    packaged = all(type(of).prepare.__module__.startswith("xclrun.strategy.") for of in both)
    return packaged and strategy.adapters is None


def count(sizes: Sizes, strategy: Strategy[Any], stream: Stream) -> Count:
    """Return the counts of a strategy on a stream.

    Args:
        sizes: of the parameters of one active set, as the strategy prepared it (see `sizes`).
    """
    languages = len(stream.languages)
    numbers: dict[tuple[str, str, int, bool, tuple[int, ...]], int] = {}
    for name, (n, may_be) in sizes.items():
        trained = tuple(hop.index for hop in stream.hops[1:] if may_be and strategy.trains(name, hop))
        # Parameters that are never trained need no copies.
        key = (*_place(name), strategy.language_specific(name) and bool(trained), trained)
        numbers[key] = numbers.get(key, 0) + n
    parts = []
    # Layers next to each other that agree are one part; adapters, which lie inside layers, come last.
    ordered = sorted(numbers.items(), key=lambda item: item[0][0] == "adapters")
    runs = groupby(ordered, lambda item: (*item[0][:2], *item[0][3:]))
    for (place, of, specific, trained), entries in runs:
        them = list(entries)
        first, last = them[0][0][2], them[-1][0][2]
        name = place if not first else f"layer {first}" if first == last else f"layers {first}-{last}"
        parts.append(Part(name, of, specific, trained, sum(n for _, n in them), languages if specific else 1))
    return Count(tuple(parts), languages, len(stream.hops) - 1)


def _place(name: str) -> tuple[str, str, int]:
    """Return part, what it is a part of, and the number of the layer (from 1; 0 outside of layers)."""
    for pattern, (place, of) in PLACES.items():
        if found := re.search(pattern, name):
            return place, of, int(found[1]) + 1 if found.groups() else 0
    raise AssertionError("the last pattern fits all")
