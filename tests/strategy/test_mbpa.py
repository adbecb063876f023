"""MbPA++: neighbours and adapted weights against doing the same by hand, and that the trained model stays as it is."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tests.train.conftest import StopAt, copied, predicted, same
from xclrun.core.errors import UsageError
from xclrun.core.stream import sequence
from xclrun.data.batches import concat
from xclrun.model.heads import Prediction
from xclrun.model.network import Model, build
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.strategy.mbpa import Distance, Key, MbPA, MbPASettings, nearest
from xclrun.train.encodings import encodings
from xclrun.train.features import with_features
from xclrun.train.stop import Stopped
from xclrun.train.workbench import Stored

from .real import context_of, perturbed, untrained
from .test_replay import USED

Make = Callable[..., Run]
Do = Callable[..., Run]
SMALL = ("order=[en,de]", "dataset.task=sequence_class", "dataset.max_eval=4", *USED)
MBPA = ("strategy=mbpa", *SMALL, "strategy.neighbours=3", "strategy.adapt_steps=2", "strategy.adapt_lr=0.3")

pytestmark = pytest.mark.usefixtures("threads")


def mbpa(**changes: Any) -> MbPA:
    given: dict[str, Any] = {"replay_write": 0.5, "replay_interval": 10, "replay_number": 6, "neighbours": 3}
    given |= {"adapt_steps": 4, "adapt_lr": 0.1, "adapt_penalty": 0.05, "adapt_together": 5, **changes}
    return MbPA(MbPASettings("mbpa", **given))


# --- Neighbours.


def test_neighbours_are_those_of_brute_force() -> None:
    generator = np.random.default_rng(1)
    keys, memory = (generator.normal(size=(n, 4)).astype(np.float32) for n in (30, 50))
    far = torch.cdist(torch.from_numpy(keys).double(), torch.from_numpy(memory).double()).numpy()
    near = np.array([[float(k.astype(float) @ m.astype(float)) for m in memory] for k in keys])
    for count in (1, 7, 50, 80):
        np.testing.assert_array_equal(nearest(keys, memory, count, Distance.euclidean), np.argsort(far)[:, :count])
        np.testing.assert_array_equal(nearest(keys, memory, count, Distance.dot), np.argsort(-near)[:, :count])
    assert not np.array_equal(np.argsort(far)[:, 0], np.argsort(-near)[:, 0])


@pytest.mark.parametrize("distance", Distance)
def test_of_equally_near_examples_those_that_came_first_are_taken(distance: Distance) -> None:
    generator = np.random.default_rng(2)
    memory = np.tile(generator.normal(size=(3, 37)).astype(np.float32), (40, 1))
    found = nearest(memory[:3], memory, 40, distance)
    np.testing.assert_array_equal(found, np.arange(3)[:, None] + 3 * np.arange(40))


# --- The objective.


class Scale(nn.Module):
    """One weight w, whose loss is the mean of ½ (w − label)² over a batch; predictions hold w."""

    def __init__(self, w: float) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.tensor(w, dtype=torch.float64))
        self.words = nn.Embedding(200, 2)
        self.encoder: Any = SimpleNamespace(get_input_embeddings=lambda: self.words)

    def loss(self, batch: Any) -> torch.Tensor:
        return (self.w - batch.labels).square().mean() / 2

    def predict(self, batch: Any) -> Prediction:
        return {"label": batch.labels, "log2_label": self.w.expand(len(batch.labels))}


@pytest.mark.parametrize(("steps", "rate", "penalty"), [(1, 0.1, 0.0), (7, 0.1, 0.05), (4, 0.5, 1.5)])
def test_a_quadratic_has_a_closed_form(
    steps: int, rate: float, penalty: float, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """w − w* shrinks by 1 − η (1 + 2 λ) a step, with w* = (mean label + 2 λ W) / (1 + 2 λ)."""
    run = make_run()
    trained = Scale(0.75)
    context = context_of(run, 1, trained)  # type: ignore[arg-type]
    strategy = mbpa(adapt_steps=steps, adapt_lr=rate, adapt_penalty=penalty)
    strategy.end_hop(context)
    keys = np.random.default_rng(3).normal(size=(22, 4)).astype(np.float32)
    monkeypatch.setattr(strategy, "keys", lambda language, split: keys)
    found = encodings(run).splits["es", "test"]
    answer = strategy.predict(found.batch(np.arange(len(found))), "es", "test", context)
    written = strategy.memory["en"]
    rows = nearest(keys[: len(found)], keys[written], 3, Distance.euclidean)
    means = context.train["en"].labels[written][rows].mean(axis=1)
    assert len(set(means)) > 1
    fixed = (means + 2 * penalty * 0.75) / (1 + 2 * penalty)
    wanted = fixed + (0.75 - fixed) * (1 - rate * (1 + 2 * penalty)) ** steps
    np.testing.assert_allclose(answer["log2_label"].numpy(), wanted, rtol=1e-12)


def one_by_one(strategy: MbPA, model: Model, context: Any, asked: Any, rows: np.ndarray) -> list[Prediction]:
    """The definition: for each example a copy of the model, gradient descent on all of its weights, one prediction."""
    s, found = strategy.settings, []
    memory = concat([context.train[key].select(indices) for key, indices in strategy.memory.items() if len(indices)])
    for i in range(len(asked)):
        clone = copy.deepcopy(model).eval()
        start = [p.detach().clone() for p in clone.parameters()]
        for _ in range(s.adapt_steps):
            away = sum((p - w).square().sum() for p, w in zip(clone.parameters(), start, strict=True))
            clone.zero_grad()
            (clone.loss(memory.batch(rows[i])) + s.adapt_penalty * away).backward()
            with torch.no_grad():
                for p in clone.parameters():
                    p -= s.adapt_lr * p.grad
        found.append(clone.predict(asked.batch([i])))
    return found


@pytest.mark.some_cases
@pytest.mark.parametrize(("task", "together"), [("intent_slots", 5), ("sequence_class", 1), ("token_tags", 7)])
def test_adapted_predictions_are_those_of_a_copy_for_each_example(task: str, together: int, make_run: Make) -> None:
    """With dropout in the config, which is off; all weights are adapted; the model is bit for bit what it was."""
    run = make_run(f"dataset.task={task}", "model.dropout=0.3")
    model = perturbed(trained_like(run), 0.1, 7).eval()
    context, strategy = context_of(run, 2, model), mbpa(adapt_together=together, adapt_lr=0.5)
    for hop in (1, 2):
        strategy.end_hop(context_of(run, hop, model))
    keys = {key: np.random.default_rng(i).normal(size=(22, 4)) for i, key in enumerate(("en", "de", "es"))}
    strategy.keys = lambda language, split: keys[language]  # type: ignore[method-assign]
    before, asked = copied(model), encodings(run).splits["es", "test"].select(range(7))
    answer = strategy.predict(asked.batch(np.arange(7)), "es", "test", context)
    assert same(copied(model), before)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())
    there = np.concatenate([keys[key][indices] for key, indices in strategy.memory.items()])
    wanted = one_by_one(strategy, model, context, asked, nearest(keys["es"][:7], there, 3, Distance.euclidean))
    plain = model.predict(asked.batch(np.arange(7)))
    scored = [name for name in ("log2_label", "log2_tags") if name in plain]
    for name in scored:
        values = torch.cat([w[name] for w in wanted])
        torch.testing.assert_close(answer[name], values, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert (plain[name] - values).abs().nan_to_num().max() > 0.05, "they move"
    assert len(scored) == 1 + (task == "intent_slots")
    if "label" in answer:
        assert answer["label"].tolist() == [int(w["label"]) for w in wanted]
    if "tags" in answer:
        for row, w in zip(answer["tags"].tolist(), wanted, strict=True):
            assert row[: w["tags"].shape[1]] == w["tags"][0].tolist()


def trained_like(run: Run) -> Model:
    """A run's untrained model, of its task."""
    found, dataset = encodings(run), run.dataset
    return build(
        run.config.model, found.tokenizer, len(dataset.labels), len(dataset.tags), 1, found.token_ids, dataset.task
    )


