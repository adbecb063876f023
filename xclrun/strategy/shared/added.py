"""Bases of strategies whose `prepare` adds parameters to the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from xclrun.core.stream import Hop, Stream
from xclrun.strategy.base import Parameters, Plan, Settings, Strategy


class AddsParameters(Strategy[Settings]):
    """Base of strategies that add parameters to a frozen encoder before hop 0, and thus share no hop with others.

    Attributes:
        hops: number of hops after hop 0, once the stream is known.
    """

    hops: int = 0

    @property
    def parameters(self) -> Parameters:
        return replace(super().parameters, encoder_frozen=True)

    def plan(self, hop: Hop) -> Plan:
        described = self.described()
        return replace(super().plan(hop), train=described, serve=described)


class PartsPerHop(AddsParameters[Settings]):
    """Base of strategies that add parameters for each hop; the number of hops is part of `described`."""

    parts_per_hop = True

    def stream(self, order: Sequence[str]) -> Stream:
        stream = super().stream(order)
        self.hops = len(stream.hops) - 1
        return stream

    def described(self) -> dict[str, Any]:
        return super().described() | {"hops": self.hops}
