"""Several tasks in one model: heads for each task, batches of one task, scores of each key by its own metric."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.conftest import some
from tests.strategy.real import graph, weights
from xclrun.analysis import formulas
from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.analysis.records import read_predictions, read_records, record
from xclrun.analysis.reference import References
from xclrun.analysis.resampling import Resampled
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS, TOKEN_TAGS
from xclrun.data.batches import Batch, concat
from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.strategy import STRATEGIES
from xclrun.strategy.shared.fisher import one_by_one
from xclrun.train.curriculum import Passes
from xclrun.train.encodings import encodings
from xclrun.train.gradients import Gradients

from .conftest import predicted, stopped, stored

Do = Callable[..., Run]
Make = Callable[..., Run]

# Classes of two languages, tags of a third, and intents with tags: two keys of one task, and three tasks.
PARTS = (
    "dataset.parts={kind: {task: sequence_class, languages: [en]}, where: {task: token_tags, languages: [de]}, "
    "both: {languages: [es]}, more: {task: sequence_class, languages: [de]}}"
)
STREAM = (PARTS, "dataset.name=several", "order=[kind,where,both,more]")
EVERY_STEP = ("dataset.replay.every_k=1",)


@pytest.fixture
def run(make_run: Make) -> Run:
    return make_run(*STREAM)


@pytest.fixture
def model(run: Run) -> Model:
    """The untrained model."""
    return graph(run).bench.untrained()


def of_task(run: Run, key: str, rows: list[int]) -> Batch:
    return encodings(run).splits[key, "train"].batch(rows)


def test_label_sets_are_of_a_task_over_its_keys(run: Run) -> None:
    """As in a dataset of these keys alone, but that parts have prefixes."""
    both, classes, tags = run.dataset.targets
    assert [of.task for of in (both, classes, tags)] == [INTENT_SLOTS, SEQUENCE_CLASS, TOKEN_TAGS]
    assert [of.keys for of in (both, classes, tags)] == [("both",), ("kind", "more"), ("where",)]
    names = ("alarm", "call", "weather")
    assert classes.labels == tuple(f"{key}:{name}" for key in ("kind", "more") for name in names)
    assert (classes.tags, tags.labels) == ((), ())
    assert both.labels == tuple(f"both:{name}" for name in names)
    assert tags.tags[0] == both.tags[0] == "O"
    assert {tag[2:6] for tag in tags.tags[1:]} == {"wher"}
    assert {tag[2:6] for tag in both.tags[1:]} == {"both"}


def test_each_task_is_answered_as_by_a_model_of_that_task_alone(run: Run, model: Model) -> None:
    """The same encoder and heads under the names that a model of one task has: equal bit for bit."""
    for of in some(run.dataset.targets):
        [key, *_] = of.keys
        task, batch = of.task, of_task(run, key, [0, 3, 5])
        pooler = model.tasks[task.place].pooler
        encoder: Any = model.encoder
        encoder.pooler = pooler
        alone = Model(encoder, len(of.labels), len(of.tags), 0.0, task=task).eval()
        own = {k.removeprefix(f"tasks.{task.place}."): v for k, v in model.state_dict().items()}
        alone.load_state_dict({k: v for k, v in own.items() if not k.startswith("tasks.")})
        expected, result = alone.predict(batch), model.eval().predict(batch)
        assert result.keys() == expected.keys()
        for name, value in some(expected.items()):
            assert torch.equal(result[name].nan_to_num(), value.nan_to_num()), (key, name)
        assert torch.equal(alone.loss(batch), model.loss(batch))


def test_heads_do_not_depend_on_the_order_of_keys(make_run: Make, model: Model) -> None:
    other = make_run(*STREAM[:2], "order=[more,both,where,kind]")
    again = graph(other).bench.untrained().state_dict()
    assert all(torch.equal(tensor, again[name]) for name, tensor in model.state_dict().items())


def test_passes_hold_each_example_once_and_batches_one_task(run: Run) -> None:
    splits = encodings(run).splits
    parts = [splits[key, "train"] for key in ("kind", "where", "more")]
    sizes = [len(part) for part in parts]
    passes = Passes(parts, 4, 2, lambda epoch: np.random.default_rng(epoch))
    # Those of one task lie together: 22 + 18 sentences in tens, 18 in fives.
    assert (passes.examples, passes.steps) == (sum(sizes), 10 + 5)
    ends, orders, seen = np.cumsum(sizes), [], 0
    for epoch in range(2):
        batches = list(passes.batches(epoch, 0))
        for i, batch in enumerate(batches):
            keys = [int(np.searchsorted(ends, index, side="right")) for index in batch.indices]
            for row, (key, index) in enumerate(zip(keys, batch.indices, strict=True)):
                own = parts[key].batch([int(index - ends[key] + sizes[key])])
                assert batch.task == own.task
                length = int(own.attention_mask.sum())
                assert torch.equal(batch.input_ids[row, :length], own.input_ids[0])
            seen += batch.size
            assert passes.seen(epoch * passes.steps + i + 1) == seen
        places = np.concatenate([batch.indices for batch in batches])
        assert sorted(places.tolist()) == list(range(sum(sizes)))
        orders.append([batch.task for batch in batches])
        again = list(passes.batches(epoch, 7))
        assert [b.indices.tolist() for b in again] == [b.indices.tolist() for b in batches[7:]]
    assert orders[0] != orders[1], "tasks take turns by chance"
    assert set(orders[0][:5]) == {"sequence_class", "token_tags"}


LEARNING = ("naive", "ewc_online", "agem", "er", "kd_logit")


@pytest.mark.some_cases
@pytest.mark.parametrize("strategy", LEARNING)
def test_a_hop_leaves_the_heads_of_other_tasks_as_they_are_unless_it_replays_them(
    strategy: str, finished: Make
) -> None:
    run = finished(*STREAM, *EVERY_STEP, f"strategy={strategy}")
    before, after = weights(run, 1), weights(run, 2)
    moved = {name for name in after if not torch.equal(before[name], after[name])}
    assert {name for name in moved if name.startswith("tasks.token_tags.")} >= {"tasks.token_tags.tagger.linear.weight"}
    assert "encoder.embeddings.word_embeddings.weight" in moved
    of_classes = {name for name in moved if name.startswith("tasks.sequence_class.")}
    if strategy in ("er", "kd_logit"):
        assert "tasks.sequence_class.classifier.weight" in of_classes
    else:
        assert not of_classes
    assert not [name for name in moved if name.startswith("tasks.intent_slots.")], "learned by the third hop alone"


@pytest.mark.full
def test_the_matrix_has_of_each_key_its_own_metric(finished: Make) -> None:
    run = finished(*STREAM, *EVERY_STEP, "strategy=er")
    mine = record(run.directory)
    assert mine.metrics == ("key_score",)
    own = ["class_accuracy", "entity_f1", "intent_accuracy", "class_accuracy"]
    assert mine.metric_of == dict(zip(("kind", "where", "both", "more"), own, strict=True))
    R = mine.scores["key_score"]
    for j, metric in enumerate(own):
        assert np.array_equal(R[:, j], mine.scores[metric][:, j])
    columns = {name: np.isfinite(matrix).any(axis=0).tolist() for name, matrix in mine.scores.items()}
    assert columns["class_accuracy"] == [True, False, False, True]
    assert columns["slot_f1"] == columns["intent_accuracy"] == [False, False, True, False]
    rows = summarise([mine]).set_index(["order", "measure", "language"])
    assert set(rows["metric"]) == {"key_score"}
    assert rows.loc[("mean", "FP", ""), "value"] == pytest.approx(R[-1].mean())
    assert rows.loc[("mean", "F", ""), "value"] == pytest.approx(float(formulas.forgetting(R)))
    predictions = read_predictions(run.outputs, [mine], pytest.fail)
    [comparison] = comparisons([mine])
    estimate = Resampled(comparison, References([mine]), predictions, "key_score", resamples=20).estimate("er", "FP")
    assert estimate is not None
    assert estimate.value == pytest.approx(R[-1].mean())


def test_kept_counts_give_the_same_scores(finished: Make) -> None:
    run = finished(*STREAM, *EVERY_STEP, "strategy=er")
    first, second = (next(r for r in read_records(run.outputs, pytest.fail) if r.run_id == run.id) for _ in range(2))
    for name, matrix in some(record(run.directory).scores.items()):
        assert np.array_equal(matrix, first.scores[name], equal_nan=True)
        assert np.array_equal(matrix, second.scores[name], equal_nan=True)


def test_the_fisher_information_of_several_tasks_is_the_mean_over_their_examples(make_run: Make) -> None:
    run = make_run(*STREAM, "strategy=ewc_online")
    bench = graph(run).bench
    context = bench.context(replace(run.stream.hops[1], train=("kind", "where", "more")))
    result = bench.strategy.fisher(context)
    names = {parameter: name for name, parameter in bench.model.named_parameters()}
    expected: dict[str, Tensor] = {}
    bench.model.eval()
    for key in context.hop.train:
        for parameter, squares in one_by_one(bench.model, context.train[key], context.device).items():
            expected[names[parameter]] = expected.get(names[parameter], torch.zeros(())) + squares / 58
    assert result.keys() == expected.keys()
    for name, squares in expected.items():
        torch.testing.assert_close(result[name], squares, rtol=1e-3, atol=1e-9)
    # As many examples as are asked for, of all tasks.
    bounded = make_run(*STREAM, "strategy=ewc_online", "strategy.fisher_examples=57").strategy()
    few = bounded.fisher(context)
    assert few.keys() == result.keys()
    assert not torch.equal(
        few["tasks.token_tags.tagger.linear.weight"], result["tasks.token_tags.tagger.linear.weight"]
    )


def test_agem_compares_with_the_mean_loss_on_a_memory_of_several_tasks(make_run: Make) -> None:
    run = make_run(*STREAM, "strategy=agem", "dataset.replay.memory=9", "trainer.batch_size=8", "model.dropout=0")
    bench = graph(run).bench
    for hop in run.stream.hops[1:4]:
        bench.strategy.end_hop(bench.context(hop))
    context, strategy = bench.context(run.stream.hops[4]), bench.strategy
    batches = strategy.memory_batches(1, context)
    assert [batch.task for _, batch in batches] == ["sequence_class", "token_tags", "intent_slots"]
    assert sum(batch.size for _, batch in batches) == 8
    parameters = list(bench.model.parameters())
    result = Gradients(context, 8).mean(strategy.terms(batches, context), parameters)
    bench.model.zero_grad()
    for _, batch in batches:
        for row in range(batch.size):
            (bench.model.loss(batch.at(slice(row, row + 1))) / 8).backward()
    for p, gradient in zip(parameters, result, strict=True):
        torch.testing.assert_close(gradient, torch.zeros_like(p) if p.grad is None else p.grad, atol=1e-6, rtol=1e-4)


def test_replayed_batches_of_a_whole_memory_hold_one_task_each(make_run: Make) -> None:
    run = make_run(*STREAM, "strategy=replay", "strategy.replay_write=1")
    bench = graph(run).bench
    drawn = {"kind": np.array([1, 4]), "where": np.array([0]), "more": np.array([2])}
    result = bench.strategy.batches(drawn, bench.context(run.stream.hops[4]))
    assert [(batch.task, batch.size) for batch in result] == [("sequence_class", 3), ("token_tags", 1)]
    splits = encodings(run).splits
    classes = concat([splits[key, "train"].select(drawn[key]) for key in ("kind", "more")]).batch([0, 1, 2])
    assert torch.equal(result[0].input_ids, classes.input_ids)
    assert torch.equal(result[0].labels, classes.labels)


def test_some_keys_of_one_task_are_a_dataset_of_one_task(make_run: Make, do: Do) -> None:
    run = make_run(PARTS, "dataset.languages=[kind,more]", "order=[kind,more]", "trainer.epochs=1")
    assert run.dataset.task == SEQUENCE_CLASS
    assert record(do(run).directory).metrics == ("class_accuracy",)


# Those whose steps go through a memory, a state or a batch of several tasks each in its own way; killed at random are
# agem, kd_logit and ewc_online too (tests/recovery).
@pytest.mark.full
@pytest.mark.parametrize("strategy", ["er", "replay", "multilingual", "derpp", "si"])
def test_stopped_and_resumed_it_is_the_same(strategy: str, make_run: Make, do: Do) -> None:
    overrides = (*STREAM, *EVERY_STEP, f"strategy={strategy}", "evaluate.every_examples=10", "dataset.max_train=8")
    overrides += ("strategy.replay_interval=5", "strategy.replay_number=4") if strategy == "replay" else ()
    expected, run = do(make_run(*overrides, outputs="undisturbed")), make_run(*overrides)
    do(stopped(run, do, 3, 5, 4))
    assert (stored(run.store), predicted(run)) == (stored(expected.store), predicted(expected))


@pytest.mark.full
@pytest.mark.parametrize(
    "strategy",
    [name for name in STRATEGIES if name not in (*LEARNING, "fc", "lwf", "merge") and "pooler" not in name]
    + ["er+lang_spec_task", "derpp+lang_spec_task"],
)
def test_every_other_strategy_goes_through(strategy: str, make_run: Make, do: Do) -> None:
    name, _, expansion = strategy.partition("+")
    more = (f"strategy.expansion={expansion}",) if expansion else ()
    run = do(make_run(*STREAM, *EVERY_STEP, f"strategy={name}", *more, "trainer.epochs=1", "dataset.max_train=8"))
    assert np.isfinite(record(run.directory).scores["key_score"]).all()
