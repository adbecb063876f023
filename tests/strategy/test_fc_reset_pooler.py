"""Adapting from a fresh pooler or output layer: what starts anew, and from where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xclrun.run import Run
from xclrun.strategy import Context
from xclrun.train.listen import Listener
from xclrun.train.making import Maker
from xclrun.train.stop import StopFlag

from .few import CLASSES, planned

POOLER, CLASSIFIER = {"pooler.dense.weight", "pooler.dense.bias"}, {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize(
    ("reset", "fresh"), [("pooler", POOLER), ("classifier", CLASSIFIER), ("both", POOLER | CLASSIFIER)]
)
def test_what_starts_anew(
    reset: str, fresh: set[str], make_run: Callable[..., Run], threads: None, tmp_path: Any
) -> None:
    run = planned(make_run, "strategy=fc_reset_pooler", f"strategy.reset={reset}", *CLASSES)
    maker = Maker(run, Listener(), StopFlag())
    context: Context = maker._context(run.stream.hops[2])
    before = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    maker.strategy.begin_hop(maker._context(run.stream.hops[1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in context.model.state_dict().items())
    state = torch.random.get_rng_state()
    maker.strategy.begin_hop(context)
    after = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    assert {name for name in after if not torch.equal(after[name], before[name])} == fresh - {"pooler.dense.bias"}
    assert torch.equal(state, torch.random.get_rng_state())
    assert {name for name, p in context.model.named_parameters() if p.requires_grad} == POOLER | CLASSIFIER
    # As BERT is initialised: normal with its range, without bias. Anew it is the same.
    if reset != "classifier":
        assert after["pooler.dense.weight"].std().item() == pytest.approx(0.02, rel=0.2)
        assert not after["pooler.dense.bias"].any()
    maker.strategy.begin_hop(context)
    assert all(torch.equal(after[name], tensor) for name, tensor in context.model.state_dict().items())
