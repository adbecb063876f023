"""A step does not wait for the device, and asks it for little: operators are counted, which needs no GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.operators import BEFORE, LIMIT, LIMIT_WITH_DISTILLATION, SMALL, Operators, of_steps
from tests.strategy.real import context_of, taken
from xclrun.core.errors import RunError
from xclrun.data.transfer import to_device
from xclrun.plan import Run
from xclrun.strategy import Step
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Progress

from .conftest import StopAt


@pytest.mark.in_turn
@pytest.mark.some_cases("naive")
@pytest.mark.parametrize("strategy", BEFORE)
def test_no_step_waits_and_each_saves_operators(strategy: str, tmp_path: Path) -> None:
    result = of_steps(strategy, SMALL, tmp_path)
    assert result["waited"] == {}
    before, due = BEFORE[strategy]
    assert result["plain"] <= LIMIT * before
    assert result["due"] <= (LIMIT_WITH_DISTILLATION if strategy == "kd_logit" else LIMIT) * due


# GEM's weights of its memories are found on the host, so it waits for their products.
@pytest.mark.full
@pytest.mark.in_turn
@pytest.mark.parametrize(
    "strategy",
    ["der", "derpp", "er_ace", "joint_replay", "l2_prev", "lang_spec_ada_f", "lwf", "mas", "seq_lora", "si"],
)
def test_no_step_of_other_strategies_waits(strategy: str, tmp_path: Path) -> None:
    assert of_steps(strategy, SMALL, tmp_path)["waited"] == {}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["der", "derpp", "lwf", "si"])
def test_a_step_moves_no_part_of_the_state_by_itself(name: str, make_run: Callable[..., Run]) -> None:
    """Also of a state that was read from a file: on a GPU each `Tensor.to` of a step would be a copy and a wait."""
    run = make_run(f"strategy={name}")
    strategy, context = run.strategy(), context_of(run, 2)
    context.model.train()
    strategy.begin_hop(context)

    def step(number: int) -> None:
        main = context.batch("de", np.arange(number, number + 4))
        taken(strategy, number, main, context)

    step(1)
    strategy.load_state_dict(strategy.state_dict())
    # What moves once in a hop moves in its first step.
    step(2)
    with Operators() as counting:
        step(3)
        step(4)
    assert counting.waited + counting.moved == {}


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", ["lang_spec_ada_t", "seq_lora"])
@pytest.mark.parametrize("whole", [False, True], ids=["padded", "of one length"])
def test_adapters_are_applied_without_a_wait_as_the_library_applies_them(
    name: str, whole: bool, make_run: Callable[..., Run]
) -> None:
    context = context_of(make_run(f"strategy={name}"), 1)
    train, model = context.train["en"], context.model.eval()
    longest = int(train.lengths.max())
    batch = train.batch([int(train.lengths.argmax())] if whole else np.arange(len(train)))
    assert batch.whole == whole
    assert batch.input_ids.shape[1] == longest
    with Operators() as counting, torch.no_grad():
        states = model._states(batch)
    assert counting.waited + counting.moved == {}
    with torch.no_grad():
        own = model.encoder(batch.input_ids, batch.attention_mask, batch.token_type_ids).last_hidden_state
    torch.testing.assert_close(states, own, rtol=0, atol=1e-6)


def test_moves_to_a_device_are_counted() -> None:
    values = torch.arange(4.0)
    with Operators() as counting:
        values.to("cpu")
        values.to(torch.device("cpu"), torch.float64)
        values.to(device="cpu")
        values.to(torch.float64)
        to_device({"values": values}, torch.device("cpu"))
    assert counting.moved == {"to": 3}


def test_a_look_at_the_loss_is_the_only_wait(tmp_path: Path) -> None:
    result = of_steps("naive", SMALL, tmp_path, looks=3)
    # Of steps 2 to 10, at the 3rd, 6th and 9th; each takes all its losses at once.
    assert result["waited"] == {"tolist": 3}


def test_waits_are_counted() -> None:
    values = torch.arange(4.0)
    with Operators() as counting:
        values[values > 1] = 0.0
        bool(values.sum() > 0)
        values.view(2, 2).T.tolist()
    assert counting.waited == {"index_put_": 1, "_local_scalar_dense": 1, "tolist": 1}
    assert counting.launched["view"] == counting.launched["t"] == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_a_loss_that_is_nan_between_two_looks_is_told_with_its_step_and_nothing_after_it_is_saved(
    stopped: bool, make_run: Callable[..., Run], training: Callable[..., HopTraining], tmp_path: Path
) -> None:
    """NaN comes at update 2, the first look is at 4. A checkpoint is asked for at step 1, and perhaps at 3."""
    result = training(make_run("trainer.selection=last"), checkpoints=tmp_path / "kept")
    taken, saved = [0], []

    def poisoned(number: int, main: Any, context: Any) -> Iterator[Step]:
        taken[0] = number
        yield Step(main, lambda part, rows: context.model.loss(part) * (math.nan if number == 2 else 1.0))

    class Saving(StopAt):
        def stepped(self, progress: Progress) -> None:
            if progress.step == 1:
                result._save()
                saved.append(progress.step)
            super().stepped(progress)

    result.look_every, result.strategy.steps = 4, poisoned  # type: ignore[method-assign]
    listener = Saving(*([3] if stopped else []))
    result.listener, result.stop = listener, listener.stop
    with pytest.raises(RunError, match=r"hop 1 .*epoch 1, step 2: the loss is nan"):
        result.run()
    assert taken[0] == (3 if stopped else 4)
    facts, tensors = Checkpoints(tmp_path / "kept").load()
    assert (saved, facts["step"]) == ([1], 1)
    assert all(tensor.isfinite().all() for tensor in tensors.values())
