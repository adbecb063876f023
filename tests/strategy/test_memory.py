"""The replay memory: equal shares, uniform samples of the languages seen, and the same after a round trip."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from xclrun.strategy.shared.memory import BalancedMemory


def rng(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def filled(size: int, available: dict[str, int], seed: int = 0) -> BalancedMemory:
    memory = BalancedMemory(size)
    for i, (language, n) in enumerate(available.items()):
        memory.admit(language, rng(seed * 100 + i).permutation(n))
    return memory


def sizes(memory: BalancedMemory) -> list[int]:
    return [len(indices) for indices in memory.kept.values()]


def test_shares_after_each_language() -> None:
    """Ten sentences: all for the first language, then 5 + 5, 4 + 3 + 3, 3 + 3 + 2 + 2."""
    memory, found = BalancedMemory(10), []
    for i, language in enumerate("abcd"):
        memory.admit(language, rng(i).permutation(50))
        found.append(sizes(memory))
    assert found == [[10], [5, 5], [4, 3, 3], [3, 3, 2, 2]]
    assert list(memory.kept) == list("abcd")
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
    assert sorted(memory.kept["a"]) == [0, 1, 2]
    assert sorted(memory.kept["c"]) == [0, 1]


def test_indices_are_distinct_and_of_the_training_split() -> None:
    for indices in filled(30, {"a": 20, "b": 35, "c": 11}).kept.values():
        assert len(set(indices.tolist())) == len(indices)
    memory = filled(30, {"a": 20, "b": 35, "c": 11})
    assert all(0 <= i < n for language, n in (("a", 20), ("b", 35), ("c", 11)) for i in memory.kept[language])


def test_what_stays_was_there_before() -> None:
    memory = filled(9, {"a": 40})
    before = set(memory.kept["a"].tolist())
    memory.admit("b", rng(5).permutation(40))
    assert set(memory.kept["a"].tolist()) < before


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("languages", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_every_sentence_is_kept_equally_often(languages: Sequence[str]) -> None:
    """The first language's sample is uniform when it comes, and stays so as its share shrinks."""
    counts = np.zeros(20)
    for seed in range(3000):
        np.add.at(counts, filled(6, dict.fromkeys(languages, 20), seed).kept["a"], 1)
    assert counts.sum() == 3000 * (6 // len(languages))
    # 19 degrees of freedom: 43.8 is exceeded once in a thousand; the seeds are fixed.
    assert chi_square(counts) < 43.8


def test_every_kept_sentence_is_drawn_equally_often() -> None:
    memory, counts = filled(8, {"a": 100}), dict.fromkeys(range(100), 0)
    for seed in range(2000):
        for index in memory.draw("a", 3, rng(seed)):
            counts[int(index)] += 1
    drawn = np.array([counts[int(index)] for index in memory.kept["a"]])
    assert drawn.sum() == sum(counts.values()) == 6000
    # 7 degrees of freedom: 24.3 is exceeded once in a thousand.
    assert chi_square(drawn) < 24.3


def test_a_draw_has_no_sentence_twice() -> None:
    memory = filled(8, {"a": 100})
    assert all(len(set(memory.draw("a", 8, rng(seed)).tolist())) == 8 for seed in range(20))
    assert sorted(memory.draw("a", 50, rng(0))) == sorted(memory.kept["a"])


def test_round_trip_through_json() -> None:
    memory = filled(11, {"b": 30, "a": 4, "c": 30})
    again = BalancedMemory.from_facts(json.loads(json.dumps(memory.to_facts())))
    assert again.size == 11
    # The order of the languages decides who gets what does not divide evenly.
    assert list(again.kept) == ["b", "a", "c"]
    for language in memory.kept:
        assert np.array_equal(again.kept[language], memory.kept[language])
        assert np.array_equal(again.draw(language, 2, rng(3)), memory.draw(language, 2, rng(3)))
    memory.admit("d", rng(9).permutation(30))
    again.admit("d", rng(9).permutation(30))
    assert memory.to_facts() == again.to_facts()
