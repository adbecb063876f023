"""The optimiser is the one asked for, and its state survives being taken apart."""

import math
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
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


@pytest.mark.parametrize("kind", [kind for kind in Optimizer if not kind.eight_bit])
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


class EightBit(torch.optim.Optimizer):
    """Keeps a state such as that of bitsandbytes: bytes, and a number of steps that must be an integer."""

    def __init__(self, params: Any, lr: float, betas: Any, eps: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    if not state:
                        state.update(step=0, state1=torch.zeros(p.shape, dtype=torch.uint8))
                    assert type(state["step"]) is int
                    assert state["state1"].dtype == torch.uint8
                    state["step"] += 1
                    state["state1"] = (state["state1"] // 2 + (p.grad > 0) * state["step"]).to(torch.uint8)
                    p.sub_(state["state1"] * group["lr"])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        # Unlike PyTorch's, it does not convert bytes to the type of the weights.
        parameters = [p for group in self.param_groups for p in group["params"]]
        self.state.update({parameters[i]: dict(entries) for i, entries in state_dict["state"].items()})


@pytest.mark.parametrize("kind", [kind for kind in Optimizer if kind.eight_bit])
def test_moments_in_eight_bits_come_from_bitsandbytes(kind: Optimizer, monkeypatch: pytest.MonkeyPatch) -> None:
    library, name = ModuleType("bitsandbytes"), {"adam_8bit": "Adam8bit", "adamw_8bit": "AdamW8bit"}[kind.value]
    optim = SimpleNamespace(Adam8bit=type("Adam8bit", (EightBit,), {}), AdamW8bit=type("AdamW8bit", (EightBit,), {}))
    library.optim = optim  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", library)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", optim)

    def stepped(optimizer: torch.optim.Optimizer, weights: torch.nn.ParameterList) -> None:
        for p in weights:
            p.grad = torch.sin(torch.arange(len(p)) + 1.0)
        optimizer.step()

    first = torch.nn.ParameterList([torch.ones(5)])
    optimizer = make_optimizer(first, config(optimizer=kind))
    assert type(optimizer).__name__ == name
    stepped(optimizer, first)
    stepped(optimizer, first)
    tensors = optimizer_state(optimizer, first)
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {"0/step": torch.int64, "0/state1": torch.uint8}
    second = torch.nn.ParameterList(p.detach().clone() for p in first)
    other = make_optimizer(second, config(optimizer=kind))
    load_optimizer_state(other, second, tensors)
    stepped(optimizer, first)
    stepped(other, second)
    assert torch.equal(first[0], second[0])


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
