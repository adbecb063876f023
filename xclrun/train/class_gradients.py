"""Gradients of the class head at every main step: for each class, the sum over the weights of the class.

Hussain et al. 2021 ("LL"), section 3, figure 1. The gradients of main steps are recorded before a strategy edits them
and before clipping; replay steps are not recorded. ``class_gradients.parquet`` has a row for each hop, step and class:

| column | meaning |
|---|---|
| hop, step | hop; main step of the hop, from 1 |
| class | label; with several tasks ``TASK: LABEL`` |
| gradient | sum over the hidden dimension of the gradient of the class's weights; null if the head is not trained |
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

# File with a hop's gradients, stored in the folders of the hop's training and evaluation.
FILE = "class_gradients.parquet"


class ClassGradients:
    """Records the gradients of class heads at a hop's main steps."""

    def __init__(self, model: Model, targets: Sequence[Targets]) -> None:
        self.heads = []
        self.classes: list[str] = []
        for target in targets:
            name = target.task.place
            head = (model.head_of(name) if len(targets) > 1 else model.head_of("")).class_head
            if head is not None:
                self.heads.append(head)
                self.classes += [label if len(targets) == 1 else f"{name}: {label}" for label in target.labels]
        self.steps: list[int] = []
        # One (classes,) tensor per step, on the device until it is read.
        self.gradients: list[Tensor] = []

    def look(self, step: int) -> None:
        """Record the current gradients as the gradients of main step ``step``."""
        rows = []
        for head in self.heads:
            gradient = head.weight.grad
            nothing = head.weight.new_full((len(head.weight),), torch.nan)
            rows.append(nothing if gradient is None else gradient.sum(dim=1))
        self.steps.append(step)
        self.gradients.append(torch.cat(rows))

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield names and tensors for a checkpoint."""
        yield "steps", torch.tensor(self.steps, dtype=torch.int32)
        yield "gradients", self._stacked()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors that `tensors` yielded."""
        self.steps, self.gradients = tensors["steps"].tolist(), list(tensors["gradients"])

    def _stacked(self) -> Tensor:
        """Return the gradients of all steps, (steps, classes) float32."""
        rows = [row.float().cpu() for row in self.gradients]
        return torch.stack(rows) if rows else torch.zeros((0, len(self.classes)))

    def write(self, folder: Path) -> None:
        """Write the hop's rows into a folder of the store."""
        predictions.write(folder / FILE, self.table())

    def table(self) -> pa.Table:
        """Return the hop's rows without the hop number, which differs between runs."""
        import pyarrow as pa

        values = self._stacked().numpy().ravel()
        columns = {
            "step": pa.array(np.repeat(np.array(self.steps, dtype=np.int32), len(self.classes))),
            "class": pa.array(self.classes * len(self.steps), pa.string()),
            "gradient": pa.array(values, pa.float32(), mask=np.isnan(values)),
        }
        return pa.table(columns)
