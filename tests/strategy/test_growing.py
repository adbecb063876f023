"""Growing training sets, and streams in blocks: what each hop learns, is asked for, and shares; their codelength."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.conftest import SIZES, sentences
from xclrun.analysis.codelength import code
from xclrun.analysis.records import record
from xclrun.core.stream import Hop
from xclrun.core.task import INTENT_SLOTS
from xclrun.data.blocks import trained_heads
from xclrun.data.example import SPLITS, Dataset, Example
from xclrun.plan import Run

Make = Callable[..., Run]

BLOCKS = ("dataset.blocks=3", "trainer.selection=last")


def test_hop_i_learns_the_first_i_languages_from_the_model_before_any(make_run: Make) -> None:
    hops = make_run("strategy=growing").stream.hops
    assert [(hop.train, hop.parent, hop.depth) for hop in hops[1:]] == [
        (("en",), 0, 1), (("en", "de"), 0, 1), (("en", "de", "es"), 0, 1)
    ]  # fmt: skip


def test_growing_sets_may_go_on_from_the_hop_before_and_then_are_incremental_joint_training(
    make_run: Make,
) -> None:
    going_on, joint = make_run("strategy=growing", "strategy.continues=true"), make_run("strategy=inc_joint")
    assert going_on.stages == joint.stages


def test_blocks_are_learnt_after_the_languages_that_come_first_and_each_is_asked_for_before(
    make_run: Make,
) -> None:
    run = make_run("strategy=growing", "order=[en,de]", *BLOCKS)
    first, second = ("de#1",), ("de#1", "de#2")
    assert run.stream.hops == (
        Hop(0, (), (), -1, 0),
        Hop(1, ("en",), ("en",), 0, 1, codes="de#1"),
        Hop(2, first, ("de",), 1, 2, codes="de#2"),
        Hop(3, second, ("de",), 1, 2, codes="de#3"),
    )
    assert [hop.name for hop in run.stream.hops] == ["before fine-tuning", "en", "de#1", "de#1-2"]
    assert run.stream.languages == ("en", "de")


def test_without_a_start_blocks_begin_at_hop_0(make_run: Make) -> None:
    run = make_run("strategy=growing", "order=[de]", *BLOCKS)
    assert [(hop.train, hop.parent, hop.depth, hop.codes) for hop in run.stream.hops] == [
        ((), -1, 0, "de#1"), (("de#1",), 0, 1, "de#2"), (("de#1", "de#2"), 0, 1, "de#3")
    ]  # fmt: skip


def test_blocks_are_equal_parts_of_the_training_split_and_the_first_ones_are_its_subset(
    make_run: Make,
) -> None:
    run, five = make_run("order=[de]", "dataset.blocks=5"), make_run("order=[de]", "dataset.max_train=7")
    blocks = [run.dataset.split(f"de#{i}", "train") for i in range(1, 6)]
    assert [len(block) for block in blocks] == [3, 4, 3, 4, 4]
    assert sorted(e.id for block in blocks for e in block) == sorted(e.id for e in run.dataset.split("de", "train"))
    assert {e.id for block in blocks[:2] for e in block} == {e.id for e in five.dataset.split("de", "train")}


def test_strategies_and_starts_share_what_they_can(make_run: Make) -> None:
    naive = make_run("strategy=naive", "order=[en,de]", "trainer.selection=last")
    blocks = {
        name: make_run(f"strategy={name}", "order=[en,de]", *BLOCKS) for name in ("growing", "naive", "inc_joint", "er")
    }
    assert {run.stages[1].train for run in blocks.values()} == {naive.stages[1].train}
    assert {run.stages[1].evaluation for run in blocks.values()} == {blocks["growing"].stages[1].evaluation}
    # What is kept of it holds the first block's predictions too.
    assert blocks["growing"].stages[1].evaluation != naive.stages[1].evaluation
    # The first block is learnt alike, but for what er replays.
    assert len({run.stages[2].train for run in blocks.values()}) == 2
    assert len({run.stages[3].train for run in blocks.values()}) == 4


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy", ["agem", "agem_replay", "ewc", "ewc_online", "kd_logit", "kd_rep", "mbpa", "replay"]
)
def test_other_strategies_learn_blocks_too(strategy: str, finished: Make) -> None:
    # Few examples: what is written for replay, and used, is all of them.
    writing = ("strategy.replay_write=1", "strategy.replay_interval=4", "strategy.replay_number=4")
    adapting = ("strategy.neighbours=2", "strategy.adapt_steps=1")
    own = {"replay": writing, "agem_replay": writing, "mbpa": (*writing, *adapting)}.get(strategy, ())
    run = finished(f"strategy={strategy}", "order=[en,de]", *BLOCKS, "model.max_length=6", *own)
    expected, mine = by_hand(run.directory.path, "de", "model"), record(run.directory)
    for what in ("labels", "tags"):
        found = code(mine, what)
        assert found is not None
        assert found.bits == pytest.approx(expected[what], rel=1e-12)
    naive = finished("strategy=naive", "order=[en,de]", *BLOCKS, "model.max_length=6")
    assert run.stages[3].train != naive.stages[3].train


def by_hand(folder: Path, key: str, first: str) -> dict[str, float]:
    """Return the bits of labels and of tags, from the files of a run alone."""
    manifest = json.loads((folder / "manifest.json").read_text())
    labels, tags = len(manifest["labels"]), len(manifest["tags"])
    bits, examples = {"labels": 0.0, "tags": 0.0}, 0
    files = sorted((folder / "predictions").glob("next-*.parquet"), key=lambda file: int(file.stem[5:]))
    for number, file in enumerate(files, start=1):
        for row in pq.read_table(file).to_pylist():
            assert (row["language"], row["split"]) == (f"{key}#{number}", "train")
            examples += 1
            if number == 1 and first == "uniform":
                bits["labels"] += math.log2(labels)
                bits["tags"] += row["tokens"] * math.log2(tags)
            else:
                bits["labels"] -= row["log2_gold"]
                bits["tags"] -= row["log2_gold_tags"]
                bits["tags"] += (row["tokens"] - row["seen"]) * math.log2(tags)
    return bits | {"examples": examples}


@pytest.mark.parametrize(("order", "first"), [("[de]", "uniform"), ("[en,de]", "model")])
def test_the_codelength_is_that_of_the_stored_log_probabilities(order: str, first: str, finished: Make) -> None:
    # Sentences of five words and more are cut.
    run = finished("strategy=growing", f"order={order}", *BLOCKS, "model.max_length=6")
    expected, mine = by_hand(run.directory.path, "de", first), record(run.directory)
    for what in ("labels", "tags"):
        found = code(mine, what)
        assert found is not None
        assert (found.bits, found.examples) == (pytest.approx(expected[what], rel=1e-12), 18)
    seen = [pq.read_table(run.directory.next_block(hop.index)).to_pylist() for hop in run.stream.hops if hop.codes]
    assert {row["tokens"] - row["seen"] for rows in seen for row in rows} > {0, 1}


def test_a_start_knows_the_heads_of_which_it_has_learnt_something_that_comes() -> None:
    learnt = {"en": ("a", ("O", "O")), "es": ("b", ("B-x", "O")), "fr": ("b", ("O", "B-y")), "de": ("a", ("O", "B-x"))}
    splits = {
        (language, split): (Example("1", language, ("w", "v"), label, tags),)
        for language, (label, tags) in learnt.items()
        for split in SPLITS
    }
    dataset = Dataset("d", INTENT_SLOTS, tuple(learnt), splits)
    starts = ((), ("fr",), ("en",), ("es",), ("es", "en"))
    assert [trained_heads(dataset, "de", start) for start in starts] == [
        [],
        [],
        ["labels"],
        ["tags"],
        ["labels", "tags"],
    ]


def test_a_block_is_asked_for_as_a_test_split_is_and_by_the_model_that_has_not_learnt_it(
    make_run: Make, changed_corpus: Callable[..., Path], do: Make
) -> None:
    # The test sentences are those of training: each hop says the same of them in either file.
    def as_in_training(rows: list[dict[str, Any]]) -> None:
        rows[:] = sentences("de", "train", SIZES["de"]["train"])

    data = changed_corpus({("de", "test"): as_in_training})
    run = do(make_run("strategy=growing", "order=[de]", "dataset.blocks=2", "trainer.selection=last", data=data))
    for hop in (0, 1):
        tested, asked = (
            {row["example_id"]: (row["log2_gold"], row["log2_gold_tags"]) for row in pq.read_table(path).to_pylist()}
            for path in (run.directory.predictions(hop), run.directory.next_block(hop))
        )
        assert len(asked) == 9
        for name, expected in asked.items():
            assert tested[name] == pytest.approx(expected, rel=1e-4)


def test_a_run_in_blocks_is_a_record_that_mirrors_can_keep(finished: Make) -> None:
    mine = record(finished("strategy=growing", "order=[en,de]", *BLOCKS, "model.max_length=6").directory)
    assert mine.learnt == ("en", "de#1", "de#2")
    assert {metric: R.shape for metric, R in mine.scores.items()} == {"intent_accuracy": (4, 2), "slot_f1": (4, 2)}
    again = type(mine).from_json(mine.to_json())
    assert again.coded == mine.coded
    assert [one["codes"]["labels"]["examples"] for one in again.coded] == [6, 6, 6]
