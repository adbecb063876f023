"""The one place that says what a task's name means."""

import pytest

from xclrun.core.errors import UsageError
from xclrun.core.task import BY_NAME, BY_SHORT, METRICS, TASKS, Scored, task_of


def test_names_in_tables_and_records_are_each_one_metric_s() -> None:
    assert len(BY_NAME) == len(BY_SHORT) == len(METRICS)


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
        (("intent_slots", "words"), "dataset.tags_are=words: only dataset.task=token_tags has tags that are not spans"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UsageError) as error:
        task_of(*arguments)
    assert str(error.value).startswith(message)
