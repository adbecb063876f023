"""A strategy plug-in with memory terms and an edit, and what the loop makes of it: parts, ranks, graphs, counters."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from benchmarks.tape import Tape
from tests.strategy.real import context_of, perturbed
from xclrun.config.schema import StrategyConfig
from xclrun.core import plugins
from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.strategy import STRATEGIES, Context, Strategy
from xclrun.train import others
from xclrun.train.gradients import Gradients
from xclrun.train.loop import HopTraining
from xclrun.train.ranks import Ranks

from .conftest import copied, same

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")

# It knows nothing of micro-batches, devices and graphs.
PLUGIN = '''
from xclrun.config.schema import StrategyConfig
from xclrun.strategy import Step, Strategy, Term, register


@register
class Careful(Strategy[StrategyConfig]):
    """From hop 2 on: loss + 0.5 · loss of memory, a quarter of the memory's gradient, and a step on the memory."""

    name = "careful"

    def steps(self, number, main, context):
        if context.hop.depth == 1:
            yield Step(main)
            return
        drawn = context.generator("careful", number).permutation(len(context.train["en"]))
        memory, other = context.batch("en", drawn[:5]), context.batch("en", drawn[5:7])

        def edit(mean_gradient):
            own = [p for p in context.model.parameters() if p.grad is not None]
            for p, gradient in zip(own, mean_gradient([Term(memory)], own)):
                p.grad.add_(gradient, alpha=0.25)

        both = [memory, other]
        yield Step(main, terms=[Term(batch, weight=0.5, among=both) for batch in both], edit=edit)
        yield Step(memory)
