"""Adapting pooler and output layer: both change, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from xclrun.run import Run

from .few import CLASSES, changed, planned, stored


def test_pooler_and_output_layer_change(make_run: Callable[..., Run], do: Callable[..., Run]) -> None:
    run = do(planned(make_run, "strategy=fc_pooler", *CLASSES))
    heads = {"pooler.dense.weight", "pooler.dense.bias", "classifier.weight", "classifier.bias"}
    assert changed(run) == set(stored(run, 2)) == heads
