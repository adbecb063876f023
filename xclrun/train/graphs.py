"""``trainer.cuda_graphs``: capture an optimiser step once for each batch shape, then replay it.

A step of a small encoder consists of hundreds of short kernels, and launching them one by one leaves the GPU idle. A
CUDA graph launches a whole step at once, from zeroing the gradients to Adam's update
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs). A replay repeats the same kernels on the same
memory. Therefore

- each batch is copied into the captured batch of its shape, and padding limits the number of shapes
  (`xclrun.data.batches.Encoded.even`);
- values that change between steps are read from memory: the learning rate is a tensor, and the graph reads the seed of
  the GPU's generator, which the loop sets before each step;
- decisions of the host, such as branches in Python, are made once, during the capture. Therefore only steps whose
  functions repeat themselves are captured (`Step.repeats`); other steps run kernel by kernel, on batches with the same
  padding.

A replayed step gives the same result as a step that runs kernel by kernel. So a resumed hop is bit-identical, although
the interruption changes which steps are captured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from xclrun.core.errors import RunError, first_line
from xclrun.data.batches import Batch
from xclrun.strategy import Step
from xclrun.strategy.shared.steps import Edit, Loss

# Maximum number of combinations of functions in steps of one batch shape.
FUNCTIONS = 8

# Takes an optimiser step, and returns the loss of each micro-batch (scalars).
Take = Callable[[Step], Sequence[Tensor]]


class Capturer(Protocol):
    """Captures the kernels that a function launches on a device."""

    def warm_up(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Call ``work`` without capturing it, so that lazily initialised resources exist."""

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """Capture ``work`` without running it; return (function that replays the capture, tensors with its results).

        Raises:
            RuntimeError: the work cannot be captured, for example because it synchronises with the device.
        """


class CudaCapturer:
    """Captures CUDA graphs that share a memory pool: a replay can overwrite the outputs of any earlier replay."""

    def __init__(self) -> None:
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def warm_up(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        # Use the stream of the captures, because autograd and cuBLAS allocate memory per stream.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return losses

    def capture(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            losses = work()
        return graph.replay, losses


@dataclass(frozen=True)
class CapturedStep:
    """A captured step: `replay` reads the tensors of ``batch`` and writes the micro-batches' losses to ``losses``."""

    batch: Batch
    replay: Callable[[], None]
    losses: Sequence[Tensor]


class CapturedSteps:
    """The captured steps of a hop, one per batch shape.

    Args:
        work: takes a step kernel by kernel.
        micro_batch: maximum number of sentences in a micro-batch.
    """

    def __init__(self, capturer: Capturer, work: Take, micro_batch: int) -> None:
        self.capturer, self.work, self.micro_batch = capturer, work, micro_batch
        self.warmed_up: set[tuple[Hashable, Loss | None, Edit | None]] = set()
        self.captured: dict[Hashable, CapturedStep] = {}

    def take(self, step: Step) -> Sequence[Tensor]:
        """Take a step and return the loss of each micro-batch.

        A step is captured when its batch shape and functions occur for the second time.

        Raises:
            RunError: the step cannot be captured, or its functions are new objects in each step.
        """
        key = self._shape(step.batch), step.loss, step.edit
        if key not in self.captured:
            if key not in self.warmed_up:
                self.warmed_up.add(key)
                if sum(shape == key[0] for shape, *_ in self.warmed_up) > FUNCTIONS:
                    raise RunError(
                        "trainer.cuda_graphs=true: the strategy's @repeatable functions are new in each step, so no "
                        "step is captured; mark methods, not functions inside `steps`, or use trainer.cuda_graphs=false"
                    )
                return self.capturer.warm_up(lambda: self.work(step))
            self.captured[key] = self._capture(step)
        captured = self.captured[key]
        for name, tensor in captured.batch.tensors.items():
            tensor.copy_(step.batch.tensors[name])
        captured.replay()
        # Copy the losses, because the next replay overwrites them.
        return [loss.clone() for loss in captured.losses]

    def _shape(self, batch: Batch) -> Hashable:
        """Return all properties of a batch that the host reads; batches with equal properties share a captured step."""
        shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors.items())
        return batch.task, shapes, tuple(part.whole for part in batch.split(self.micro_batch))

    def _capture(self, step: Step) -> CapturedStep:
        copy = step.batch.copied()
        try:
            replay, losses = self.capturer.capture(lambda: self.work(replace(step, batch=copy)))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RunError(
                f"trainer.cuda_graphs=true: a step could not be captured ({first_line(error)}); "
                "use trainer.cuda_graphs=false"
            ) from error
        return CapturedStep(copy, replay, losses)
