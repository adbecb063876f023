"""LwF: its loss against a copy of the old model, for classes, tags and answers; what parts of languages change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.questions import write_questions
from xclrun.core.errors import UsageError
from xclrun.data.batches import Batch
from xclrun.model.heads import Output
from xclrun.plan import Run, notes
from xclrun.strategy.lwf import LwF, LwFSettings
from xclrun.strategy.shared.distillation import cross_entropy

from .real import context_of, gradients, perturbed, taken, untrained, weights

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def lwf(**changed: Any) -> LwF:
    return LwF(LwFSettings("lwf", **{"weight": 0.7, "temperature": 3.0, **changed}))


def soft(teacher: Tensor, student: Tensor, temperature: float) -> Tensor:
    """−Σ q^(1/T) log p^(1/T) of two rows of scores, as the paper writes it: of probabilities."""
    q, p = (scores.softmax(0) ** (1 / temperature) for scores in (teacher, student))
    return -(q / q.sum() * (p / p.sum()).log()).sum()


def direct(old: Any, new: Any, context: Any, language: str, indices: Any, temperature: float) -> Tensor:
    """The term for sentences of a hop, one at a time and without padding: classes, and tags word by word."""
    total = torch.zeros(())
    for index in indices:
        batch = context.batch(language, np.array([index]))
        with torch.no_grad():
            wanted = old.eval()(batch)
        found = new(batch)
        for teacher, student in ((wanted.logits, found.logits), (wanted.emissions, found.emissions)):
            if student is not None:
                rows = zip(teacher.flatten(0, -2), student.flatten(0, -2), strict=True)
                total = total + torch.stack([soft(t, s, temperature) for t, s in rows]).sum()
    return total / len(indices)


@pytest.mark.parametrize("task", ["intent_slots", "sequence_class"])
def test_the_loss_of_a_batch_against_the_old_model(task: str, make_run: Make) -> None:
    """Sentences of unlike lengths, out of order; the teacher answers without dropout, and never changes."""
    run = make_run(f"dataset.task={task}")
    strategy, old = lwf(), perturbed(untrained(run), 0.2, 1)
    context = context_of(run, 2, copy.deepcopy(old).train())
    strategy.begin_hop(context)
    assert context.model.training
    model = perturbed(context.model, 0.2, 2).eval()
    rows = np.array([7, 0, 11, 3])
    batch = context.batch("de", rows)
    loss = taken(strategy, 1, batch, context)
    found = gradients(model)
    model.zero_grad()
    wanted = model.loss(batch) + 0.7 * direct(old, model, context, "de", rows, 3.0)
    wanted.backward()
    torch.testing.assert_close(loss, wanted.detach(), rtol=1e-5, atol=1e-6)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)


def test_of_answers_probabilities_are_over_the_words_of_a_text() -> None:
    """Two texts of 2 and 3 words; what stands on padding has no part."""
    draw = torch.Generator().manual_seed(1)
    student, teacher = (torch.randn(2, 3, 2, generator=draw) for _ in range(2))
    mask = torch.tensor([[True, True, False], [True, True, True]])
    nothing = torch.zeros(2, 1, dtype=torch.long)
    words = torch.zeros_like(mask, dtype=torch.long)
    batch = Batch(nothing, nothing, nothing, words, mask, nothing[:, 0], words, np.arange(2))
    found = cross_entropy(Output(student, None, student), {"emissions": teacher[mask]}, batch, 2.0, over_words=True)
    rows = [(teacher[b, :n, side], student[b, :n, side]) for b, n in ((0, 2), (1, 3)) for side in (0, 1)]
    torch.testing.assert_close(found, torch.stack([soft(t, s, 2.0) for t, s in rows]).sum() / 2)


def test_a_span_is_distilled_as_probabilities_over_the_words_of_its_text(make_run: Make, tmp_path: Path) -> None:
    """The loss of the strategy on windows of two lengths, against softmaxes over words for start and for end."""
    root = write_questions(tmp_path, "en", "th", long=4)
    shape = ("model.vocab_size=220", "model.max_length=48", "model.windows.stride=16", "model.windows.question=8")
    run = make_run("dataset=questions", "order=[en,th]", *shape, data=root)
    strategy, old = lwf(), perturbed(untrained(run), 0.2, 1)
    context = context_of(run, 2, copy.deepcopy(old))
    strategy.begin_hop(context)
    model, old = perturbed(context.model, 0.2, 2).eval(), old.eval()
    words = context.train["th"].word_pieces.lengths
    indices = np.array([int(words.argmax()), int(words.argmin())])
    assert words[indices[0]] > words[indices[1]]
    batch, total = context.batch("th", indices), torch.zeros(())
    with torch.no_grad():
        for index in indices:
            one = context.batch("th", np.array([index]))
            teacher, student = old(one).emissions[0], model(one).emissions[0]
            total += sum(soft(teacher[:, side], student[:, side], 3.0) for side in (0, 1)) / 2
        [step] = strategy.steps(1, batch, context)
        assert step.loss is not None
        found = step.loss(batch, slice(0, 2))
        torch.testing.assert_close(found, model.loss(batch) + 0.7 * total, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_with_heads_of_their_own_earlier_languages_each_have_a_teacher(finished: Make) -> None:
    """After hop 2 with a strong term the heads of en say of German sentences what they said before it."""
    runs = [
        finished("strategy=lwf", "strategy.expansion=lang_spec_task", f"strategy.weight={weight}")
        for weight in (0.0, 30.0)
    ]
    away = []
    for run in runs:
        old, new = untrained(run), untrained(run)
        old.load_state_dict(weights(run, 1))
        # The heads of en, over what the encoder has become.
        own = {k: v for k, v in weights(run, 1).items() if k.startswith(("intent", "tagger"))}
        new.load_state_dict(weights(run, 2) | own)
        context = context_of(run, 2, new.eval())
        apart = direct(old, new, context, "de", range(8), 2.0) - direct(old, old.eval(), context, "de", range(8), 2.0)
        away.append(float(apart.detach()))
    assert 0 <= away[1] < 0.7 * away[0]


HEADS = ("intent", "tagger")


def test_a_warm_up_trains_new_heads_on_the_encoder_of_the_earlier_language(finished: Make) -> None:
    """A warm-up of the whole hop: the encoder's bytes stay, and the heads learn as by Adam on frozen features."""
    given = ("strategy.expansion=lang_spec_task", "strategy.warm_up=1000", "trainer.epochs=1", "model.dropout=0")
    run = finished("strategy=lwf", *given)
    before, after, initial = weights(run, 1), weights(run, 2), untrained(run)
    assert all(torch.equal(after[k], before[k]) for k in after if not k.startswith(HEADS))
    # From the heads of hop 0, step by step; lang_spec_task starts every language with these.
    initial.load_state_dict(before | {k: v for k, v in initial.state_dict().items() if k.startswith(HEADS)})
    context, trainer = context_of(run, 2, initial), run.config.trainer
    heads = [p for name, p in initial.named_parameters() if name.startswith(HEADS)]
    adam = torch.optim.Adam(heads, lr=trainer.lr, betas=tuple(trainer.betas), eps=trainer.eps)
    order = context.generator("shuffle", 0).permutation(len(context.train["de"]))
    for start in range(0, len(order), context.batch_size):
        adam.zero_grad()
        initial.loss(context.batch("de", order[start : start + context.batch_size])).backward()
        adam.step()
    for name, parameter in initial.named_parameters():
        torch.testing.assert_close(after[name], parameter.detach(), rtol=1e-3, atol=1e-5, msg=name)


