"""Rows and base scores against seqeval and scikit-learn, on what a trained model predicts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import seqeval.metrics
import torch

from tests.questions import write_questions
from xclrun.config.schema import SlotF1
from xclrun.core.errors import RunError
from xclrun.model.network import Model
from xclrun.plan import Run
from xclrun.scores.base_scores import selection_score
from xclrun.train import evaluate
from xclrun.train.encodings import encodings
from xclrun.train.evaluate import Evaluator
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag
from xclrun.train.workbench import Workbench

Make = Callable[..., Run]


def add_unseen(rows: list[dict[str, Any]]) -> None:
    """Add sentences of a label and of tags that training never had."""
    rows.append({"id": "label", "tokens": ["call", "Anna"], "tags": ["O", "B-name"], "label": "unseen"})
    rows.append({"id": "tag", "tokens": ["wake", "me", "now"], "tags": ["O", "O", "B-unseen"], "label": "alarm"})


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    return {}


@pytest.fixture
def model_and_run(
    trained: dict[str, Any], make_run: Make, training: Callable[..., HopTraining], changed_corpus: Callable[..., Path]
) -> tuple[Model, Run]:
    """A model that has learned some of English, so that it is right here and wrong there, and its run."""
    if not trained:
        run = make_run("trainer.epochs=6", data=changed_corpus({("en", "test"): add_unseen}))
        hop = training(run)
        hop.run()
        trained.update(model=hop.context.model, run=run)
    return trained["model"], trained["run"]


def evaluator(
    run: Run, slot_f1: SlotF1 = SlotF1.span_micro, batch_size: int = 4, batch_tokens: int | None = None
) -> Evaluator:
    return Evaluator(run.dataset, torch.device("cpu"), batch_size, "fp32", slot_f1, batch_tokens)


def rows(model: Model, run: Run, language: str = "en", **options: Any) -> dict[str, list[Any]]:
    return evaluator(run, **options).predict(model, encodings(run).splits[language, "test"], language, "test")


def tags(run: Run, columns: dict[str, list[Any]], language: str) -> tuple[list[list[str]], list[list[str]]]:
    """Return gold tags as the dataset has them, and predicted ones by their ids."""
    gold = [list(e.tags or ()) for e in run.dataset.split(language, "test")]
    return gold, [[run.dataset.tags[i] for i in ids] for ids in columns["predicted_tags"]]


@pytest.mark.parametrize("language", ["en", "de", "es"])
def test_scores_equal_seqeval_and_a_count(language: str, model_and_run: tuple[Model, Run]) -> None:
    model, run = model_and_run
    columns = rows(model, run, language)
    gold, predicted = tags(run, columns, language)
    scores = evaluator(run).scores(columns)
    assert scores["slot_f1"] == pytest.approx(seqeval.metrics.f1_score(gold, predicted))
    assert 0 < scores["slot_f1"] < 1
    labels = [e.label for e in run.dataset.split(language, "test")]
    right = [run.dataset.labels[i] == label for i, label in zip(columns["predicted"], labels, strict=True)]
    assert scores["intent_accuracy"] == pytest.approx(sum(right) / len(right))


@pytest.mark.parametrize("language", ["en", "de", "es"])
def test_macro_f1_over_tags_equals_scikit_learn(language: str, model_and_run: tuple[Model, Run]) -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    model, run = model_and_run
    columns = rows(model, run, language)
    gold, predicted = tags(run, columns, language)
    flat = [[tag for sentence in sentences for tag in sentence] for sentences in (gold, predicted)]
    expected = metrics.f1_score(*flat, average="macro", zero_division=0)
    assert evaluator(run, SlotF1.tag_macro).scores(columns)["slot_f1"] == pytest.approx(expected)
    assert expected != pytest.approx(evaluator(run).scores(columns)["slot_f1"])


def test_rows_are_in_file_order_whatever_the_batches(model_and_run: tuple[Model, Run]) -> None:
    model, run = model_and_run
    one, four, all_ = (rows(model, run, batch_size=size) for size in (1, 4, 100))
    budget = rows(model, run, batch_size=100, batch_tokens=40)
    examples = run.dataset.split("en", "test")
    assert one["example_id"] == [e.id for e in examples]
    assert one["tokens"] == [len(e.tokens) for e in examples]
    assert set(one["language"]) == {"en"}
    assert set(one["split"]) == {"test"}
    for other in (four, all_, budget):
        for name in ("example_id", "gold", "predicted", "gold_tags", "predicted_tags", "tp", "fp", "fn"):
            assert other[name] == one[name], name
        for name in ("log2_gold", "log2_gold_tags"):
            assert other[name] == pytest.approx(one[name], abs=1e-4, nan_ok=True)


def test_spans_are_predicted_alike_in_all_batches(make_run: Make, tmp_path: Path) -> None:
    windows = ("model.max_length=48", "model.windows.stride=16", "model.windows.question=8")
    run = make_run("dataset=questions", "order=[en]", *windows, data=write_questions(tmp_path, "en", "th", long=4))
    assert_equal_in_all_batches(StageGraph(run, Listener(), StopFlag()).bench, "en")


@pytest.mark.full
@pytest.mark.shared
@pytest.mark.parametrize(
    ("dataset", "task", "language"),
    [("mtop", "intent_slots", "th"), ("mtop", "sequence_class", "hi"), ("pud", "token_tags", "ar")],
)
def test_real_sentences_are_predicted_alike_in_all_batches(
    dataset: str, task: str, language: str, make_run: Make, shared_data: Path
) -> None:
    root = shared_data / ("mtop16" if dataset == "mtop" else "pud")
    given = (f"dataset={dataset}", f"dataset.task={task}", f"dataset.languages=[{language}]", f"order=[{language}]")
    run = make_run(*given, "dataset.max_eval=100", "model.vocab_size=2000", "model.max_length=128", data=root)
    assert_equal_in_all_batches(StageGraph(run, Listener(), StopFlag()).bench, language)


def assert_equal_in_all_batches(bench: Workbench, language: str) -> None:
    """Compare predictions of single sentences, which have no padding, with those of batches."""
    encoded = bench.encodings.splits[language, "test"]

    def columns(**limits: int) -> dict[str, list[Any]]:
        return replace(bench.evaluator, **limits).predict(bench.model, encoded, language, "test")

    single, batches = columns(batch_size=1), [columns(batch_size=16), columns(batch_size=500, batch_tokens=400)]
    for other in batches:
        assert other.keys() == single.keys()
        for name, values in single.items():
            if name.startswith("log2"):
                assert other[name] == pytest.approx(values, rel=1e-4, abs=1e-4, nan_ok=True), name
            else:
                assert other[name] == values, name


def test_predictions_are_read_in_one_copy_a_batch_while_the_next_batch_is_computed(
    model_and_run: tuple[Model, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Eleven sentences in batches of four; a GPU is not left without work while the host reads."""
    model, run = model_and_run
    events: list[str] = []
    plain, predict = evaluate.copy_to_host, model.predict

    def noting(tensors: Any) -> Any:
        assert set(tensors) == {"label", "log2_label", "tags", "log2_tags"}
        read, number = plain(tensors), sum(event.startswith("copy") for event in events)
        events.append(f"copy {number}")

        def noted() -> Any:
            events.append(f"read {number}")
            return read()

        return noted

    def predicting(batch: Any) -> Any:
        events.append("forward")
        return predict(batch)

    reference = rows(model, run)
    monkeypatch.setattr(evaluate, "copy_to_host", noting)
    encoded = encodings(run).splits["en", "test"]
    result = evaluator(run).predict(model, encoded, "en", "test", predicting)
    one, two, three = (["forward", f"copy {i}"] for i in range(3))
    assert events == [*one, *two, "read 0", *three, "read 1", "read 2"]
    assert result["predicted"] == reference["predicted"]
    assert result["predicted_tags"] == reference["predicted_tags"]