def test_weights_that_are_not_trained_do_not_move(make_run: Make) -> None:
    run = make_run()
    model = perturbed(untrained(run), 0.1, 7).eval()
    for name, p in model.named_parameters():
        p.requires_grad_(name.startswith("intent."))
    context, strategy = context_of(run, 1, model), mbpa(adapt_lr=0.5)
    strategy.end_hop(context)
    strategy.keys = lambda language, split: np.zeros((22, 1))  # type: ignore[method-assign]
    asked = encodings(run).splits["es", "test"]
    answer, plain = strategy.predict(asked.batch(range(8)), "es", "test", context), model.predict(asked.batch(range(8)))
    assert torch.equal(answer["tags"], plain["tags"])
    torch.testing.assert_close(answer["log2_tags"], plain["log2_tags"], equal_nan=True)
    assert not torch.allclose(answer["log2_label"], plain["log2_label"], equal_nan=True)


# --- Keys.


def test_keys_are_what_the_encoder_made_of_cls_before_training(make_run: Make, do: Do) -> None:
    run = do(make_run(*MBPA, "trainer.lr=0.1"))
    model, cpu = trained_like(run), torch.device("cpu")
    stored = Stored(run)
    for split in (("en", "train"), ("de", "train"), ("en", "test"), ("de", "test")):
        wanted = with_features(model, encodings(run).splits[split], cpu, "fp32").cls
        np.testing.assert_array_equal(stored.features(*split), wanted)
    strategy = mbpa(key=Key.pooler)
    strategy.prepare(model, run.stream, stored)
    with torch.no_grad():
        model.pooler.dense.weight.fill_(0.0)  # training goes on, the key's pooler does not
        fresh = trained_like(run).pooler(torch.from_numpy(wanted).unsqueeze(1)).numpy()
    np.testing.assert_array_equal(strategy.keys("de", "test"), fresh)
    model.head_of("").pooler = model.encoder.pooler = None
    with pytest.raises(UsageError, match=r"strategy.key=pooler: BertModel has no pooler; use strategy.key=cls"):
        mbpa(key=Key.pooler).prepare(model, run.stream, stored)


