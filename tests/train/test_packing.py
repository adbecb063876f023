"""``trainer.packing=true``: with every strategy, the same training as with padded batches but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.train.execute import execute
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener
from xclrun.train.stop import Stopped

from .conftest import StopAt, copied, same

Make = Callable[..., Run]

# Each calls the model in its own way: a memory's batches, teachers, a gradient beside, hooks, parts, adapters.
STRATEGIES = {
    "er": ("strategy=er",),
    "agem": ("strategy=agem",),
    "kd_logit": ("strategy=kd_logit",),
    "ewc_online": ("strategy=ewc_online", "strategy.penalty=0.1"),
    "lang_spec_trans": ("strategy=lang_spec_trans",),
    "lang_spec_ada_t": ("strategy=lang_spec_ada_t",),
}
# Nothing is dropped, and two hops.
GIVEN = ("order=[en,de]", "trainer.epochs=1", "model.dropout=0", "trainer.selection=last")


@contextmanager
def encoded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Note of each pass through an encoder that is trained whether its sentences stood end to end."""
    seen: list[bool] = []
    with monkeypatch.context() as patch:
        for name, packs in (("encode", False), ("_encode_packed", True)):
            original: Any = getattr(Model, name)

            def noted(self: Model, *overrides: Any, original: Any = original, packs: bool = packs) -> Any:
                if self.training:
                    seen.append(packs)
                return original(self, *overrides)

            patch.setattr(Model, name, noted)
        yield seen


class Losses(Listener):
    def __init__(self) -> None:
        self.found: list[float] = []

    def epoch_ended(self, progress: Any, facts: dict[str, Any]) -> None:
        self.found.append(facts["loss"])


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_learns_what_it_learns_from_padded_batches(
    strategy: str, make_run: Make, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if strategy == "lang_spec_ada_t":
        pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    result = {}
    for packing in ("false", "true"):
        listener = Losses()
        run = make_run(*STRATEGIES[strategy], *GIVEN, f"trainer.packing={packing}")
        with encoded(monkeypatch) as seen:
            execute(run, listener, StopAt().stop)
        # Each encoding, or none.
        assert seen.count(True) == (len(seen) // 2 if packing == "true" else 0)
        result[packing] = listener.found
    assert len(result["true"]) == 2
    assert result["true"] == pytest.approx(result["false"], rel=1e-4)


def test_dropout_makes_another_training_which_goes_on_exactly(
    make_run: Make, do: Make, training: Callable[..., HopTraining]
) -> None:
    """Packing is a part of what a training is; what is dropped follows from the place, so a stop changes nothing."""
    padded, packed = (make_run("trainer.epochs=1", f"trainer.packing={p}", "order=[en]") for p in ("false", "true"))
    assert padded.id != packed.id
    assert padded.stages[1].train != packed.stages[1].train
    whole, other = training(packed), training(padded)
    whole.run()
    other.checkpoints.clear()
    other.run()
    assert not same(copied(whole.context.model), copied(other.context.model))
    assert not whole.context.model.packs
    assert same(copied(whole.context.model), stopped_and_resumed(packed, training))


def stopped_and_resumed(run: Run, training: Callable[..., HopTraining]) -> Any:
    """Return the weights of a training that was stopped at its second step and resumed."""
    stopped = StopAt(2)
    first = training(run, listener=stopped, stop=stopped.stop)
    with pytest.raises(Stopped):
        first.run()
    again = training(run)
    again.run()
    return copied(again.context.model)


def test_batches_of_similar_lengths_resume_exactly_and_are_another_training(
    make_run: Make, training: Callable[..., HopTraining]
) -> None:
    drawn, grouped = (make_run("trainer.epochs=1", f"trainer.group_by_length={g}", "order=[en]") for g in (False, True))
    assert (drawn.id, drawn.stages) == ((other := make_run("trainer.epochs=1", "order=[en]")).id, other.stages)
    assert (drawn.id, drawn.stages[1].train) != (grouped.id, grouped.stages[1].train)
    whole = training(grouped)
    batches = [np.asarray(batch.lengths) for batch in whole.curriculum.batches(0, 0)]
    full = [lengths for lengths in batches if len(lengths) == len(batches[0])]
    assert len(full) > 1
    # No window is left: the full batches divide the sentences by length.
    ranges = sorted((lengths.min(), lengths.max()) for lengths in full)
    assert all(low >= high for (_, high), (low, _) in pairwise(ranges))
    whole.run()
    assert same(copied(whole.context.model), stopped_and_resumed(grouped, training))