def test_counts_per_sentence_are_those_of_its_spans(model_and_run: tuple[Model, Run]) -> None:
    model, run = model_and_run
    columns = rows(model, run)
    gold, predicted = tags(run, columns, "en")
    assert [*map(len, gold)] == [*map(len, predicted)] == columns["tokens"]
    for i, pair in enumerate(zip(gold, predicted, strict=True)):
        reference, result = (set(seqeval.metrics.sequence_labeling.get_entities(list(tags))) for tags in pair)
        counts = len(reference & result), len(result - reference), len(reference - result)
        assert (columns["tp"][i], columns["fp"][i], columns["fn"][i]) == counts
    assert sum(columns["tp"]) > 0
    assert sum(columns["fn"]) > 0


def test_what_training_never_had_is_wrong_and_has_no_probability(model_and_run: tuple[Model, Run]) -> None:
    model, run = model_and_run
    assert "unseen" not in run.dataset.labels
    columns = rows(model, run)
    label, tag = (columns["example_id"].index(name) for name in ("label", "tag"))
    assert columns["gold"][label] == -1
    assert math.isnan(columns["log2_gold"][label])
    assert columns["gold_tags"][tag][2] == -1
    assert math.isnan(columns["log2_gold_tags"][tag])
    assert columns["fn"][tag] == 1
    others = [i for i in range(len(columns["gold"])) if i not in (label, tag)]
    assert all(columns["log2_gold"][i] <= 0 and columns["log2_gold_tags"][i] <= 0 for i in others)


