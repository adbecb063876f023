"""DER and DER++: the reservoir against its law, the loss against what was noted while training, and resuming."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from tests.train.conftest import stopped
from xclrun.plan import Run
from xclrun.strategy import State
from xclrun.strategy.der import DER, DERSettings, Reservoir
from xclrun.strategy.derpp import DERPP, DERPPSettings

from .real import context_of, files, gradients, perturbed, state, taken, untrained

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def test_a_reservoir_keeps_each_example_with_the_same_probability() -> None:
    """5 of 20 in batches of 3: each example in a quarter of 2000 reservoirs, within four standard deviations."""
    counts: Counter[int] = Counter()
    for seed in range(2000):
        generator, reservoir = np.random.default_rng(seed), Reservoir(5)
        for start in range(0, 20, 3):
            batch = [(row, {}) for row in range(start, min(start + 3, 20))]
            reservoir.offer(batch, {"en": 8, "de": 12}, generator)
        found = [kept.index + (8 if kept.language == "de" else 0) for kept in reservoir.examples]
        assert len(set(found)) == 5
        counts.update(found)
    assert reservoir.seen == 20
    expected, spread = 500, np.sqrt(2000 * 0.25 * 0.75)
    assert all(abs(counts[row] - expected) < 4 * spread for row in range(20)), counts


def der(**changed: Any) -> DER[Any]:
    return DER(DERSettings("der", **{"memory": 6, "alpha": 0.7, **changed}))


def derpp(**changed: Any) -> DERPP:
    return DERPP(DERPPSettings("derpp", **{"memory": 6, "alpha": 0.7, "beta": 0.4, **changed}))


def step(strategy: DER[Any], context: Any, number: int, rows: Any, parts: int = 1) -> tuple[Tensor, Any]:
    """Take a step without the optimiser; return its loss, and its main mini-batch."""
    main = context.batch(context.hop.train[0], np.asarray(rows))
    return taken(strategy, number, main, context, main.size // parts), main


def numbers(output: Any, row: int, mask: Tensor) -> dict[str, Tensor]:
    """Return the logits of a sentence, and the emissions of its words."""
    found = {"logits": output.logits[row]} if output.logits is not None else {}
    return found | ({"emissions": output.emissions[row][mask[row]]} if output.emissions is not None else {})


@pytest.mark.parametrize("made", [der, derpp])
@pytest.mark.parametrize(("task", "parts"), [("intent_slots", 1), ("intent_slots", 2), ("sequence_class", 1)])
def test_the_loss_of_a_step(made: Callable[[], DER[Any]], task: str, parts: int, make_run: Make) -> None:
    """α · MSE over classes and, of tags, summed over words, to what was given when a sentence was trained; β · gold."""
    run = make_run(f"dataset.task={task}")
    strategy, model = made(), untrained(run).eval()
    noted: dict[tuple[str, int], dict[str, Tensor]] = {}
    # Two hops: what is kept of the first has its outputs of then.
    for hop, (language, rows) in enumerate((("en", [9, 2, 5, 7]), ("de", [3, 1])), start=1):
        perturbed(model, 0.1, hop)
        context = context_of(run, hop, model)
        _, main = step(strategy, context, 1, rows)
        output = model(main)
        for at, row in enumerate(rows):
            noted[language, row] = {k: v.detach() for k, v in numbers(output, at, main.word_mask).items()}
    assert len(strategy.reservoir.examples) == 6
    strategy.load_state_dict(State(json.loads(json.dumps(strategy.state_dict().facts)), strategy.state_dict().tensors))
    perturbed(model, 0.1, 3)
    main = context.batch("de", np.array([0, 4, 6, 8]))

    def drawn(purpose: str) -> list[tuple[str, int]]:
        kept = strategy.reservoir.draw(4, context.generator(purpose, 2))
        return [(example.language, example.index) for example in kept]

    distilled, labelled = drawn("replay"), drawn("labelled replay")
    assert len(set(distilled)) == 4
    found, _ = step(strategy, context, 2, main.indices, parts)
    own = gradients(model)
    model.zero_grad()
    wanted = model.loss(main)
    for language, row in distilled:
        batch = context.batch(language, np.array([row]))
        given = numbers(model(batch), 0, batch.word_mask)
        for name, student in given.items():
            words = len(student) if name == "emissions" else 1
            wanted = wanted + 0.7 / 4 * words * mse_loss(student, noted[language, row][name])
    if made is derpp:
        for language, row in labelled:
            wanted = wanted + 0.4 / 4 * model.loss(context.batch(language, np.array([row])))
    wanted.backward()
    torch.testing.assert_close(found, wanted.detach(), rtol=1e-4, atol=1e-5)
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(own[name], gradient, rtol=2e-3, atol=1e-5, msg=name)


def test_nothing_is_replayed_before_anything_was_seen(make_run: Make) -> None:
    strategy, context = derpp(), context_of(make_run(), 1)
    context.model.eval()
    loss, main = step(strategy, context, 1, [0, 1])
    assert torch.equal(loss, context.model.loss(main).detach())


@pytest.mark.full
@pytest.mark.parametrize("selection", ["best", "last"])
def test_the_reservoir_goes_on_as_it_was_with_the_selected_weights(selection: str, finished: Make) -> None:
    run = finished("strategy=derpp", "strategy.memory=9", f"trainer.selection={selection}")
    seen = 0
    for stage in run.directory.read_manifest()["stages"][1:]:
        training = stage["training"]
        epoch = training["best_epoch"] if selection == "best" else 2
        size = {"en": 22, "de": 18, "es": 13}[stage["name"]]
        seen += epoch * size
        stored = state(run, stage["hop"])
        assert stored.facts["seen"] == seen
        assert len(stored.facts["kept"]) == 9
    languages = {language for language, _, _ in stored.facts["kept"]}
    assert len(languages) > 1


@pytest.mark.full
def test_stopped_after_the_epoch_that_is_selected_its_reservoir_comes_back(
    make_run: Make, do: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Epochs that score alike: the first is selected, and of it is what was gathered, though the second goes on."""
    monkeypatch.setattr("xclrun.train.loop.selection_score", lambda scores: 0.5)
    given = ("strategy=derpp", "strategy.memory=9", "order=[en,de]")
    calm, run = do(make_run(*given, outputs="calm")), do(stopped(make_run(*given), do, 8))
    assert state(run, 1).facts["seen"] == 22
    assert files(run) == files(calm)


