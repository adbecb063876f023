"""The replay memory: equal shares, uniform samples, rankings with known answers, and the same after a round trip."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch

from xclrun.plan import Run
from xclrun.strategy.shared.distillation import record
from xclrun.strategy.shared.memory import BalancedMemory, herding, ring

from .real import context_of


def rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def filled(size: int, available: dict[str, int], seed: int = 0) -> BalancedMemory:
    memory = BalancedMemory(size)
    for i, (language, n) in enumerate(available.items()):
        memory.admit(language, rng(seed * 100 + i).permutation(n))
    return memory


def sizes(memory: BalancedMemory) -> list[int]:
    return [len(indices) for indices in memory.indices.values()]


def test_shares_after_each_language() -> None:
    """Ten sentences: all for the first language, then 5 + 5, 4 + 3 + 3, 3 + 3 + 2 + 2."""
    memory, found = BalancedMemory(10), []
    for i, language in enumerate("abcd"):
        memory.admit(language, rng(i).permutation(50))
        found.append(sizes(memory))
    assert found == [[10], [5, 5], [4, 3, 3], [3, 3, 2, 2]]
    assert list(memory.indices) == list("abcd")
    assert len(memory) == 10


@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 6000])
@pytest.mark.parametrize("languages", [1, 2, 6])
def test_shares_are_equal_and_use_the_whole_budget(size: int, languages: int) -> None:
    shares = BalancedMemory(size).shares([f"l{i}" for i in range(languages)])
    assert sum(shares.values()) == size
    assert max(shares.values()) - min(shares.values()) <= 1


def test_a_language_with_less_than_its_share_is_kept_whole() -> None:
    memory = filled(10, {"a": 3, "b": 50, "c": 2})
    assert sizes(memory) == [3, 3, 2]
    assert sorted(memory.indices["a"]) == [0, 1, 2]
    assert sorted(memory.indices["c"]) == [0, 1]


def test_indices_are_distinct_and_of_the_training_split() -> None:
    for indices in filled(30, {"a": 20, "b": 35, "c": 11}).indices.values():
        assert len(set(indices.tolist())) == len(indices)
    memory = filled(30, {"a": 20, "b": 35, "c": 11})
    assert all(0 <= i < n for language, n in (("a", 20), ("b", 35), ("c", 11)) for i in memory.indices[language])


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("languages", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_every_sentence_is_kept_equally_often(languages: Sequence[str]) -> None:
    """The first language's sample is uniform when it comes, and stays so as its share shrinks."""
    counts = np.zeros(20)
    for seed in range(3000):
        np.add.at(counts, filled(6, dict.fromkeys(languages, 20), seed).indices["a"], 1)
    assert counts.sum() == 3000 * (6 // len(languages))
    # 19 degrees of freedom: 43.8 is exceeded once in a thousand; the seeds are fixed.
    assert chi_square(counts) < 43.8


def test_every_kept_sentence_is_drawn_equally_often() -> None:
    memory, counts = filled(8, {"a": 100}), dict.fromkeys(range(100), 0)
    for seed in range(2000):
        for index in memory.draw("a", 3, rng(seed)):
            counts[int(index)] += 1
    drawn = np.array([counts[int(index)] for index in memory.indices["a"]])
    assert drawn.sum() == sum(counts.values()) == 6000
    # 7 degrees of freedom: 24.3 is exceeded once in a thousand.
    assert chi_square(drawn) < 24.3


def test_a_draw_has_no_sentence_twice() -> None:
    memory = filled(8, {"a": 100})
    assert all(len(set(memory.draw("a", 8, rng(seed)).tolist())) == 8 for seed in range(20))
    assert sorted(memory.draw("a", 50, rng(0))) == sorted(memory.indices["a"])


def test_round_trip_through_json() -> None:
    memory = filled(11, {"b": 30, "a": 4, "c": 30})
    again = BalancedMemory.from_facts(json.loads(json.dumps(memory.to_facts())))
    assert again.size == 11
    # The order of the languages decides who gets what does not divide evenly.
    assert list(again.indices) == ["b", "a", "c"]
    for language in memory.indices:
        assert np.array_equal(again.indices[language], memory.indices[language])
        assert np.array_equal(again.draw(language, 2, rng(3)), memory.draw(language, 2, rng(3)))
    memory.admit("d", rng(9).permutation(30))
    again.admit("d", rng(9).permutation(30))
    assert memory.to_facts() == again.to_facts()


def test_ring_takes_the_latest_of_each_class_in_turn() -> None:
    # Class 0 stands at 0, 1, 4; class 1 at 2; class 2 at 3, 5.
    assert ring(np.array([0, 0, 1, 2, 0, 2])).tolist() == [5, 4, 2, 3, 1, 0]


@pytest.mark.parametrize("size", range(1, 13))
def test_a_share_of_a_ring_is_what_buffers_per_class_hold(size: int) -> None:
    """Oracle: first-in-first-out buffers of ``size / classes``, filled in the order of the file."""
    labels = np.array([0, 1, 2] * 4)
    kept = set(ring(labels)[:size].tolist())
    for label in range(3):
        members = [i for i in range(12) if labels[i] == label]
        mine = [i for i in members if i in kept]
        assert mine == members[len(members) - len(mine) :]
        assert len(mine) in (size // 3, size // 3 + (size % 3 > 0))


def test_herding_of_a_square() -> None:
    """The mean of (1, 0), (0, 1), (0.6, 0.8) and (0.8, 0.6) lies on the diagonal: the two near it come first."""
    features = np.array([[2.0, 0.0], [0.0, 3.0], [0.6, 0.8], [1.6, 1.2]])
    assert sorted(herding(np.zeros(4, int), features)[:2]) == [2, 3]


def test_herding_of_classes_in_turn() -> None:
    """Larger class first; in each class the row nearest to its mean, then the one that keeps the mean."""
    features = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [-1.0, 0.0]])
    # Class 7 (rows 0, 2, 4): its mean is (0, 1/3), so 2 is first; then 0 and 4 are as good. Class 3 (rows 1, 3).
    assert herding(np.array([7, 3, 7, 3, 7]), features).tolist() == [2, 1, 0, 3, 4]
    assert herding(np.array([7, 3, 7, 3, 7]), features, limit=2).tolist() == [2, 1]


