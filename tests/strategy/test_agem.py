"""A-GEM: the projection against its formula, and that the update which is applied is the projected one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xclrun.data.batches import concat
from xclrun.plan import Run
from xclrun.strategy import Step
from xclrun.strategy.agem import AGEM, project
from xclrun.strategy.shared.memory import MemorySettings
from xclrun.train import loop
from xclrun.train.loop import HopTraining

from .real import context_of, edit, gradients, perturbed, taken

Make = Callable[..., Run]
Do = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def agem(memory: int = 10, every_k: int = 1) -> AGEM:
    return AGEM(MemorySettings("agem", memory, every_k))


def test_projection_by_hand() -> None:
    """g = (3, −4, 0), r = (0, 2, 1): g · r = −8, r · r = 5, so g + 8/5 r = (3, −0.8, 1.6), at right angles to r."""
    g = [torch.tensor([[3.0], [-4.0]]), torch.tensor(0.0)]
    project(g, [torch.tensor([[0.0], [2.0]]), torch.tensor(1.0)])
    torch.testing.assert_close(g, [torch.tensor([[3.0], [-0.8]]), torch.tensor(1.6)])


def test_gradients_that_agree_stay_as_they_are() -> None:
    for reference in ([1.0, 1.0], [4.0, -3.0], [0.0, 0.0]):
        g = [torch.tensor([3.0, 4.0])]
        project(g, [torch.tensor(reference)])
        assert torch.equal(g[0], torch.tensor([3.0, 4.0]))


def formula(g: dict[str, Tensor], r: dict[str, Tensor]) -> dict[str, Tensor]:
    """Equation 11, on vectors of all weights, in double precision."""
    flat_g, flat_r = (torch.cat([x[name].flatten().double() for name in g]) for x in (g, r))
    along = flat_g @ flat_r
    flat = flat_g - along / (flat_r @ flat_r) * flat_r if along < 0 else flat_g
    parts = flat.float().split([x.numel() for x in g.values()])
    return {name: part.view(g[name].shape) for (name, part) in zip(g, parts, strict=True)}


def at_odds(make_run: Make, *overrides: str) -> tuple[AGEM, Any]:
    """Return A-GEM in hop 3 with a memory of two languages, and the context of a model without dropout."""
    run = make_run("model.dropout=0.0", *overrides)
    strategy = agem()
    for hop in (1, 2):
        strategy.end_hop(context_of(run, hop))
    context = context_of(run, 3)
    perturbed(context.model, 0.3, 7)
    return strategy, context


def reference_by_hand(strategy: AGEM, context: Any, step: int) -> dict[str, Tensor]:
    """The gradient of the mean loss on the random batch of the memory, all languages together."""
    drawn = strategy.memory.draw_from_all(context.batch_size, context.generator("reference", step))
    assert sum(len(indices) for indices in drawn.values()) == context.batch_size
    context.model.zero_grad()
    sentences = concat([context.train[language].select(indices) for language, indices in drawn.items()])
    context.model.loss(sentences.batch(np.arange(len(sentences)))).backward()
    return gradients(context.model)


def test_gradients_of_steps_against_the_formula(make_run: Make) -> None:
    strategy, context = at_odds(make_run)
    projected = 0
    for step in range(1, 9):
        r = reference_by_hand(strategy, context, step)
        context.model.zero_grad()
        main = context.batch("es", np.arange(step, step + 4))
        # Uphill on the odd steps, so that there is something to project.
        (context.model.loss(main) * (-1 if step % 2 else 1)).backward()
        g = gradients(context.model)
        edit(strategy, step, main, context)
        found, wanted = gradients(context.model), formula(g, r)
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
        along = sum(float((found[name] * r[name]).sum()) for name in found)
        assert along > -1e-3
        projected += any(not torch.equal(found[name], g[name]) for name in g)
    assert 0 < projected < 8


def test_the_reference_is_the_same_in_parts(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the main gradient is accumulated in two parts, so is the memory's."""
    strategy, context = at_odds(make_run, "trainer.gradient_accumulation=2")
    assert context.batch_size == 8
    r = reference_by_hand(strategy, context, 1)
    context.model.zero_grad()
    main = context.batch("es", np.arange(8))
    sizes, found = [], {}
    loss_of = context.model.loss
    context.model.loss = lambda batch: sizes.append(batch.size) or loss_of(batch)
    monkeypatch.setattr("xclrun.strategy.agem.project", lambda g, r: found.update(zip(gradients_of(g), r, strict=True)))

    def gradients_of(some: list[Tensor]) -> list[str]:
        return [name for name, p in context.model.named_parameters() if any(p.grad is g for g in some)]

    taken(strategy, 1, main, context, part=4)
    assert sizes == [4, 4, 4, 4]
    assert found.keys() == r.keys()
    for name, one in found.items():
        torch.testing.assert_close(one, r[name], rtol=1e-4, atol=1e-6)


def test_every_kth_step_alone_is_compared(make_run: Make) -> None:
    strategy, context = at_odds(make_run)
    strategy.settings.every_k = 3
    main = context.batch("es", np.arange(4))
    steps = {number: list(strategy.steps(number, main, context)) for number in range(1, 8)}
    assert [number for number, [step] in steps.items() if step.edit is not None] == [3, 6]


def test_the_update_that_is_applied_is_the_projected_one(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real loop with plain gradient descent: every step of hops 2 and 3 moves the weights by −lr · projected g."""
    lr, seen = 0.05, {"checked": 0, "projected": 0}

    def descent(parameters: Any, config: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([p for p in parameters if p.requires_grad], lr=config.lr)

    edited, update, steps = AGEM.edit, HopTraining._update, AGEM.steps
    noted: dict[str, Any] = {}

    def editing(self: AGEM, number: int, context: Any, mean_gradient: Any) -> None:
        g = gradients(context.model)
        r = reference_by_hand(self, context, number)
        for name, p in context.model.named_parameters():
            p.grad = g.get(name)
        noted["wanted"] = formula(g, r)
        seen["projected"] += any(not torch.equal(noted["wanted"][name], g[name]) for name in g)
        edited(self, number, context, mean_gradient)

    def uphill_now_and_then(self: AGEM, number: int, main: Any, context: Any) -> Iterator[Step]:
        sign = -1 if context.hop.index > 1 and number % 2 else 1
        for step in steps(self, number, main, context):
            yield replace(step, loss=lambda part, rows: context.model.loss(part) * sign)

    def updating(self: HopTraining, *given: Any) -> None:
        noted.clear()
        before = {name: p.detach().clone() for name, p in self.context.model.named_parameters()}
        update(self, *given)
        if "wanted" in noted:
            for name, p in self.context.model.named_parameters():
                if name in noted["wanted"]:
                    torch.testing.assert_close(before[name] - lr * noted["wanted"][name], p.data, rtol=1e-4, atol=1e-5)
            seen["checked"] += 1

    monkeypatch.setattr(loop, "make_optimizer", descent)
    monkeypatch.setattr(AGEM, "edit", editing)
    monkeypatch.setattr(AGEM, "steps", uphill_now_and_then)
    monkeypatch.setattr(HopTraining, "_update", updating)
    do(make_run("strategy=agem", "model.dropout=0.0", f"trainer.lr={lr}"))
    assert seen["checked"] == 10 + 8
    assert 0 < seen["projected"] < 18


def test_bf16(make_run: Make, do: Do) -> None:
    assert do(
        make_run("strategy=agem", "order=[en,es]", "trainer.precision=bf16", "trainer.epochs=1")
    ).directory.finished
