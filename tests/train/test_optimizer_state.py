"""``trainer.optimizer_state=kept``: one Adam through all hops, whoever trained the hop before."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from xclrun.plan import Run
from xclrun.store.tensors import load_tensors
from xclrun.train.loop import HopTraining, load_weights
from xclrun.train.stages import OPTIMIZER
from xclrun.train.stop import Stopped

from .conftest import StopAt, copied, same, stored

Make = Callable[..., Run]

KEPT = ("trainer.optimizer_state=kept", "trainer.epochs=1", "order=[en,de]")


def kept(run: Run, hop: int, file: str = OPTIMIZER) -> Any:
    return load_tensors(run.store.path(run.stages[hop].train) / file)


def test_the_next_hop_goes_on_with_the_same_adam(
    make_run: Make, do: Make, training: Callable[..., HopTraining]
) -> None:
    """By hand: two trainings, of which the second is given the optimiser of the first, after its last step."""
    run = do(make_run(*KEPT, "trainer.epochs=2"))
    fresh = make_run("trainer.epochs=2", "order=[en,de]")
    assert not {s.train for s in run.stages[1:]} & {s.train for s in fresh.stages[1:]}
    first = training(run)
    first.run()
    result = {}
    for name in ("given", "fresh"):
        second = training(run, hop=2)
        load_weights(second.context.model, copied(first.context.model))
        if name == "given":
            second.optimizer.load_state_dict(first.optimizer.state_dict())
        second.checkpoints.clear()
        second.run()
        result[name] = copied(second.context.model)
    assert same(result["given"], kept(run, 2, "weights.safetensors"))
    assert not same(result["given"], result["fresh"])


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", ["lang_spec_ft", "zero_shot", "multilingual", "growing"])
def test_hops_without_parent_and_successor_share_a_fresh_optimizers_training(
    strategy: str, make_run: Make, do: Make
) -> None:
    run = do(make_run(*KEPT, f"strategy={strategy}"))
    fresh = make_run("trainer.epochs=1", f"strategy={strategy}", "order=[en,de]")
    assert run.id != fresh.id
    assert run.stages == fresh.stages
    assert not any((run.store.path(stage.train) / OPTIMIZER).exists() for stage in run.stages)


def test_zero_shot_shares_the_first_hop_of_naive_only_with_a_fresh_optimizer(make_run: Make, do: Make) -> None:
    """Its hop passes no optimizer state on, and naive's second hop needs one: sharing with it would lack the state."""
    zero_shot = do(make_run(*KEPT, "strategy=zero_shot"))
    fresh = make_run("trainer.epochs=1", "order=[en,de]")
    assert zero_shot.stages[1].train == fresh.stages[1].train
    naive = do(make_run(*KEPT))
    assert naive.stages[1].train != zero_shot.stages[1].train
    assert all((naive.store.path(stage.train) / OPTIMIZER).exists() for stage in naive.stages[1:])
    # The shared training is that of naive: the state that it lacks changes no weight of its own hop.
    assert same(*(kept(run, 1, "weights.safetensors") for run in (zero_shot, naive)))


def steps(run: Run, hop: int, beginning: str) -> set[int]:
    """Return how many updates the parameters have seen whose names begin so, as their Adam counts them."""
    return {int(t) for key, t in kept(run, hop).items() if key.startswith(beginning) and key.endswith("/step")}


def test_what_starts_anew_in_a_hop_has_a_fresh_state(make_run: Make, do: Make) -> None:
    own = do(make_run(*KEPT, "strategy=lang_spec_task"))
    # 22 and 18 sentences in batches of 4.
    assert [steps(own, hop, "encoder.") for hop in (1, 2)] == [{6}, {11}]
    assert [steps(own, hop, "tagger.") for hop in (1, 2)] == [{6}, {5}]
    reset = do(make_run(*KEPT, "strategy=fc_reset_pooler", "dataset.task=sequence_class"))
    assert [steps(reset, hop, "pooler.") for hop in (1, 2)] == [{6}, {11}]
    assert [steps(reset, hop, "classifier.") for hop in (1, 2)] == [{6}, {5}]
    assert steps(reset, 2, "encoder.") == set()


@pytest.mark.some_cases
@pytest.mark.parametrize("case", ["shared", "gone", "interrupted"])
def test_results_do_not_depend_on_who_trained_the_hop_before(
    case: str, alone: Callable[..., Any], make_run: Make, do: Make
) -> None:
    run = make_run(*KEPT, "strategy=er")
    if case == "interrupted":
        # In the first hop, and twice in the second.
        listener = StopAt(3, 8, 10)
        for _ in range(3):
            with pytest.raises(Stopped):
                do(run, listener, listener.stop)
            listener.stop.number = None
    else:
        naive = do(make_run(*KEPT))
        assert naive.stages[1].train == run.stages[1].train
        if case == "gone":
            shutil.rmtree(run.store.path(run.stages[1].train))
    do(run)
    assert stored(run.store).items() >= alone(*KEPT, "strategy=er")[0].items()