def test_herding_against_its_definition() -> None:
    """iCaRL, algorithm 4, as it is written."""
    features = rng(0).normal(size=(25, 6))
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    mean, picked = unit.mean(axis=0), []
    while len(picked) < 25:
        distance = {
            i: np.linalg.norm(mean - (unit[picked].sum(axis=0) + unit[i]) / (len(picked) + 1))
            for i in range(25)
            if i not in picked
        }
        picked.append(min(distance, key=lambda i: distance[i]))
    assert herding(np.zeros(25, int), features).tolist() == picked


@pytest.mark.parametrize("ranking", [ring, lambda labels: herding(labels, rng(1).normal(size=(len(labels), 3)))])
@pytest.mark.parametrize("n", [0, 1, 40])
def test_a_ranking_has_every_sentence_once(ranking: object, n: int) -> None:
    assert sorted(ranking(rng(n).integers(0, 5, n)).tolist()) == list(range(n))  # type: ignore[operator]


def test_a_share_holds_equally_many_of_each_class() -> None:
    labels = np.repeat([0, 1, 2, 3], [30, 2, 10, 1])
    for order in (ring(labels), herding(labels, rng(2).normal(size=(43, 4)))):
        assert np.bincount(labels[order[:11]]).tolist() == [4, 2, 4, 1]


@pytest.mark.usefixtures("threads")
def test_recorded_outputs_stand_in_the_order_of_the_sentences(make_run: Callable[..., Run]) -> None:
    """They are computed in batches of similar length, so in another order."""
    context = context_of(make_run(), 1)
    train, model = context.train["en"], context.model.eval()
    assert (np.diff(train.lengths) > 0).any()
    with torch.no_grad():
        wanted = torch.cat([model(train.batch([i])).cls for i in range(len(train))]).double().numpy()
    found = record(context, train, torch.float64, lambda output, batch: {"cls": output.cls})["cls"].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert not np.allclose(wanted[0], wanted[1], atol=1e-3)


def test_what_is_admitted_shrinks_from_its_end() -> None:
    memory = BalancedMemory(6)
    memory.admit("a", np.array([9, 8, 7, 6, 5, 4, 3]))
    assert memory.indices["a"].tolist() == [9, 8, 7, 6, 5, 4]
    memory.admit("b", np.array([1, 0]))
    assert {name: kept.tolist() for name, kept in memory.indices.items()} == {"a": [9, 8, 7], "b": [1, 0]}


def test_rows_are_where_the_draw_stands() -> None:
    memory = BalancedMemory(8)
    memory.admit("a", rng(0).permutation(50))
    for seed in range(5):
        rows = memory.draw_rows("a", 3, rng(seed))
        assert np.array_equal(memory.indices["a"][rows], memory.draw("a", 3, rng(seed)))


def test_a_draw_from_all_is_uniform_over_the_whole_memory() -> None:
    memory = BalancedMemory(9)
    for name, n in {"a": 2, "b": 50, "c": 50}.items():
        memory.admit(name, np.arange(n) + 100)
    assert [len(kept) for kept in memory.indices.values()] == [2, 3, 3]
    counts = {(name, int(i)): 0 for name, kept in memory.indices.items() for i in kept}
    for seed in range(1600):
        drawn = memory.draw_from_all(4, rng(seed))
        pairs = [(name, int(i)) for name, indices in drawn.items() for i in indices]
        assert len(set(pairs)) == len(pairs) == 4
        for pair in pairs:
            counts[pair] += 1
    # 8 sentences, 800 times each; a standard deviation is 20.
    assert all(abs(count - 800) < 80 for count in counts.values())
    whole = memory.draw_from_all(100, rng(0))
    assert sorted(itertools.chain(*whole.values())) == sorted(itertools.chain(*memory.indices.values()))
