"""GDumb: which examples its memory holds, and that a hop trains on these alone, from hop 0."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from xclrun.plan import Run
from xclrun.strategy.gdumb import GDumb, GDumbSettings, balanced

from .real import context_of

Make = Callable[..., Run]


def kept(classes: str, size: int, seed: int = 1) -> Counter[str]:
    places = balanced(classes, size, np.random.default_rng(seed))
    assert len(set(places)) == len(places) == min(size, len(classes)) or len(set(classes)) < size
    return Counter(classes[place] for place in places)


def test_the_sampler_worked_by_hand() -> None:
    # k = 4. The fifth a and all later ones find their class full: 4 ≥ 4 / 1.
    assert kept("aaaaa", 4) == {"a": 4}
    # b is new, takes a place of a; the next b too (1 < 4 / 2); the third does not (2 ≥ 2).
    assert kept("aaaabbb", 4) == {"a": 2, "b": 2}
    # The rare class keeps what there is of it; c is new, then 1 < 4 / 3, but not 2.
    assert kept("aaaabccc", 4) == {"a": 1, "b": 1, "c": 2}
    # A class that comes back gets no more than its share.
    assert kept("abababab", 4) == {"a": 2, "b": 2}


def test_the_example_that_is_dropped_is_drawn_uniformly() -> None:
    """a fills the memory, then b takes a place: each of the four a is dropped in a quarter of 400 draws (sd 9)."""
    dropped = Counter(
        next(place for place in range(4) if place not in balanced("aaaab", 4, np.random.default_rng(seed)))
        for seed in range(400)
    )
    assert sorted(dropped) == [0, 1, 2, 3]
    assert all(abs(count - 100) < 40 for count in dropped.values())


def test_the_memory_is_not_balanced_over_languages() -> None:
    """Once every class has its share, later languages do not enter."""
    classes = "abcd" * 10
    places = balanced(classes + classes, 20, np.random.default_rng(1))
    assert Counter(place < len(classes) for place in places) == {True: 20}


@pytest.mark.parametrize("seed", range(5))
def test_classes_that_have_enough_differ_by_one_at_the_most(seed: int) -> None:
    classes = np.random.default_rng(seed).choice(list("abcde"), 400, p=[0.5, 0.3, 0.1, 0.07, 0.03])
    counts = kept("".join(classes), 23, seed)
    assert sum(counts.values()) == 23
    assert max(counts.values()) - min(counts.values()) <= 1


def test_more_classes_than_places_keep_one_each() -> None:
    assert max(kept("abcdefgh", 3).values()) == 1


def test_a_hop_has_what_the_hop_before_had_but_for_what_went(make_run: Make) -> None:
    """The stream of a hop begins as that of the one before: the memory is one, and stored nowhere."""
    run = make_run("strategy=gdumb", "strategy.memory=14")
    strategy, before = GDumb(GDumbSettings("gdumb", 14)), {}
    for index, languages in ((1, ("en",)), (2, ("en", "de")), (3, ("en", "de", "es"))):
        chosen = strategy.choose(context_of(run, index))
        assert tuple(chosen) == languages
        assert sum(map(len, chosen.values())) == 14
        for language, indices in before.items():
            assert set(chosen[language]) <= set(indices)
        before = chosen
    assert all(len(indices) for indices in before.values())


def test_of_tags_languages_have_equal_shares(make_run: Make) -> None:
    run = make_run("strategy=gdumb", "dataset.task=token_tags", "strategy.memory=15")
    chosen = GDumb(GDumbSettings("gdumb", 15)).choose(context_of(run, 3))
    assert {language: len(indices) for language, indices in chosen.items()} == {"en": 5, "de": 5, "es": 5}


def test_each_hop_trains_on_the_memory_alone_from_hop_0(finished: Make) -> None:
    run = finished("strategy=gdumb", "strategy.memory=14")
    assert [(hop.parent, hop.train) for hop in run.stream.hops[1:]] == [
        (0, ("en",)),
        (0, ("en", "de")),
        (0, ("en", "de", "es")),
    ]
    # 14 sentences in batches of 4, two epochs.
    for hop, stage in zip(run.stream.hops[1:], run.directory.read_manifest()["stages"][1:], strict=True):
        assert (stage["training"]["updates"], stage["training"]["examples"]) == (8, 28)
        assert run.sentences(hop) == 14
