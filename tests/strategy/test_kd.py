"""Knowledge distillation: its loss against a direct computation with two models, and what is stored of the teacher."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from tests.conftest import some
from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.strategy import Context
from xclrun.strategy.kd_logit import DistillationSettings, KDLogit, TeacherPrecision
from xclrun.strategy.kd_rep import KDRep

from .real import context_of, gradients, perturbed, state, taken, untrained, weights

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")

KINDS = [KDLogit, KDRep]


def settings(**changed: Any) -> DistillationSettings:
    return DistillationSettings("kd", **{"memory": 10, "every_k": 2, "weight": 0.5, **changed})


def direct(kind: type[KDLogit], student: Model, teacher: Model, context: Context, language: str, rows: Any) -> Tensor:
    """MSE between two models on sentences of a language, one sentence at a time, without padding."""
    pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
    for index in rows:
        batch = context.batch(language, np.array([index]))
        with torch.no_grad():
            wanted = teacher.eval()(batch)
        found = student(batch)
        for name in ("logits", "emissions") if kind is KDLogit else ("cls",):
            pairs.setdefault(name, []).append((getattr(found, name).flatten(), getattr(wanted, name).flatten()))
    both = [[torch.cat(part) for part in zip(*rows, strict=True)] for rows in pairs.values()]
    return torch.stack([mse_loss(found, wanted) for found, wanted in both]).sum()


def distance(strategy: KDLogit, language: str, size: int, context: Context) -> Tensor:
    """Return the loss of the term for all ``size`` sentences of a language's memory."""
    term = strategy.term(language, np.arange(size), context)
    assert term.loss is not None
    return term.loss(term.batch, slice(0, size))


def in_third_hop(strategy: KDLogit, run: Run) -> tuple[Context, dict[str, Model]]:
    """End hops 1 and 2 with different weights; return hop 3's context, without dropout, and language → its teacher."""
    model, teachers = untrained(run).eval(), {}
    for hop, language in ((1, "en"), (2, "de")):
        strategy.end_hop(context_of(run, hop, perturbed(model, 0.1, hop).train()))
        teachers[language] = copy.deepcopy(model).eval()
    context = context_of(run, 3, perturbed(model, 0.1, 3))
    model.eval()
    return context, teachers


@pytest.mark.some_cases
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_loss_of_steps_against_two_models(kind: type[KDLogit], accumulation: int, make_run: Make) -> None:
    """The loss and its gradients, in one part or two: the term counts once, and at every second step alone."""
    run = make_run("dataset.replay.memory=10", f"trainer.gradient_accumulation={accumulation}")
    strategy = kind(settings())
    context, teachers = in_third_hop(strategy, run)
    model = context.model
    for step in (1, 2, 3, 4):
        main = context.batch("es", np.arange(4 * accumulation))
        total = taken(strategy, step, main, context, 4)
        found = gradients(model)
        model.zero_grad()
        wanted = model.loss(main)
        if step % 2 == 0:
            for language, teacher in some(teachers.items()):
                generator = context.generator("distill", step, language)
                rows = strategy.memory.draw(language, context.batch_size, generator)
                assert len(rows) == min(4 * accumulation, 5)
                wanted = wanted + 0.5 * direct(kind, model, teacher, context, language, rows)
        wanted.backward()
        torch.testing.assert_close(total, wanted.detach(), rtol=1e-5, atol=1e-6)
        for name, gradient in some(gradients(model).items()):
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_outputs_follow_the_memory(kind: type[KDLogit], make_run: Make) -> None:
    """After three hops shares of 4, 3 and 3: rows for these sentences and their words alone, without padding."""
    strategy = kind(settings())
    context, teachers = in_third_hop(strategy, make_run())
    strategy.end_hop(context)
    teachers["es"] = context.model
    for language, size in {"en": 4, "de": 3, "es": 3}.items():
        kept = strategy.memory.indices[language]
        assert len(kept) == size
        words = int(context.train[language].word_pieces.lengths[kept].sum())
        shapes = {name: tensor.shape[0] for name, tensor in strategy.teacher[language].items()}
        assert shapes == ({"logits": size, "emissions": words} if kind is KDLogit else {"cls": size})
        found = distance(strategy, language, size, dataclasses.replace(context, model=teachers[language]))
        assert float(found.detach()) < 1e-10
    assert strategy.footprint()["examples"] == 10
    stored = sum(t.numel() * 4 for named in strategy.teacher.values() for t in named.values())
    assert strategy.footprint()["bytes"] == stored + 10 * 8


def test_half_precision_is_half_the_bytes_and_nearly_the_same(make_run: Make) -> None:
    exact, half = KDLogit(settings()), KDLogit(settings(teacher_precision=TeacherPrecision.fp16))
    run = make_run()
    context, _ = in_third_hop(exact, run)
    in_third_hop(half, run)
    for language, named in some(exact.teacher.items()):
        for name, tensor in some(named.items()):
            other = half.teacher[language][name]
            assert (tensor.dtype, other.dtype) == (torch.float32, torch.float16)
            torch.testing.assert_close(other.float(), tensor, rtol=1e-3, atol=1e-5)
    found, wanted = (distance(strategy, "en", 5, context) for strategy in (half, exact))
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("name", ["kd_logit", "kd_rep"])
def test_a_whole_run(name: str, finished: Make) -> None:
    """The term draws the model to its teachers; the stored outputs are those of the hop's weights."""
    strong, naive = finished(f"strategy={name}", "strategy.weight=30", "strategy.every_k=1"), finished()
    assert [s["training"]["updates"] for s in strong.directory.read_manifest()["stages"][1:]] == [12, 10, 8]
    strategy: Any = strong.strategy()
    strategy.load_state_dict(state(strong, 1))
    distances = []
    for run, hop in ((strong, 1), (strong, 2), (naive, 2)):
        model = untrained(run)
        model.load_state_dict(weights(run, hop))
        distances.append(float(distance(strategy, "en", 10, context_of(run, 2, model.eval())).detach()))
    assert distances[0] < 1e-10 < distances[1] < distances[2]
