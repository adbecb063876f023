"""Emulation of a CUDA graph without a GPU: it captures the operators of a step and replays them on the same memory.

As with a CUDA graph, a replay does not run the step's Python code: it uses the captured operators, numbers and memory.
Operators that wait for the device cannot be captured. Unlike with a CUDA graph, a replay is as slow as the step, and
the capture already executes the step. Therefore the first replay does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.operators import Operators, is_view


class _Writing(Operators):
    """Context manager that captures operators other than views, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(function, types, args, kwargs)
        # Views need no replay, because their memory stays in place.
        if not is_view(function):
            self.written.append((function, args, kwargs or {}, result))
        return result


class Tape:
    """Emulates `xclrun.train.graphs.CudaCapturer` without a GPU.

    Attributes:
        warmed_up, captured, replayed: number of calls of `warm_up`, of `capture`, and of replays.
    """

    def __init__(self) -> None:
        self.warmed_up = self.captured = self.replayed = 0

    def warm_up(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        self.warmed_up += 1
        return work()

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """Return a function that replays the work, and the tensors to which it writes the results.

        Raises:
            RuntimeError: the work would wait for a GPU.
        """
        with (writing := _Writing()):
            result = work()
        if writing.waited:
            raise RuntimeError(f"operation not permitted when stream is capturing: {', '.join(writing.waited)}")
        self.captured += 1
        done = iter([True])

        def replay() -> None:
            self.replayed += 1
            if next(done, False):
                return
            with torch.no_grad():
                for function, args, kwargs, arguments in writing.written:
                    again = function(*args, **kwargs)
                    for was, now in zip(_tensors(arguments), _tensors(again), strict=True):
                        # An in-place operator has already written its result.
                        if was is not now:
                            was.copy_(now)

        return replay, result


def _tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
