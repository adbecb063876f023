"""Quadratic penalties of l2_prev, l2_init, mas and si: their gradients against autograd, importances by definition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xclrun.plan import Run
from xclrun.strategy import Context, Step, make
from xclrun.strategy.mas import MASSettings
from xclrun.strategy.shared.penalty import PullSettings
from xclrun.strategy.si import SI, SISettings
from xclrun.train.gradients import Gradients

from .real import context_of, edit, gradients, perturbed, state, train_hop, untrained, weights

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def copied(model: Any) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def added(strategy: Any, context: Context) -> dict[str, Tensor]:
    """Return what a strategy adds to the gradients of the model's loss on a batch."""
    context.model.eval()
    context.model.zero_grad()
    batch = context.batch("es", np.arange(4))
    context.model.loss(batch).backward()
    before = gradients(context.model)
    edit(strategy, 1, batch, context)
    return {name: gradient - before[name] for name, gradient in gradients(context.model).items()}


def close_to_autograd(found: dict[str, Tensor], model: Any, penalty: Callable[[str, Tensor], Tensor]) -> None:
    """Compare with the gradient of Σ penalty(name, weights)."""
    model.zero_grad()
    held = {name: p for name, p in model.named_parameters() if name in found}
    torch.stack([penalty(name, p).sum() for name, p in held.items()]).sum().backward()
    for name, p in held.items():
        torch.testing.assert_close(
            found[name], p.grad, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name} {text}"
        )
    assert max(float(p.grad.abs().max()) for p in held.values()) > 1e-3


@pytest.mark.parametrize("name", ["l2_prev", "l2_init"])
def test_l2_pulls_to_where_it_says(name: str, make_run: Make) -> None:
    """λ/2 ‖θ − anchor‖²: l2_prev to the weights with which the hop begins, l2_init to those of hop 0 for good."""
    run = make_run()
    strategy, model = make(PullSettings(name, penalty=3.0)), untrained(run)  # type: ignore[arg-type]
    strategy.prepare(model, run.stream, None)  # type: ignore[arg-type]
    first = copied(model)
    for hop in (1, 2):
        context = context_of(run, hop, perturbed(model, 0.05, hop))
        strategy.begin_hop(context)
        begun = copied(model)
        perturbed(model, 0.05, 10 + hop)
        anchor = first if name == "l2_init" else begun
        found = added(strategy, context)
        if (name, hop) == ("l2_prev", 1):
            assert all(not tensor.any() for tensor in found.values()), "the first training starts from nothing learned"
        else:
            close_to_autograd(found, model, lambda n, p, anchor=anchor: 1.5 * (p - anchor[n]) ** 2)


def outputs_squared(model: Any, batch: Any) -> Tensor:
    """‖F(x)‖² of one sentence: its logits, and the emissions of its words."""
    output = model(batch)
    total = torch.zeros(())
    for part in (output.logits, output.emissions):
        if part is not None:
            total = total + (part**2).sum()
    return total


TASKS = ("intent_slots", "sequence_class")


@pytest.mark.parametrize("task", TASKS)
def test_mas_is_the_mean_of_absolute_gradients_of_the_outputs_and_sums_over_hops(task: str, make_run: Make) -> None:
    run = make_run(f"dataset.task={task}")
    strategy, model, wanted = make(MASSettings("mas", penalty=2.0)), untrained(run), {}
    for hop, language in ((1, "en"), (2, "de")):
        context = context_of(run, hop, perturbed(model, 0.05, hop).train())
        strategy.end_hop(context)
        assert model.training
        model.eval()
        for index in range(len(context.train[language])):
            model.zero_grad()
            outputs_squared(model, context.batch(language, np.array([index]))).backward()
            for name, gradient in gradients(model).items():
                share = gradient.abs().double() / len(context.train[language])
                wanted[name] = wanted.get(name, 0) + share
    stored = strategy.state_dict().tensors
    assert stored.keys() == {f"precision/{name}" for name in wanted}
    assert not any("crf" in name for name in stored), "transitions do not enter the outputs"
    # The bias of a key has no effect: its gradients are rounding, of 1e-9.
    for name, tensor in wanted.items():
        torch.testing.assert_close(
            stored[f"precision/{name}"].double(), tensor, rtol=1e-3, atol=1e-8 + 1e-6 * float(tensor.max())
        )
    again = make(MASSettings("mas", penalty=2.0))
    again.load_state_dict(strategy.state_dict())
    context = context_of(run, 3, model)
    again.begin_hop(context)
    begun = copied(model)
    perturbed(model, 0.05, 3)
    close_to_autograd(
        added(again, context), model, lambda n, p: 2.0 * wanted.get(n, torch.zeros(())) * (p - begun[n]) ** 2
    )


