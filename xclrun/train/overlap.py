"""Gradient overlap: count the parameters with a nonzero gradient both in a step and in the previous step.

Hussain et al. 2021 ("LL"), section 5, figure 5. S_t is the set of scalar parameters whose gradient at main step t is
nonzero, before a strategy edits gradients and before clipping; replay steps do not count. The sizes |S_t|,
|S_t ∩ S_{t−1}| and |S_t ∪ S_{t−1}| are recorded. Dense weights nearly always have a nonzero gradient, so embeddings
(subwords, positions, types) are counted separately. Deviation: LL's code compares only every second step.

The first step of a hop is compared with the last step of its parent hop. Therefore the set S of a hop's last step is
stored with the hop's weights. ``overlap.parquet`` has a row for each hop, step and part:

| column | meaning |
|---|---|
| hop, step | hop; main step of the hop, from 1 |
| part | ``embeddings`` or ``rest`` |
| nonzero | |S_t| |
| both, either | |S_t ∩ S_{t−1}|, |S_t ∪ S_{t−1}|; null without a previous step |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from xclrun.model.structure import is_embedding
from xclrun.store import predictions
from xclrun.store.tensors import save_tensors

if TYPE_CHECKING:
    import pyarrow as pa

PARTS = ("embeddings", "rest")
# File with a hop's counts, stored in the folders of the hop's training and evaluation.
FILE = "overlap.parquet"
# File with the set S of a hop's last step, stored in the folder of the hop's training.
LAST = "gradients.safetensors"
# Count without a previous step; `table` writes it as null.
NULL = -1


class GradientOverlap:
    """Counts the nonzero gradients of a hop's main steps; ``before`` is the parent hop's `last`, or empty."""

    def __init__(self, model: nn.Module, before: Mapping[str, Tensor]) -> None:
        self.model = model
        self.before = self._unpacked(before)
        self.steps: list[int] = []
        # One tensor per step, on the device: a row for each of `PARTS`, columns nonzero, both, either.
        self.counts: list[Tensor] = []

    def look(self, step: int) -> None:
        """Count the nonzero gradients of main step ``step``."""
        now = {name: p.grad != 0 for name, p in self.model.named_parameters() if p.grad is not None}
        sums = [[[] for _ in range(3)] for _ in PARTS]  # type: list[list[list[Tensor]]]
        for name in now.keys() | self.before.keys():
            current, previous = now.get(name), self.before.get(name)
            nonzero, both, either = sums[0 if is_embedding(name) else 1]
            if current is not None:
                nonzero.append(current.sum())
            if current is not None and previous is not None:
                both.append((current & previous).sum())
                either.append((current | previous).sum())
            else:
                # Only one of the two steps has a gradient for this parameter, so the intersection is empty.
                either += [mask.sum() for mask in (current, previous) if mask is not None]
        device = next(self.model.parameters()).device
        zero = torch.zeros((), dtype=torch.int64, device=device)
        counts = torch.stack([torch.stack([sum(terms, zero) for terms in part]) for part in sums])
        if not self.before:
            counts[:, 1:] = NULL
        self.steps.append(step)
        self.counts.append(counts)
        self.before = now

    def last(self) -> dict[str, Tensor]:
        """Return the set S of the last step: parameter name → packed bits, uint8."""
        masks = {name: mask.cpu().numpy().ravel() for name, mask in self.before.items()}
        return {name: torch.from_numpy(np.packbits(mask)) for name, mask in masks.items()}

    def _unpacked(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        parameters = dict(self.model.named_parameters())
        masks = {}
        for name, bits in packed.items():
            p = parameters[name]
            mask = np.unpackbits(bits.numpy(), count=p.numel()).astype(bool).reshape(p.shape)
            masks[name] = torch.from_numpy(mask).to(p.device)
        return masks

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        yield "steps", torch.tensor(self.steps, dtype=torch.int32)
        yield "counts", self._counts()
        for name, bits in self.last().items():
            yield f"last/{name}", bits

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.steps, self.counts = tensors["steps"].tolist(), list(tensors["counts"])
        self.before = self._unpacked({k.removeprefix("last/"): t for k, t in tensors.items() if k.startswith("last/")})

    def _counts(self) -> Tensor:
        """Return the counts of all steps, (steps, parts, 3) int64."""
        counts = [count.cpu() for count in self.counts]
        return torch.stack(counts) if counts else torch.zeros((0, len(PARTS), 3), dtype=torch.int64)

    def write(self, folder: Path) -> None:
        """Write the counts, and the last step's set S for the next hop, into a folder of the store."""
        predictions.write(folder / FILE, self.table())
        save_tensors(folder / LAST, self.last())

    def table(self) -> pa.Table:
        """Return the hop's rows without the hop number, which differs between runs."""
        import pyarrow as pa

        counts = self._counts().flatten(0, 1).numpy()
        columns = {
            "step": pa.array(np.repeat(self.steps, len(PARTS)), pa.int32()),
            "part": pa.array(PARTS * len(self.steps), pa.string()),
        }
        for i, name in enumerate(("nonzero", "both", "either")):
            columns[name] = pa.array(counts[:, i], pa.int64(), mask=counts[:, i] == NULL)
        return pa.table(columns)
