"""The one loop, against loops written out by hand and closed formulas."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from xclrun.config.schema import Selection, StrategyConfig
from xclrun.core.errors import RunError
from xclrun.core.identity import derive
from xclrun.plan import Run
from xclrun.strategy import Step, Strategy
from xclrun.strategy.naive import Naive
from xclrun.train import loop
from xclrun.train.evaluate import Evaluator
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress
from xclrun.train.workbench import Workbench

from .conftest import copied, same

Make = Callable[..., Run]
Training = Callable[..., HopTraining]


class Noting(Listener):
    """Notes every step and every epoch."""

    def __init__(self) -> None:
        self.steps: list[Progress] = []
        self.epochs: list[dict[str, Any]] = []
        self.weights: list[dict[str, Tensor]] = []
        self.rates: list[float] = []
        self.training: HopTraining | None = None

    def stepped(self, progress: Progress) -> None:
        self.steps.append(progress)
        if self.training is not None:
            self.rates.append(self.training.optimizer.param_groups[0]["lr"])

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        self.epochs.append(facts)
        if self.training is not None:
            self.weights.append(copied(self.training.context.model))

    def hears(self, training: HopTraining) -> HopTraining:
        self.training, training.listener = training, self
        return training


def scripted(*scores: float) -> type[Evaluator]:
    """Return an evaluator whose dev scores are given, epoch by epoch."""
    remaining = iter(scores)

    class Scripted(Evaluator):
        def scores(self, columns: dict[str, list[Any]]) -> dict[str, float]:
            return {"intent_accuracy": next(remaining)}

    return Scripted


def by_hand(training: HopTraining, epochs: int) -> dict[str, Tensor]:
    """Train as the documentation says, in as few lines as it takes; batches of 4, Adam, constant rate."""
    context, config = training.context, training.trainer
    optimizer = torch.optim.Adam(context.model.parameters(), lr=config.lr, betas=(0.9, 0.99), eps=1e-8, fused=True)
    data = context.train["en"]
    context.model.train()
    update = 0
    for epoch in range(epochs):
        shuffling = np.random.PCG64(derive(context.seed, "shuffle", 1, epoch))
        order = np.random.Generator(shuffling).permutation(len(data))
        for start in range(0, len(data), 4):
            torch.manual_seed(derive(context.seed, "dropout", 1, update))
            loss = context.model.loss(data.batch(order[start : start + 4]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            update += 1
    return copied(context.model)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_two_epochs_equal_a_loop_written_by_hand(dropout: float, make_run: Make, training: Training) -> None:
    run = make_run("trainer.selection=last", f"model.dropout={dropout}")
    expected = by_hand(training(run), epochs=2)
    result = training(run)
    before = copied(result.context.model)
    # As a pretrained encoder comes, and as an evaluation leaves it.
    result.context.model.eval()
    counted = result.run()
    assert same(copied(result.context.model), expected)
    assert not same(before, expected)
    # 22 sentences are six batches, the last one of two.
    assert (counted["epoch"], counted["step"], counted["updates"], counted["examples"]) == (2, 12, 12, 44)
    assert counted["tokens"] == 2 * int(result.context.train["en"].lengths.sum())


def test_accumulated_batches_equal_one_large_batch(make_run: Make, training: Training) -> None:
    plain = ("trainer.selection=last", "model.dropout=0", "model.lr=1e-3")
    large = training(make_run(*plain, "trainer.batch_size=16"))
    parts = training(make_run(*plain, "trainer.batch_size=4", "trainer.gradient_accumulation=4"))
    facts = [one.run() for one in (large, parts)]
    # 22 sentences: 16, then 6, which are 4 and 2 in parts.
    assert facts[0]["updates"] == facts[1]["updates"] == 4
    assert facts[0]["epochs"][1]["loss"] == pytest.approx(facts[1]["epochs"][1]["loss"], rel=1e-4)
    a, b = copied(large.context.model), copied(parts.context.model)
    for name in a:
        # Adam divides by a gradient's size: where that is next to nothing, rounding shows. A tenth of one step.
        assert torch.allclose(a[name], b[name], atol=1e-4), name
    alone = training(make_run(*plain, "trainer.batch_size=4"))
    alone.run()
    assert not torch.allclose(a["intent.weight"], alone.context.model.intent.weight, atol=1e-3)


# --- The learning rate.

TOTAL = 12


def test_learning_rate_of_every_step(make_run: Make, training: Training) -> None:
    """A quarter of 12 steps rises: 1/3, 2/3, 1, then 9 steps down; other schedules are in the tests of `lr_factor`."""
    noting = Noting()
    noting.hears(training(make_run("trainer.schedule=linear", "trainer.warmup=0.25", "model.lr=2e-3"))).run()
    reference = [(t + 1) / 3 if t < 3 else 1 - (t - 3) / 9 for t in range(TOTAL)]
    assert noting.rates == pytest.approx([2e-3 * factor for factor in reference])


def test_replayed_steps_have_the_rate_of_their_main_step(make_run: Make, training: Training) -> None:
    run = make_run("strategy=er", "trainer.schedule=linear", "model.lr=2e-3")
    strategy = run.strategy()
    first = training(run, strategy=strategy)
    strategy.end_hop(first.context)
    second = training(run, hop=2, strategy=strategy)
    rates: list[float] = []
    second.optimizer.register_step_pre_hook(lambda *_: rates.append(second.optimizer.param_groups[0]["lr"]))
    second.run()
    # 18 sentences are five batches; every second main step of the ten is followed by a batch of the memory.
    assert rates == pytest.approx([2e-3 * (1 - t / 10) for t in range(10) for _ in range(1 + t % 2)])


# --- Gradients.


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_gradients_are_clipped_to_the_norm(clip: float, make_run: Make, training: Training) -> None:
    norms: list[tuple[float, float]] = []

    class Measuring(Naive):
        plan = Strategy.plan

        def steps(self, number: int, main: Any, context: Any) -> Any:
            yield Step(main, edit=lambda mean_gradient: norms.append((norm(context.model), -1.0)))

    def norm(model: torch.nn.Module) -> float:
        return math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters() if p.grad is not None))

    clipped = training(make_run(f"trainer.clip_norm={clip}"), strategy=Measuring(StrategyConfig("naive")))

    def before_step(*_: Any) -> None:
        norms[-1] = (norms[-1][0], norm(clipped.context.model))

    clipped.optimizer.register_step_pre_hook(before_step)
    clipped.run()
    assert len(norms) == TOTAL
    for whole, used in norms:
        assert whole > 0.05
        assert used == pytest.approx(min(whole, clip), rel=1e-4)


def test_a_strategy_s_edit_reaches_the_optimiser(make_run: Make, training: Training) -> None:
    class Silent(Naive):
        plan = Strategy.plan

        def steps(self, number: int, main: Any, context: Any) -> Any:
            def edit(mean_gradient: Any) -> None:
                for parameter in context.model.parameters():
                    parameter.grad = None

            yield Step(main, edit=edit)

    silent = training(make_run("trainer.selection=last"), strategy=Silent(StrategyConfig("naive")))
    before = copied(silent.context.model)
    silent.run()
    assert same(copied(silent.context.model), before)


@pytest.mark.parametrize(
    ("given", "told"), [(lambda main: None, "steps gives nothing"), (lambda main: [main], "steps gives a Batch")]
)
def test_what_is_no_step_is_told(given: Any, told: str, make_run: Make, training: Training) -> None:
    class Wrong(Strategy[StrategyConfig]):
        name = "wrong"

        def steps(self, number: int, main: Any, context: Any) -> Any:
            return given(main)

    with pytest.raises(RunError, match=rf"^strategy=wrong: {told}; use `yield Step\(main\)`$"):
        training(make_run("strategy=naive"), strategy=Wrong(StrategyConfig("wrong"))).run()


def test_frozen_parameters_stay(make_run: Make, training: Training) -> None:
    run = make_run("trainer.selection=last")
    first = training(run)
    for parameter in first.context.model.encoder.parameters():
        parameter.requires_grad_(False)
    frozen = HopTraining(Workbench(run, Listener(), first.stop).work(first.context), first.checkpoints)
    before = copied(frozen.context.model)
    frozen.run()
    after = copied(frozen.context.model)
    changed = {name.split(".")[0] for name in after if not torch.equal(after[name], before[name])}
    assert changed == {"intent", "tagger"}


# --- Selection and stopping.


def test_a_model_that_gets_worse_is_taken_back(make_run: Make, training: Training) -> None:
    """With real scores: a good start, then a learning rate that ruins the model."""

    class Ruining(Noting):
        def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
            super().epoch_ended(progress, facts)
            if len(self.epochs) == 4:
                assert self.training is not None
                self.training.trainer = replace(self.training.trainer, lr=10.0)

    noting = Ruining()
    run = make_run("trainer.epochs=6", "model.lr=1e-2")
    trained = noting.hears(training(run))
    counted = trained.run()
    scores = [facts["dev"]["en"]["intent_accuracy"] + facts["dev"]["en"]["slot_f1"] for facts in noting.epochs]
    best = int(np.argmax(scores))
    assert scores[best] > 1.5 * max(scores[4:])
    assert counted["best_epoch"] == best + 1 <= 4
    assert same(copied(trained.context.model), noting.weights[best])
    dev = trained.evaluator.predict(trained.context.model, trained.dev["en"], "en", "dev")
    assert trained.evaluator.scores(dev) == noting.epochs[best]["dev"]["en"]


@pytest.mark.parametrize(
    ("scores", "patience", "epochs", "best"),
    [
        ((0.2, 0.3, 0.9, 0.5, 0.1, 0.9), "null", 6, 3),
        ((0.5, 0.5, 0.4, 0.9), 2, 3, 1),
        ((0.5, 0.4, 0.6, 0.5, 0.5, 0.9), 2, 5, 3),
        ((0.5, 0.6, 0.4), 1, 3, 2),
        ((math.nan, 0.6, math.nan, 0.4, 0.5, 0.6), "null", 6, 2),
    ],
)
@pytest.mark.parametrize("selection", list(Selection))
def test_the_best_or_the_last_epoch_is_kept_and_patience_ends_the_hop(
    scores: tuple[float, ...],
    patience: int | str,
    epochs: int,
    best: int,
    selection: Selection,
    make_run: Make,
    training: Training,
) -> None:
    overrides = ("trainer.epochs=6", f"trainer.patience={patience}", f"trainer.selection={selection.value}")
    noting = Noting()
    trained = noting.hears(training(make_run(*overrides), evaluator=scripted(*scores)))
    counted = trained.run()
    assert counted["epoch"] == epochs
    assert (counted["best_epoch"], counted["best_step"], counted["best_score"]) == (best, 6 * best, scores[best - 1])
    kept, result = best if selection is Selection.best else epochs, copied(trained.context.model)
    assert [same(result, weights) for weights in noting.weights] == [epoch == kept for epoch in range(1, epochs + 1)]


def test_dev_scores_without_a_value_are_left_out_of_what_is_stored(make_run: Make, training: Training) -> None:
    noting = Noting()
    counted = noting.hears(training(make_run("trainer.epochs=2"), evaluator=scripted(math.nan, 0.5))).run()
    assert [facts["dev"] for facts in counted["epochs"]] == [{"en": {}}, {"en": {"intent_accuracy": 0.5}}]
    json.dumps(counted["epochs"], allow_nan=False)


def test_if_no_dev_score_has_a_value_the_metric_and_the_language_are_named(make_run: Make, training: Training) -> None:
    undefined = [math.nan] * 2
    with pytest.raises(RunError, match=r"intent_accuracy of 'en'.*trainer.selection=last"):
        training(make_run("trainer.epochs=2"), evaluator=scripted(*undefined)).run()
    last = training(make_run("trainer.epochs=2", "trainer.selection=last"), evaluator=scripted(*undefined))
    assert last.run()["epoch"] == 2


class OnGpu:
    """Stands for a tensor of 100 bytes on a GPU."""

    is_cuda, nbytes = True, 100

    def clone(self) -> str:
        return "cuda"

    def to(self, device: str, copy: bool) -> str:
        assert copy
        return device


@pytest.mark.parametrize(("free", "expected"), [(400, "cuda"), (399, "cpu")])
def test_the_best_weights_stay_on_a_gpu_that_has_room(
    free: int, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tensors of 100 bytes need 400 free, so that a later step still finds memory."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 10_000))
    tensors: Any = {"a": OnGpu(), "b": OnGpu(), "on the CPU": torch.ones(1000)}
    result = loop._copied(tensors)
    assert (result["a"], result["b"]) == (expected, expected)
    assert result["on the CPU"] is not tensors["on the CPU"]
    assert torch.equal(result["on the CPU"], tensors["on the CPU"])


# --- What is told.


def test_progress_and_curve(make_run: Make, training: Training) -> None:
    noting = Noting()
    trained = noting.hears(training(make_run()))
    counted = trained.run()
    assert [p.step for p in noting.steps] == list(range(1, 13))
    assert [p.epoch for p in noting.steps] == [1] * 6 + [2] * 6
    assert {(p.steps, p.epochs, p.hop.index) for p in noting.steps} == {(12, 2, 1)}
    assert [p.examples for p in noting.steps][:6] == [4, 8, 12, 16, 20, 22]
    seconds = [p.seconds for p in noting.steps]
    assert seconds == sorted(seconds)
    assert counted["epochs"] == noting.epochs
    assert [(e["epoch"], e["step"], e["examples"]) for e in noting.epochs] == [(1, 6, 22), (2, 12, 44)]
    assert noting.epochs[1]["loss"] < noting.epochs[0]["loss"]


def test_the_loss_of_an_epoch_is_the_mean_over_its_updates(make_run: Make, training: Training) -> None:
    losses: list[float] = []

    class Listening(Naive):
        plan = Strategy.plan

        def steps(self, number: int, main: Any, context: Any) -> Any:
            def loss(part: Any, rows: slice) -> Tensor:
                result = context.model.loss(part)
                losses.append(result.item())
                return result

            yield Step(main, loss)
            if number % 2:
                yield Step(context.batch("en", np.array([0, 1])), loss)

    counted = training(make_run(), strategy=Listening(StrategyConfig("naive"))).run()
    # Replayed steps count as well: 6 main steps and 3 replayed ones an epoch.
    assert len(losses) == 18
    assert [epoch["loss"] for epoch in counted["epochs"]] == pytest.approx([np.mean(losses[:9]), np.mean(losses[9:])])


@pytest.mark.parametrize(
    ("value", "update", "where"), [(math.nan, 1, "epoch 1, step 1"), (math.inf, 8, "epoch 2, step 8")]
)
def test_a_loss_that_is_not_finite_ends_the_run(
    value: float, update: int, where: str, make_run: Make, training: Training
) -> None:
    class Diverging(Naive):
        plan = Strategy.plan

        def steps(self, number: int, main: Any, context: Any) -> Any:
            factor = value if number == update else 1.0
            yield Step(main, lambda part, rows: context.model.loss(part) * factor)

    diverging = training(make_run(), hop=2, strategy=Diverging(StrategyConfig("naive")))
    with pytest.raises(
        RunError, match=rf"hop 2 \(de\), {where}: the loss is {value}; try a lower trainer.lr"
    ) as raised:
        diverging.run()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("every", [5, 25])
def test_looking_now_and_then_counts_the_same(every: int, make_run: Make, training: Training) -> None:
    """As on a GPU, which a look at every loss would hold up."""
    plain, rare = training(make_run()), training(make_run())
    rare.look_every = every
    reference, result = plain.run(), rare.run()
    assert same(copied(plain.context.model), copied(rare.context.model))
    assert [e["loss"] for e in result["epochs"]] == pytest.approx([e["loss"] for e in reference["epochs"]])
    assert result["tokens"] == reference["tokens"]


def test_bf16_trains_the_encoder_and_leaves_the_crf_in_fp32(
    make_run: Make, training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    types: dict[str, set[torch.dtype]] = {"encoder": set(), "crf": set()}
    half = training(make_run("trainer.precision=bf16"))
    model = half.context.model
    model.encoder.encoder.layer[0].intermediate.dense.register_forward_hook(
        lambda module, settings, output: types["encoder"].add(output.dtype)
    )
    model.tagger.crf.register_forward_hook(
        lambda module, settings, output: types["crf"].update({settings[0].dtype, output.dtype})
    )
    counted = half.run()
    assert types == {"encoder": {torch.bfloat16}, "crf": {torch.float32}}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert counted["epochs"][1]["loss"] < counted["epochs"][0]["loss"]
    full = training(make_run())
    full.run()
    assert not same(copied(full.context.model), copied(model))
