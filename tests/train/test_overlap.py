"""Gradient overlap: counts against sets that are kept by hand, across hops and stops, and that nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from xclrun.run import Run
from xclrun.store import predictions
from xclrun.strategy.er import ExperienceReplay
from xclrun.train.overlap import PARTS, GradientOverlap
from xclrun.train.stop import Stopped

from .conftest import StopAt, stored

Make = Callable[..., Run]
Do = Callable[..., Run]
ER = ("strategy=er", "order=[en,de]", "trainer.clip_norm=0.1", "trainer.epochs=1")
ON = "evaluate.gradient_overlap=true"


def test_by_hand() -> None:
    """Two parameters of three numbers; the second is not trained in the second step."""
    model = nn.ModuleDict({"encoder": nn.ModuleDict({"embeddings": nn.Linear(3, 1, bias=False)})})
    model["head"] = nn.Linear(3, 1, bias=False)
    rows, rest = model["encoder"]["embeddings"].weight, model["head"].weight
    overlap = GradientOverlap(model, {})
    steps = [([1.0, 0.0, -2.0], [1.0, 1.0, 0.0]), ([0.0, 3.0, 1e-30], None), ([0.0, 0.0, 0.0], [0.0, 0.0, 5.0])]
    for step, (one, other) in enumerate(steps, start=1):
        rows.grad = torch.tensor([one])
        rest.grad = None if other is None else torch.tensor([other])
        overlap.look(step)
    found = [tuple(row.values()) for row in overlap.table().to_pylist()]
    assert found == [
        (1, "embeddings", 2, None, None),
        (1, "rest", 2, None, None),
        (2, "embeddings", 2, 1, 3),
        (2, "rest", 0, 0, 2),
        (3, "embeddings", 0, 0, 2),
        (3, "rest", 1, 0, 1),
    ]
    again = GradientOverlap(model, {})
    again.load(dict(overlap.tensors()))
    for one in (overlap, again, following := GradientOverlap(model, overlap.last())):
        rest.grad = torch.tensor([[0.0, 7.0, 7.0]])
        one.look(4)
    assert again.table().equals(overlap.table())
    assert following.table().to_pylist()[1] == {"step": 4, "part": "rest", "nonzero": 2, "both": 1, "either": 2}


def sets(run: Run, do: Do, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, str, int, Any, Any]]:
    """Do a run, and return the rows that follow from its gradients, kept as sets of (name, position)."""
    rows: list[tuple[int, int, str, int, Any, Any]] = []
    state: dict[str, Any] = {"before": None, "main": 0}
    replay, edit = ExperienceReplay.replay, ExperienceReplay.edit_gradients

    def replaying(self: Any, step: int, main: Any, context: Any) -> Any:
        for i, batch in enumerate(replay(self, step, main, context)):
            state["main"] = step if i == 0 else 0
            yield batch

    def editing(self: Any, context: Any) -> None:
        if state["main"]:
            now = {
                (name, i)
                for name, p in context.model.named_parameters()
                if p.grad is not None
                for i in p.grad.flatten().nonzero().flatten().tolist()
            }
            for part in PARTS:
                one, other = (
                    {x for x in found or () if x[0].startswith("encoder.embeddings.") == (part == "embeddings")}
                    for found in (now, state["before"])
                )
                pair = (len(one & other), len(one | other)) if state["before"] is not None else (None, None)
                rows.append((context.hop.index, state["main"], part, len(one), *pair))
            state["before"] = now
        edit(self, context)

    with monkeypatch.context() as patch:
        patch.setattr(ExperienceReplay, "replay", replaying)
        patch.setattr(ExperienceReplay, "edit_gradients", editing)
        do(run)
    return rows


def counted(run: Run) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(run.directory.overlap).to_pylist()]


def test_counts_are_those_of_sets_across_hops_and_stops_and_nothing_else_changes(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = make_run(*ER, ON, outputs="whole")
    wanted = sets(whole, do, monkeypatch)
    found = counted(whole)
    assert found == wanted
    assert [row[:3] for row in found[::2]] == [
        (h, s, "embeddings") for h, n in ((1, 6), (2, 5)) for s in range(1, n + 1)
    ]
    assert [row[4:] == (None, None) for row in found] == [True, True, *[False] * (len(found) - 2)]
    # Rows of word pieces come and go; dense weights nearly always have a gradient.
    shares = {
        part: [both / either for *_, p, _, both, either in found[2:] if p == part] for part in ("embeddings", "rest")
    }
    assert max(shares["embeddings"]) < 0.95 < min(shares["rest"])
    assert "overlap.parquet" in whole.directory.read_done()

    stopped = make_run(*ER, ON)
    for steps in (1, 4, 3):
        listener = StopAt(steps)
        with pytest.raises(Stopped):
            do(stopped, listener, listener.stop)
    assert counted(do(stopped)) == wanted
    assert stored(stopped.store) == stored(whole.store)

    plain = do(make_run(*ER, outputs="plain"))
    assert not plain.directory.overlap.exists()
    assert plain.stages[0] == whole.stages[0]
    assert {s.train for s in plain.stages[1:]}.isdisjoint(s.train for s in whole.stages)
    for one, other in zip(plain.stages, whole.stages, strict=True):
        rows = [predictions.read(r.directory.predictions(s.hop.index)) for r, s in ((plain, one), (whole, other))]
        assert rows[0].drop_columns("run_id").equals(rows[1].drop_columns("run_id"))


def test_a_hop_whose_parent_has_gone_from_the_store_is_compared_with_it_all_the_same(make_run: Make, do: Do) -> None:
    """Evaluations outlive weights: the parent is trained again for its last gradients."""
    import shutil

    wanted, run = (do(make_run("order=[en,de]", "trainer.epochs=1", ON, outputs=name)) for name in ("kept", "gone"))
    before = counted(run)
    for stage in run.stages[1:]:
        shutil.rmtree(run.store.path(stage.train))
    shutil.rmtree(run.store.path(run.stages[2].evaluation))
    os.unlink(run.directory.done)
    assert counted(do(run)) == before == counted(wanted)


def test_gradients_are_looked_at_before_a_strategy_changes_them(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ExperienceReplay, "edit_gradients", lambda self, context: context.model.zero_grad())
    run = do(make_run("strategy=er", "order=[en]", "trainer.epochs=1", ON))
    assert all(row[3] for row in counted(run))
