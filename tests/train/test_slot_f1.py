"""Another F1 over the same predictions: nothing is trained or evaluated again, and each run has its own scores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from xclrun.analysis.records import record
from xclrun.plan import Run
from xclrun.store import predictions

from .conftest import stored

Make = Callable[..., Run]

LAST, EVERY = "trainer.selection=last", "evaluate.every_examples=10"


def test_runs_that_differ_in_slot_f1_alone_share_all_trainings(make_run: Make, do: Make) -> None:
    micro = do(make_run("order=[en,de]", "trainer.epochs=3", LAST, EVERY))
    before = stored(micro.store)
    macro = do(make_run("order=[en,de]", "trainer.epochs=3", LAST, EVERY, "evaluate.slot_f1=tag_macro"))
    assert macro.id != micro.id
    assert stored(macro.store) == before
    one, other = record(micro.directory), record(macro.directory)
    assert not np.allclose(one.scores["slot_f1"], other.scores["slot_f1"])
    np.testing.assert_array_equal(one.scores["intent_accuracy"], other.scores["intent_accuracy"])
    # Whichever way its config says, a run's predictions give the scores of both.
    for run, theirs, way in ((micro, other, "tag_macro"), (macro, one, "span_micro")):
        result = record(run.directory, slot_f1=way)
        np.testing.assert_array_equal(result.scores["slot_f1"], theirs.scores["slot_f1"])
        assert result.points == theirs.points
    assert one.points != other.points
    for run, mine in ((micro, one), (macro, other)):
        rows = predictions.read(run.directory.scores).to_pylist()
        assert len(rows) == 3 * 2 * 2
        for row in rows:
            value = mine.scores[row["metric"]][row["hop"], mine.languages.index(row["language"])]
            assert value == row["value"]
        # Dev scores are those of the training, which is the same: of macro F1 there are none.
        assert all(epoch["dev"] for epoch in mine.curve)
        assert {metric for epoch in mine.curve for of in epoch["dev"].values() for metric in of} == (
            {"intent_accuracy", "slot_f1"} if run is micro else {"intent_accuracy"}
        )


def test_dev_scores_that_select_a_checkpoint_are_logged_with_their_way_of_scoring(make_run: Make, do: Make) -> None:
    run = do(make_run("order=[en]", "trainer.epochs=3", "evaluate.slot_f1=tag_macro"))
    assert {stage["slot_f1"] for stage in run.directory.read_manifest()["stages"][1:]} == {"tag_macro"}
    dev = [of for epoch in record(run.directory).curve for of in epoch["dev"].values()]
    assert dev
    assert all(of.keys() == {"intent_accuracy", "slot_f1"} for of in dev)
    # The same weights, scored in the other way.
    micro = record(do(make_run("order=[en]", "trainer.epochs=3")).directory)
    other = [of for epoch in micro.curve for of in epoch["dev"].values()]
    assert [of["intent_accuracy"] for of in other] == [of["intent_accuracy"] for of in dev]
    assert other[-1]["slot_f1"] != dev[-1]["slot_f1"]


def test_dev_scores_that_select_nothing_are_logged_alike_whichever_run_trains(
    make_run: Make, do: Make, tmp_path: Path
) -> None:
    """Runs that differ in slot_f1 share the training and its log."""
    micro = do(make_run("order=[en]", "trainer.epochs=3", LAST))
    other = f"paths.store={tmp_path / 'another'}"
    macro = do(make_run("order=[en]", "trainer.epochs=3", LAST, "evaluate.slot_f1=tag_macro", other))
    assert stored(macro.store).keys() == stored(micro.store).keys()
    logged = [
        [epoch["dev"] for stage in run.directory.read_manifest()["stages"] for epoch in stage["training"]["epochs"]]
        for run in (micro, macro)
    ]
    assert logged[0] == logged[1]
    assert logged[0][-1]["en"]["slot_f1"] > 0
