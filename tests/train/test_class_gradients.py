"""Gradients of the class head: against autograd by hand, across hops and stops; no other result changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from xclrun.core.errors import UsageError
from xclrun.run import Run
from xclrun.store import predictions
from xclrun.strategy.er import ExperienceReplay
from xclrun.train.stop import Stopped

from .conftest import StopAt, stored

Make = Callable[..., Run]
Do = Callable[..., Run]
ER = ("strategy=er", "order=[en,de]", "trainer.clip_norm=0.1", "trainer.epochs=1")
ON = "evaluate.class_gradients=true"


def recorded(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(run.directory.class_gradients).to_pylist()]


def by_hand(run: Run, do: Do, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Do a run, and return the sums of the head's gradients at main steps, seen through the strategy's hooks."""
    rows: list[tuple[Any, ...]] = []
    main = 0
    replay, edit = ExperienceReplay.replay, ExperienceReplay.edit_gradients

    def replaying(self: Any, step: int, batch: Any, context: Any) -> Any:
        nonlocal main
        for i, one in enumerate(replay(self, step, batch, context)):
            main = step if i == 0 else 0
            yield one

    def editing(self: Any, context: Any) -> None:
        if main:
            sums = context.model.intent.weight.grad.numpy().astype(np.float64).sum(axis=1)
            pairs = zip(run.dataset.labels, sums, strict=True)
            rows.extend((context.hop.index, main, label, value) for label, value in pairs)
        edit(self, context)

    with monkeypatch.context() as patch:
        patch.setattr(ExperienceReplay, "replay", replaying)
        patch.setattr(ExperienceReplay, "edit_gradients", editing)
        do(run)
    return rows


def test_gradients_are_those_of_main_steps_across_stops_and_nothing_else_changes(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(*ER, ON, outputs="whole")
    wanted, found = by_hand(whole, do, monkeypatch), recorded(whole)
    assert [row[:3] for row in found] == [row[:3] for row in wanted]
    np.testing.assert_allclose([row[3] for row in found], [row[3] for row in wanted], atol=1e-6)
    assert {row[0] for row in found} == {1, 2}
    assert max(abs(row[3]) for row in found) > 1e-3
    # The rows of a softmax head sum to about zero at each step: what one class gains others lose.
    sums = np.array([row[3] for row in found]).reshape(-1, len(whole.dataset.labels)).sum(axis=1)
    np.testing.assert_allclose(sums, 0, atol=1e-4)
    assert "class_gradients.parquet" in whole.directory.read_done()

    stopped = make_run(*ER, ON)
    for steps in (1, 4, 3):
        listener = StopAt(steps)
        with pytest.raises(Stopped):
            do(stopped, listener, listener.stop)
    assert recorded(do(stopped)) == found
    assert stored(stopped.store) == stored(whole.store)

    plain = do(make_run(*ER, outputs="plain"))
    assert not plain.directory.class_gradients.exists()
    for one, other in zip(plain.stages, whole.stages, strict=True):
        rows = [predictions.read(r.directory.predictions(s.hop.index)) for r, s in ((plain, one), (whole, other))]
        assert rows[0].drop_columns("run_id").equals(rows[1].drop_columns("run_id"))


def test_data_without_classes_are_refused(make_run: Make) -> None:
    with pytest.raises(UsageError, match=r"^evaluate\.class_gradients=true: dataset 'jsonl' has no classes"):
        make_run("dataset.task=token_tags", ON)