'''
RUN = ("order=[en,de]", "model.dropout=0", "trainer.selection=last", "trainer.epochs=2")


@pytest.fixture
def careful(tmp_path: Path, forget_plugins: Any) -> Callable[[], Strategy[Any]]:
    (tmp_path / "careful.py").write_text(PLUGIN)
    plugins.load_files(["--plugin", str(tmp_path / "careful.py")])
    return lambda: STRATEGIES["careful"](StrategyConfig("careful"))


def memory_of(context: Context, number: int) -> tuple[Any, Any, Any]:
    """Return the memory batches of a main step, apart and together."""
    drawn = context.generator("careful", number).permutation(len(context.train["en"]))
    return tuple(context.batch("en", rows) for rows in (drawn[:5], drawn[5:7], drawn[:7]))  # type: ignore[return-value]


def by_hand(context: Context, main: Any, number: int) -> tuple[Tensor, list[Tensor]]:
    """Return the loss of the main step, and its edited gradients."""
    model, (memory, _, together) = context.model, memory_of(context, number)
    trained = list(model.parameters())
    loss = model.loss(main) + 0.5 * model.loss(together)
    total = loss + 0.25 * model.loss(memory)
    return loss.detach(), list(torch.autograd.grad(total, trained, allow_unused=True, materialize_grads=True))


class Half(Ranks):
    """One of two ranks whose gradients the test sums."""

    def __init__(self, rank: int) -> None:
        self.rank, self.size = rank, 2


def close(found: Any, wanted: list[Tensor]) -> None:
    for parameter, gradient in zip(found.parameters(), wanted, strict=True):
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(own, gradient, rtol=1e-3, atol=1e-6)


def alike(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    # The bias of a key has no effect: its gradients are rounding, which Adam enlarges.
    for name in (name for name in one if "key.bias" not in name):
        torch.testing.assert_close(one[name], other[name], rtol=1e-2, atol=1e-4, msg=name)


@pytest.mark.parametrize("units", ["sentences", "words"])
@pytest.mark.parametrize("part", [7, 3, 2])
def test_a_step_in_parts_is_the_step_as_it_is_written(
    part: int, units: str, careful: Make, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a loss per word too: a part's share of the words is not its share of the sentences."""
    context = context_of(make_run(*RUN), 2)
    perturbed(context.model, 0.2, 3).eval()
    if units == "words":
        monkeypatch.setattr(type(context.model.head_of("")), "units", lambda head, batch: batch.words)
    main = context.batch("de", np.arange(7))
    loss, wanted = by_hand(context, main, 1)
    step, _ = careful().steps(1, main, context)
    gradients = Gradients(context, part)
    losses = gradients.add(step)
    assert len(losses) == -(-7 // part)
    torch.testing.assert_close(torch.stack(losses).sum(), loss, rtol=1e-5, atol=1e-6)
    assert gradients.beside[0] == 7
    step.edit(gradients.mean)
    close(context.model, wanted)
    assert gradients.beside[0] == 7 + 5


@pytest.mark.parametrize("part", [7, 3])
def test_two_ranks_share_a_step_and_count_it_once(part: int, careful: Make, make_run: Make) -> None:
    context = context_of(make_run(*RUN), 2)
    perturbed(context.model, 0.2, 3).eval()
    main, models, machines = context.batch("de", np.arange(7)), [], []
    loss, wanted = by_hand(context, main, 1)
    losses = torch.zeros(())
    for rank in (0, 1):
        context = copy.copy(context)
        context.model = copy.deepcopy(context.model)
        step, _ = careful().steps(1, main, context)
        machines.append(Gradients(context, part, Half(rank)))
        losses = losses + torch.stack(machines[-1].add(step)).sum()
        models.append((context.model, step))
    torch.testing.assert_close(losses, loss, rtol=1e-5, atol=1e-6)
    if part < 7:
        for one, other in zip(*(model.parameters() for model, _ in models), strict=True):
            if one.grad is not None:
                one.grad += other.grad
                other.grad.copy_(one.grad)
    for (model, step), machine in zip(models, machines, strict=True):
        step.edit(machine.mean)
        close(model, wanted)
    assert sum(machine.beside[0] for machine in machines) == 7 + 5


def test_values_of_sentences_come_from_all_parts(make_run: Make) -> None:
    """Each rank records its own; the loop then exchanges them."""
    from xclrun.strategy import Step

    context, seen = context_of(make_run(*RUN), 1), []
    main = context.batch("en", np.array([4, 2, 9, 7, 1]))
    for rank in (0, 1):
        rows: dict[int, int] = {}

        def loss(part: Any, at: slice, rows: dict[int, int] = rows) -> Tensor:
            rows.update(enumerate(part.indices.tolist(), at.start))
            return context.model.loss(part)

        Gradients(context, 2, Half(rank)).add(Step(main, loss, rows=rows))
        seen.append(rows)
    assert seen == [{0: 4, 1: 2, 4: 1}, {2: 9, 3: 7}]


def second_hop(careful: Make, make_run: Make, training: Make, *overrides: str, **given: Any) -> HopTraining:
    return training(make_run(*RUN, *overrides), hop=2, strategy=careful(), **given)


def test_a_hop_is_a_loop_written_by_hand(careful: Make, make_run: Make, training: Make) -> None:
    hop = second_hop(careful, make_run, training, "trainer.batch_size=2", "trainer.gradient_accumulation=2")
    model, context = copy.deepcopy(hop.context.model), copy.copy(hop.context)
    context.model, trainer, number = model, hop.trainer, 0
    facts = hop.run()
    adam = torch.optim.Adam(model.parameters(), lr=trainer.lr, betas=tuple(trainer.betas), eps=trainer.eps)
    for epoch in range(2):
        order = context.generator("shuffle", epoch).permutation(len(context.train["de"]))
        for start in range(0, len(order), 4):
            number += 1
            _, gradients = by_hand(context, context.batch("de", order[start : start + 4]), number)
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = gradient
            adam.step()
            adam.zero_grad()
            model.loss(memory_of(context, number)[0]).backward()
            adam.step()
            adam.zero_grad()
    alike(hop.context.model.state_dict(), model.state_dict())
    assert (facts["step"], facts["updates"]) == (10, 20)
    assert (facts["examples"], facts["beside_examples"]) == (2 * 18 + 10 * 5, 10 * (7 + 5))


def test_with_graphs_it_trains_the_same_bits(careful: Make, make_run: Make, training: Make, tmp_path: Path) -> None:
    """Its memory steps are recorded; its main steps, with functions of their own, never."""
    weights, tape = [], Tape()
    for recorded in (False, True):
        given = ("trainer.cuda_graphs=true", "model.max_length=48")
        hop = second_hop(careful, make_run, training, *given, checkpoints=tmp_path / str(recorded))
        if recorded:
            hop.capture(tape)
        hop.run()
        weights.append(copied(hop.context.model))
    assert same(*weights)
    assert 0 < tape.captured <= tape.replayed
    assert tape.warmed_up + tape.replayed == 10


@pytest.fixture
def ended() -> Iterator[None]:
    yield
    others.end_ranks()
    others._group = None


@pytest.mark.full
@pytest.mark.xdist_group("ranks")
def test_two_processes_train_what_one_does(careful: Make, make_run: Make, do: Make, ended: None) -> None:
    given = (*RUN, "strategy=careful", "trainer.batch_size=2", "trainer.gradient_accumulation=3")
    one, two = (do(make_run(*given, f"runtime.devices={n}", outputs=str(n))) for n in (1, 2))
    assert one.id == two.id
    for run_a, run_b in zip(one.stages[1:], two.stages[1:], strict=True):
        a, b = (load_tensors(r.store.path(s.train) / "weights.safetensors") for r, s in ((one, run_a), (two, run_b)))
        alike(a, b)
