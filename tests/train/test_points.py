"""Evaluation points inside a hop: where they lie, that they change nothing, and that a killed run has the same ones."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xclrun.analysis.records import record
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.cache import CachedFile
from xclrun.store.tensors import load_tensors
from xclrun.train.evaluate import Evaluator
from xclrun.train.points import Points, weights_file
from xclrun.train.stop import StopFlag, Stopped

from .conftest import StopAt, predicted, same, stored

Make = Callable[..., Run]
Do = Callable[..., Run]
EVERY, TRANS, LAST = "evaluate.every_examples=10", "strategy=lang_spec_trans", "trainer.selection=last"
HARDEST = (TRANS, EVERY, LAST, "evaluate.keep_points=2")
# Sentences of the hops' languages; batches of 4, 2 epochs.
SIZES = {1: 22, 2: 18, 3: 13}


def places(sentences: int) -> list[tuple[int, int]]:
    """(main steps, sentences seen) where a point is due: the first step that reaches 10, 20, …, and the last."""
    epoch = [*range(4, sentences, 4), sentences]
    seen = [0, *epoch, *(sentences + n for n in epoch)]
    due = [(step, n) for step, n in enumerate(seen) if step and n // 10 > seen[step - 1] // 10]
    return list(dict.fromkeys([*due, (len(seen) - 1, seen[-1])]))


@pytest.mark.full
def test_points_lie_after_every_b_sentences_of_the_hop_and_at_its_end(make_run: Make, do: Do) -> None:
    assert places(22) == [(3, 12), (5, 20), (8, 30), (11, 42), (12, 44)]
    run = do(make_run("strategy=er", EVERY))
    result = record(run.directory)
    for hop, sentences in SIZES.items():
        points = [p for p in result.points if p["hop"] == hop]
        assert [(p["step"], p["own"]) for p in points] == places(sentences)
        rows = predictions.read(run.directory.points(hop)).to_pandas()
        assert list(dict.fromkeys(zip(rows["step"], rows["examples_seen"], strict=True))) == [
            (p["step"], p["examples"]) for p in points
        ]
        assert set(rows["hop"]) == {hop}
        assert len(rows) == len(points) * (7 + 6 + 6 + 9 + 8 + 8)  # all of dev and test
        for point in points:
            for split, language in (("dev", "en"), ("test", "es")):
                own = (rows["step"] == point["step"]) & (rows["split"] == split) & (rows["language"] == language)
                them = rows[own]
                tp, wrong = them["tp"].sum(), them["fp"].sum() + them["fn"].sum()
                accuracy, micro = (them["gold"] == them["predicted"]).mean(), 2 * tp / max(1, 2 * tp + wrong)
                assert point[split][language] == pytest.approx({"intent_accuracy": accuracy, "slot_f1": micro})
    # er replays, and what it replays counts as seen, but not as the hop's own.
    assert any(p["examples"] > p["own"] for p in result.points)


def test_points_change_nothing_else(alone: Callable[..., Any], make_run: Make, do: Do) -> None:
    """The hardest case: serving the other languages exchanges parts of the model that is being trained."""
    run, plain = alone(*HARDEST)[2], do(make_run(TRANS, LAST))
    assert run.id != plain.id
    for stage in plain.stages:
        one, other = (predictions.read(r.directory.predictions(stage.hop.index)) for r in (run, plain))
        assert one.drop_columns("run_id").equals(other.drop_columns("run_id"))
    assert not list(plain.directory.path.glob("predictions/points-*"))
    result = record(run.directory)
    for hop in range(1, 4):
        last = [p for p in result.points if p["hop"] == hop][-1]
        row = [last["test"][k]["intent_accuracy"] for k in result.languages]
        np.testing.assert_array_equal(row, result.scores["intent_accuracy"][hop])


@pytest.mark.full
def test_a_run_that_is_stopped_has_the_same_points_and_weights_of_the_last(
    alone: Callable[..., Any], make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between points, inside one, and with the rows of one damaged."""
    everything, files, _ = alone(*HARDEST)
    run = make_run(*HARDEST)

    def interrupted(listener: Any, stop: StopFlag) -> None:
        with pytest.raises(Stopped):
            do(run, listener, stop)
        # No more lies about than the checkpoint needs.
        assert all(len(list(f.glob("*.weights"))) <= 2 for f in run.store.root.glob("*/*.checkpoints"))

    for steps in (4, 3, 4):
        listener = StopAt(steps)
        interrupted(listener, listener.stop)
    [first, *_] = sorted(run.store.root.glob("*/*.checkpoints/point-*.parquet"))
    os.truncate(first, first.stat().st_size // 2)
    stop, predict, calls = StopFlag(), Evaluator.predict, 0

    def stopping(self: Evaluator, model: Any, encoded: Any, language: str, split: str, *answer: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 52:  # in hop 2, while a language is served by other parts than those being trained
            stop.number = 15
        return predict(self, model, encoded, language, split, *answer)

    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "predict", stopping)
        interrupted(None, stop)
    assert run.store.has(run.stages[1].train)
    assert not run.store.has(run.stages[2].train)
    do(run)
    assert (stored(run.store), predicted(run)) == (everything, files)
    assert not list(run.store.root.glob("*/*.checkpoints"))
    for stage in run.stages[1:]:
        folder, steps = run.store.path(stage.train), [step for step, _ in places(SIZES[stage.hop.index])]
        assert sorted(f.name for f in folder.glob("point-*")) == [weights_file(step) for step in steps[-2:]]
        assert run.store.facts(stage.train)["files"].keys() >= {weights_file(steps[-1])}
        # The last point is the hop's end; the one before is not.
        last, before = (load_tensors(folder / weights_file(step)) for step in (steps[-1], steps[-2]))
        end = load_tensors(folder / "weights.safetensors")
        assert same(last, end)
        assert not same(before, end)


def test_a_checkpoint_counts_with_the_weights_that_are_kept_and_no_others(tmp_path: Path) -> None:
    nothing: Any = None
    points = Points(nothing, 10, lambda n: min(n, 2), tmp_path)
    facts = [{"step": step} for step in (1, 2, 3)]
    for point in facts:
        for ending in (".parquet", ".weights"):
            CachedFile(tmp_path, f"point-{point['step']:09d}", ending).write(bytes([point["step"]]))
    points.forget(facts)
    assert [path.name[:15] for path in sorted(tmp_path.glob("*.weights"))] == ["point-000000002", "point-000000003"]
    assert points.has(facts)
    for name in ("point-000000002-*.weights", "point-000000001-*.parquet"):
        (path,) = tmp_path.glob(name)
        content = path.read_bytes()
        path.write_bytes(b"torn")
        assert not points.has(facts)
        path.write_bytes(content)


def test_a_share_of_the_hops_data_is_a_number_of_its_own_for_each_hop(make_run: Make, do: Do) -> None:
    run = do(make_run("strategy=naive", "evaluate.every_share=0.5", "evaluate.point_splits=test"))
    result = record(run.directory)
    for hop, sentences in SIZES.items():
        every = round(0.5 * sentences)
        epoch = [*range(4, sentences, 4), sentences]
        seen = [0, *epoch, *(sentences + n for n in epoch)]
        due = [n for before, n in itertools.pairwise(seen) if n // every > before // every]
        assert [p["own"] for p in result.points if p["hop"] == hop] == list(dict.fromkeys([*due, seen[-1]]))
    # Of dev nothing is predicted inside hops, and the last point is the hop's end.
    assert all("dev" not in point for point in result.points)
    assert set(predictions.read(run.directory.points(1))["split"].to_pylist()) == {"test"}
