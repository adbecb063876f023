"""Heads whose units are not sentences: what a strategy adds to the loss does not depend on the micro-batches."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from xclrun.data.batches import Batch
from xclrun.model.heads import Head, Output
from xclrun.plan import Run
from xclrun.strategy import Step, Term
from xclrun.train.gradients import Gradients

from .real import context_of, gradients, perturbed, taken

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")
SETTINGS = {
    "der": ("strategy.alpha=1",),
    "derpp": ("strategy.alpha=1",),
    "kd_logit": ("strategy.weight=1", "strategy.every_k=1"),
    "kd_rep": ("strategy.weight=1", "strategy.every_k=1"),
    "lwf": (),
}


@pytest.fixture
def per_word(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Run]:
    """Plan a run whose head has a unit for each word of the sentences that are at least ``shortest`` words long."""

    def make(*overrides: str, shortest: int = 0) -> Run:
        run = make_run("order=[en,de]", "model.dropout=0", *overrides)
        head: type[Head] = type(context_of(run, 1).model.head_of(""))
        likelihood = head.log_likelihood

        def units(self: Head, batch: Batch) -> np.ndarray:
            return np.where(batch.words < shortest, 0, batch.words)

        def log_likelihood(self: Head, batch: Batch, output: Output) -> Tensor:
            return likelihood(self, batch, output) * torch.from_numpy(units(self, batch) > 0)

        monkeypatch.setattr(head, "units", units)
        monkeypatch.setattr(head, "log_likelihood", log_likelihood)
        return run

    return make


@pytest.mark.parametrize("strategy", SETTINGS)
def test_a_step_in_parts_has_the_gradients_of_the_whole_step(strategy: str, per_word: Callable[..., Run]) -> None:
    run = per_word(f"strategy={strategy}", *SETTINGS[strategy])
    found = []
    for part in (7, 2):
        learner, context = run.strategy(), context_of(run, 1)
        perturbed(context.model, 0.2, 3)
        learner.begin_hop(context)
        taken(learner, 1, context.batch("en", np.arange(7)), context)
        learner.end_hop(context)
        context.hop = run.stream.hops[2]
        learner.begin_hop(context)
        perturbed(context.model, 0.1, 4).eval()
        main = context.batch("de", np.arange(7))
        assert len({*main.words}) > 1
        taken(learner, 8, main, context, part)
        found.append(gradients(context.model))
    assert found[0].keys() == found[1].keys()
    for name, gradient in found[0].items():
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_parts_without_units_have_no_weight_and_their_terms_do(per_word: Callable[..., Run]) -> None:
    run, found = per_word(shortest=6), []
    context = context_of(run, 1)
    perturbed(context.model, 0.2, 3).eval()
    main, memory = context.batch("en", np.arange(6)), context.batch("de", np.arange(6))
    words = main.words
    # Alone in its part, and without units.
    assert 0 < (words < 6).sum() < 6
    for part in (6, 1):
        context.model.zero_grad()
        losses = Gradients(context, part).add(Step(main, terms=[Term(memory, weight=0.5)]))
        found.append((torch.stack(losses).sum(), gradients(context.model)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-3, atol=1e-6)


def test_a_batch_without_units_has_a_loss_of_0(per_word: Callable[..., Run]) -> None:
    context = context_of(per_word(shortest=99), 1)
    main, memory = context.batch("en", np.arange(3)), context.batch("de", np.arange(3))
    [loss] = Gradients(context, 3).add(Step(main, terms=[Term(memory)]))
    assert float(loss) == 0
    assert all(not gradient.any() for gradient in gradients(context.model).values())
