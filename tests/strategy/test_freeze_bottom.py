"""Frozen bottom: which weights move in which hop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from xclrun.core.errors import UsageError
from xclrun.run import Run

from .real import weights

Make = Callable[..., Run]


@pytest.mark.parametrize("layers", [0, 1])
def test_embeddings_and_the_lowest_layers_stay_as_the_first_hop_left_them(layers: int, finished: Make) -> None:
    run = finished("strategy=freeze_bottom", f"strategy.layers={layers}", "model.hidden_layers=2")
    first, last = weights(run, 1), weights(run, 3)
    frozen = ("encoder.embeddings.", *(["encoder.encoder.layer.0."] if layers else []))
    unused = "encoder.pooler."
    for name in first:
        assert torch.equal(first[name], last[name]) == name.startswith((*frozen, unused)), name
    naive = finished("model.hidden_layers=2")
    assert run.stages[1].train == naive.stages[1].train
    assert len({run.stages[2].train, naive.stages[2].train}) == 2


def test_a_layer_that_the_encoder_has_not_is_refused_when_a_run_is_planned(make_run: Make) -> None:
    with pytest.raises(UsageError, match=r"strategy.layers=3: the encoder has 2 layers"):
        make_run("strategy=freeze_bottom", "strategy.layers=3", "model.hidden_layers=2")
