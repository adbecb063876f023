"""``trainer.cuda_graphs``: recorded steps do what unrecorded ones do, bit for bit; recorded by a tape in a GPU's place.

The tape (`benchmarks.tape`) knows of a step what a CUDA graph does: operators, numbers and places in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.tape import Tape
from xclrun.core.errors import RunError
from xclrun.model.heads import HEADS
from xclrun.plan import Run, notes
from xclrun.strategy import Step, Strategy, Term, repeatable
from xclrun.strategy.naive import Naive
from xclrun.train.graphs import FUNCTIONS, CapturedSteps
from xclrun.train.loop import HopTraining
from xclrun.train.optimize import optimizer_state
from xclrun.train.progress import Listener
from xclrun.train.stop import Stopped

from .conftest import StopAt, copied, same

Make = Callable[..., Run]

GRAPHS = ("trainer.cuda_graphs=true", "model.max_length=48", "trainer.selection=last", "trainer.epochs=2")
# What each does at steps of its own: extra steps, terms in the loss, a penalty, a second gradient.
STRATEGIES_IN_STEPS = {
    "naive": ("strategy=naive", "trainer.clip_norm=0.5", "trainer.schedule=linear"),
    "er": ("strategy=er", "dataset.replay.every_k=2", "trainer.gradient_accumulation=2"),
    "kd_logit": ("strategy=kd_logit", "dataset.replay.every_k=2"),
    "ewc_online": ("strategy=ewc_online", "strategy.penalty=0.1", "trainer.precision=bf16"),
    "packed": ("strategy=er", "dataset.replay.every_k=2", "trainer.packing=true"),
    "agem": ("strategy=agem", "strategy.every_k=2", "trainer.optimizer=adamw", "trainer.weight_decay=0.1"),
}


@pytest.fixture
def second_hop(make_run: Make, training: Callable[..., HopTraining]) -> Callable[..., tuple[HopTraining, Tape]]:
    """Put the training of a second hop together; with a tape where it is ``recorded``."""

    def make(*overrides: str, recorded: bool = True, **arguments: Any) -> tuple[HopTraining, Tape]:
        run = make_run(*GRAPHS, *overrides)
        strategy = run.strategy()
        first = training(run, hop=1, strategy=strategy)
        strategy.begin_hop(first.context)
        strategy.end_hop(first.context)
        result, tape = training(run, hop=2, strategy=strategy, **arguments), Tape()
        # The strategy's state is of the first training's model, which is the same untrained one.
        strategy.begin_hop(result.context)
        if recorded:
            result.capture(tape)
        return result, tape

    return make


@pytest.mark.parametrize(
    "strategy",
    [pytest.param(name, marks=() if name in ("naive", "packed") else pytest.mark.full) for name in STRATEGIES_IN_STEPS],
)
def test_recorded_steps_train_the_same_bits(
    strategy: str, second_hop: Callable[..., tuple[HopTraining, Tape]], tmp_path: Path
) -> None:
    result = {}
    for recorded in (False, True):
        hop, tape = second_hop(
            *STRATEGIES_IN_STEPS[strategy], recorded=recorded, checkpoints=tmp_path / f"kept {recorded}"
        )
        facts = hop.run()
        result[recorded] = (
            copied(hop.context.model),
            optimizer_state(hop.optimizer, hop.context.model),
            facts | {"seconds": 0, "peak_bytes": 0},
        )
    assert same(result[True][0], result[False][0])
    assert same(result[True][1], result[False][1])
    assert result[True][2] == result[False][2]
    # Some were repeated indeed, after the first one, which recording took.
    assert tape.replayed > tape.captured > 0


@pytest.mark.full
def test_a_hop_that_was_stopped_goes_on_to_the_same_bits(
    second_hop: Callable[..., tuple[HopTraining, Tape]], tmp_path: Path
) -> None:
    """After the stop, steps whose shape came up before are taken unrecorded at first."""
    arguments = (*STRATEGIES_IN_STEPS["er"], "trainer.epochs=5")
    whole, _ = second_hop(*arguments, checkpoints=tmp_path / "whole")
    whole.run()
    at = StopAt(4)
    stopped, _ = second_hop(*arguments, checkpoints=tmp_path / "stopped", listener=at, stop=at.stop)
    with pytest.raises(Stopped):
        stopped.run()
    again, tape = second_hop(*arguments, checkpoints=tmp_path / "stopped")
    again.run()
    assert tape.captured
    assert same(copied(again.context.model), copied(whole.context.model))


class Waiting(Naive):
    """Claims to repeat itself, and reads what the device has."""

    plan = Strategy.plan

    def steps(self, number: int, main: Any, context: Any) -> Any:
        self.model = context.model
        yield Step(main, self.doubled)

    @repeatable
    def doubled(self, part: Any, rows: slice) -> Any:
        loss = self.model.loss(part)
        return loss * 2 if loss.item() > 100 else loss


@repeatable
def repeats(*given: Any) -> Any: ...


def test_steps_are_recorded_only_if_all_their_functions_are_known_to_repeat() -> None:
    batch: Any = None

    def counts(*given: Any) -> Any: ...

    for step in (Step(batch), Step(batch, repeats), Step(batch, edit=repeats)):
        assert step.repeats
    for step in (
        Step(batch, counts),
        Step(batch, repeats, edit=counts),
        # A function around one that repeats is another function.
        Step(batch, partial(repeats, 1)),
        Step(batch, terms=[Term(batch)]),
        Step(batch, rows={}),
    ):
        assert not step.repeats


def test_steps_with_other_functions_are_recorded_apart(make_run: Make, training: Callable[..., HopTraining]) -> None:
    batch, calls = training(make_run(*GRAPHS)).context.train["en"].batch([0, 1]), []

    def work(step: Step) -> list[torch.Tensor]:
        calls.append(step.edit)
        return [torch.zeros(())]

    steps = CapturedSteps(Tape(), work, micro_batch=2)
    for edit in (None, repeats, None, repeats, None):
        steps.take(Step(batch, edit=edit))
    # Each runs once as it is and once to be recorded.
    assert calls == [None, repeats, None, repeats]


def test_a_step_that_cannot_be_recorded_ends_the_run_in_a_line(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    run = make_run(*GRAPHS)
    hop = training(run, strategy=Waiting(run.config.strategy))
    hop.capture(Tape())
    with pytest.raises(RunError, match=r"trainer\.cuda_graphs=true: a step could not be captured \(.*; use trainer"):
        hop.run()


def test_what_the_host_looks_at_in_a_batch_is_a_part_of_its_shape(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    """Of batches that differ in nothing else, those without padding have steps of their own."""
    hop = training(make_run(*GRAPHS))
    sentences = hop.context.train["en"]
    width = sentences.batch([0]).input_ids.shape[1]
    padded = sentences.batch([0, 1])
    lengths = np.full(2, padded.input_ids.shape[1])
    whole = replace(padded, attention_mask=torch.ones_like(padded.attention_mask), lengths=lengths)
    empty = replace(padded, attention_mask=torch.zeros_like(padded.attention_mask))
    assert (padded.whole, whole.whole, empty.whole) == (False, True, False)
    assert width % 16 == padded.tags.shape[1] % 8 == 0

    def work(step: Step) -> list[torch.Tensor]:
        return [step.batch.attention_mask.sum() * (2 if step.batch.whole else 1)]

    steps = CapturedSteps(Tape(), work, micro_batch=2)
    losses = [steps.take(Step(batch))[0] for batch in (padded, padded, whole, whole, empty, whole)]
    pieces = int(sentences.lengths[:2].sum())
    # Each is a tensor of its own: later steps do not write into it.
    assert [int(loss) for loss in losses] == [pieces, pieces, 4 * lengths[0], 4 * lengths[0], 0, 4 * lengths[0]]
    assert len(steps.captured) == 2


def test_padding_to_few_shapes_changes_no_more_than_rounding(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    even, tight = training(make_run(*GRAPHS)), training(make_run("model.max_length=48"))
    for hop in (even, tight):
        hop.context.model.eval()
    for indices in ([0], [3, 5], [1, 2, 4]):
        losses = [hop.context.model.loss(hop.context.batch("en", np.array(indices))) for hop in (even, tight)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    few = {even.context.batch("en", np.array([i])).input_ids.shape for i in range(len(even.context.train["en"]))}
    assert len(few) < len(set(even.context.train["en"].lengths))


def test_rows_of_few_shapes_change_packed_sentences_no_more_than_rounding(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    packed = ("trainer.packing=true", "model.dropout=0")
    few, tight = training(make_run(*GRAPHS, *packed)), training(make_run("model.max_length=48", *packed))
    shapes = set()
    for hop in (few, tight):
        hop.context.model.train()
        hop.context.model.packs = True
    for indices in ([0], [3, 5], [1, 2, 4], [0, 1, 2, 3, 4, 5]):
        batches = [hop.context.batch("en", np.array(indices)) for hop in (few, tight)]
        losses = [hop.context.model.loss(batch) for hop, batch in zip((few, tight), batches, strict=True)]
        assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
        (laid_out, left), size = batches, len(indices)
        assert laid_out.packing is not None
        assert left.packing is None
        shapes.add(laid_out.packing.shape[1:])
        assert laid_out.packing.shape[1] <= size
    # Fewer rows than sentences, and one width.
    assert max(rows for rows, _ in shapes) < 6
    assert len({width for _, width in shapes}) == 1
    # A part of a batch is packed by the model.
    assert laid_out.at(slice(0, 2)).packing is None


def test_steps_that_pack_on_the_host_are_not_recorded(
    second_hop: Callable[..., tuple[HopTraining, Tape]],
) -> None:
    """A replayed batch that is larger than a micro-batch is divided, and its parts are packed anew."""
    hop, tape = second_hop("trainer.packing=true", "trainer.batch_size=4", "trainer.epochs=1")
    hop.position.step, hop.context.model.packs = 1, True
    batch = hop.context.batch("en", np.arange(4))
    for _ in range(3):
        hop._update(Step(hop.context.batch("en", np.arange(6))), main=False)
        hop._update(Step(replace(batch, packing=None)), main=False)
    assert tape.captured == 0
    for _ in range(3):
        hop._update(Step(batch), main=False)
    assert tape.captured == 1


def test_a_plan_says_which_added_parameters_prevent_recording(make_run: Make) -> None:
    def told(*overrides: str) -> list[str]:
        return [note for note in notes([make_run(*overrides)]) if "cuda_graphs" in note]

    assert len(told(*GRAPHS, "strategy=inc_lora")) == 1
    assert told(*GRAPHS, "strategy=er") == told("strategy=inc_lora") == []


@pytest.mark.parametrize(("strategy", "notes"), [("er", 0), ("si", 1)])
def test_a_hop_says_that_none_of_its_steps_was_recorded(
    strategy: str, notes: int, second_hop: Callable[..., tuple[HopTraining, Tape]]
) -> None:
    listener = Hearing()
    hop, _ = second_hop(f"strategy={strategy}", "trainer.epochs=1", listener=listener)
    hop.run()
    assert len([note for note in listener.heard if "cuda_graphs=true only added padding" in note]) == notes


@pytest.mark.parametrize("reason", ["this encoder", "no mean over sentences"])
def test_a_hop_says_why_its_model_was_not_recorded(
    reason: str, make_run: Make, training: Callable[..., HopTraining], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, listener = make_run(*GRAPHS, "trainer.epochs=1"), Hearing()
    if reason == "this encoder":
        monkeypatch.setattr("xclrun.train.loop.takes_masks", lambda encoder: False)
    else:
        monkeypatch.setattr(HEADS[run.dataset.task.head], "units", lambda head, batch: batch.words)
    hop = training(run, listener=listener)
    hop.capture(Tape())
    hop.run()
    [note] = [note for note in listener.heard if "cuda_graphs=true only added padding" in note]
    assert reason in note
    assert "strategy" not in note


def test_functions_that_are_new_in_each_step_end_the_run_in_a_line(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    batch = training(make_run(*GRAPHS)).context.train["en"].batch([0, 1])
    steps = CapturedSteps(Tape(), lambda step: [torch.zeros(())], micro_batch=2)

    def take() -> None:
        @repeatable
        def edit(mean: Any) -> None: ...

        for _ in range(2):
            steps.take(Step(batch, edit=edit))

    for _ in range(FUNCTIONS):
        take()
    with pytest.raises(RunError, match=r"cuda_graphs=true.* are new in each step.*mark methods"):
        take()
    assert len(steps.captured) == FUNCTIONS


class Hearing(Listener):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def noted(self, text: str) -> None:
        self.heard.append(text)
