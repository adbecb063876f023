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
accuracy, and next to it those of `BESIDE_STATEMENTS` |
| ``span`` | answers to a question, spans of its text | start and end: linear on the text's pieces | answer F1, exact \
match |

Standard library alone, so that analysis and reports may use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from operator import methodcaller
from typing import Any

from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import provides


class Scored(Enum):
    """Which part of the predictions a metric is of, and what it counts unless it says otherwise (`Metric.count`)."""

    labels = "labels"  # examples whose class is right, of all
    words = "words"  # words whose tag is right, of all that the model saw
    spans = "spans"  # micro F1 over labelled spans
    keys = "keys"  # what the first metric of each key's own task counts, where keys have several tasks
    answers = "answers"  # answers to questions, each by its likeness to a gold one (`Metric.count`)


# From the sentences of a test set (`xclrun.analysis.base_scores.Sentences`) to hits and totals of each.
Count = Callable[[Any], tuple[Any, Any]]


@dataclass(frozen=True)
class Metric:
    """A base score.

    Attributes:
        name: key in manifests, records and score matrices.
        short: name in tables, file names and MLflow.
        title: for people, without its unit.
        of: which part of the predictions it is of.
        noun, nouns: what is predicted, one of it and many.
        definition: what a table that shows it must say; empty where the name says it.
        beside: it stands beside another metric, and has no tables and tests of its own.
        floor: name of the metric that says what a constant answer scores, where tables show that.
        undefined: what a key lacks that never has a score, where there may be such; empty otherwise.
        count: gives hits and totals of each sentence, shape (sentences, cells) or (sentences, 1); a score is the ratio
            of their sums, and not known if there is nothing to hit. Totals None: 1 for each sentence. None: as
            ``of`` says.
        mean_of: names of the metrics whose mean it is, in place of its own counts.
        probabilities: whether ``count`` needs log2 p(gold class).
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
    undefined: str = ""
    count: Count | None = field(default=None, compare=False)
    mean_of: tuple[str, ...] = ()
    probabilities: bool = False

    @property
    def of_tags(self) -> bool:
        """Whether it is of the tags of words."""
        return self.of in (Scored.words, Scored.spans)

    @property
    def span_f1(self) -> bool:
        """Whether it is F1 over spans, which ``evaluate.slot_f1`` can have as macro F1 over single tags."""
        return self.of is Scored.spans and self.count is None


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


def _true(sentences: Any) -> tuple[Any, Any]:
    """Return whether statements are true (class 1), shape (S, 1), and whether they are called true, (S, cells)."""
    return (sentences.gold == 1)[:, None], sentences.predicted == 1


def _f1_of_true(sentences: Any) -> tuple[Any, Any]:
    gold, called = _true(sentences)
    return 2 * (gold & called), 1 * gold + called


def _true_rate(sentences: Any) -> tuple[Any, Any]:
    gold, called = _true(sentences)
    return gold & called, gold


def _false_rate(sentences: Any) -> tuple[Any, Any]:
    gold, called = _true(sentences)
    return ~gold & ~called, ~gold


def _constant(sentences: Any) -> tuple[Any, Any]:
    gold, _ = _true(sentences)
    return gold == (2 * gold.sum() > len(gold)), None


def _beside(name: str, short: str, title: str, definition: str, count: Count | None = None, **others: Any) -> Metric:
    return Metric(
        name, short, title, Scored.labels, "statement", "statements", definition, beside=True, count=count, **others
    )


# Of statements (degree of belief), LL §4.1 and App. A.6; choice accuracy is ours.
CONSTANT_ACCURACY = _beside(
    "constant_accuracy", "constant", "accuracy of a constant answer",
    "accuracy of the better of the two constant answers, true or false, for each key", _constant,
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
    _beside("true_f1", "F1", "F1 of true", "F1 of the class true", _f1_of_true, undefined="needs true statements"),
    _beside(
        "true_rate", "TPR", "true-positive rate", "share of true ones that are called true", _true_rate,
        undefined="needs true statements",
    ),
    _beside(
        "false_rate", "TNR", "true-negative rate", "share of false ones that are called false", _false_rate,
        undefined="needs false statements",
    ),
    _beside(
        "balanced_accuracy", "balanced", "balanced accuracy", "mean of TPR and TNR",
        mean_of=("true_rate", "false_rate"), undefined="needs true statements and false ones",
    ),
    _beside(
        "choice_accuracy", "choice", "choice accuracy",
        "share of examples whose true statement gets the highest P(true) of the example's statements; ties count as "
        "their share",
        methodcaller("choices"), probabilities=True, undefined="needs examples with one true statement and others",
    ),
    CONSTANT_ACCURACY,
)  # fmt: skip

# Of datasets whose keys have several tasks: what their tables, tests and measures are of.
KEY_SCORE = Metric(
    "key_score",
    "score",
    "score",
    Scored.keys,
    "answer",
    "answers",
    "of each key the first metric of its own task, so that means over keys are over different metrics",
)
# Of answers, as the official scripts of SQuAD and MLQA score them: `xclrun.analysis.answers`.
_NORMAL = (
    "to the nearest gold answer, without case, punctuation and articles: as in SQuAD's script 1.1, or as in MLQA's for "
    "ar, de, es, hi, vi and zh, and for English in MLQA; mean over questions"
)
ANSWER_F1 = Metric(
    "answer_f1", "answers", "answer F1", Scored.answers, "answer", "answers",
    f"F1 over the words of the predicted answer {_NORMAL}", count=methodcaller("answered", "f1"),
)  # fmt: skip
EXACT_MATCH = Metric(
    "exact_match", "EM", "exact match", Scored.answers, "answer", "answers",
    f"share of predicted answers that are equal {_NORMAL}", count=methodcaller("answered", "exact"),
)  # fmt: skip

# Those of all tasks, in the order of tables: a task brings its own.
METRICS: list[Metric] = [KEY_SCORE]
BY_SHORT: dict[str, Metric] = {KEY_SCORE.short: KEY_SCORE}
BY_NAME: dict[str, Metric] = {KEY_SCORE.name: KEY_SCORE}


def short_name(metric: str) -> str:
    """Return what tables, file names and MLflow call a metric: ``intent_accuracy`` → ``intent``."""
    return BY_NAME[metric].short


def headline(metric: str) -> str:
    """Return `short_name` as a title begins with it: ``Intent``, ``EM``."""
    name = short_name(metric)
    return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Task:
    """What is predicted, and by which heads.

    Attributes:
        name: as in conf.
        label: metric of the examples' labels; None where they have none.
        tag: metric of the tags of words; None if there are none.
        tags_needed: whether an example without tags is a mistake.
        pooled: whether the class is read through BERT's pooler (a tanh layer on [CLS]), and not from [CLS] itself.
        crf: whether a CRF stands over the tags; otherwise each word's are their own softmax.
        outside: tag that words beyond the length limit count as predicted; None: they are left out of scoring.
        pairs: whether a second text is a part of the input as the first is; its words then are cut where they must.
        beside: further metrics of the same predictions, which training neither computes nor selects epochs by: runs
            that have finished have them too.
        classes: the labels, if they are known beforehand; empty: those that training has.
        answers: metrics of the answers, which are spans of an example's text; its second text is the question. Empty
            if there are none.
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
    answers: tuple[Metric, ...] = ()

    def metrics(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores of a dataset; ``tagged``: whether it has tags."""
        own = (self.label, self.tag if tagged else None)
        return (*(metric for metric in own if metric is not None), *self.answers)

    def measured(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores, and those next to them."""
        return (*self.metrics(tagged), *(metric for metric in self.beside if tagged or not metric.of_tags))

    @property
    def words(self) -> bool:
        """Whether single words are labelled: then none is cut in the middle."""
        return self.tag is not None

    @property
    def tag_spans(self) -> bool:
        """Whether tags mark spans in BIO, so that ``O`` is one of them."""
        return self.tag is not None and self.tag.of is Scored.spans

    @property
    def identified(self) -> str:
        """The part of the task that enters ids and keys."""
        return self.name if self.tag is None or self.tag_spans else f"{self.name}/words"

    @property
    def head(self) -> str:
        """Name of its heads in a model of several tasks."""
        return self.identified.replace("/", "_")


@dataclass(frozen=True)
class MetricsOfKeys:
    """Which metrics the keys of a dataset have.

    Attributes:
        every: of all keys, where they have one task.
        own: key → those of its own task, where keys have several; empty otherwise.
        reader: ``dataset.reader``, which decides how English answers are normalised (`xclrun.analysis.answers`).
    """

    every: tuple[Metric, ...] = ()
    own: Mapping[str, tuple[Metric, ...]] = field(default_factory=dict)
    reader: str = ""

    def of(self, key: str) -> tuple[Metric, ...]:
        """Return the metrics of a key; where keys have several tasks its `KEY_SCORE` comes first."""
        return (KEY_SCORE, *self.own[key]) if self.own else self.every

    @property
    def all(self) -> tuple[Metric, ...]:
        """All metrics, each once."""
        metrics_of_keys = (metric for metrics in self.own.values() for metric in metrics)
        return tuple(dict.fromkeys((KEY_SCORE, *metrics_of_keys))) if self.own else self.every


def shown(metrics: MetricsOfKeys) -> tuple[Metric, ...]:
    """Return the metrics that a score matrix has a column for: where keys have several tasks, one that names theirs."""
    if not metrics.own:
        return metrics.every
    keys: dict[str, list[str]] = {}
    for key, own in metrics.own.items():
        keys.setdefault(own[0].title, []).append(key)
    return (replace(KEY_SCORE, title=", ".join(f"{title} ({', '.join(of)})" for title, of in keys.items())),)


TASKS: dict[str, Task] = {}


def register(task: Task) -> Task:
    """Make a task known as ``dataset.task=NAME``, and its metrics with it.

    Raises:
        UsageError: it predicts nothing, has a name of another task or metric, or metrics next to of what it does not
            predict.
    """
    if not task.metrics(tagged=True):
        raise UsageError(f"task '{task.name}': needs a metric of labels, of tags or of answers")
    if task.name in TASKS:
        raise UsageError(f"task '{task.name}': this name is already registered; choose another")
    for metric in task.beside:
        own = {Scored.labels: task.label, Scored.answers: task.answers or None}
        if own.get(metric.of, task.tag) is None:
            raise UsageError(f"task '{task.name}': its metric '{metric.name}' is of {metric.of.value}; it has none")
    _add_metrics(task)
    TASKS[task.name] = task
    provides("task", task.name)
    return task


def described(task: Task) -> dict[str, Any]:
    """Return a task as plain data, for the manifests of runs whose task is that of a plug-in: see `restored`."""
    content = asdict(task)
    for metric in (content["label"], content["tag"], *content["beside"], *content["answers"]):
        if metric is not None:
            # A way of counting is code, and no data: whether there is one.
            metric |= {"of": metric["of"].value, "count": metric["count"] is not None}
    return content


def restored(content: Mapping[str, Any]) -> Task:
    """Return a task that a manifest describes; its metrics are known from then on, the task itself cannot be chosen.

    A metric that counts in its own way needs the plug-in that has it. Without it one next to is left out, and
    counting another one raises ValueError.

    Raises:
        UsageError: a metric has a name of another one.
    """
    label, tag = (None if content[key] is None else _metric(content[key]) for key in ("label", "tag"))
    beside = tuple(m for of in content["beside"] if (m := _metric(of)) in METRICS or m.count is None)
    given = {"label": label, "tag": tag, "beside": beside, "classes": tuple(content["classes"])}
    given["answers"] = tuple(map(_metric, content["answers"]))
    return _add_metrics(Task(**{**content, **given}))


def _metric(content: Mapping[str, Any]) -> Metric:
    def unknown(_: Any) -> Any:
        raise ValueError(f"the metric {content['name']} is counted by a plug-in that is not loaded")

    given = {**content, "of": Scored(content["of"]), "count": unknown if content["count"] else None}
    metric = Metric(**{**given, "mean_of": tuple(content["mean_of"])})
    return next((known for known in METRICS if known == metric), metric)


def _add_metrics(task: Task) -> Task:
    """Make the metrics of a task known; return the task."""
    metrics = task.measured(tagged=True)
    for new in metrics:
        if other := next((m for m in METRICS if m != new and {m.name, m.short} & {new.name, new.short}), None):
            raise UsageError(f"task '{task.name}': its metric '{new.name}' has a name of '{other.name}'")
    for new in metrics:
        if new not in METRICS:
            METRICS.append(new)
            BY_NAME[new.name] = BY_SHORT[new.short] = new
    return task


INTENT_SLOTS = register(Task("intent_slots", INTENT_ACCURACY, SLOT_F1, crf=True, outside="O"))
SEQUENCE_CLASS = register(Task("sequence_class", CLASS_ACCURACY, None, pooled=True, pairs=True))
# What ``token_tags`` is where tags are words: no task that can be chosen by its own name.
WORD_TAGS = _add_metrics(Task("token_tags", None, TOKEN_ACCURACY, tags_needed=True))
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

SPAN = register(Task("span", None, None, pairs=True, answers=(ANSWER_F1, EXACT_MATCH)))

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
    return WORD_TAGS


def tasks_of_dataset(dataset: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the tasks of a resolved config's dataset, each once: of its labels or tags, or of statements about them.

    Raises:
        UsageError: see `task_of`.
    """
    if makes_statements(dataset):
        return (STATEMENT_TRUTH,)
    tasks: list[Task] = []
    for name, part in (dataset.get("parts") or {"": {}}).items():
        task, tags_are = part.get("task"), part.get("tags_are")
        try:
            tasks.append(task_of(task or dataset["task"], tags_are or dataset.get("tags_are", "spans")))
        except UsageError as error:
            if task is None and tags_are is None:
                raise
            raise UsageError(f"dataset.parts.{name}.{str(error).removeprefix('dataset.')}") from None
    return tuple(dict.fromkeys(tasks))


def task_identified(identified: str) -> Task:
    """Return the task of which `Task.identified` is this.

    Raises:
        UsageError: there is none.
    """
    name, _, words = identified.partition("/")
    return task_of(name, words or "spans")


def makes_statements(dataset: Mapping[str, Any]) -> bool:
    """Return whether a resolved config's dataset is made into statements: it, or a part of it, says of which kind."""
    asked = [(dataset.get("statements") or {}).get("kind")]
    asked += [part.get("statements") for part in (dataset.get("parts") or {}).values()]
    return any(kind is not None for kind in asked)


def has_answers(dataset: Mapping[str, Any]) -> bool:
    """Return whether texts are asked about in a resolved config's dataset, or in a part of it."""
    if makes_statements(dataset):
        return False
    asked = [dataset.get("task"), *(part.get("task") for part in (dataset.get("parts") or {}).values())]
    return any(name in TASKS and bool(TASKS[name].answers) for name in asked)


def statement_of(example_id: str) -> tuple[str, int | None]:
    """Return the example that a statement was made of, and the statement's number k: 0 is true, all others are false.

    An id that is not written ``EXAMPLE#k`` (see `xclrun.data.statements`) is that of its own statement; k is None.

    >>> statement_of("dev#7#0"), statement_of("mine")
    (('dev#7', 0), ('mine', None))
    """
    example, _, number = example_id.rpartition("#")
    return (example, int(number)) if example and number.isdecimal() else (example_id, None)