# --- Runs.


def rows(run: Run, hop: int) -> Any:
    return predictions.read(run.directory.predictions(hop)).drop_columns("run_id").to_pandas()


@pytest.mark.full
def test_without_steps_it_is_replay_bit_for_bit_and_with_steps_its_trainings_are(make_run: Make, do: Do) -> None:
    replay, still, moved = (
        do(make_run(*given, outputs=given[-1]))
        for given in (("strategy=replay", *SMALL), (*MBPA, "strategy.adapt_steps=0"), MBPA)
    )
    assert [s.keys for s in still.stages] == [s.keys for s in replay.stages]
    assert predicted(replay).keys() == predicted(still).keys()
    assert [(s.train, s.state) for s in moved.stages] == [(s.train, s.state) for s in replay.stages]
    assert [a.evaluation == b.evaluation for a, b in zip(moved.stages, replay.stages, strict=True)] == [
        True,
        False,
        False,
    ]
    for hop in range(3):
        assert rows(still, hop).equals(rows(replay, hop))
        weights = [run.store.facts(run.stages[hop].train)["files"] for run in (moved, replay) if hop]
        assert weights[:1] == weights[1:], "evaluating leaves the weights as they are"
        assert rows(moved, hop)["log2_gold"].equals(rows(replay, hop)["log2_gold"]) == (hop == 0)


