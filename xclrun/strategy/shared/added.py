"""Bases of strategies whose `prepare` adds parameters to the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Settings, Strategy

if TYPE_CHECKING:
    from xclrun.model.shape import Dimensions


class AddsParameters(Strategy[Settings]):
    """Base of strategies that add parameters before hop 0, and therefore share no hop with other strategies.

    Attributes:
        frozen: whether the encoder is frozen.
        hops: number of hops after hop 0, once the stream is known.
    """

    frozen: bool = True
    hops: int = 0

    def signature(self, hop: Hop) -> dict[str, Any]:
        return self.described()

    def serving_signature(self, hop: Hop) -> dict[str, Any]:
        return self.described()

    def added(self, encoder: Dimensions) -> Mapping[str, int]:
        """Return the estimated sizes of the added parameters: name → number of values."""
        raise NotImplementedError

    def prepared(self, sizes: Mapping[str, list[int]], encoder: Dimensions) -> Mapping[str, list[int]]:
        body = {
            name: [number, int(trained and not (self.frozen and name.startswith("encoder.")))]
            for name, (number, trained) in sizes.items()
        }
        return {**body, **{name: [number, 1] for name, number in self.added(encoder).items()}}


class PartsPerHop(AddsParameters[Settings]):
    """Base of strategies that add parameters for each hop; the number of hops is part of their signatures."""

    parts_per_hop = True

    def stream(self, order: Sequence[str]) -> Stream:
        stream = super().stream(order)
        self.hops = len(stream.hops) - 1
        return stream

    def described(self) -> dict[str, Any]:
        return super().described() | {"hops": self.hops}
