"""What a strategy is given, without a model: contexts that note which batches are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from xclrun.core.stream import Hop, Stream, sequence
from xclrun.strategy import Context


class Sized:
    """Stands for a language's encoded training split, of which only the size matters."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


@dataclass
class NotingContext(Context):
    """A context whose batches are (language, indices), and are noted in ``asked``."""

    asked: list[tuple[str, np.ndarray]] = field(default_factory=list)

    def batch(self, language: str, indices: np.ndarray) -> Any:
        self.asked.append((language, indices))
        return (language, indices)


@pytest.fixture
def context() -> Callable[..., NotingContext]:
    """Make the context of a hop: ``context(2, {"en": 100, "de": 50}, batch_size=8, seed=1)``."""

    def make(index: int, sizes: dict[str, int], batch_size: int = 4, seed: int = 1) -> NotingContext:
        stream: Stream = sequence(tuple(sizes))
        hop: Hop = stream.hops[index]
        train: Any = {language: Sized(size) for language, size in sizes.items()}
        nothing: Any = None
        return NotingContext(nothing, hop, stream, train, nothing, seed, batch_size)

    return make


@pytest.fixture
def learn(context: Callable[..., NotingContext]) -> Callable[..., Any]:
    """End the first hops of a stream, without training: ``learn(strategy, sizes, hops)``."""

    def run(strategy: Any, sizes: dict[str, int], hops: Sequence[int] | None = None, seed: int = 1) -> Any:
        for index in hops or range(1, len(sizes) + 1):
            strategy.end_hop(context(index, sizes, seed=seed))
        return strategy

    return run
