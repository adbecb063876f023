"""What a run holds ends with it, at once: nothing waits for the search for garbage, which may never come."""

from __future__ import annotations

import contextlib
import gc
import importlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from xclrun.core.errors import RunError
from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.strategy.er import ExperienceReplay
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener

Make = Callable[..., Run]


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Name what is alive of models, trainings and optimisers that were made since, while no garbage is searched for."""
    # Loading it leaves cycles behind that hold the frames of whoever asked for it.
    importlib.import_module("transformers.models.bert.modeling_bert")
    created: list[weakref.ref[Any]] = []
    for kind in (Model, HopTraining, torch.optim.Adam):

        def noted(self: Any, *args: Any, begin: Any = kind.__init__, **named: Any) -> None:
            created.append(weakref.ref(self))
            begin(self, *args, **named)

        monkeypatch.setattr(kind, "__init__", noted)
    gc.collect()
    gc.disable()
    yield lambda: sorted(type(thing).__name__ for ref in created if (thing := ref()) is not None)
    gc.enable()


class Counting(Listener):
    """Notes what is alive when a hop begins and when it has been evaluated."""

    def __init__(self, alive: Callable[[], list[str]]) -> None:
        self.alive, self.found = alive, []

    def hop_started(self, run: Run, hop: Any) -> None:
        self.found.append(self.alive())

    def hop_ended(self, run: Run, hop: Any, scores: Any, shared: bool) -> None:
        self.found.append(self.alive())


# With memory and own parts; with features of a frozen encoder, points inside hops and a head that changes.
KINDS = [
    ("strategy=er", "strategy.expansion=lang_spec_task"),
    ("strategy=cos_pooler", "dataset.task=sequence_class", "evaluate.every_examples=10"),
]


@pytest.mark.some_cases
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_a_run_holds_one_model_and_no_training_between_hops(
    kind: tuple[str, ...], alive: Callable[[], list[str]], make_run: Make, do: Make
) -> None:
    listener = Counting(alive)
    do(make_run(*kind, "trainer.epochs=1"), listener)
    assert listener.found == [["Model"]] * 7
    assert alive() == []


def test_a_run_that_failed_holds_nothing(
    alive: Callable[[], list[str]], make_run: Make, do: Make, monkeypatch: Any
) -> None:
    for raised, message in ((OSError(28, "No space left on device"), RunError), (ValueError("?"), ValueError)):

        def failing(*args: Any, error: BaseException = raised) -> Any:
            raise error

        monkeypatch.setattr(ExperienceReplay, "steps", failing)
        with contextlib.suppress(message):
            do(make_run(*KINDS[0]))
        raised.__traceback__ = None
        assert alive() == []
