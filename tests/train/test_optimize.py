"""The optimiser is the one asked for, and its state survives being taken apart."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from xclrun.config.schema import Optimizer, Schedule, TrainerConfig
from xclrun.train.optimize import load_optimizer_state, lr_factor, make_optimizer, optimizer_state, set_lr


def config(**changes: Any) -> TrainerConfig:
    return TrainerConfig(**{"lr": 0.1, "betas": (0.8, 0.95), "eps": 1e-3, **changes})


def test_adam_by_its_formula() -> None:
    """Kingma & Ba 2015, algorithm 1, three steps on one number; here decay is a term of the gradient."""
    value = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = make_optimizer([value], config(weight_decay=0.5))
    x, m, v = 2.0, 0.0, 0.0
    for t, slope in enumerate((1.0, -3.0, 0.5), start=1):
        value.grad = torch.tensor([slope])
        optimizer.step()
        g = slope + 0.5 * x
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        x -= 0.1 * (m / (1 - 0.8**t)) / (math.sqrt(v / (1 - 0.95**t)) + 1e-3)
        assert value.item() == pytest.approx(x, rel=1e-5)


def test_adamw_decays_apart_from_the_gradient() -> None:
    """Loshchilov & Hutter 2019, algorithm 2: without a gradient only the decay is left."""
    value = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = make_optimizer([value], config(optimizer=Optimizer.adamw, weight_decay=0.5))
    value.grad = torch.zeros(1)
    optimizer.step()
    assert value.item() == pytest.approx(2.0 * (1 - 0.1 * 0.5), rel=1e-5)


def test_frozen_parameters_are_left_out() -> None:
    free, frozen = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(3), requires_grad=False)
    groups = make_optimizer([free, frozen], config()).param_groups
    assert [p.shape for group in groups for p in group["params"]] == [(2,)]


@pytest.mark.parametrize("kind", list(Optimizer))
def test_a_state_taken_apart_and_put_together_goes_on_alike(kind: Optimizer) -> None:
    def step(optimizer: torch.optim.Optimizer, weights: torch.nn.ParameterList, i: int) -> None:
        for p in (weights[0], weights[2]):
            p.grad = torch.sin(torch.arange(len(p)) + i)
        set_lr(optimizer, 0.1 / (1 + i))
        optimizer.step()

    # The second never has a gradient, as an encoder's pooler has none.
    first = torch.nn.ParameterList(torch.arange(n, dtype=torch.float) for n in (4, 2, 3))
    optimizer = make_optimizer(first, config(optimizer=kind, weight_decay=0.1))
    for i in range(3):
        step(optimizer, first, i)
    tensors = {name: tensor.clone() for name, tensor in optimizer_state(optimizer, first).items()}
    assert sorted(tensors) == sorted(f"{i}/{name}" for i in (0, 2) for name in ("step", "exp_avg", "exp_avg_sq"))
    second = torch.nn.ParameterList(p.detach().clone() for p in first)
    other = make_optimizer(second, config(optimizer=kind, weight_decay=0.1))
    load_optimizer_state(other, second, tensors)
    for i in range(3, 6):
        step(optimizer, first, i)
        step(other, second, i)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@given(
    total=st.integers(1, 500),
    schedule=st.sampled_from(list(Schedule)),
    warmup=st.floats(0, 1),
)
def test_the_rate_rises_to_its_highest_then_never_rises(total: int, schedule: Schedule, warmup: float) -> None:
    factors = [lr_factor(step, total, schedule, warmup) for step in range(total)]
    assert all(0 < factor <= 1 for factor in factors)
    assert max(factors) == 1
    top = factors.index(1)
    assert top <= math.ceil(warmup * total)
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    if schedule is Schedule.constant:
        assert set(factors[top:]) == {1.0}


def cosine(share: float) -> float:
    return (1 + math.cos(math.pi * share)) / 2


@pytest.mark.parametrize(
    ("schedule", "warmup", "formula"),
    [
        (Schedule.constant, 0.0, lambda t: 1.0),
        (Schedule.linear, 0.0, lambda t: 1 - t / 12),
        (Schedule.cosine, 0.0, lambda t: cosine(t / 12)),
        # A quarter of 12 steps: 1/3, 2/3, 1, then 9 steps down.
        (Schedule.constant, 0.25, lambda t: min(1, (t + 1) / 3)),
        (Schedule.linear, 0.25, lambda t: (t + 1) / 3 if t < 3 else 1 - (t - 3) / 9),
        (Schedule.cosine, 0.25, lambda t: (t + 1) / 3 if t < 3 else cosine((t - 3) / 9)),
        (Schedule.linear, 1.0, lambda t: (t + 1) / 12),
    ],
)
def test_the_rate_by_its_formula(schedule: Schedule, warmup: float, formula: Callable[[int], float]) -> None:
    assert [lr_factor(t, 12, schedule, warmup) for t in range(12)] == pytest.approx([formula(t) for t in range(12)])
