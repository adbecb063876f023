"""Frozen bottom: which weights move in which hop."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.conftest import some
from xclrun.plan import Run

from .real import weights

Make = Callable[..., Run]


@pytest.mark.some_cases
@pytest.mark.parametrize("layers", [0, 1])
def test_embeddings_and_the_lowest_layers_stay_as_the_first_hop_left_them(layers: int, finished: Make) -> None:
    run = finished("strategy=freeze_bottom", f"strategy.layers={layers}", "model.hidden_layers=2")
    first, last = weights(run, 1), weights(run, 3)
    frozen = ("encoder.embeddings.", *(["encoder.encoder.layer.0."] if layers else []))
    unused = "encoder.pooler."
    for name in some(first):
        assert torch.equal(first[name], last[name]) == name.startswith((*frozen, unused)), name
