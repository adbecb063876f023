"""Experience replay: which extra steps it takes, on what, what it remembers, and its options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.conftest import some
from xclrun.compose.jobs import Composed
from xclrun.plan import Run
from xclrun.store.files import read_json
from xclrun.strategy.er import ExperienceReplay, Interleave, ReplaySettings
from xclrun.strategy.shared.memory import MemorySelection

Make = Callable[..., Run]

SIZES = {"en": 40, "de": 30, "es": 3}


def er(memory: int = 10, every_k: int = 3) -> ExperienceReplay:
    return ExperienceReplay(ReplaySettings("er", memory, every_k))


def batches(strategy: ExperienceReplay, number: int, main: Any, context: Any) -> list[Any]:
    return [step.batch for step in strategy.steps(number, main, context)]


def replayed(strategy: ExperienceReplay, context: Any, steps: int) -> dict[int, list[tuple[str, list[int]]]]:
    """Return step → (language, indices) of its extra batches; the main one comes first in every step."""
    result = {}
    for step in range(1, steps + 1):
        main: Any = f"main {step}"
        first, *extra = batches(strategy, step, main, context)
        assert first == main
        result[step] = [(language, indices.tolist()) for language, indices in extra]
    return result


def test_one_extra_step_per_seen_language_after_every_kth_batch(context: Any, learn: Any) -> None:
    strategy = learn(er(), SIZES, hops=[1, 2])
    steps = replayed(strategy, context(3, SIZES), 10)
    assert {step: [language for language, _ in extra] for step, extra in steps.items() if extra} == {
        3: ["en", "de"],
        6: ["en", "de"],
        9: ["en", "de"],
    }


def test_nothing_is_replayed_in_the_first_hop_or_without_a_memory(context: Any, learn: Any) -> None:
    assert not any(replayed(er(), context(1, SIZES), 12).values())
    empty = learn(er(memory=0, every_k=1), SIZES, hops=[1, 2])
    assert not any(replayed(empty, context(3, SIZES), 5).values())


def test_batches_come_from_the_memory(context: Any, learn: Any) -> None:
    strategy = learn(er(memory=10), SIZES, hops=[1, 2])
    kept = {language: set(indices.tolist()) for language, indices in strategy.memory.indices.items()}
    extras = replayed(strategy, context(3, SIZES, batch_size=4), 12).values()
    for language, indices in some(batch for extra in extras for batch in extra):
        assert len(indices) == len(set(indices)) == 4
        assert set(indices) <= kept[language]


def test_a_share_smaller_than_a_batch_is_replayed_whole(context: Any, learn: Any) -> None:
    strategy = learn(er(memory=5), SIZES, hops=[1, 2])
    [(_, en), (_, de)] = replayed(strategy, context(3, SIZES, batch_size=4), 3)[3]
    assert (len(en), len(de)) == (3, 2)


def test_draws_differ_between_steps_languages_hops_and_seeds_and_depend_on_nothing_else(
    context: Any, learn: Any
) -> None:
    strategy = learn(er(memory=60, every_k=1), {"en": 60, "de": 60, "es": 60}, hops=[1, 2])
    sizes = dict.fromkeys(("en", "de", "es"), 60)
    first = replayed(strategy, context(3, sizes), 3)
    assert first == replayed(strategy, context(3, sizes), 3)
    drawn = [tuple(indices) for extra in first.values() for _, indices in extra]
    drawn += [tuple(indices) for _, indices in replayed(strategy, context(2, sizes), 1)[1]]
    drawn += [tuple(indices) for _, indices in replayed(strategy, context(3, sizes, seed=2), 1)[1]]
    assert len(set(drawn)) == len(drawn)
    # A step's draw is the same when the steps before it were taken in another process.
    assert [
        (language, indices.tolist()) for language, indices in batches(strategy, 3, None, context(3, sizes))[1:]
    ] == (first[3])


def test_memory_after_each_hop(context: Any) -> None:
    strategy, found = er(memory=10), []
    for hop in (1, 2, 3):
        strategy.end_hop(context(hop, SIZES))
        found.append({language: len(indices) for language, indices in strategy.memory.indices.items()})
    assert found == [{"en": 10}, {"en": 5, "de": 5}, {"en": 4, "de": 3, "es": 3}]


def test_memory_depends_on_the_seed(learn: Any) -> None:
    first, again, other = (learn(er(), SIZES, seed=seed).memory.to_facts() for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_state_that_was_taken_does_not_change(context: Any, learn: Any) -> None:
    strategy = er()
    untouched = strategy.state_dict()
    learn(strategy, SIZES)
    strategy.load_state_dict(untouched)
    assert strategy.state_dict() == er().state_dict()


def test_settings_follow_the_dataset(compose: Callable[..., Composed]) -> None:
    mtop = compose("strategy=er", "dataset=mtop", "dataset.root=x").config.strategy
    assert (mtop.memory, mtop.every_k) == (6000, 100)
    asked = compose("strategy=er", "strategy.memory=750", "strategy.every_k=7").config.strategy
    assert (asked.memory, asked.every_k) == (750, 7)


def test_extra_steps_of_a_whole_run(finished: Make) -> None:
    """Every k = 2 main batches, one optimiser step per seen language; steps count over the epochs of a hop."""
    manifest = finished("strategy=er").directory.read_manifest()
    main = [2 * int(np.ceil(size / 4)) for size in (22, 18, 13)]
    for seen, (steps, stage) in enumerate(zip(main, manifest["stages"][1:], strict=True)):
        assert stage["training"]["step"] == steps
        assert stage["training"]["updates"] == steps + seen * (steps // 2)
    # Batches of 4 from a memory of 10: shares of 10, then of 5 + 5.
    sentences = [22 * 2, 18 * 2 + 4 * (main[1] // 2), 13 * 2 + 2 * 4 * (main[2] // 2)]
    assert [stage["training"]["examples"] for stage in manifest["stages"][1:]] == sentences


def replacing(memory: int = 10, interleave: Interleave = Interleave.replace) -> ExperienceReplay:
    return ExperienceReplay(ReplaySettings("er", memory, 3, interleave=interleave))


def trained_on(strategy: ExperienceReplay, context: Any) -> list[list[str]]:
    """Return what the first six steps train on: ``main``, or the language of a replayed batch."""
    main: Any = ("main", None)
    return [[language for language, _ in batches(strategy, step, main, context)] for step in range(1, 7)]


def test_replays_take_the_place_of_every_kth_main_step(context: Any, learn: Any) -> None:
    strategy = learn(replacing(), SIZES, hops=[1, 2])
    assert trained_on(strategy, context(3, SIZES)) == 2 * [["main"], ["main"], ["en", "de"]]


def test_both_kinds_replay_the_same_batches(context: Any, learn: Any) -> None:
    found = []
    for interleave in Interleave:
        hop = context(3, SIZES)
        list(learn(replacing(interleave=interleave), SIZES, hops=[1, 2]).steps(6, None, hop))
        found.append([(language, indices.tolist()) for language, indices in hop.asked])
    assert found[0] == found[1]
    assert [language for language, _ in found[0]] == ["en", "de"]


def test_the_main_step_stays_where_there_is_nothing_to_replay(context: Any, learn: Any) -> None:
    assert trained_on(replacing(), context(1, SIZES)) == 6 * [["main"]]
    assert trained_on(learn(replacing(memory=0), SIZES, hops=[1, 2]), context(3, SIZES)) == 6 * [["main"]]


def test_updates_of_a_whole_run(finished: Make) -> None:
    """2 epochs of 6, 5 and 4 batches; every second step is none, one or two replays."""
    stages = finished("strategy=er", "strategy.interleave=replace").directory.read_manifest()["stages"]
    assert [stage["training"]["updates"] for stage in stages[1:]] == [12, 5 + 5, 4 + 2 * 4]


def test_options_change_the_run_but_not_the_first_training(make_run: Make) -> None:
    plain, naive = make_run("strategy=er"), make_run("strategy=naive")
    others = [f"selection={kind.value}" for kind in MemorySelection if kind is not MemorySelection.reservoir]
    for option in (*others, "interleave=replace"):
        run = make_run("strategy=er", f"strategy.{option}")
        assert run.id != plain.id
        assert run.stages[1].train == plain.stages[1].train == naive.stages[1].train
        assert run.stages[2].train not in (plain.stages[2].train, naive.stages[2].train)
        assert run.stages[1].state != plain.stages[1].state


@pytest.mark.parametrize("selection", ["ring", "herding"])
def test_balance_after_each_hop(selection: str, finished: Make) -> None:
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
