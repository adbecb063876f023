"""An interrupted run ends as an undisturbed one does, bit for bit, wherever it was interrupted."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from xclrun.config.schema import StrategyConfig
from xclrun.plan import Run
from xclrun.store.files import read_events
from xclrun.store.tensors import load_tensors
from xclrun.strategy import State, Step, Strategy
from xclrun.strategy.naive import Naive
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import Stopped

from .conftest import StopAt, copied, predicted, same, stored

Make = Callable[..., Run]
Do = Callable[..., Run]

# Main steps of each hop on the corpus: 2 epochs of 6, 5 and 4 batches, and of their unions.
HOPS = (12, 10, 8)


def interrupted(run: Run, do: Do, *steps: int) -> None:
    """Do a run until it is stopped, and check that it says so."""
    listener = StopAt(*steps)
    with pytest.raises(Stopped) as stopped:
        do(run, listener, listener.stop)
    assert stopped.value.number == signal.SIGTERM
    manifest = run.directory.read_manifest()
    assert (manifest["status"], manifest["error"]) == ("interrupted", "SIGTERM")
    assert not run.directory.finished
    assert [event["event"] for event in read_events(run.directory.events)][-1] == "interrupted"


class Starts(Listener):
    """Notes the hops that begin and the main steps that are taken in each."""

    def __init__(self) -> None:
        self.hops: list[int] = []
        self.steps: list[int] = []

    def hop_started(self, run: Run, hop: Any) -> None:
        self.hops.append(hop.index)

    def stepped(self, progress: Progress) -> None:
        self.steps.append(progress.step)


def checkpoints(run: Run) -> list[Path]:
    return sorted(run.store.root.glob("*/*.checkpoints/*"))


@pytest.fixture
def undisturbed(alone: Callable[..., Any]) -> Callable[[str], Any]:
    """Return what an undisturbed run of a strategy stores and predicts."""
    return lambda strategy: alone(f"strategy={strategy}")[:2]


@pytest.mark.parametrize("step", [1, 12, 15], ids=lambda step: f"step {step}")
def test_stopped_once(step: int, undisturbed: Callable[[str], Any], make_run: Make, do: Do) -> None:
    """The first step, the last of a hop, and one between er's replays: many steps follow, whatever they lean on."""
    run = make_run("strategy=er")
    interrupted(run, do, step)
    [checkpoint] = checkpoints(run)
    hop = 1 + (step > HOPS[0]) + (step > sum(HOPS[:2]))
    assert checkpoint.parent == run.store.checkpoints(run.stages[hop].train)
    starts, done = Starts(), step - sum(HOPS[: hop - 1])
    do(run, starts)
    # What was finished is not done again: the hop goes on after its last step.
    assert starts.hops == [*range(hop, 4)]
    assert starts.steps == [*range(done + 1, HOPS[hop - 1] + 1), *(k + 1 for later in HOPS[hop:] for k in range(later))]
    assert (stored(run.store), predicted(run)) == undisturbed("er")
    events = [event["event"] for event in read_events(run.directory.events)]
    assert events.count("started") == 2
    assert events[-1] == "finished"
    assert run.directory.read_manifest()["status"] == "finished"


@pytest.mark.some_cases("accumulation", "blocks")
@pytest.mark.parametrize(
    "overrides",
    [
        ("trainer.epochs=4", "trainer.patience=1", "trainer.selection=best"),
        ("trainer.selection=last", "trainer.schedule=cosine", "trainer.warmup=0.3", "trainer.optimizer=adamw"),
        ("trainer.batch_size=2", "trainer.gradient_accumulation=2", "trainer.clip_norm=0.5", "trainer.precision=bf16"),
        ("dataset.blocks=3", "trainer.selection=last"),
    ],
    ids=["patience", "schedule", "accumulation", "blocks"],
)
def test_other_trainers(overrides: tuple[str, ...], make_run: Make, do: Do) -> None:
    expected = do(make_run("strategy=er", "order=[en,de]", *overrides, outputs="undisturbed"))
    run = make_run("strategy=er", "order=[en,de]", *overrides)
    for step in (5, 9, 4):
        interrupted(run, do, step)
    do(run)
    assert (stored(run.store), predicted(run)) == (stored(expected.store), predicted(expected))


def test_checkpoints_are_saved_as_time_goes_by(make_run: Make, training: Callable[..., HopTraining]) -> None:
    """Killed without a word: what the last checkpoint holds is enough."""

    class Dying(Listener):
        def stepped(self, progress: Progress) -> None:
            if progress.step == 9:
                raise KeyboardInterrupt

    run = make_run("trainer.checkpoint_minutes=1e-9")
    whole = training(make_run())
    counted = whole.run()
    with pytest.raises(KeyboardInterrupt):
        training(run, listener=Dying()).run()
    again = training(run)
    steps: list[int] = []
    again.listener.stepped = lambda progress: steps.append(progress.step)  # type: ignore[method-assign]
    recounted = again.run()
    assert steps == [9, 10, 11, 12]
    assert same(copied(again.context.model), copied(whole.context.model))
    untimed = {"seconds": 0, "peak_bytes": 0}
    assert {**recounted, **untimed} == {**counted, **untimed}


def test_no_checkpoint_before_its_time(make_run: Make, training: Callable[..., HopTraining], tmp_path: Path) -> None:
    trained = training(make_run("trainer.checkpoint_minutes=10"), checkpoints=tmp_path / "none")
    trained.run()
    assert not (tmp_path / "none").exists()


