"""``trainer.cuda_graphs``: optimiser steps that are recorded once per batch shape, then replayed.

A step of a small encoder consists of hundreds of short kernels, and launching them one by one leaves the GPU idle. A
CUDA graph launches a whole step at once, from zeroing the gradients to Adam's update
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs). It repeats the same kernels on the same memory, so

- each batch is copied into the recorded batch of its shape, and padding limits the number of shapes
  (`xclrun.data.batches.Encoded.even`);
- values that change between steps are read from memory: the learning rate is a tensor, and the graph reads the seed of
  the GPU's generator, which the loop sets before each step;
- the host makes its decisions once, at recording. `Strategy.capturable` returns whether a step can be recorded and
  replayed; other steps run kernel by kernel, on batches with the same padding.

A recorded step has the same result as a step taken kernel by kernel. So a resumed hop is bit-identical, although it
records other steps than the interrupted hop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from xclrun.core.errors import RunError
from xclrun.data.batches import Batch

# Takes an optimiser step on a batch, and returns the loss of each micro-batch (scalars).
Step = Callable[[Batch], Sequence[Tensor]]


class Recorder(Protocol):
    """Records the work of a device."""

    def rehearse(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Do the work once without recording it, so that lazily initialised resources exist."""

    def record(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """Record work without doing it; return a function that replays it, and its output tensors.

        Raises:
            RuntimeError: the work cannot be recorded, for example because it synchronises with the device.
        """


class CudaRecorder:
    """Records CUDA graphs in one memory pool; a step may overwrite the outputs of the previous one."""

    def __init__(self) -> None:
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def rehearse(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        # On the recording stream, because autograd and cuBLAS allocate per stream.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            losses = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return losses

    def record(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            losses = work()
        return graph.replay, losses


@dataclass(frozen=True)
class Recording:
    """A recorded step: it reads the tensors of ``batch`` and writes the loss of each micro-batch to ``losses``."""

    batch: Batch
    repeat: Callable[[], None]
    losses: Sequence[Tensor]


class RecordedSteps:
    """The recorded steps of a hop, one per batch shape.

    Args:
        step: takes a step kernel by kernel.
        part: maximum number of sentences in a micro-batch.
    """

    def __init__(self, recorder: Recorder, step: Step, part: int) -> None:
        self.recorder, self.step, self.part = recorder, step, part
        self.rehearsed: set[Hashable] = set()
        self.recordings: dict[Hashable, Recording] = {}

    def take(self, batch: Batch) -> Sequence[Tensor]:
        """Take a step on a batch and return the loss of each micro-batch.

        A step is recorded when its batch shape occurs for the second time.

        Raises:
            RunError: the step cannot be recorded.
        """
        key = self._shape(batch)
        if key not in self.recordings:
            if key not in self.rehearsed:
                self.rehearsed.add(key)
                return self.recorder.rehearse(lambda: self.step(batch))
            self.recordings[key] = self._record(batch)
        recording = self.recordings[key]
        for name, tensor in recording.batch.tensors.items():
            tensor.copy_(batch.tensors[name])
        recording.repeat()
        # The next step overwrites them.
        return [loss.clone() for loss in recording.losses]

    def _shape(self, batch: Batch) -> Hashable:
        """Return the key of a batch's recording: all its properties that the host reads to compute the loss."""
        shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors.items())
        return batch.task, shapes, tuple(part.whole for part in batch.split(self.part))

    def _record(self, batch: Batch) -> Recording:
        copy = batch.copied()
        try:
            repeat, losses = self.recorder.record(lambda: self.step(copy))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RunError(
                f"trainer.cuda_graphs=true: a step could not be recorded ({str(error).splitlines()[0]}); "
                "use trainer.cuda_graphs=false"
            ) from error
        return Recording(copy, repeat, losses)
