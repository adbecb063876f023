"""Adapting from a fresh pooler or output layer, linear or cosine: what starts anew, and from where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xclrun.run import Run
from xclrun.strategy import Context

from .few import CLASSES, planned
from .real import graph

POOLER, CLASSIFIER = {"pooler.dense.weight", "pooler.dense.bias"}, {"classifier.weight", "classifier.bias"}


@pytest.mark.parametrize(
    ("given", "fresh", "trained"),
    [
        (("fc_reset_pooler", ""), CLASSIFIER, POOLER | CLASSIFIER),
        (("fc_reset_pooler", "reset=pooler"), POOLER, POOLER | CLASSIFIER),
        (("fc_reset_pooler", "reset=both"), POOLER | CLASSIFIER, POOLER | CLASSIFIER),
        (("cos_pooler", "alpha=4"), CLASSIFIER, POOLER | {"classifier.weight"}),
    ],
    ids=["reset=classifier", "reset=pooler", "reset=both", "cos_pooler alpha=4"],
)
def test_what_starts_anew(
    given: tuple[str, str], fresh: set[str], trained: set[str], make_run: Callable[..., Run], threads: None
) -> None:
    name, setting = given
    run = planned(make_run, f"strategy={name}", *([f"strategy.{setting}"] if setting else []), *CLASSES)
    stages = graph(run)
    stages._need_features(run.stream.hops[2], [(run.stream.hops[2].train[0], "train")])
    context: Context = stages.bench.context(run.stream.hops[2])
    before = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    stages.strategy.begin_hop(stages.bench.context(run.stream.hops[1]))
    assert all(torch.equal(before[name], tensor) for name, tensor in context.model.state_dict().items())
    state = torch.random.get_rng_state()
    stages.strategy.begin_hop(context)
    after = {name: tensor.clone() for name, tensor in context.model.state_dict().items()}
    assert {name for name in after if not torch.equal(after[name], before[name])} == fresh - {"pooler.dense.bias"}
    assert torch.equal(state, torch.random.get_rng_state())
    assert {name for name, p in context.model.named_parameters() if p.requires_grad} == trained
    # As BERT is initialised: normal with its range, without bias. Anew it is the same.
    if "pooler.dense.bias" in fresh:
        assert after["pooler.dense.weight"].std().item() == pytest.approx(0.02, rel=0.2)
        assert not after["pooler.dense.bias"].any()
    stages.strategy.begin_hop(context)
    assert all(torch.equal(after[name], tensor) for name, tensor in context.model.state_dict().items())
    if name == "cos_pooler":
        # Its logits are cosines, α times: those of the vectors of the classes themselves are α.
        head: Any = context.model.classifier
        assert head(3 * head.weight).diagonal().tolist() == pytest.approx([4.0] * len(head.weight))
