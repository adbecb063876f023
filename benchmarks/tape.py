"""Emulation of a CUDA graph without a GPU: it records the operators of a step and repeats them on the same memory.

As in a graph, a repetition does not run the recorded code: it uses the operators, numbers and memory of the recording,
and operators that wait for the device cannot be recorded. Unlike with a graph, a repetition is as slow as the
step, and recording already executes the step. Therefore the first repetition does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from benchmarks.operators import Operators, is_view


class _Writing(Operators):
    """Context manager that records operators other than views, with their arguments and results."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(function, types, args, kwargs)
        # Views need no repetition, because their memory stays in place.
        if not is_view(function):
            self.written.append((function, args, kwargs or {}, result))
        return result


class Tape:
    """Emulates `xclrun.train.graphs.CudaRecorder` without a GPU.

    Attributes:
        rehearsed, recorded, repeated: number of rehearsals, recordings and repetitions.
    """

    def __init__(self) -> None:
        self.rehearsed = self.recorded = self.repeated = 0

    def rehearse(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        self.rehearsed += 1
        return work()

    def record(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """Return a function that repeats the work, and the tensors to which it writes the results.

        Raises:
            RuntimeError: the work would wait for a GPU.
        """
        with (writing := _Writing()):
            result = work()
        if writing.waited:
            raise RuntimeError(f"operation not permitted when stream is capturing: {', '.join(writing.waited)}")
        self.recorded += 1
        done = iter([True])

        def repeat() -> None:
            self.repeated += 1
            if next(done, False):
                return
            with torch.no_grad():
                for function, args, kwargs, arguments in writing.written:
                    again = function(*args, **kwargs)
                    for was, now in zip(_tensors(arguments), _tensors(again), strict=True):
                        # An in-place operator has already written its result.
                        if was is not now:
                            was.copy_(now)

        return repeat, result


def _tensors(arguments: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
