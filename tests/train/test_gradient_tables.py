"""What is noted of gradients, their overlap and the class head's: against other means, across hops and stops."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from torch import nn

from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.strategy import Step
from xclrun.strategy.er import ExperienceReplay
from xclrun.train.overlap import PARTS, GradientOverlap

from .conftest import stopped, stored

Make = Callable[..., Run]
Do = Callable[..., Run]
ER = ("strategy=er", "order=[en,de]", "trainer.clip_norm=0.1", "trainer.epochs=1")
ON, CLASSES = "evaluate.gradient_overlap=true", "evaluate.class_gradients=true"


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
    result = [tuple(row.values()) for row in overlap.table().to_pylist()]
    assert result == [
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


def main_steps(run: Run, do: Do, patch: pytest.MonkeyPatch, look: Callable[[Any, int], None]) -> None:
    """Do a run, and call ``look(context, step)`` before gradients of main steps are edited."""
    steps = ExperienceReplay.steps

    def editing(self: Any, number: int, main: Any, context: Any) -> Any:
        first, *extra = steps(self, number, main, context)
        yield replace(first, edit=lambda mean_gradient: look(context, number))
        yield from extra

    with patch.context() as patched:
        patched.setattr(ExperienceReplay, "steps", editing)
        do(run)


def rows(path: Path) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(path).to_pylist()]


def check_stops_and_that_nothing_else_changes(table: str, on: str, whole: Run, make_run: Make, do: Do) -> None:
    """Compare with a run that was stopped, and with one of which nothing is noted."""
    result = rows(getattr(whole.directory, table))
    assert getattr(whole.directory, table).name in whole.directory.read_done()
    again = do(stopped(make_run(*ER, on), do, 1, 4, 3))
    assert rows(getattr(again.directory, table)) == result
    assert stored(again.store) == stored(whole.store)
    plain = do(make_run(*ER, outputs="plain"))
    assert not getattr(plain.directory, table).exists()
    assert plain.stages[0] == whole.stages[0]
    assert {s.train for s in plain.stages[1:]}.isdisjoint(s.train for s in whole.stages)
    for one, other in zip(plain.stages, whole.stages, strict=True):
        pair = [predictions.read(r.directory.predictions(s.hop.index)) for r, s in ((plain, one), (whole, other))]
        assert pair[0].drop_columns("run_id").equals(pair[1].drop_columns("run_id"))


@pytest.mark.full
def test_overlap_is_that_of_sets_of_positions(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[tuple[Any, ...]] = []
    before: set[tuple[str, int]] | None = None

    def look(context: Any, step: int) -> None:
        nonlocal before
        now = {
            (name, i)
            for name, p in context.model.named_parameters()
            if p.grad is not None
            for i in p.grad.flatten().nonzero().flatten().tolist()
        }
        for part in PARTS:
            one, other = (
                {x for x in result or () if x[0].startswith("encoder.embeddings.") == (part == "embeddings")}
                for result in (now, before)
            )
            pair = (len(one & other), len(one | other)) if before is not None else (None, None)
            expected.append((context.hop.index, step, part, len(one), *pair))
        before = now

    whole = make_run(*ER, ON, outputs="whole")
    main_steps(whole, do, monkeypatch, look)
    result = rows(whole.directory.overlap)
    assert result == expected
    assert [row[:3] for row in result[::2]] == [
        (h, s, "embeddings") for h, n in ((1, 6), (2, 5)) for s in range(1, n + 1)
    ]
    # Rows of word pieces come and go; dense weights nearly always have a gradient.
    shares = {
        part: [both / either for *_, p, _, both, either in result[2:] if p == part] for part in ("embeddings", "rest")
    }
    assert max(shares["embeddings"]) < 0.95 < min(shares["rest"])
    check_stops_and_that_nothing_else_changes("overlap", ON, whole, make_run, do)


def test_class_gradients_are_sums_of_the_head_s(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    expected: list[tuple[Any, ...]] = []
    whole = make_run(*ER, CLASSES, outputs="whole")

    def look(context: Any, step: int) -> None:
        sums = context.model.intent.weight.grad.numpy().astype(np.float64).sum(axis=1)
        pairs = zip(whole.dataset.labels, sums, strict=True)
        expected.extend((context.hop.index, step, label, value) for label, value in pairs)

    main_steps(whole, do, monkeypatch, look)
    result = rows(whole.directory.class_gradients)
    assert [row[:3] for row in result] == [row[:3] for row in expected]
    np.testing.assert_allclose([row[3] for row in result], [row[3] for row in expected], atol=1e-6)
    assert {row[0] for row in result} == {1, 2}
    assert max(abs(row[3]) for row in result) > 1e-3
    # The rows of a softmax head sum to about zero at each step: what one class gains others lose.
    sums = np.array([row[3] for row in result]).reshape(-1, len(whole.dataset.labels)).sum(axis=1)
    np.testing.assert_allclose(sums, 0, atol=1e-4)
    check_stops_and_that_nothing_else_changes("class_gradients", CLASSES, whole, make_run, do)


@pytest.mark.full
def test_a_hop_whose_parent_has_gone_from_the_store_is_compared_with_it_all_the_same(make_run: Make, do: Do) -> None:
    """Evaluations outlive weights: the parent is trained again for its last gradients."""
    expected, run = (do(make_run("order=[en,de]", "trainer.epochs=1", ON, outputs=name)) for name in ("kept", "gone"))
    before = rows(run.directory.overlap)
    for stage in run.stages[1:]:
        shutil.rmtree(run.store.path(stage.train))
    shutil.rmtree(run.store.path(run.stages[2].evaluation))
    os.unlink(run.directory.done)
    assert rows(do(run).directory.overlap) == before == rows(expected.directory.overlap)


def test_gradients_are_looked_at_before_a_strategy_changes_them(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    def editing(self: Any, number: int, main: Any, context: Any) -> Any:
        yield Step(main, edit=lambda mean_gradient: context.model.zero_grad())

    monkeypatch.setattr(ExperienceReplay, "steps", editing)
    run = do(make_run("strategy=er", "order=[en]", "trainer.epochs=1", ON))
    assert all(row[3] for row in rows(run.directory.overlap))
