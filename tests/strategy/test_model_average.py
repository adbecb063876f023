"""Averaged weights: what a hop leaves is between its beginning and the end of its training."""

from __future__ import annotations

from collections.abc import Callable

import torch

from xclrun.analysis.records import record
from xclrun.plan import Run

from .real import weights

Make = Callable[..., Run]


def test_a_hop_leaves_the_mean_of_the_weights_before_and_after_its_training(finished: Make) -> None:
    """Hop 2 trains as naive does, from the same weights: so its end is known. Hop 1 is naive's."""
    run, naive = finished("strategy=model_average", "strategy.weight=0.25"), finished()
    before, after, found = weights(naive, 1), weights(naive, 2), weights(run, 2)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, 0.75 * before[name] + 0.25 * after[name], rtol=1e-6, atol=1e-7)
    assert any(not torch.equal(found[name], before[name]) for name in found)
    # The dev scores of hop 1 are of what it left, those of later hops of what was averaged away.
    assert [record(of.directory).edited for of in (run, naive)] == [(2, 3), ()]


def test_parts_of_a_language_are_as_its_hop_left_them(finished: Make) -> None:
    expansion = "strategy.expansion=lang_spec_task"
    run, plain = finished("strategy=model_average", expansion), finished("strategy=lang_spec_task")
    for name, tensor in weights(run, 2).items():
        own = name.startswith(("intent", "tagger"))
        mean = (weights(plain, 1)[name] + weights(plain, 2)[name]) / 2
        torch.testing.assert_close(tensor, weights(plain, 2)[name] if own else mean, rtol=1e-6, atol=1e-7)