def si(**changed: Any) -> SI:
    return SI(SISettings("si", **{"penalty": 4.0, "damping": 0.01, **changed}))


class Path(SI):
    """Beside SI, every step by itself: gradients and weights before it, noted by other means."""

    def steps(self, number: int, main: Any, context: Context) -> Iterator[Step]:
        for step in super().steps(number, main, context):
            yield replace(step, edit=partial(self.noting, step.edit, context))

    def noting(self, edit: Any, context: Context, mean_gradient: Any) -> None:
        self.noted = [*getattr(self, "noted", []), (copied(context.model), gradients(context.model))]
        edit(mean_gradient)


def test_si_integrates_the_real_steps_of_the_optimiser(make_run: Make, tmp_path: Any) -> None:
    """Two hops of training by the loop, with Adam, clipping and the penalty: ω and Ω from weights before each step."""
    run = make_run("trainer.epochs=2", "trainer.clip_norm=0.5", "trainer.selection=last")
    strategy, model, omega = Path(SISettings("si", penalty=4.0, damping=0.01)), untrained(run), {}
    for hop in (1, 2):
        context = context_of(run, hop, model)
        strategy.noted = []
        strategy.begin_hop(context)
        start = copied(model)
        train_hop(context, strategy, run, tmp_path)
        ends = [*(before for before, _ in strategy.noted[1:]), copied(model)]
        for name in start:
            path = torch.zeros(start[name].shape, dtype=torch.float64)
            for (before, gradient), after in zip(strategy.noted, ends, strict=True):
                if name in gradient:
                    path -= gradient[name].double() * (after[name] - before[name]).double()
            found = path / ((ends[-1][name] - start[name]).double() ** 2 + 0.01)
            omega[name] = omega.get(name, 0) + found.clamp(min=0)
        strategy.end_hop(context)
    for name, tensor in omega.items():
        stored = strategy.precision[name].double()
        torch.testing.assert_close(stored, tensor, rtol=1e-3, atol=1e-5 * float(tensor.max()) + 1e-9)
    assert max(float(tensor.max()) for tensor in omega.values()) > 0.1
    context = context_of(run, 3, model)
    strategy.begin_hop(context)
    begun = copied(model)
    perturbed(model, 0.05, 3)
    close_to_autograd(added(strategy, context), model, lambda n, p: 4.0 * omega[n].float() * (p - begun[n]) ** 2)


def test_si_clamps_the_term_of_each_hop_at_zero(make_run: Make) -> None:
    """Ω = Σ max(0, ω / (Δ² + ξ)): a hop with negative ω leaves Ω unchanged; clamping the sum would lower it."""
    strategy, run = si(), make_run()
    for hop, path, expected in ((1, 0.03, 3.0), (2, -0.02, 3.0), (3, 0.01, 4.0)):
        context = context_of(run, hop)
        strategy.begin_hop(context)
        # Nothing moves, so that Δ = 0 and ξ = 0.01.
        strategy.path = {name: torch.full_like(tensor, path) for name, tensor in strategy.path.items()}
        strategy.end_hop(context)
        assert strategy.precision
        for tensor in strategy.precision.values():
            torch.testing.assert_close(tensor, torch.full_like(tensor, expected))


def test_si_a_step_that_a_scaler_left_out_does_not_count(make_run: Make) -> None:
    strategy, context = si(), context_of(make_run(), 1)
    # Only fp16 has a scaler.
    context.precision = "fp16"
    strategy.begin_hop(context)
    for step in strategy.steps(1, context.batch("en", np.arange(4)), context):
        for p in context.model.parameters():
            p.grad = torch.full_like(p, float("inf"))
        assert step.edit is not None
        step.edit(Gradients(context, 4).mean)
    assert all(not tensor.any() for name, tensor in strategy.state_dict().tensors.items() if name.startswith("path/"))


@pytest.mark.full
def test_si_shares_its_first_hop_across_strengths_and_keeps_the_path_of_the_selected_epoch(finished: Make) -> None:
    """Hop 1 holds nothing: its weights are naive's, and are trained anew, since naive gathers no path."""
    one, other, naive = finished("strategy=si"), finished("strategy=si", "strategy.penalty=50"), finished()
    assert one.stages[1].train == other.stages[1].train != naive.stages[1].train
    assert one.stages[2].train != other.stages[2].train
    for name, tensor in weights(naive, 1).items():
        assert torch.equal(tensor, weights(one, 1)[name])
    stored = state(other, 1).tensors
    assert {name.split("/")[0] for name in stored} == {"precision"}
    key = "intent.weight"
    important = stored[f"precision/{key}"] > stored[f"precision/{key}"].median()
    moved = [float((weights(run, 2)[key] - weights(run, 1)[key])[important].abs().mean()) for run in (other, naive)]
    assert moved[0] < moved[1]