def test_a_stop_ends_the_adapting_between_two_steps(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context, strategy = context_of(make_run(), 1, Scale(0.75)), mbpa(adapt_steps=10**9)  # type: ignore[arg-type]
    strategy.end_hop(context)
    monkeypatch.setattr(strategy, "keys", lambda language, split: np.zeros((22, 4), np.float32))
    looks = iter([None, None, Stopped(15)])

    def check_stop() -> None:
        if (stopped := next(looks)) is not None:
            raise stopped

    context.check_stop = check_stop
    with pytest.raises(Stopped):
        strategy.predict(encodings(make_run()).splits["es", "test"].batch([0]), "es", "test", context)


POINTS = ("evaluate.every_examples=20", "trainer.selection=last")


@pytest.mark.full
@pytest.mark.parametrize("where", [(), (*POINTS, "strategy.adapt_points=true")], ids=["hop ends", "points"])
def test_a_run_that_is_stopped_is_the_undisturbed_one(
    where: tuple[str, ...], make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While copies are adapted too, after a hop or at a point inside it."""
    given = (*MBPA, *where, "evaluate.batch_size=2")
    wanted = do(make_run(*given, outputs="undisturbed"))
    run, answer, listener, answered = make_run(*given), MbPA.predict, StopAt(3), []

    def stopping(self: MbPA, *given: Any) -> Any:
        listener.stop.number = 15
        answered.append(given)
        answer(self, *given)
        pytest.fail("it adapts on though it was asked to stop")

    with pytest.raises(Stopped):
        do(run, listener, listener.stop)
    listener = StopAt(1000)
    with monkeypatch.context() as patched:
        patched.setattr(MbPA, "predict", stopping)
        with pytest.raises(Stopped):
            do(run, listener, listener.stop)
    assert len(answered) == 1
    do(run)
    assert predicted(run) == predicted(wanted)


@pytest.mark.full
def test_points_adapt_where_that_is_asked_for_and_dev_rows_never(make_run: Make, do: Do) -> None:
    plain, adapted = (do(make_run(*MBPA, *POINTS, f"strategy.adapt_points={asked}")) for asked in ("false", "true"))
    replay = do(make_run("strategy=replay", *SMALL, *POINTS))
    assert [s.train for s in plain.stages] == [s.train for s in replay.stages]
    assert [a.train == b.train for a, b in zip(plain.stages, adapted.stages, strict=True)] == [True, False, False]
    for hop in (1, 2):
        one, other = (predictions.read(r.directory.points(hop)).to_pandas() for r in (plain, adapted))
        dev = one["split"] == "dev"
        columns = ["language", "split", "example_id", "predicted", "log2_gold"]
        assert one[dev][columns].equals(other[dev][columns])
        assert not one[~dev][columns].equals(other[~dev][columns])
        # The last point is the hop's end: the same memory, the same weights.
        last = other[~dev & (other["step"] == other["step"].max())].reset_index(drop=True)
        words = dict.fromkeys(columns[:3], str)
        assert last[columns].astype(words).equals(rows(adapted, hop)[columns].astype(words))


def test_what_can_change_its_results() -> None:
    hops = sequence(("en", "de")).hops
    own = {"name", "neighbours", "key", "distance", "version"}
    own |= {"adapt_steps", "adapt_lr", "adapt_penalty", "adapt_together"}
    for number, trains in ((6, True), (0, False)):
        # What is never replayed is written all the same.
        plans = [mbpa(replay_number=number).plan(hop) for hop in hops]
        assert [bool(plan.train) for plan in plans] == [False, trains, trains]
        assert all((plan.state or {})["name"] == "replay" for plan in plans[1:])
        assert [set(plan.serve) for plan in plans] == [set(), own, own]
        assert [plan.at_points for plan in plans] == [{}, {}, {}]
    asked = mbpa(adapt_points=True).plan(hops[1])
    assert asked.at_points == asked.serve == mbpa().plan(hops[1]).serve
    for nothing in (mbpa(neighbours=0), mbpa(adapt_steps=0)):
        assert not nothing.plan(hops[1]).serve
        assert not nothing.plan(hops[1]).features
