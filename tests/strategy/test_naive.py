"""Naive fine-tuning: the base of all strategies, which adds nothing."""

from typing import Any

import pytest
import torch

from xclrun.config.schema import StrategyConfig
from xclrun.strategy import State
from xclrun.strategy.naive import Naive


@pytest.fixture
def naive() -> Naive:
    return Naive(StrategyConfig("naive"))


def test_a_step_is_the_main_batch_alone(naive: Naive, context: Any) -> None:
    main: Any = object()
    assert [list(naive.replay(step, main, context(2, {"en": 5, "de": 5}))) for step in (1, 2)] == [[main], [main]]


def test_the_loss_is_the_model_s(naive: Naive, context: Any) -> None:
    given = context(1, {"en": 5})
    batch: Any = object()

    class Model:
        def loss(self, asked: Any) -> torch.Tensor:
            assert asked is batch
            return torch.tensor(1.5)

    given.model = Model()
    assert naive.loss(batch, given).item() == 1.5


def test_nothing_is_kept_and_nothing_signed(naive: Naive, context: Any) -> None:
    naive.begin_hop(context(1, {"en": 5}))
    naive.edit_gradients(context(1, {"en": 5}))
    naive.end_hop(context(1, {"en": 5}))
    naive.for_language("en", ["en"])
    assert naive.state_dict() == State()
    for hop in naive.stream(("en", "de")).hops:
        assert (naive.signature(hop), naive.state_signature(hop), naive.serving_signature(hop)) == ({}, None, {})
