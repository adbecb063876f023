"""Gradient overlap: which parameters get a gradient in a step, and how many of them did in the step before.

Hussain et al. 2021 ("LL"), section 5, figure 5. S_t is the set of single parameters whose gradient at step t is not
zero: the main gradient, before a strategy changes it and before clipping; replayed steps do not count. Kept are, for
each main step, |S_t|, |S_t ∩ S_{t−1}| and |S_t ∪ S_{t−1}|, from which count and share of the overlap follow.

Dense weights nearly always have some gradient, so that the overlap counts mostly rows of subwords that both batches
have: the embeddings (subwords, positions, types) stand apart from the rest. LL's code measures every second step,
against the last measured.

The first step of a hop is compared with the last one of the hop before, whose set is kept with that hop's weights; of
the very first step both is null. ``overlap.parquet`` in a run's directory has a row for each hop, step and part:

| column | meaning |
|---|---|
| hop, step | main steps of the hop, from 1 |
| part | ``embeddings`` or ``rest`` |
| nonzero | parameters of the part with a gradient at this step |
| both, either | with one in this step and the one before; in one of the two; null without a step before |
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
# The counts of a hop, in the store's folder of its training and of its evaluation.
FILE = "overlap.parquet"
# Which parameters had a gradient in the last step of a hop, in the store's folder of its training.
LAST = "gradients.safetensors"
# What represents null among the counts.
NULL = -1


class GradientOverlap:
    """Looks at the gradients of a hop's main steps.

    Args:
        model: the model being trained.
        before: `last` after the hop before; empty: there is none.
    """

    def __init__(self, model: nn.Module, before: Mapping[str, Tensor]) -> None:
        self.model = model
        self.before = self._unpacked(before)
        self.steps: list[int] = []
        # One entry for each step: (part, nonzero | both | either), on the device until it is asked for.
        self.counts: list[Tensor] = []

    def look(self, step: int) -> None:
        """Count the gradients of a main step, as they are now."""
        now = {name: p.grad != 0 for name, p in self.model.named_parameters() if p.grad is not None}
        sums = [[[] for _ in range(3)] for _ in PARTS]  # type: list[list[list[Tensor]]]
        for name in now.keys() | self.before.keys():
            here, there = now.get(name), self.before.get(name)
            nonzero, both, either = sums[0 if is_embedding(name) else 1]
            if here is not None:
                nonzero.append(here.sum())
            if here is not None and there is not None:
                both.append((here & there).sum())
                either.append((here | there).sum())
            else:
                # A parameter that only one of the two steps trains.
                either += [one.sum() for one in (here, there) if one is not None]
        device = next(self.model.parameters()).device
        zero = torch.zeros((), dtype=torch.int64, device=device)
        counts = torch.stack([torch.stack([sum(found, zero) for found in part]) for part in sums])
        if not self.before:
            counts[:, 1:] = NULL
        self.steps.append(step)
        self.counts.append(counts)
        self.before = now

    def last(self) -> dict[str, Tensor]:
        """Return which parameters had a gradient in the last step: name → uint8, eight of them in each."""
        masks = {name: mask.cpu().numpy().ravel() for name, mask in self.before.items()}
        return {name: torch.from_numpy(np.packbits(mask)) for name, mask in masks.items()}

    def _unpacked(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        parameters = dict(self.model.named_parameters())
        found = {}
        for name, bits in packed.items():
            p = parameters[name]
            mask = np.unpackbits(bits.numpy(), count=p.numel()).astype(bool).reshape(p.shape)
            found[name] = torch.from_numpy(mask).to(p.device)
        return found

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield everything, by name, for a checkpoint."""
        yield "steps", torch.tensor(self.steps, dtype=torch.int32)
        yield "counts", self._counts()
        for name, bits in self.last().items():
            yield f"last/{name}", bits

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        self.steps, self.counts = tensors["steps"].tolist(), list(tensors["counts"])
        self.before = self._unpacked({k.removeprefix("last/"): t for k, t in tensors.items() if k.startswith("last/")})

    def _counts(self) -> Tensor:
        """Return the counts of all steps, (steps, parts, 3) int64."""
        counts = [one.cpu() for one in self.counts]
        return torch.stack(counts) if counts else torch.zeros((0, len(PARTS), 3), dtype=torch.int64)

    def write(self, folder: Path) -> None:
        """Write the counts of the hop, and its last gradients for the hop after, into a folder of the store."""
        predictions.write(folder / FILE, self.table())
        save_tensors(folder / LAST, self.last())

    def table(self) -> pa.Table:
        """Return the rows of the hop, which has no number here: it is set when a run copies them."""
        import pyarrow as pa

        counts = self._counts().flatten(0, 1).numpy()
        columns = {
            "step": pa.array(np.repeat(self.steps, len(PARTS)), pa.int32()),
            "part": pa.array(PARTS * len(self.steps), pa.string()),
        }
        for i, name in enumerate(("nonzero", "both", "either")):
            columns[name] = pa.array(counts[:, i], pa.int64(), mask=counts[:, i] == NULL)
        return pa.table(columns)
