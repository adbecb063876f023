"""Compute the disk space of a training before it runs, from the shape of its model."""

from __future__ import annotations

from typing import Any

from xclrun.config.schema import FrozenPrecision, OptimizerState
from xclrun.core.errors import UsageError
from xclrun.core.identity import hands_on
from xclrun.core.stream import Hop
from xclrun.model.shape import sizes_of
from xclrun.plan.run import Run

# Bytes of a parameter, and of its two moment estimates (True: with an 8-bit optimizer).
FP32, BF16 = 4, 2
MOMENTS = {False: 8, True: 2}


def open_vocabulary(run: Run) -> bool:
    """Whether the data determine the size of the vocabulary; until then, `parameters` counts the largest size."""
    return run.config.model.trim_vocabulary or run.config.model.from_scratch


def parameters(run: Run) -> tuple[int, int] | None:
    """Return the numbers of parameters of the encoder and of the heads; None if the encoder's files are missing.

    Parameters that a strategy adds do not count.
    """
    config, heads = run.config.model, run.heads
    sizes: Any
    try:
        sizes = sizes_of(config, heads, None)
        if sizes is None:
            from xclrun.model.network import skeleton
            from xclrun.strategy.shared.parameters import sizes as sizes_of_model

            first, several = heads[0], heads if len(heads) > 1 else ()
            sizes = sizes_of_model(skeleton(config, first.classes, first.tags, None, first.task, several))
    except (UsageError, OSError):
        return None
    encoder = sum(number for name, (number, _) in sizes.items() if name.startswith("encoder."))
    return encoder, sum(number for number, _ in sizes.values()) - encoder


def stored_bytes(run: Run, hop: Hop, encoder: int, heads: int) -> int:
    """Return the bytes of the weights and optimizer states that a hop stores, given the numbers of parameters."""
    strategy, trainer = run.strategy(), run.trainer(hop)
    of_encoder = BF16 if run.config.model.frozen_precision is FrozenPrecision.bf16 else FP32
    stored = FP32 * heads + (0 if run.plan(hop).still else of_encoder * encoder)
    if trainer.optimizer_state is OptimizerState.kept and hands_on(hop, run.stream):
        frozen = strategy.parameters.encoder_frozen
        stored += MOMENTS[trainer.optimizer.eight_bit] * (heads if frozen else heads + encoder)
    return stored
