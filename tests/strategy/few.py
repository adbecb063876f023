"""Small few-shot runs, for the strategies that adapt heads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from xclrun.plan import Run
from xclrun.store.tensors import load_tensors

# Source en, target de: 9 sentences stand for its bucket. The source is learnt in one epoch.
FEW = (
    "experiment=fewshot",
    "order=list",
    "language=de",
    "shots=null",
    "bucket=null",
    "dataset.max_train=9",
    "protocol.source_trainer.epochs=1",
    "protocol.source_trainer.batch_size=4",
    "trainer.epochs=4",
    "trainer.batch_size=null",
    "trainer.lr=1e-2",
)
CLASSES = ("dataset.task=sequence_class",)


def planned(make_run: Callable[..., Run], *overrides: str, **where: str) -> Run:
    """Plan a few-shot run; of `finished`, do it too."""
    given = {text.partition("=")[0] for text in overrides}
    return make_run(*(text for text in FEW if text.partition("=")[0] not in given), *overrides, **where)


def stored(run: Run, hop: int) -> dict[str, Tensor]:
    """Return what the store holds of a hop's weights."""
    return load_tensors(run.store.path(run.stages[hop].train) / "weights.safetensors")


def changed(run: Run) -> set[str]:
    """Return the parameters that adapting changed."""
    before, after = stored(run, 1), stored(run, 2)
    return {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}


def shares_source_training(runs: Sequence[Run]) -> bool:
    """Whether runs share source training and its evaluation, and adapt each in its own way."""
    source, zero_shot = {r.stages[1].train for r in runs}, {r.stages[1].evaluation for r in runs}
    return len(source) == len(zero_shot) == 1 and len({r.stages[2].train for r in runs}) == len(runs)
