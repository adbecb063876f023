"""Distillation of models that write: against a copy of the old model, one example at a time."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from tests.conftest import some
from tests.data.test_texts import encode, example
from tests.model.decoders import language_model
from xclrun.config.schema import LossPer, TextConfig
from xclrun.core.stream import sequence
from xclrun.core.task import TEXT_TO_TEXT
from xclrun.data.batches import Batch
from xclrun.model.network import Model
from xclrun.strategy import Context
from xclrun.strategy.kd_logit import DistillationSettings, KDLogit, TeacherPrecision
from xclrun.strategy.lwf import LwF, LwFSettings

from .real import gradients, perturbed, taken

pytestmark = pytest.mark.usefixtures("threads")

# Targets of unlike lengths.
PAIRS = (("wake me", "at six"), ("six", "x"), ("a b c d", "will it rain in Rome"), ("weck mich", "um sechs"))
ENCODED = encode(*(example(prompt, target, id=str(i)) for i, (prompt, target) in enumerate(PAIRS)))
ROWS = np.array([2, 0, 3, 1])
CASES: dict[str, dict[str, Any]] = {"tied": {}, "untied": {"tie_word_embeddings": False}}


def writer(case: str, loss_per: LossPer = LossPer.token) -> Model:
    settings = TextConfig(loss_per=loss_per)
    return Model(language_model(**CASES[case]), 0, 0, 0.0, task=TEXT_TO_TEXT, last=True, settings=settings).eval()


def context_of(model: Model, hop: int) -> Context:
    stream = sequence(["en", "de"])
    train = {"en": ENCODED, "de": ENCODED}
    return Context(model, stream.hops[hop], stream, train, torch.device("cpu"), seed=1, batch_size=4)


def logits(model: Model, row: int) -> Tensor:
    """Return the logits of the subwords of a target, from the library's own forward pass."""
    batch: Batch = ENCODED.batch([row])
    head: Any = model.head_of("")
    return head.language_model(batch.input_ids).logits[0, batch.word_pieces[0]]


def as_before(old: Model, row: int) -> Tensor:
    with torch.no_grad():
        return logits(old, row)


def same_step(found: tuple[Tensor, dict[str, Tensor]], wanted: Tensor, model: Model) -> None:
    model.zero_grad()
    wanted.backward()
    torch.testing.assert_close(found[0], wanted.detach(), rtol=1e-5, atol=1e-6)
    for name, gradient in some(gradients(model).items()):
        torch.testing.assert_close(found[1][name], gradient, rtol=1e-3, atol=1e-5, msg=name)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("loss_per", LossPer)
@pytest.mark.parametrize("part", [4, 2])
def test_lwf_is_near_to_the_subwords_of_the_model_before_the_hop(case: str, loss_per: LossPer, part: int) -> None:
    strategy, model = LwF(LwFSettings("lwf", weight=0.7, temperature=3.0)), writer(case, loss_per)
    context, old = context_of(model, 2), copy.deepcopy(model)
    strategy.begin_hop(context)
    perturbed(model, 0.2, 2)
    batch = context.batch("de", ROWS)
    found = taken(strategy, 1, batch, context, part), gradients(model)
    terms = []
    for row in some(ROWS):
        before, now = as_before(old, row) / 3.0, logits(model, row) / 3.0
        terms.append(-(before.softmax(1) * now.log_softmax(1)).sum())
    units = batch.size if loss_per is LossPer.example else int(ENCODED.tags.lengths.sum())
    same_step(found, model.loss(batch) + 0.7 * torch.stack(terms).sum() / units, model)


def test_the_teacher_of_lwf_has_no_dropout_and_the_model_keeps_its_mode() -> None:
    strategy, model = LwF(LwFSettings("lwf", weight=1.0)), writer("tied").train()
    modes: list[bool] = []
    model.encoder.register_forward_pre_hook(lambda module, inputs: modes.append(module.training))
    context = context_of(model, 2)
    strategy.begin_hop(context)
    taken(strategy, 1, context.batch("de", ROWS), context)
    assert sorted(modes) == [False, True]
    assert model.training


def test_the_first_hop_of_lwf_has_no_teacher() -> None:
    strategy, context = LwF(LwFSettings("lwf")), context_of(writer("tied"), 1)
    strategy.begin_hop(context)
    [step] = strategy.steps(1, context.batch("en", ROWS), context)
    assert step.loss is None


def test_lwf_takes_texts() -> None:
    assert LwF(LwFSettings("lwf")).unsupported([TEXT_TO_TEXT]) is None


def kd(**changed: Any) -> KDLogit:
    given: dict[str, Any] = {"memory": 4, "every_k": 1, "weight": 0.5, **changed}
    return KDLogit(DistillationSettings("kd_logit", **given))


def remembered(strategy: KDLogit, case: str) -> tuple[Model, Model, Context]:
    """End a hop; return the model after it, a changed one, and the context of the next hop."""
    old = writer(case)
    strategy.end_hop(context_of(old, 1))
    model = perturbed(copy.deepcopy(old), 0.2, 2)
    return old, model, context_of(model, 2)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("part", [4, 2])
def test_kd_logit_is_near_to_the_logits_after_the_hop_of_the_memory(case: str, part: int) -> None:
    strategy = kd()
    old, model, context = remembered(strategy, case)
    main = context.batch("de", ROWS)
    found = taken(strategy, 1, main, context, part), gradients(model)
    pairs = [(logits(model, row), as_before(old, row)) for row in range(4)]
    now, before = (torch.cat(rows).flatten() for rows in zip(*pairs, strict=True))
    same_step(found, model.loss(main) + 0.5 * mse_loss(now, before), model)


def test_a_teacher_of_texts_is_stored_as_states_and_an_output_layer() -> None:
    strategy, again = kd(teacher_precision=TeacherPrecision.fp16), kd(teacher_precision=TeacherPrecision.fp16)
    _, model, context = remembered(strategy, "untied")
    stored = strategy.state_dict()
    head: Any = model.head_of("")
    subwords, width, vocabulary = int(ENCODED.tags.lengths.sum()), 16, head.layer["weight"].shape[0]
    shapes = {name: tuple(tensor.shape) for name, tensor in stored.tensors.items()}
    assert shapes == {"states/en": (subwords, width), "layer.weight/en": (vocabulary, width)}
    assert stored.tensors["states/en"].dtype == torch.float16
    again.load_state_dict(stored)
    main = context.batch("de", ROWS)
    losses = [taken(each, 1, main, context) for each in (strategy, again)]
    assert torch.equal(*losses)
