"""``trainer.cuda_graphs``: an optimiser step that is recorded once for each shape of batches, and then repeated.

A step of a small encoder is hundreds of short operations, and a GPU that is handed them one by one mostly waits for the
next. A CUDA graph holds them all, from the zeroing of the gradients to Adam's update, and is launched as one
(https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-graphs). It repeats the same operations at the same places
in memory, so

- a batch is copied to where the recorded one lay, and shapes are few (`xclrun.data.batches.Encoded.even`);
- what else changes from step to step is in memory too: the learning rate is a tensor, and the GPU's generator, which
  the loop seeds before each step, tells the graph its seed: dropout stays a function of seed, purpose and position;
- what the host decides is decided once. A strategy says which of its steps are the same (`Strategy.repeats`); the
  others are taken one operation after the other, on batches of the same shapes, with the same kernels.

So a hop that goes on from a checkpoint takes some steps unrecorded that were recorded before, and has the same results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from xclrun.core.errors import RunError
from xclrun.data.batches import Batch

# Takes an optimiser step on a batch, and returns the losses of its parts (scalars).
Step = Callable[[Batch], Sequence[Tensor]]


class Recorder(Protocol):
    """Records what is asked of a device."""

    def rehearse(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        """Do work that will be recorded later: what is made once, at first use, is made here."""

    def record(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        """Return what repeats the work, and the tensors in which it leaves its results; nothing is done yet.

        Raises:
            RuntimeError: the work waits for the device, or does what else cannot be repeated.
        """


class CudaRecorder:
    """Records CUDA graphs; all of a hop share their memory, since nothing in it is read after the next one began."""

    def __init__(self) -> None:
        self.pool, self.stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def rehearse(self, work: Callable[[], Sequence[Tensor]]) -> Sequence[Tensor]:
        # On the stream of the recordings, as what autograd and cuBLAS keep is a stream's own.
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            found = work()
        torch.cuda.current_stream().wait_stream(self.stream)
        return found

    def record(self, work: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            found = work()
        return graph.replay, found


@dataclass(frozen=True)
class Recording:
    """A recorded step.

    Attributes:
        batch: the batch on which it works; others are copied into its tensors.
        repeat: takes the step.
        losses: of its parts, after it was taken.
    """

    batch: Batch
    repeat: Callable[[], None]
    losses: Sequence[Tensor]


class RecordedSteps:
    """The recorded steps of a hop, one for each shape of batches.

    Args:
        step: takes a step, operation by operation.
        part: most sentences of one forward pass.
    """

    def __init__(self, recorder: Recorder, step: Step, part: int) -> None:
        self.recorder, self.step, self.part = recorder, step, part
        self.rehearsed: set[Hashable] = set()
        self.recordings: dict[Hashable, Recording] = {}

    def take(self, batch: Batch) -> Sequence[Tensor]:
        """Take a step on a batch, and return the losses of its parts.

        The first step of a shape is not recorded, the second one is.

        Raises:
            RunError: the step cannot be recorded.
        """
        key = self._shape(batch)
        if key not in self.recordings:
            if key not in self.rehearsed:
                self.rehearsed.add(key)
                return self.recorder.rehearse(lambda: self.step(batch))
            self.recordings[key] = self._record(batch)
        found = self.recordings[key]
        for name, tensor in found.batch.tensors.items():
            tensor.copy_(batch.tensors[name])
        found.repeat()
        # The next step writes where this one did.
        return [loss.clone() for loss in found.losses]

    def _shape(self, batch: Batch) -> Hashable:
        """Return all that the host looks at in a batch on the way to its loss."""
        shapes = tuple((name, tuple(tensor.shape), tensor.dtype) for name, tensor in batch.tensors.items())
        return batch.task, shapes, tuple(part.whole for part in batch.split(self.part))

    def _record(self, batch: Batch) -> Recording:
        own = batch.copied()
        try:
            repeat, losses = self.recorder.record(lambda: self.step(own))
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RunError(
                f"trainer.cuda_graphs=true: a step could not be recorded ({str(error).splitlines()[0]}); "
                "use trainer.cuda_graphs=false"
            ) from error
        return Recording(own, repeat, losses)
