"""The tasks: what is predicted, from which labels, by which heads, and how it is scored and called.

This is the one place that says what a task's name means; the rest of the program asks a `Task` or a `Metric`. The base
scores are defined in docs/metrics.md ("Base scores"):

| task | an example has | heads | metrics |
|---|---|---|---|
| ``intent_slots`` | a label, and tags of words where the dataset has some | linear on [CLS]; linear + CRF on words | \
intent accuracy, slot F1 |
| ``sequence_class`` | a label; one text or two | BERT's pooler, dropout, linear | class accuracy |
| ``token_tags`` | tags of words | linear on words | token accuracy (``dataset.tags_are=words``: POS) or entity F1 \
(``spans``: NER in BIO) |
| ``statement_truth`` | a label, false or true; a text and a statement about it | as ``sequence_class`` | statement \
accuracy, and beside it those of `BESIDE_STATEMENTS` |

Standard library alone, so that analysis and reports may use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from typing import Any

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import provides


class Scored(Enum):
    """What a metric counts."""

    labels = "labels"  # examples whose class is right, of all
    words = "words"  # words whose tag is right, of all that the model saw
    spans = "spans"  # micro F1 over labelled spans
    # Of statements, whose classes are false and true, in this order (class 1 is true):
    f1_of_true = "f1_of_true"
    true_rate = "true_rate"  # true ones that are called true, of all true ones
    false_rate = "false_rate"  # false ones that are called false, of all false ones
    balanced = "balanced"  # mean of the two rates
    choices = "choices"  # examples whose true statement is the most probable of the example's statements
    constant = "constant"  # statements that the better of the two constant answers has right


@dataclass(frozen=True)
class Metric:
    """A base score.

    Attributes:
        name: key in manifests, records and score matrices.
        short: name in tables, file names and MLflow.
        title: for people, without its unit.
        of: what it counts.
        noun, nouns: what is predicted, one of it and many.
        definition: what a table that shows it must say; empty where the name says it.
        beside: it stands beside another metric, and has no tables and tests of its own.
        floor: name of the metric that says what a constant answer scores, where tables show that.
    """

    name: str
    short: str
    title: str
    of: Scored
    noun: str
    nouns: str
    definition: str = ""
    beside: bool = False
    floor: str = ""


INTENT_ACCURACY = Metric("intent_accuracy", "intent", "intent accuracy", Scored.labels, "intent", "intents")
SLOT_F1 = Metric("slot_f1", "slots", "slot F1", Scored.spans, "slot", "slots")
CLASS_ACCURACY = Metric("class_accuracy", "class", "class accuracy", Scored.labels, "class", "classes")
TOKEN_ACCURACY = Metric(
    "token_accuracy",
    "tokens",
    "token accuracy",
    Scored.words,
    "tag",
    "tags",
    "share of words whose tag is right (= micro F1), of those within the model's length limit",
)
ENTITY_F1 = Metric("entity_f1", "entities", "entity F1", Scored.spans, "entity", "entities")


def _beside(name: str, short: str, title: str, of: Scored, definition: str) -> Metric:
    return Metric(name, short, title, of, "statement", "statements", definition, beside=True)


# Of statements (degree of belief), LL §4.1 and App. A.6; choice accuracy is ours.
CONSTANT_ACCURACY = _beside(
    "constant_accuracy", "constant", "accuracy of a constant answer", Scored.constant,
    "accuracy of the better of the two constant answers, true or false, for each key",
)  # fmt: skip
STATEMENT_ACCURACY = Metric(
    "statement_accuracy",
    "statements",
    "statement accuracy",
    Scored.labels,
    "statement",
    "statements",
    "share of statements whose truth value is right, of true and false ones together",
    floor=CONSTANT_ACCURACY.name,
)
BESIDE_STATEMENTS = (
    _beside("true_f1", "F1", "F1 of true", Scored.f1_of_true, "F1 of the class true"),
    _beside("true_rate", "TPR", "true-positive rate", Scored.true_rate, "share of true ones that are called true"),
    _beside("false_rate", "TNR", "true-negative rate", Scored.false_rate, "share of false ones that are called false"),
    _beside("balanced_accuracy", "balanced", "balanced accuracy", Scored.balanced, "mean of TPR and TNR"),
    _beside(
        "choice_accuracy", "choice", "choice accuracy", Scored.choices,
        "share of examples whose true statement gets the highest P(true) of the example's statements; ties count as "
        "their share",
    ),
    CONSTANT_ACCURACY,
)  # fmt: skip

# In the order of tables.
METRICS = [INTENT_ACCURACY, SLOT_F1, CLASS_ACCURACY, TOKEN_ACCURACY, ENTITY_F1, STATEMENT_ACCURACY, *BESIDE_STATEMENTS]
BY_SHORT = {metric.short: metric for metric in METRICS}
BY_NAME = {metric.name: metric for metric in METRICS}


def short_name(metric: str) -> str:
    """Return what tables, file names and MLflow call a metric: ``intent_accuracy`` → ``intent``."""
    return BY_NAME[metric].short


@dataclass(frozen=True)
class Task:
    """What is predicted, and by which heads.

    Attributes:
        name: as in conf.
        label: metric of the examples' labels; None where they have none.
        tag: metric of the tags of words; None where there are none.
        tags_needed: whether an example without tags is a mistake.
        pooled: whether the class is read through BERT's pooler (a tanh layer on [CLS]), and not from [CLS] itself.
        crf: whether a CRF stands over the tags; otherwise each word's are a softmax of their own.
        outside: tag that words beyond the length limit count as predicted; None: they are left out of scoring.
        pairs: whether a second text is a part of the input as the first is; its words then are cut where they must.
        beside: further metrics of the same labels, which stand beside the first in reports.
        classes: the labels, where they are known beforehand; empty: those that training has.
    """

    name: str
    label: Metric | None
    tag: Metric | None
    tags_needed: bool = False
    pooled: bool = False
    crf: bool = False
    outside: str | None = None
    pairs: bool = False
    beside: tuple[Metric, ...] = ()
    classes: tuple[str, ...] = ()

    def metrics(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores of a dataset; ``tagged``: whether it has tags."""
        found = (self.label, self.tag if tagged else None)
        return tuple(metric for metric in found if metric is not None)

    def measured(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores, and those that reports show beside them."""
        return (*self.metrics(tagged), *self.beside)

    @property
    def words(self) -> bool:
        """Whether single words are labelled: then none of them is cut in the middle."""
        return self.tag is not None

    @property
    def tag_spans(self) -> bool:
        """Whether tags mark spans in BIO, so that ``O`` is one of them."""
        return self.tag is not None and self.tag.of is Scored.spans

    @property
    def identified(self) -> str:
        """The part of the task that enters ids and keys."""
        return self.name if self.tag is None or self.tag_spans else f"{self.name}/words"


TASKS: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Make a task known as ``dataset.task=NAME``, and its metrics with it.

    Raises:
        UsageError: it predicts nothing, or has a name of another task or metric.
    """
    if not task.metrics(tagged=True):
        raise UsageError(f"task '{task.name}': needs a metric of labels or of tags")
    if task.name in TASKS:
        raise UsageError(f"task '{task.name}': there is one of this name already")
    _add_metrics(task)
    TASKS[task.name] = task
    provides("task", task.name)
    return task


def described(task: Task) -> dict[str, Any]:
    """Return a task as plain data, for the manifests of runs whose task is that of a plug-in: see `restored`."""
    found = asdict(task)
    for metric in (found["label"], found["tag"], *found["beside"]):
        if metric is not None:
            metric["of"] = metric["of"].value
    return found


def restored(content: Mapping[str, Any]) -> Task:
    """Return a task that a manifest describes; its metrics are known from then on, the task itself cannot be chosen.

    Raises:
        UsageError: a metric has a name of another one.
    """
    given = dict(content)
    for key in ("label", "tag"):
        if given[key] is not None:
            given[key] = _metric(given[key])
    # What an earlier version described has none.
    given["beside"] = tuple(map(_metric, given.get("beside", ())))
    task = Task(**{**given, "classes": tuple(given.get("classes", ()))})
    _add_metrics(task)
    return task


def _metric(content: Mapping[str, Any]) -> Metric:
    return Metric(**{**content, "of": Scored(content["of"])})


def _add_metrics(task: Task) -> None:
    metrics = task.measured(tagged=True)
    for new in metrics:
        if other := next((m for m in METRICS if m != new and {m.name, m.short} & {new.name, new.short}), None):
            raise UsageError(f"task '{task.name}': its metric '{new.name}' has a name of '{other.name}'")
    for new in metrics:
        if new not in METRICS:
            METRICS.append(new)
            BY_NAME[new.name] = new


INTENT_SLOTS = register(Task("intent_slots", INTENT_ACCURACY, SLOT_F1, crf=True, outside="O"))
SEQUENCE_CLASS = register(Task("sequence_class", CLASS_ACCURACY, None, pooled=True, pairs=True))
TOKEN_TAGS = register(Task("token_tags", None, ENTITY_F1, tags_needed=True))
STATEMENT_TRUTH = register(
    Task(
        "statement_truth",
        STATEMENT_ACCURACY,
        None,
        pooled=True,
        pairs=True,
        beside=BESIDE_STATEMENTS,
        classes=("false", "true"),
    )
)

TAGS_ARE = ("spans", "words")


def task_of(name: str, tags_are: str = "spans") -> Task:
    """Return the task of a dataset.

    Args:
        name: ``dataset.task``.
        tags_are: ``dataset.tags_are``: ``spans`` (BIO) or ``words``.

    Raises:
        UsageError: an unknown name or way, or tags of words for a task that has slots.
    """
    if name not in TASKS:
        raise UsageError(f"dataset.task={name}: unknown; {did_you_mean(str(name), TASKS)}")
    if tags_are not in TAGS_ARE:
        raise UsageError(f"dataset.tags_are={tags_are}: unknown; {did_you_mean(str(tags_are), TAGS_ARE)}")
    if tags_are == "spans":
        return TASKS[name]
    if name != TOKEN_TAGS.name:
        raise UsageError(f"dataset.tags_are=words: only dataset.task={TOKEN_TAGS.name} has tags that are not spans")
    return replace(TOKEN_TAGS, tag=TOKEN_ACCURACY)


def statement_of(example_id: str) -> tuple[str, int | None]:
    """Return the example that a statement was made of, and the statement's number k: 0 is true, all others are false.

    An id that is not written ``EXAMPLE#k`` (see `xclrun.data.statements`) is that of a statement of its own; k is None.

    >>> statement_of("dev#7#0"), statement_of("mine")
    (('dev#7', 0), ('mine', None))
    """
    example, _, number = example_id.rpartition("#")
    return (example, int(number)) if example and number.isdecimal() else (example_id, None)