def test_after_the_warm_up_shared_parameters_learn(finished: Make, make_run: Make) -> None:
    given = ("strategy=lwf", "strategy.expansion=lang_spec_task", "trainer.epochs=1")
    run, plain = finished(*given, "strategy.warm_up=2"), make_run(*given)
    assert run.stages[1].train == plain.stages[1].train, "the first hop has no shared parameters to protect"
    assert run.stages[2].train != plain.stages[2].train
    before, after = weights(run, 1), weights(run, 2)
    assert not torch.equal(
        after["encoder.encoder.layer.0.output.dense.weight"], before["encoder.encoder.layer.0.output.dense.weight"]
    )


@pytest.mark.parametrize("expansion", [(), ("strategy.expansion=seq_lora",)], ids=str)
def test_a_warm_up_needs_new_parameters(expansion: tuple[str, ...], make_run: Make) -> None:
    """The low-rank update of `seq_lora` belongs to all languages, so a warm-up would train nothing."""
    if expansion:
        pytest.importorskip("adapters", reason="needs xclrun[adapters]")
    with pytest.raises(UsageError, match=r"^strategy\.warm_up=2: .* there are none"):
        make_run("strategy=lwf", "strategy.warm_up=2", *expansion)


def test_a_warm_up_as_long_as_a_hop_is_noted(make_run: Make) -> None:
    def warned(warm_up: int) -> list[str]:
        given = ("strategy=lwf", "strategy.expansion=lang_spec_task", f"strategy.warm_up={warm_up}")
        return [note for note in notes([make_run(*given)]) if "warm_up" in note]

    assert warned(2) == []
    assert len(warned(10_000)) == 1
