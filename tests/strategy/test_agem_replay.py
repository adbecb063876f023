"""A-GEM on the memory of lifelong learning: when gradients are compared, with what, and the projection by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.train.conftest import predicted
from xclrun.data.batches import concat
from xclrun.plan import Run
from xclrun.strategy.agem_replay import AGEMReplay
from xclrun.strategy.replay import Replay, ReplaySettings
from xclrun.train.gradients import Gradients

from .real import context_of, edit, gradients, perturbed
from .test_agem import formula
from .test_replay import USED

Make = Callable[..., Run]
Do = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def agem(interval: int = 4, number: int = 6) -> AGEMReplay:
    return AGEMReplay(ReplaySettings("agem_replay", 0.5, interval, number))


def by_hand(strategy: AGEMReplay, context: Any, interval: int) -> dict[str, Tensor]:
    """The gradient of the mean loss over all that is drawn, in one batch."""
    drawn = strategy.draw(interval, "reference", context)
    parts = [context.train[key].select(indices) for part in drawn for key, indices in part.items()]
    assert sum(map(len, parts)) == strategy.settings.replay_number
    context.model.zero_grad()
    context.model.loss(concat(parts).batch(np.arange(sum(map(len, parts))))).backward()
    return gradients(context.model)


def test_gradients_of_steps_against_the_formula(make_run: Make) -> None:
    """Batches of 4, compared at every 8th sentence, on 6 of the memory: those in the batch itself can be among them."""
    run = make_run("model.dropout=0.0")
    strategy = agem(interval=8)
    strategy.end_hop(context_of(run, 1))
    context = context_of(run, 2)
    perturbed(context.model, 0.3, 7)
    strategy.begin_hop(context)
    projected = []
    for step in range(1, 9):
        main = context.batch("de", np.arange(step, step + 4))
        context.model.zero_grad()
        # Uphill at every fourth step, so that there is something to project.
        sign = -1 if step % 4 == 0 else 1
        (context.model.loss(main) * sign).backward()
        g = gradients(context.model)
        edit(strategy, step, main, context)
        found = gradients(context.model)
        if step % 2:
            assert all(torch.equal(found[name], g[name]) for name in g), "steps between are plain"
            continue
        wanted = formula(g, by_hand(strategy, context, step // 2))
        for name in wanted:
            torch.testing.assert_close(found[name], wanted[name], rtol=1e-4, atol=1e-5)
        projected.append(any(not torch.equal(found[name], g[name]) for name in g))
    assert True in projected
    assert False in projected


def test_an_empty_memory_compares_nothing_and_the_first_hop_with_what_it_has_written(make_run: Make) -> None:
    context, strategy = context_of(make_run(), 1), agem()
    strategy.begin_hop(context)
    written = strategy.indices_to_write("en", context)
    missing = np.setdiff1d(np.arange(22), written)[:4]
    edits = []
    for number, indices in enumerate((missing, written[:4]), start=1):
        [step] = strategy.steps(number, context.batch("en", indices), context)
        edits.append(step.edit)
    assert edits[0] is None
    seen = Gradients(context, 4)
    context.model.loss(step.batch).backward()
    edits[1](seen.mean)
    assert seen.beside[0] == 4


def test_its_memory_is_that_of_replay_and_its_steps_are_the_main_ones(make_run: Make, do: Do) -> None:
    wanted = do(make_run("strategy=agem_replay", *USED))
    naive = do(make_run())
    counted = [stage["training"] for stage in wanted.directory.read_manifest()["stages"][1:]]
    assert [stage["updates"] for stage in counted] == [12, 10, 8]
    assert [stage["beside_examples"] for stage in counted[1:]] == [6 * 3, 6 * 2]
    mine, theirs = agem(), Replay(ReplaySettings("replay", 0.5, 4, 6))
    for hop in (1, 2, 3):
        for strategy in (mine, theirs):
            strategy.end_hop(context_of(wanted, hop))
    assert mine.state_dict() == theirs.state_dict()
    assert predicted(wanted) != predicted(naive)