def test_probabilities_are_the_model_s(model_and_run: tuple[Model, Run]) -> None:
    """p(gold) > 1/2 is right: p(label) of the predicted one is the largest, so is p(tags) of the predicted sequence."""
    model, run = model_and_run
    columns = rows(model, run)
    for i, (gold, result) in enumerate(zip(columns["gold"], columns["predicted"], strict=True)):
        if columns["log2_gold"][i] > -1:
            assert gold == result
    for i, (gold, result) in enumerate(zip(columns["gold_tags"], columns["predicted_tags"], strict=True)):
        if columns["log2_gold_tags"][i] > -1:
            assert gold == result
    assert max(columns["log2_gold_tags"]) > -1


def test_words_beyond_the_limit_count_as_outside(make_run: Make, training: Callable[..., HopTraining]) -> None:
    run = make_run("model.max_length=6", "trainer.epochs=3")
    hop = training(run)
    hop.run()
    columns = rows(hop.context.model, run)
    splits = encodings(run).splits["en", "test"]
    seen = splits.word_pieces.lengths
    assert splits.truncated > 0
    predictions = list(zip(columns["predicted_tags"], seen, columns["tokens"], strict=True))
    assert all(len(ids) == tokens for ids, _, tokens in predictions)
    assert all(run.dataset.tags[i] == "O" for ids, words, _ in predictions for i in ids[words:])
    gold, predicted = tags(run, columns, "en")
    assert evaluator(run).scores(columns)["slot_f1"] == pytest.approx(
        seqeval.metrics.f1_score(gold, predicted, zero_division=0)
    )


@pytest.mark.parametrize("training_before", [True, False])
def test_evaluation_uses_no_dropout_and_leaves_the_model_as_it_was(
    training_before: bool, model_and_run: tuple[Model, Run]
) -> None:
    model, run = model_and_run
    model.train(training_before)
    state = torch.get_rng_state()
    first, second = rows(model, run), rows(model, run)
    assert first["log2_gold"] == pytest.approx(second["log2_gold"], abs=0, nan_ok=True)
    assert model.training is training_before
    assert torch.equal(torch.get_rng_state(), state)


def test_data_without_tags(
    make_run: Make, training: Callable[..., HopTraining], changed_corpus: Callable[..., Path]
) -> None:
    def drop(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            del row["tags"]

    splits = [(language, split) for language in ("en", "de", "es") for split in ("train", "dev", "test")]
    run = make_run(data=changed_corpus(dict.fromkeys(splits, drop)))
    hop = training(run)
    assert "tagger" not in dict(hop.context.model.named_children())
    counted = hop.run()
    assert list(counted["epochs"][0]["dev"]["en"]) == ["intent_accuracy"]
    columns = rows(hop.context.model, run)
    assert set(columns["predicted_tags"]) == {None}
    assert list(evaluator(run).scores(columns)) == ["intent_accuracy"]
    assert not np.isnan(columns["log2_gold"]).any()


def test_the_selection_score_is_the_mean_over_languages_and_scores() -> None:
    scores = {"en": {"intent_accuracy": 0.5, "slot_f1": 0.1}, "de": {"intent_accuracy": 0.9, "slot_f1": 0.3}}
    assert selection_score(scores) == pytest.approx(0.45)
    assert selection_score({"en": {"intent_accuracy": 0.5}}) == 0.5
    # Each language counts the same, however many scores it has.
    scores = {"boolq": {"class_accuracy": 0.5}, "mtop": {"intent_accuracy": 0.9, "slot_f1": 0.3}}
    assert selection_score(scores) == pytest.approx((0.5 + 0.6) / 2)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("head", ["intent", "tagger"])
def test_predictions_that_are_not_finite_are_refused(
    head: str, value: float, model_and_run: tuple[Model, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, run = model_and_run
    predict = model.predict

    def broken(batch: Any) -> Any:
        prediction = predict(batch)
        name = {"intent": "log2_label", "tagger": "log2_tags"}[head]
        known = (batch.labels >= 0) if head == "intent" else ((batch.tags >= 0) | ~batch.word_mask).all(dim=1)
        prediction[name] = torch.where(known, -value, prediction[name])
        return prediction

    rows(model, run)  # labels and tags that training never had are no error
    monkeypatch.setattr(model, "predict", broken)
    # All ranks raise it, and none of them ends (`others._followed`).
    with pytest.raises(RunError, match=r"en/test.*not finite"):
        rows(model, run)
