"""Gradients of the class head: for each class, the sum over its weights, at every main step.

Hussain et al. 2021 ("LL"), section 3, figure 1: under a head that all keys share, the classes of other keys only get
gradients that lower their logits. Recorded is the main gradient, before a strategy edits it and before clipping;
replayed steps do not count. ``class_gradients.parquet`` in a run's directory has a row for each hop, step and class:

| column | meaning |
|---|---|
| hop, step | main steps of the hop, from 1 |
| class | label; with several tasks ``TASK: LABEL`` |
| gradient | sum over the hidden dimension of the gradient of the class's weights; null: the head is not trained |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from xclrun.data.example import Targets
from xclrun.model.network import Model
from xclrun.store import predictions

if TYPE_CHECKING:
    import pyarrow as pa

# The gradients of a hop, in the store's folder of its training and of its evaluation.
FILE = "class_gradients.parquet"


class ClassGradients:
    """Records the gradients of class heads at a hop's main steps.

    Args:
        model: the model being trained.
        targets: the labels of each task.
    """

    def __init__(self, model: Model, targets: Sequence[Targets]) -> None:
        self.heads = []
        self.classes: list[str] = []
        for of in targets:
            heads = model.heads_of(of.task.head)
            head = heads.intent if heads.intent is not None else heads.classifier
            if head is not None:
                self.heads.append(head)
                self.classes += [label if len(targets) == 1 else f"{of.task.head}: {label}" for label in of.labels]
        self.steps: list[int] = []
        # One entry for each step, (classes,), on the device until it is asked for.
        self.gradients: list[Tensor] = []

    def look(self, step: int) -> None:
        """Record the gradients of a main step, as they are now."""
        rows = []
        for head in self.heads:
            gradient = head.weight.grad
            nothing = head.weight.new_full((len(head.weight),), torch.nan)
            rows.append(nothing if gradient is None else gradient.sum(dim=1))
        self.steps.append(step)
        self.gradients.append(torch.cat(rows))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield everything, by name, for a checkpoint."""
        yield "steps", torch.tensor(self.steps, dtype=torch.int32)
        yield "gradients", self._stacked()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load what `tensors` gave."""
        self.steps, self.gradients = tensors["steps"].tolist(), list(tensors["gradients"])

    def _stacked(self) -> Tensor:
        """Return the gradients of all steps, (steps, classes) float32."""
        rows = [row.float().cpu() for row in self.gradients]
        return torch.stack(rows) if rows else torch.zeros((0, len(self.classes)))

    def write(self, folder: Path) -> None:
        """Write the rows of the hop into a folder of the store."""
        predictions.write(folder / FILE, self.table())

    def table(self) -> pa.Table:
        """Return the rows of the hop; its number is set when a run copies them."""
        import pyarrow as pa

        values = self._stacked().numpy().ravel()
        columns = {
            "step": pa.array(np.repeat(np.array(self.steps, dtype=np.int32), len(self.classes))),
            "class": pa.array(self.classes * len(self.steps), pa.string()),
            "gradient": pa.array(values, pa.float32(), mask=np.isnan(values)),
        }
        return pa.table(columns)
