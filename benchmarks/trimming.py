"""Ratio of times of a training step: trimmed vocabulary / mBERT's full vocabulary.

The model has mBERT's size and random weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.timing import ratio
from xclrun.command.plan import plan_runs
from xclrun.data.batches import Batch
from xclrun.model.network import build
from xclrun.train.encodings import encodings
from xclrun.train.optimize import make_optimizer

# Subwords in mBERT's vocabulary.
WHOLE = 119_547


class _Sized:
    """Stands in for a tokenizer that has mBERT's vocabulary size."""

    def __init__(self, tokenizer: Any) -> None:
        self.pad_token_id = tokenizer.pad_token_id

    def __len__(self) -> int:
        return WHOLE


def trimmed_over_whole(overrides: Sequence[str], outputs: Path) -> dict[str, Any]:
    """Return the ratio of step times on one batch of the data, and the size of the trimmed vocabulary.

    Args:
        overrides: a dataset, and an encoder of mBERT's shape that is trained from scratch.
    """
    [run] = plan_runs([*overrides, "tracking=none", f"paths.outputs={outputs}"])
    result, config = encodings(run), replace(run.config.model, vocab_size=WHOLE)
    batch = result.splits[run.stream.languages[0], "train"].batch(range(run.config.trainer.batch_size))
    pieces = np.unique(np.concatenate([split.pieces.values for split in result.splits.values()]))
    renumbered = replace(batch, input_ids=torch.from_numpy(np.searchsorted(pieces, batch.input_ids.numpy())))

    def step(stored: np.ndarray | None, batch: Batch) -> Callable[[], None]:
        classes, tags = len(run.dataset.labels), len(run.dataset.tags)
        model = build(config, _Sized(result.tokenizer), classes, tags, 1, stored)
        optimizer = make_optimizer(model.parameters(), run.config.trainer)

        def once() -> None:
            optimizer.zero_grad(set_to_none=True)
            model.loss(batch).backward()
            optimizer.step()

        return once

    return {**ratio(step(pieces, renumbered), step(None, batch)), "kept": len(pieces), "whole": WHOLE}
