"""ER-ACE: the asymmetric loss against a softmax, and a brute-force CRF, over the classes of the batch alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.strategy.er_ace import ERACE, ERACESettings

from .real import context_of, gradients, graph, perturbed, taken, untrained, weights

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def in_second_hop(run: Run, every_k: int = 1) -> tuple[ERACE, Any]:
    strategy, model = ERACE(ERACESettings("er_ace", 10, every_k)), untrained(run).eval()
    strategy.end_hop(context_of(run, 1, perturbed(model, 0.1, 1)))
    return strategy, context_of(run, 2, model)


def among_its_own(model: Any, batch: Any) -> torch.Tensor:
    """−ln p of labels and tags where only those of the batch exist; of tags by all sequences of them, one by one."""
    output, total = model(batch), torch.zeros(())
    if output.logits is not None:
        there = batch.labels.unique()
        for scores, label in zip(output.logits, batch.labels, strict=True):
            total = total + torch.logsumexp(scores[there], 0) - scores[label]
    if output.emissions is not None:
        crf, own = model.tagger.crf, batch.tags[batch.word_mask].unique().tolist()
        for scores, tags, mask in zip(output.emissions, batch.tags, batch.word_mask, strict=True):

            def score(path: Any, scores: Any = scores) -> torch.Tensor:
                steps = [crf.transitions[a, b] for a, b in itertools.pairwise(path)]
                there = [scores[i, tag] for i, tag in enumerate(path)]
                return sum([*steps, *there], crf.start_transitions[path[0]] + crf.end_transitions[path[-1]])

            words = int(mask.sum())
            everything = torch.stack([score(path) for path in itertools.product(own, repeat=words)])
            total = total + torch.logsumexp(everything, 0) - score(tags[:words].tolist())
    return total / batch.size


@pytest.mark.some_cases
@pytest.mark.parametrize("task", ["intent_slots", "sequence_class"])
@pytest.mark.parametrize("parts", [1, 2])
def test_the_loss_of_a_step(task: str, parts: int, make_run: Make) -> None:
    """Own classes for what is new, all classes for the memory; the same in one part or two."""
    run = make_run("dataset.replay.memory=10", f"dataset.task={task}")
    strategy, context = in_second_hop(run)
    model, train = context.model, context.train["de"]
    # Few words and few tags, so that all sequences can be counted; and two classes, of which a part has one.
    by_length = np.argsort(train.words, kind="stable")
    other = next(row for row in by_length if train.labels[row] != train.labels[by_length[0]])
    main = train.batch([by_length[0], other])
    total = taken(strategy, 1, main, context, 2 // parts)
    found = gradients(model)
    drawn = strategy.memory.draw_from_all(context.batch_size, context.generator("replay", 1))
    model.zero_grad()
    wanted = among_its_own(model, main) + model.loss(context.batch("en", drawn["en"]))
    wanted.backward()
    torch.testing.assert_close(total, wanted.detach(), rtol=1e-4, atol=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-5, msg=name)
    assert len(drawn["en"]) == 4
    everything = model.loss(main) + model.loss(context.batch("en", drawn["en"]))
    assert float(wanted.detach()) < float(everything.detach())


def test_steps_in_between_and_the_first_hop_are_plain(make_run: Make) -> None:
    strategy, context = in_second_hop(make_run("dataset.replay.memory=10"), every_k=2)
    main = context.batch("de", np.arange(4))
    [step] = strategy.steps(1, main, context)
    assert (step.batch, step.loss, step.terms) == (main, None, ())


@pytest.mark.parametrize("task", ["intent_slots", "sequence_class"])
def test_with_a_cosine_head_logits_are_scaled_cosines(task: str, finished: Make, make_run: Make) -> None:
    """In training and evaluation, before the first hop too; the bias, which cosines lack, is never trained."""
    given = (f"dataset.task={task}", "dataset.replay.memory=10", "trainer.epochs=1")
    run = finished("strategy=er_ace", "strategy.cosine=7", *given)
    stages, head = graph(run), "intent" if task == "intent_slots" else "classifier"
    for hop in (0, 2):
        stages.load(run.stream.hops[hop])
        model, inputs = stages.bench.model.eval(), []
        handle = getattr(model, head).register_forward_pre_hook(lambda module, x, inputs=inputs: inputs.append(x[0]))
        with torch.no_grad():
            logits = model(stages.bench.encodings.splits["de", "test"].batch([0, 1, 2])).logits
        x, w = inputs[0].numpy(), getattr(model, head).weight.detach().numpy()
        cosines = x @ w.T / np.linalg.norm(x, axis=1)[:, None] / np.linalg.norm(w, axis=1)
        np.testing.assert_allclose(logits.numpy(), 7 * cosines, rtol=1e-4, atol=1e-5)
        handle.remove()
    first, last = untrained(run).state_dict(), weights(run, 3)
    assert torch.equal(first[f"{head}.bias"], last[f"{head}.bias"])
    assert not torch.equal(first[f"{head}.weight"], last[f"{head}.weight"])
    linear, other = make_run("strategy=er_ace", *given), make_run("strategy=er_ace", "strategy.cosine=8", *given)
    for hop in range(4):
        assert len({r.stages[hop].evaluation for r in (run, linear, other)}) == 3
    with pytest.raises(
        UsageError, match=r"^strategy=er_ace dataset\.task=token_tags: strategy\.cosine needs class heads"
    ):
        make_run("strategy=er_ace", "strategy.cosine=7", "dataset.task=token_tags")