@pytest.mark.full
@pytest.mark.parametrize("before", [("strategy=naive",), ("strategy=er", "strategy.memory=4")], ids="-".join)
def test_another_strategy_goes_on_from_a_shared_hop_s_checkpoint(
    before: tuple[str, ...], undisturbed: Callable[[str], Any], make_run: Make, do: Do
) -> None:
    """The weights are the same training; what the other strategy keeps, a memory of its size, is not."""
    interrupted(make_run(*before), do, 5)
    listener = StopAt()
    run = do(make_run("strategy=er"), listener)
    assert listener.taken == sum(HOPS) - 5
    assert (stored(run.store), predicted(run)) == undisturbed("er")


class Learning(Naive):
    """A strategy whose state changes inside a hop, and its loss with it."""

    def __init__(self) -> None:
        super().__init__(StrategyConfig("learning"))
        self.seen, self.sums = 0, torch.zeros(2)

    plan = Strategy.plan

    def steps(self, number: int, main: Any, context: Any) -> Iterable[Step]:
        yield Step(main, lambda part, rows: self.loss_of(part, context.model))

    def loss_of(self, part: Any, model: Any) -> torch.Tensor:
        self.seen += 1
        self.sums += model.intent.bias[:2].detach()
        return model.loss(part) * (1 + 0.1 * self.seen) + self.sums.sum() * model.intent.bias.sum()

    def state_dict(self) -> State:
        return State({"seen": self.seen}, {"sums": self.sums.clone()})

    def load_state_dict(self, state: State) -> None:
        self.seen, self.sums = state.facts["seen"], state.tensors["sums"].clone()


def test_a_state_that_changes_inside_a_hop_is_part_of_its_checkpoint(
    make_run: Make, training: Callable[..., HopTraining], tmp_path: Path
) -> None:
    run, whole = make_run(), Learning()
    undisturbed = training(run, strategy=whole, checkpoints=tmp_path / "none")
    undisturbed.run()
    listener = StopAt(7)
    with pytest.raises(Stopped):
        training(run, strategy=Learning(), listener=listener, stop=listener.stop).run()
    resumed = Learning()
    again = training(run, strategy=resumed)
    again.run()
    assert same(copied(again.context.model), copied(undisturbed.context.model))
    assert (resumed.seen, resumed.sums.tolist()) == (whole.seen, whole.sums.tolist())
    assert whole.seen == HOPS[0]


class WritingInPlace(Learning):
    """The same, which changes its tensor in place and has another that no hop changes."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = torch.full((3,), 0.25)

    plan = Strategy.plan

    def loss_of(self, part: Any, model: Any) -> torch.Tensor:
        return super().loss_of(part, model) * self.fixed.sum()

    def state_dict(self) -> State:
        return State({"seen": self.seen}, {"sums": self.sums, "fixed": self.fixed})

    def load_state_dict(self, state: State) -> None:
        self.seen, self.sums, self.fixed = state.facts["seen"], state.tensors["sums"], state.tensors["fixed"]


def test_a_checkpoint_leaves_out_the_tensors_that_the_hop_has_not_changed(
    make_run: Make, training: Callable[..., HopTraining], tmp_path: Path
) -> None:
    run, whole = make_run(), WritingInPlace()
    undisturbed = training(run, strategy=whole, checkpoints=tmp_path / "none")
    undisturbed.run()
    for stop in (3, 5):
        listener = StopAt(stop)
        stopped = training(run, strategy=WritingInPlace(), listener=listener, stop=listener.stop)
        with pytest.raises(Stopped):
            stopped.run()
        result = stopped.checkpoints.load()
        assert result is not None
        assert (result[0]["step"], result[0]["unchanged"]) == (3 if stop == 3 else 8, ["fixed"])
        assert [name for name in result[1] if name.startswith("strategy/")] == ["strategy/sums"]
    again = training(run, strategy=WritingInPlace())
    again.run()
    assert same(copied(again.context.model), copied(undisturbed.context.model))


def test_a_checkpoint_of_another_state_is_not_taken_up(make_run: Make, training: Callable[..., HopTraining]) -> None:
    run, listener = make_run(), StopAt(3)
    with pytest.raises(Stopped):
        training(run, strategy=WritingInPlace(), listener=listener, stop=listener.stop).run()
    starts, other = Starts(), WritingInPlace()
    other.state_dict = lambda: State({"seen": other.seen}, {"sums": other.sums})  # type: ignore[method-assign]
    training(run, strategy=other, listener=starts).run()
    assert starts.steps[0] == 1


def test_fisher_information_and_teachers_are_in_no_checkpoint(make_run: Make, do: Do) -> None:
    """The store has them, of the hop before: a stop inside hop 2 writes weights and Adam's means alone."""
    for strategy in ("ewc_online", "kd_logit"):
        run = make_run(f"strategy={strategy}", "order=[en,de]", "trainer.epochs=1", outputs=strategy)
        interrupted(run, do, 8)
        [path] = checkpoints(run)
        names = list(load_tensors(path))
        assert "model/intent.weight" in names
        assert not [name for name in names if name.startswith("strategy/")]
        assert list(load_tensors(run.store.path(str(run.stages[1].state)) / "state.safetensors"))


def test_what_was_not_looked_at_yet_is_counted(make_run: Make, training: Callable[..., HopTraining]) -> None:
    """On a GPU losses are looked at now and then; a checkpoint must not lose those since the last look."""
    run = make_run()
    counted, listener = training(make_run()).run(), StopAt(4)
    stopped = training(run, listener=listener, stop=listener.stop)
    stopped.look_every = 25
    with pytest.raises(Stopped):
        stopped.run()
    recounted = training(run).run()
    assert recounted["tokens"] == counted["tokens"]
    assert [e["loss"] for e in recounted["epochs"]] == pytest.approx([e["loss"] for e in counted["epochs"]])
