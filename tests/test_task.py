"""The one place that says what a task's name means."""

import json
from dataclasses import replace

import numpy as np
import pytest

from xclrun.core import task
from xclrun.core.errors import UsageError
from xclrun.core.task import (
    BY_NAME,
    BY_SHORT,
    CLASS_ACCURACY,
    ENTITY_F1,
    INTENT_ACCURACY,
    METRICS,
    TASKS,
    Metric,
    Scored,
    Task,
    described,
    headline,
    task_of,
)
from xclrun.scores.base_scores import Sentences
from xclrun.scores.counts import metrics_of


def test_names_in_tables_and_records_are_each_one_metric_s() -> None:
    assert len(BY_NAME) == len(BY_SHORT) == len(METRICS)


def test_titles_begin_with_a_capital_and_leave_abbreviations_as_they_are() -> None:
    assert [headline(name) for name in ("intent_accuracy", "exact_match")] == ["Intent", "EM"]


@pytest.mark.parametrize(
    ("name", "tags_are", "tagged", "metrics"),
    [
        ("intent_slots", "spans", True, ["intent_accuracy", "slot_f1"]),
        ("intent_slots", "spans", False, ["intent_accuracy"]),
        ("sequence_class", "spans", False, ["class_accuracy"]),
        ("token_tags", "spans", True, ["entity_f1"]),
        ("token_tags", "words", True, ["token_accuracy"]),
        ("statement_truth", "spans", False, ["statement_accuracy"]),
    ],
)
def test_metrics(name: str, tags_are: str, tagged: bool, metrics: list[str]) -> None:
    assert [metric.name for metric in task_of(name, tags_are).metrics(tagged)] == metrics


def test_identity_tells_tasks_apart_and_leaves_the_first_one_s_as_it_was() -> None:
    names = [task_of(name, way).identified for name, way in [*((n, "spans") for n in TASKS), ("token_tags", "words")]]
    assert names[0] == "intent_slots"
    assert len(set(names)) == len(names)


def test_only_spans_have_a_tag_for_outside() -> None:
    assert [task_of(name).tag_spans for name in ("intent_slots", "sequence_class", "token_tags")] == [True, False, True]
    words = task_of("token_tags", "words")
    assert (words.tag_spans, words.words) == (False, True)
    assert words.tag is not None
    assert words.tag.of is Scored.words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("token_tag",), "dataset.task=token_tag: unknown; did you mean 'token_tags'?"),
        (("token_tags", "word"), "dataset.tags_are=word: unknown; did you mean 'words'?"),
        (("intent_slots", "words"), "dataset.tags_are=words: needs dataset.task=token_tags"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        task_of(*arguments)
    assert str(error.value).startswith(message)


EXACT = Metric(
    "exact_sentences", "exact", "exact sentences", Scored.spans, "sentence", "sentences",
    statistics=lambda sentences: sentences.stacked(sentences.spans[1] + sentences.spans[2] == 0, 1),
)  # fmt: skip


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (TASKS, METRICS, BY_NAME, BY_SHORT):
        monkeypatch.setattr(task, next(k for k, v in vars(task).items() if v is registry), registry.copy())


def named(config: str, made: Task) -> tuple[dict, dict]:
    """Return a config and a manifest as a plug-in's task leaves them."""
    return {"dataset": {"task": config}}, {"tags": ["O"], "task": json.loads(json.dumps(described(made)))}


@pytest.mark.usefixtures("own_registries")
def test_a_further_metric_is_one_entry_which_brings_its_counting_and_trains_nothing() -> None:
    made = task.register(Task("chunks", None, ENTITY_F1, tags_needed=True, beside=(EXACT,)))
    assert made.metrics(tagged=True) == (ENTITY_F1,)
    assert metrics_of(*named("chunks", made)).all == (ENTITY_F1, EXACT)
    assert task.BY_SHORT["exact"] is task.METRICS[-1] is EXACT
    gold = np.array([0, 0, 0])
    tp, fp, fn = (np.array(counts) for counts in ([[1], [2], [0]], [[0], [1], [0]], [[0], [0], [0]]))
    sentences = Sentences(np.array(["a", "b", "c"]), gold, gold[:, None], (tp, fp, fn))
    assert sentences.scores(EXACT) == pytest.approx([2 / 3])
    assert sentences.scores(ENTITY_F1) == pytest.approx([6 / 7])


@pytest.mark.usefixtures("own_registries")
def test_what_a_plug_in_counts_is_left_out_without_it() -> None:
    config, manifest = named("chunks", Task("chunks", None, ENTITY_F1, beside=(EXACT,)))
    assert metrics_of(config, manifest).all == (ENTITY_F1,)
    _, manifest = named("chunks", Task("chunks", None, EXACT))
    [unknown] = metrics_of(config, manifest).all
    with pytest.raises(
        ValueError,
        match=r"^the metric exact_sentences is computed by a plug-in that is not loaded; use --plugin FILE\.py$",
    ):
        Sentences(np.array(["a"]), np.array([0]), np.array([[0]])).scores(unknown)


@pytest.mark.usefixtures("own_registries")
def test_metrics_whose_mean_selects_epochs_have_one_unit() -> None:
    bits = replace(task.LABEL_BITS, name="tag_bits", short="tag_bits", of=Scored.spans)
    with pytest.raises(UsageError, match=r"'intent_accuracy' \(%\) and 'tag_bits' \(bits\).* same unit"):
        task.register(Task("several", INTENT_ACCURACY, bits))
    assert "several" not in task.TASKS
    task.register(Task("several", INTENT_ACCURACY, ENTITY_F1, beside=(bits,)))


def test_metrics_of_a_run_say_which_keys_have_statements() -> None:
    dataset = {"dataset": {"task": "statement_truth"}}
    assert metrics_of(dataset, {"tags": [], "task": "statement_truth"}).groups("en")
    parts = [{"task": name, "tags": [], "keys": [name]} for name in ("statement_truth", "sequence_class")]
    several = metrics_of(dataset, {"tasks": parts})
    assert [several.groups(name) for name in ("statement_truth", "sequence_class")] == [True, False]


@pytest.mark.usefixtures("own_registries")
def test_a_metric_with_only_its_own_score_needs_its_plug_in_too() -> None:
    """Default statistics with another score are no accuracy, and no other formula replaces the score."""
    half = replace(CLASS_ACCURACY, name="half", short="half", title="half", score=lambda sums: sums[..., 0] / 2)
    assert not half.accuracy
    assert not replace(ENTITY_F1, score=half.score).span_f1
    assert metrics_of(*named("halves", Task("halves", CLASS_ACCURACY, beside=(half,)))).all == (CLASS_ACCURACY,)
    [unknown] = metrics_of(*named("halves", Task("halves", half))).all
    with pytest.raises(ValueError, match="plug-in"):
        Sentences(np.array(["a"]), np.array([0]), np.array([[0]])).scores(unknown)


@pytest.mark.usefixtures("own_registries")
def test_a_further_metric_must_be_of_what_the_task_predicts() -> None:
    with pytest.raises(
        UsageError, match=r"^task 'topic': its metric 'exact_sentences' scores spans; the task predicts no spans$"
    ):
        task.register(Task("topic", CLASS_ACCURACY, None, beside=(EXACT,)))
    assert "topic" not in task.TASKS