def test_the_state_after_a_hop_is_made_from_what_is_stored_with_its_weights(
    make_run: Make, do: Callable[..., Run], finished: Make, tmp_path: Path
) -> None:
    """As where the process ends between the training and the state: nothing of the training is in memory then."""
    import shutil

    given = ("strategy=derpp", "strategy.memory=9")
    calm = finished(*given)
    run = do(make_run(*given))
    wanted = files(run)
    for hop in (2, 3):
        for key in (run.stages[hop].state, run.stages[hop].evaluation):
            shutil.rmtree(run.store.path(str(key)))
    shutil.rmtree(run.store.path(run.stages[3].train))
    shutil.rmtree(run.directory.path)
    assert files(do(make_run(*given))) == wanted == files(calm)


@pytest.mark.full
def test_with_heads_of_their_own_each_sentence_goes_through_its_languages(finished: Make) -> None:
    """Parts of en stay as hop 1 left them, bit for bit, while hops 2 and 3 remember its sentences."""
    from .real import weights

    run = finished("strategy=derpp", "strategy.memory=9", "strategy.expansion=lang_spec_task")
    kept = {language for language, _, _ in state(run, 2).facts["kept"]}
    assert kept == {"en", "de"}
    plain = finished("strategy=lang_spec_task")
    body = "encoder.encoder.layer.0.output.dense.weight"
    assert not torch.equal(weights(run, 2)[body], weights(plain, 2)[body])
