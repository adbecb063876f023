"""Mixtures: hops that take each step from a key drawn at random (``order=[a+b,c]``)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from xclrun.analysis.records import record
from xclrun.core.identity import derive
from xclrun.core.stream import BEFORE, Hop, Mixture, Stream, in_blocks, independent, joint, resolve_order, sequence
from xclrun.plan import Run
from xclrun.train.curriculum import Mixed
from xclrun.train.encodings import encodings

from .conftest import predicted, stopped, stored

Do = Callable[..., Run]
Make = Callable[..., Run]
SIZES = {"en": 22, "de": 18, "es": 13}
MIXED = ("order=[es+en,de]", "trainer.mixture_steps=7")


def test_an_order_of_a_mixture_and_a_key() -> None:
    order = resolve_order(["b+a", "c"], None, {"a": 1, "b": 2, "c": 3})
    assert order == (Mixture(("b", "a")), "c")
    assert sequence(order) == Stream(
        "mixture",
        ("b", "a", "c"),
        (BEFORE, Hop(1, ("a", "b"), ("a", "b"), 0, 1, mixed=True), Hop(2, ("c",), ("c",), 1, 2)),
        (("b", "a"), ("c",)),
    )
    # Those that learn each alone, or all in one, learn what they would without it.
    assert independent(order) == independent(["b", "a", "c"])
    assert joint(order) == joint(["b", "a", "c"])
    # The name of a language is not a mixture.
    assert sequence(resolve_order(["b+a", "c"], None, {"b+a": 1, "c": 3})).kind == "sequence"


def test_blocks_after_a_mixture() -> None:
    created = in_blocks([Mixture(("b", "a")), "c"], 3, sequence)
    assert created.languages == ("b", "a", "c")
    assert [hop.name for hop in created.hops] == ["before fine-tuning", "a+b", "c#1", "c#2"]
    assert [hop.codes for hop in created.hops] == ["", "c#1", "c#2", "c#3"]
    with pytest.raises(
        ValueError, match=r"^only a single key can be split into blocks; the last element of order is the mixture b\+a$"
    ):
        in_blocks(["c", Mixture(("b", "a"))], 3, sequence)


@pytest.mark.parametrize("size", [4, 30])
def test_batches_against_brute_force(size: int, make_run: Make) -> None:
    """Written out from the draws: a key for each step, and the key's shuffled examples, over and over, from the first.

    With 30 examples a batch goes more than once over its key.
    """
    splits, names = encodings(make_run()).splits, ("de", "en", "es")
    parts = [splits[name, "train"] for name in names]

    def generator(*position: object) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(derive(1, "mixture", *map(str, position))))

    mixed = Mixed(parts, names, size, 40, generator)
    keys = generator("keys").integers(3, size=40)
    endless = {
        name: np.concatenate([generator("shuffle", name, t).permutation(SIZES[name]) for t in range(40 * size // 13)])
        for name in names
    }
    batches, taken = list(mixed.batches(0, 0)), dict.fromkeys(names, 0)
    for key, batch in zip(keys, batches, strict=True):
        name = names[key]
        rows = endless[name][taken[name] : taken[name] + size]
        taken[name] += size
        assert batch.indices.tolist() == (rows + sum(SIZES[other] for other in names[:key])).tolist()
        expected = parts[key].batch(rows)
        assert all((expected.tensors[name] == tensor).all() for name, tensor in batch.tensors.items())
    for begin in (1, 17, 39):
        again = Mixed(parts, names, size, 40, generator).batches(0, begin)
        assert [batch.indices.tolist() for batch in again] == [b.indices.tolist() for b in batches[begin:]]
    assert (mixed.seen(0), mixed.seen(17)) == (0, 17 * size)
    assert (mixed.epochs, mixed.steps) == (1, 40)


def test_keys_are_drawn_evenly_whatever_their_sizes(make_run: Make) -> None:
    splits = encodings(make_run()).splits
    parts = [splits["en", "train"].select(range(3)), splits["de", "train"], splits["es", "train"]]
    drawn = Mixed(parts, ("en", "de", "es"), 4, 3000, lambda *at: np.random.default_rng(len(at))).drawn
    assert stats.chisquare(np.bincount(drawn)).pvalue > 1e-3


def test_a_mixture_then_a_key(make_run: Make, do: Do) -> None:
    """Supervised pretraining, then a key: steps and points as asked for; scores of all keys; what is shared."""
    run = do(make_run(*MIXED, "evaluate.every_examples=10"))
    mine = record(run.directory)
    assert (mine.stream, mine.languages, mine.mixtures) == ("mixture", ("es", "en", "de"), (("es", "en"), ("de",)))
    assert (mine.learnt, mine.path, mine.order) == (("es+en", "de"), ("es+en", "de"), "es+en-de")
    assert mine.scores["intent_accuracy"].shape == (3, 3)
    assert np.isfinite(mine.scores["intent_accuracy"]).all()
    first = run.directory.read_manifest()["stages"][1]["training"]
    assert (first["step"], first["examples"], len(first["epochs"])) == (7, 28, 1)
    assert set(first["epochs"][0]["dev"]) == {"en", "es"}
    # After the batches that pass 10 and 20 examples, and at the end.
    assert [point["own"] for point in mine.points if point["hop"] == 1] == [12, 20, 28]
    turned = make_run("order=[en+es,de]", *MIXED[1:], "evaluate.every_examples=10")
    assert [stage.train for stage in turned.stages] == [stage.train for stage in run.stages]
    others = (
        make_run("order=[es+en,de]", "evaluate.every_examples=10"),
        make_run("order=[es+en,de]", "trainer.mixture_steps=8", "evaluate.every_examples=10"),
        make_run("order=[es+en,de]", "strategy=multilingual", *MIXED[1:], "evaluate.every_examples=10"),
    )
    assert len({run.stages[1].train, *(other.stages[1].train for other in others)}) == 4
    passes = make_run("order=[es,en]", "strategy=multilingual")
    assert make_run("order=[es+en]").stages[1].train != passes.stages[1].train, "the same data, mixed"
    alone = make_run("strategy=lang_spec_ft", *MIXED, "evaluate.every_examples=10")
    plain = make_run("order=[es,en,de]", "strategy=lang_spec_ft", "evaluate.every_examples=10")
    assert [stage.train for stage in alone.stages] == [stage.train for stage in plain.stages]


def test_without_a_number_of_steps_it_takes_as_many_as_passes_would(make_run: Make, do: Do) -> None:
    run = do(make_run("order=[en+es]"))
    # 35 sentences in fours, twice.
    assert run.directory.read_manifest()["stages"][1]["training"]["step"] == 18
    assert run.sentences(run.stream.hops[1]) == 72


@pytest.mark.full
@pytest.mark.parametrize("strategy", ["er", "ewc_online", "replay"])
def test_killed_and_resumed_it_is_the_same(strategy: str, make_run: Make, do: Do) -> None:
    small = ("strategy.replay_interval=5", "strategy.replay_number=4") if strategy == "replay" else ()
    overrides = (*MIXED, f"strategy={strategy}", "evaluate.every_examples=10", "dataset.replay.every_k=1", *small)
    expected, run = do(make_run(*overrides, outputs="undisturbed")), make_run(*overrides)
    do(stopped(run, do, 3, 3, 4))
    assert (stored(run.store), predicted(run)) == (stored(expected.store), predicted(expected))
