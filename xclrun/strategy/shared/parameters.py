"""Parameter counts of a strategy's finished model, as in Table 7 of the CCL paper.

A shared parameter counts once. A language-specific parameter counts once for every language of the stream. Counting
needs only the sizes of the parameters; it needs neither torch nor a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from xclrun.core.stream import Stream
from xclrun.model.structure import EMBEDDING, LAYER
from xclrun.strategy.base import Strategy, adds_parameters

if TYPE_CHECKING:
    from torch import nn

# Parameter name → [number of values, whether it can be trained].
Sizes = Mapping[str, Sequence[int]]

# Bytes per value: weights are stored in fp32, whatever the precision of training.
BYTES = 4

# Pattern of a parameter's name → (name of the part, group of parts); the first matching pattern counts.
PLACES = {
    r"^prompts\.": ("prompts", "body"),
    r"adapter|\.loras\.|\.lora_[AB]\.|prefix_tuning\.|shared_parameters\.": ("adapters", "body"),
    rf"^{EMBEDDING.pattern}": ("embeddings", "body"),
    rf"^{LAYER.pattern}": ("layer", "body"),
    r"^encoder\.pooler\.": ("pooler", "body"),
    r"^encoder\.": ("encoder, other", "body"),
    r"^(?:tasks\.[^.]+\.)?intent\.": ("intent head", "heads"),
    r"^(?:tasks\.[^.]+\.)?pooler\.": ("pooler", "heads"),
    r"^(?:tasks\.[^.]+\.)?classifier\.": ("class head", "heads"),
    r"^(?:tasks\.[^.]+\.)?tagger\.": ("tag head", "heads"),
    r"^(?:tasks\.[^.]+\.)?span\.": ("span head", "heads"),
    r"": ("other head", "heads"),
}


@dataclass(frozen=True)
class Part:
    """One part of the model.

    Attributes:
        name: label, for example ``embeddings``, ``layers 1-9``, ``tag head``.
        of: the part's group: ``body`` or ``heads``.
        specific: whether every language has its own copy.
        trained: numbers of the hops that train the part, from 1.
        parameters: number of values in one copy.
        copies: number of languages if specific, else 1.
    """

    name: str
    of: str
    specific: bool
    trained: tuple[int, ...]
    parameters: int
    copies: int


@dataclass(frozen=True)
class Count:
    """The parameters of a strategy's model; ``hops`` does not count hop 0."""

    parts: tuple[Part, ...]
    languages: int
    hops: int

    @property
    def total(self) -> int:
        """Number of parameters after the last hop, with the copies of all languages."""
        return sum(part.parameters * part.copies for part in self.parts)

    @property
    def by_hop(self) -> tuple[int, ...]:
        """Number of parameters that each hop trains."""
        return tuple(sum(p.parameters for p in self.parts if hop in p.trained) for hop in range(1, self.hops + 1))

    @property
    def trained(self) -> int:
        """Number of parameters that a hop trains: the rounded mean over hops."""
        return round(sum(self.by_hop) / self.hops)

    @property
    def learned(self) -> int:
        """Number of parameters that at least one hop trains, with all copies; the paper reports this number."""
        return sum(part.parameters * part.copies for part in self.parts if part.trained)

    @property
    def stored(self) -> int:
        """Bytes of all parameters, in fp32."""
        return BYTES * self.total

    def to_json(self) -> dict[str, Any]:
        """Return the counts for ``--json`` and the manifest."""
        counts = {"total": self.total, "trained": self.trained, "learnt": self.learned, "stored_bytes": self.stored}
        shape = {"trained_by_hop": list(self.by_hop), "languages": self.languages}
        return {**counts, **shape, "parts": [{**asdict(part), "trained": list(part.trained)} for part in self.parts]}


def sizes(model: nn.Module) -> dict[str, list[int]]:
    """Return the sizes of a model's parameters as JSON values: name → [number of values, 1 if trainable]."""
    return {name: [p.numel(), int(p.requires_grad)] for name, p in model.named_parameters()}


def keeps_parameters(strategy: Strategy[Any]) -> bool:
    """Return whether `Strategy.prepare` certainly neither adds nor freezes parameters.

    A packaged strategy freezes parameters only if it also adds some. A plug-in's `prepare` can do either without the
    other, so the result is False for a plug-in that overrides `prepare`.
    """
    both = (strategy, getattr(strategy, "expansion", strategy))
    packaged = all(type(part).prepare.__module__.startswith("xclrun.strategy.") for part in both)
    return packaged and not adds_parameters(strategy)


def count(sizes: Sizes, strategy: Strategy[Any], stream: Stream) -> Count:
    """Count the parameters of a strategy on a stream, given the `sizes` of its prepared model."""
    languages = len(stream.languages)
    numbers: dict[tuple[str, str, int, bool, tuple[int, ...]], int] = {}
    for name, (n, trainable) in sizes.items():
        trained = tuple(hop.index for hop in stream.hops[1:] if trainable and strategy.parameters.trains(name, hop))
        # Frozen parameters are equal in all languages, so they count once.
        key = (*_place(name), strategy.parameters.language_specific(name) and bool(trained), trained)
        numbers[key] = numbers.get(key, 0) + n
    parts = []
    # Adjacent equal layers form one part. Adapters are sorted last; otherwise, they would separate equal layers.
    ordered = sorted(numbers.items(), key=lambda item: item[0][0] == "adapters")
    runs = groupby(ordered, lambda item: (*item[0][:2], *item[0][3:]))
    for (place, group, specific, trained), entries in runs:
        layers = list(entries)
        first, last = layers[0][0][2], layers[-1][0][2]
        name = place if not first else f"layer {first}" if first == last else f"layers {first}-{last}"
        parts.append(Part(name, group, specific, trained, sum(n for _, n in layers), languages if specific else 1))
    return Count(tuple(parts), languages, len(stream.hops) - 1)


def _place(name: str) -> tuple[str, str, int]:
    """Return part, group, and the number of the layer (from 1; 0 outside layers)."""
    for pattern, (place, group) in PLACES.items():
        if match := re.search(pattern, name):
            return place, group, int(match[1]) + 1 if match.groups() else 0
    raise AssertionError("the last pattern matches every name")
