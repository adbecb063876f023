"""Experience replay's options: what takes the place of the main step, and which sentences are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from xclrun.run import Run
from xclrun.store.files import read_json
from xclrun.strategy.er import ExperienceReplay, Interleave, ReplaySettings
from xclrun.strategy.shared.memory import MemorySelection

SIZES = {"en": 40, "de": 30, "es": 3}


def er(memory: int = 10, interleave: Interleave = Interleave.replace) -> ExperienceReplay:
    return ExperienceReplay(ReplaySettings("er", memory, 3, interleave=interleave))


def languages(strategy: ExperienceReplay, context: Any) -> list[list[str]]:
    """Return what the first six steps train on: ``main``, or the language of a replayed batch."""
    main: Any = ("main", None)
    return [[language for language, _ in strategy.replay(step, main, context)] for step in range(1, 7)]


def test_replays_take_the_place_of_every_kth_main_step(context: Any, learn: Any) -> None:
    strategy = learn(er(), SIZES, hops=[1, 2])
    assert languages(strategy, context(3, SIZES)) == 2 * [["main"], ["main"], ["en", "de"]]


def test_both_kinds_replay_the_same_batches(context: Any, learn: Any) -> None:
    found = []
    for interleave in Interleave:
        hop = context(3, SIZES)
        list(learn(er(interleave=interleave), SIZES, hops=[1, 2]).replay(6, None, hop))
        found.append([(language, indices.tolist()) for language, indices in hop.asked])
    assert found[0] == found[1]
    assert [language for language, _ in found[0]] == ["en", "de"]


def test_the_main_step_stays_where_there_is_nothing_to_replay(context: Any, learn: Any) -> None:
    assert languages(er(), context(1, SIZES)) == 6 * [["main"]]
    assert languages(learn(er(memory=0), SIZES, hops=[1, 2]), context(3, SIZES)) == 6 * [["main"]]


def test_updates_of_a_whole_run(finished: Callable[..., Run]) -> None:
    """2 epochs of 6, 5 and 4 batches; every second step is none, one or two replays."""
    stages = finished("strategy=er", "strategy.interleave=replace").directory.read_manifest()["stages"]
    assert [stage["training"]["updates"] for stage in stages[1:]] == [12, 5 + 5, 4 + 2 * 4]


def test_options_change_the_run_but_not_the_first_training(make_run: Callable[..., Run]) -> None:
    plain, naive = make_run("strategy=er"), make_run("strategy=naive")
    others = [f"selection={kind.value}" for kind in MemorySelection if kind is not MemorySelection.reservoir]
    for option in (*others, "interleave=replace"):
        run = make_run("strategy=er", f"strategy.{option}")
        assert run.id != plain.id
        assert run.stages[1].train == plain.stages[1].train == naive.stages[1].train
        assert run.stages[2].train not in (plain.stages[2].train, naive.stages[2].train)
        assert run.stages[1].state != plain.stages[1].state


@pytest.mark.parametrize("selection", ["ring", "herding"])
def test_balance_after_each_hop(selection: str, finished: Callable[..., Run]) -> None:
    """A memory of 10: shares of 10, 5 + 5, 4 + 3 + 3; each has all three classes, and begins the share that it was."""
    run = finished("strategy=er", f"strategy.selection={selection}")
    sizes, before = [], {}
    for stage in run.stages[1:]:
        kept = dict(read_json(run.store.path(str(stage.state)) / "facts.json")["kept"])
        sizes.append([len(indices) for indices in kept.values()])
        for language, indices in kept.items():
            train = run.dataset.split(language, "train")
            assert len({train[i].label for i in indices}) == min(3, len(indices))
            assert before.get(language, indices)[: len(indices)] == indices
        before = kept
    assert sizes == [[10], [5, 5], [4, 3, 3]]
