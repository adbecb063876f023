"""Tasks and metrics: predictions, labels, heads, base scores and their names.

Other modules use the attributes of a `Task` or `Metric` and do not compare names. docs/metrics.md ("Base scores")
defines the scores:

| task | an example has | heads | metrics |
|---|---|---|---|
| ``intent_slots`` | a label, and tags of words where the dataset has some | linear on [CLS]; linear + CRF on words | \
intent accuracy, slot F1 |
| ``sequence_class`` | a label; one text or two | BERT's pooler, dropout, linear | class accuracy |
| ``token_tags`` | tags of words | linear on words | token accuracy (``dataset.tags_are=words``: POS) or entity F1 \
(``spans``: NER in BIO) |
| ``statement_truth`` | a label, false or true; a text and a statement about it | as ``sequence_class`` | statement \
accuracy and `BESIDE_STATEMENTS` |
| ``span`` | answers to a question, spans of its text | start and end: linear on the text's subwords | answer F1, \
exact match |
| ``text_to_text`` | a prompt and texts that may follow it | the language model's own output layer | bits of the \
reference; exact match, chrF and others accompany it |
| ``language_modelling`` | a document, the example's text | the language model's own output layer | bits per byte |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import Enum
from importlib.metadata import version
from operator import methodcaller
from typing import Any

from xclrun.core import corpus_scores
from xclrun.core.errors import UsageError, did_you_mean, require
from xclrun.core.names import check_plain
from xclrun.core.plugins import packaged, provides, replaces
from xclrun.core.quantity import Quantity
from xclrun.core.texts import reply


class Scored(Enum):
    """The predictions that a metric scores, and its default sums (see `Metric.statistics`)."""

    labels = "labels"  # examples whose class is correct
    words = "words"  # words within the length limit whose tag is correct
    spans = "spans"  # micro F1 over labeled spans
    keys = "keys"  # for keys with several tasks: the first metric of each key's task
    answers = "answers"  # similarity of each answer to a gold answer
    columns = "columns"  # the task's own columns (`Metric.statistics`)


# What an example's target is: its label, the tags of its words, or answers to its question.
LABELS, TAGS, ANSWERS, WRITTEN = "labels", "tags", "answers", "texts"

# Sentences of a test set (`xclrun.scores.base_scores.Sentences`) → statistics of each sentence.
Statistics = Callable[[Any], Any]
# Sums of the statistics over sentences, an array of shape (..., k) → scores, shape (...).
Score = Callable[[Any], Any]


def ratio(sums: Any) -> Any:
    """Return the mean of hits / total over k/2 pairs (hits, total), shape (...); NaN if a total is 0."""
    totals = sums[..., 1::2].astype(float)
    totals[totals == 0] = math.nan
    return (sums[..., ::2] / totals).mean(axis=-1)


def f1(sums: Any) -> Any:
    """Return F1 from k/2 pairs (2 TP, 2 TP + FP + FN), the mean over the pairs with a total above 0; 0 without one.

    One pair gives micro F1, a pair for each tag gives macro F1.
    """
    totals = sums[..., 1::2].astype(float)
    pairs = (totals > 0).sum(axis=-1)
    totals[totals == 0] = 1
    return (sums[..., ::2] / totals).sum(axis=-1) / pairs.clip(1)


@dataclass(frozen=True)
class Metric:
    """A base score.

    Attributes:
        name: key in manifests, records and score matrices.
        short: name in tables, file names and MLflow.
        title: display name without unit.
        of: the predictions that the metric scores.
        noun, nouns: the predicted thing, singular and plural.
        definition: footnote of tables; empty if the title suffices.
        beside: whether the metric accompanies another one and therefore has no separate tables and tests.
        floor: name of the metric that scores a constant answer, if tables show it as a baseline.
        undefined: footnote for keys without a score, which names the missing data. Empty if the score is always
            defined.
        statistics: function that returns k statistics of each sentence, shape (sentences, cells, k), for example with
            `Sentences.stacked`; a cell is the model after one hop. If None, ``of`` determines the statistics.
        score: function that returns the score from the sums of the statistics over sentences; NaN if undefined. If
            None, `f1` for tags and `ratio` for other predictions.
        probabilities: whether ``statistics`` needs log2 p(gold class).
        unit: ``%`` for fractions, which are printed in percent; or the unit of scores, such as ``bits``.
        tasks: names of the tasks to which `register_metric` adds the metric; empty: all that predict ``of``.
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
    statistics: Statistics | None = field(default=None, compare=False)
    score: Score | None = field(default=None, compare=False)
    probabilities: bool = False
    higher_is_better: bool = True
    unit: str = "%"
    tasks: tuple[str, ...] = ()

    @property
    def quantity(self) -> Quantity:
        """The metric's scores as a quantity."""
        if self.unit == "%":
            return Quantity(self.higher_is_better, bounds=(0.0, 1.0))
        return Quantity(self.higher_is_better, self.unit, decimals=3)

    @property
    def difference(self) -> Quantity:
        """Differences of the metric's scores as a quantity; higher is better."""
        return replace(self.quantity.difference, higher_is_better=True)

    def goodness(self, scores: Any) -> Any:
        """Return scores such that higher is better: negated if lower is better. Goodness of goodness is the score."""
        return scores if self.higher_is_better else -scores

    @property
    def of_tags(self) -> bool:
        """Whether the metric scores the tags of words."""
        return self.of in (Scored.words, Scored.spans)

    @property
    def computed(self) -> bool:
        """Whether the metric has its own ``statistics`` or ``score``."""
        return self.statistics is not None or self.score is not None

    @property
    def accuracy(self) -> bool:
        """Whether the metric is the share of correct classes or tags."""
        return self.of in (Scored.labels, Scored.words) and not self.computed

    @property
    def span_f1(self) -> bool:
        """Whether the metric is F1 over spans, as defined by ``evaluate.slot_f1``."""
        return self.of is Scored.spans and not self.computed

    @property
    def stored(self) -> bool:
        """Whether runs store the statistics: they need more than classes, tags and spans."""
        return self.probabilities or self.of in (Scored.answers, Scored.columns)

    def scores(self, sums: Any) -> Any:
        """Return the scores, shape (...), from sums of statistics over sentences, shape (..., k)."""
        return (self.score or (f1 if self.of_tags else ratio))(sums)


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
    "share of words within the model's length limit whose tag is correct (= micro F1)",
)
ENTITY_F1 = Metric("entity_f1", "entities", "entity F1", Scored.spans, "entity", "entities")


def _truth(sentences: Any) -> tuple[Any, Any]:
    """Return which statements are true (class 1), shape (S, 1), and which are predicted as true, shape (S, cells)."""
    return (sentences.gold == 1)[:, None], sentences.predicted == 1


def _f1_of_true(sentences: Any) -> Any:
    gold, predicted = _truth(sentences)
    return sentences.stacked(2 * (gold & predicted), 1 * gold + predicted)


def _true_rate(sentences: Any) -> Any:
    gold, predicted = _truth(sentences)
    return sentences.stacked(gold & predicted, gold)


def _false_rate(sentences: Any) -> Any:
    gold, predicted = _truth(sentences)
    return sentences.stacked(~gold & ~predicted, ~gold)


def _both_rates(sentences: Any) -> Any:
    gold, predicted = _truth(sentences)
    return sentences.stacked(gold & predicted, gold, ~gold & ~predicted, ~gold)


def _constant(sentences: Any) -> Any:
    gold, _ = _truth(sentences)
    return sentences.stacked(gold == (2 * gold.sum() > len(gold)), 1)


def _beside(name: str, short: str, title: str, definition: str, statistics: Statistics, **fields: Any) -> Metric:
    return Metric(
        name, short, title, Scored.labels, "statement", "statements", definition, beside=True, statistics=statistics,
        **fields,
    )  # fmt: skip


# Metrics of statements (degree of belief): Hussain et al. 2021, section 4.1, appendix A.6, except choice accuracy.
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
    "share of true and false statements whose truth value is predicted correctly",
    floor=CONSTANT_ACCURACY.name,
)
BESIDE_STATEMENTS = (
    _beside("true_f1", "F1", "F1 of true", "F1 of the class true", _f1_of_true, undefined="needs true statements"),
    _beside(
        "true_rate", "TPR", "true-positive rate", "share of true statements that are predicted as true", _true_rate,
        undefined="needs true statements",
    ),
    _beside(
        "false_rate", "TNR", "true-negative rate", "share of false statements that are predicted as false", _false_rate,
        undefined="needs false statements",
    ),
    _beside(
        "balanced_accuracy", "balanced", "balanced accuracy", "mean of TPR and TNR", _both_rates,
        undefined="needs true and false statements",
    ),
    _beside(
        "choice_accuracy", "choice", "choice accuracy",
        "share of examples whose true statement has the highest P(true) of the example's statements; ties count "
        "proportionally",
        methodcaller("choices"), probabilities=True, undefined="needs examples with one true statement and others",
    ),
    CONSTANT_ACCURACY,
)  # fmt: skip

# Main metric of datasets whose keys have different tasks.
KEY_SCORE = Metric(
    "key_score",
    "score",
    "score",
    Scored.keys,
    "answer",
    "answers",
    "the first metric of each key's task; means over keys average different metrics",
)
# Metrics of answers, as in the official scripts of SQuAD and MLQA: see `xclrun.scores.answers`.
_NORMAL = (
    "to the nearest gold answer, without case, punctuation and articles: as in SQuAD's script 1.1, or as in MLQA's for "
    "ar, de, es, hi, vi and zh, and for English in MLQA; mean over questions"
)
ANSWER_F1 = Metric(
    "answer_f1", "answers", "answer F1", Scored.answers, "answer", "answers",
    f"F1 over the words of the predicted answer {_NORMAL}", statistics=methodcaller("answered", "f1"),
)  # fmt: skip
EXACT_MATCH = Metric(
    "exact_match", "EM", "exact match", Scored.answers, "answer", "answers",
    f"share of predicted answers that are equal {_NORMAL}", statistics=methodcaller("answered", "exact"),
)  # fmt: skip


def _bits(sentences: Any) -> Any:
    if sentences.log2_gold is None:
        raise ValueError("the predictions have no probabilities")
    known = sentences.gold >= 0
    # NaN where the class does not occur in training; such sentences leave both sums.
    bits = -sentences.log2_gold
    bits[~known] = 0
    return sentences.stacked(bits, known[:, None])


LABEL_BITS = Metric(
    "label_bits", "bits", "label bits", Scored.labels, "label", "labels",
    "mean −log2 p of the correct class, in bits; without examples whose class does not occur in training",
    statistics=_bits, probabilities=True, higher_is_better=False, unit="bits",
)  # fmt: skip

# Name of the task whose models write texts.
TEXTS = "text_to_text"


def _of_texts(name: str, short: str, title: str, definition: str, **fields: Any) -> Metric:
    """Return a metric of generated texts, whose statistics are in `xclrun.scores.generated`."""
    return Metric(
        name, short, title, Scored.columns, "text", "texts", definition, statistics=methodcaller("written", name),
        tasks=(TEXTS,), **fields,
    )  # fmt: skip


_NOT_GENERATED = "needs generated texts; set evaluate.generate=test"
_NO_CHOICES = "needs examples with choices"
REFERENCE_BITS = _of_texts(
    "reference_bits", "ref_bits", "bits of the reference",
    "−log2 p of the first reference and its end, divided by its UTF-8 bytes; without references that are longer than "
    "the model's positions",
    higher_is_better=False, unit="bits per byte", undefined="needs a reference that is not empty",
)  # fmt: skip
TEXT_EXACT = _of_texts(
    "text_exact", "text_exact", "exact match of texts",
    "share of generated texts that equal a reference after Unicode normalization (NFC) and with white space collapsed",
    undefined=_NOT_GENERATED,
)  # fmt: skip
CHRF = _of_texts(
    "chrf", "chrF", "chrF2",
    "corpus chrF2 as in sacrebleu (case:mixed|eff:yes|nc:6|nw:0|space:no); of several references, the one with the "
    "best chrF2",
    score=corpus_scores.chrf, undefined=_NOT_GENERATED,
)  # fmt: skip
ENDED = _of_texts(
    "ended", "ended", "ended texts", "share of generated texts that the model ended before the length limit",
    undefined=_NOT_GENERATED,
)  # fmt: skip
TEXT_CHOICE = _of_texts(
    "text_choice", "text_choice", "choice of a text",
    "share of questions whose correct choice has the highest log-probability; ties count proportionally",
    undefined=_NO_CHOICES,
)  # fmt: skip
TEXT_CHOICE_BYTES = _of_texts(
    "text_choice_bytes", "choice_bytes", "choice of a text by bytes",
    "share of questions whose correct choice has the highest log-probability per UTF-8 byte; ties count proportionally",
    undefined=_NO_CHOICES,
)  # fmt: skip
# In place of `TEXT_EXACT` where texts answer questions.
TEXT_ANSWER_EXACT = _of_texts(
    "text_answer_exact", "text_EM", "exact match of answers", f"share of generated answers that are equal {_NORMAL}",
    undefined=_NOT_GENERATED,
)  # fmt: skip
BLEU = _of_texts(
    "bleu", "BLEU", "BLEU",
    "corpus BLEU of sacrebleu (case:mixed|eff:no|tok:13a, but zh for zh, ja-mecab for ja, char for km, lo, my and "
    "th|smooth:exp); 0 if there are no common n-grams, even if all texts and references are empty",
    score=corpus_scores.bleu, undefined=_NOT_GENERATED,
)  # fmt: skip
ROUGE_L = _of_texts(
    "rouge_l", "ROUGE-L", "ROUGE-L",
    "mean F1 of the longest common subsequence of words, without case and punctuation; each character of Thai, Lao, "
    "Khmer, Burmese, Chinese and Japanese is a word; of several references, the best",
    undefined=_NOT_GENERATED,
)  # fmt: skip
# Name of the task whose models predict documents.
DOCUMENTS = "language_modelling"
BITS_PER_BYTE = Metric(
    "bits_per_byte", "bits_per_byte", "bits per byte", Scored.columns, "document", "documents",
    "−log2 p of the documents divided by their UTF-8 bytes; a document begins after the beginning of a text (BOS), and "
    "its end is not scored",
    statistics=methodcaller("written", "bits_per_byte"), higher_is_better=False, unit="bits per byte",
    tasks=(DOCUMENTS,),
)  # fmt: skip
# Metrics that are shown only on request (`select_metrics`) → the package that each needs.
ON_REQUEST = {LABEL_BITS: "", BLEU: "sacrebleu", ROUGE_L: ""}

# Metrics of all registered tasks and further metrics, in the order of tables.
METRICS: list[Metric] = [KEY_SCORE]
# Metrics that no task names: those of plug-ins (`register_metric`), and selected ones.
FURTHER: list[Metric] = []
BY_SHORT: dict[str, Metric] = {KEY_SCORE.short: KEY_SCORE}
BY_NAME: dict[str, Metric] = {KEY_SCORE.name: KEY_SCORE}


def short_name(metric: str) -> str:
    """Return the name of a metric in tables, file names and MLflow: ``intent_accuracy`` → ``intent``."""
    return BY_NAME[metric].short


def headline(metric: str) -> str:
    """Return `short_name` capitalized for the start of a title: ``Intent``, ``EM``."""
    name = short_name(metric)
    return name[:1].upper() + name[1:]


@dataclass(frozen=True)
class Column:
    """A column of prediction rows.

    Attributes:
        type: Arrow type, as `pyarrow.type_for_alias` reads it (``float32``), or ``list<TYPE>``.
        missing: value of rows without a prediction.
    """

    name: str
    type: str
    missing: Any = None


@dataclass(frozen=True)
class Task:
    """A task: its predictions, and the parts of xclrun that compute them, by their names in registries.

    Attributes:
        name: value of ``dataset.task``.
        label: metric of the examples' labels; None without labels.
        tag: metric of the tags of words; None without tags.
        tags_needed: whether every example must have tags.
        pooled: whether the classifier reads BERT's pooler (a tanh layer on [CLS]) instead of [CLS].
        crf: whether tags are predicted by a CRF; otherwise by a softmax for each word.
        outside: predicted tag of words beyond the length limit; None: they are not scored.
        pairs: whether the input may have a second text.
        beside: further metrics of the same predictions, computed after training; they select no epochs.
        classes: the labels, if fixed; empty: the labels of the training data.
        answers: metrics of answers. An answer is a span of an example's text; the example's second text is the
            question. Empty without answers.
        target: converts the target of an example (the row's key ``target``) from its JSON value, and raises ValueError
            if it is bad; ``float``, for example. None: the examples have no target.
        own: metrics of the task's own columns (`Scored.columns`).
        columns: the task's own columns of prediction rows, in addition to those of all tasks
            (`xclrun.store.predictions`).
        head: name of the head (`xclrun.model.heads.HEADS`).
        encoding: name of the encoding of examples as subwords (`xclrun.data.encodings.ENCODINGS`).
        grouped: whether examples are statements about one context, whose IDs are ``CONTEXT#NUMBER``.
        writes: whether the encoder is a causal language model, and the head is its own output layer.
        scores_only: whether a model with ``writes`` generates no texts.
        settings: key of ``dataset`` with the settings of the task, which encoding and head get
            (`xclrun.data.example.Targets.settings`); empty without settings.
    """

    name: str
    label: Metric | None = None
    tag: Metric | None = None
    tags_needed: bool = False
    pooled: bool = False
    crf: bool = False
    outside: str | None = None
    pairs: bool = False
    beside: tuple[Metric, ...] = ()
    classes: tuple[str, ...] = ()
    answers: tuple[Metric, ...] = ()
    target: Callable[[Any], Any] | None = field(default=None, compare=False)
    own: tuple[Metric, ...] = ()
    columns: tuple[Column, ...] = ()
    head: str = "labels_and_tags"
    encoding: str = "words"
    grouped: bool = False
    writes: bool = False
    settings: str = ""
    scores_only: bool = False

    def metrics(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores of a dataset; ``tagged``: whether its examples have tags."""
        return (*filter(None, (self.label, self.tag if tagged else None)), *self.answers, *self.own)

    def measured(self, tagged: bool) -> tuple[Metric, ...]:
        """Return the base scores and the metrics that accompany them."""
        return (*self.metrics(tagged), *(metric for metric in self.beside if tagged or not metric.of_tags))

    @property
    def words(self) -> bool:
        """Whether words are tagged; truncation then never splits a word."""
        return self.tag is not None

    @property
    def tag_spans(self) -> bool:
        """Whether tags mark spans in BIO, with the tag ``O``."""
        return self.tag is not None and self.tag.of is Scored.spans

    @property
    def identified(self) -> str:
        """Name of the task in IDs and keys."""
        return self.name if self.tag is None or self.tag_spans else f"{self.name}/words"

    @property
    def needs(self) -> frozenset[str]:
        """What examples must contain: some of ``label``, ``tags``, ``answers`` and ``target``."""
        parts = {"label": self.label, "tags": self.tag, "answers": self.answers, "target": self.target}
        return frozenset(name for name, part in parts.items() if part)

    @property
    def place(self) -> str:
        """Name of the task's head in a model with several tasks."""
        return self.identified.replace("/", "_")


@dataclass(frozen=True)
class MetricsOfKeys:
    """The metrics of a dataset's keys.

    Attributes:
        every: metrics of all keys, if the keys share one task.
        by_key: key → metrics of its task, if keys have several tasks; empty otherwise.
        reader: ``dataset.reader``, which decides how English answers are normalized (`xclrun.scores.answers`).
        grouped: whether the task of all keys is `Task.grouped`; if keys have several tasks, the keys whose task is.
    """

    every: tuple[Metric, ...] = ()
    by_key: Mapping[str, tuple[Metric, ...]] = field(default_factory=dict)
    reader: str = ""
    grouped: bool | frozenset[str] = False

    def of(self, key: str) -> tuple[Metric, ...]:
        """Return the metrics of a key; `KEY_SCORE` first if keys have several tasks."""
        return (KEY_SCORE, *self.by_key[key]) if self.by_key else self.every

    def groups(self, key: str) -> bool:
        """Return whether the task of a key is `Task.grouped`."""
        return self.grouped if isinstance(self.grouped, bool) else key in self.grouped

    @property
    def all(self) -> tuple[Metric, ...]:
        """All metrics, each once."""
        metrics_of_keys = (metric for metrics in self.by_key.values() for metric in metrics)
        return tuple(dict.fromkeys((KEY_SCORE, *metrics_of_keys))) if self.by_key else self.every

    @property
    def columns(self) -> tuple[Metric, ...]:
        """Metrics with a column in a score matrix: all, or `KEY_SCORE` alone if keys have different tasks."""
        if not self.by_key:
            return self.every
        keys: dict[str, list[str]] = {}
        for key, metrics in self.by_key.items():
            keys.setdefault(metrics[0].title, []).append(key)
        return (replace(KEY_SCORE, title=", ".join(f"{title} ({', '.join(ks)})" for title, ks in keys.items())),)


def _named(*columns: Column) -> dict[str, Column]:
    return {column.name: column for column in columns}


# Columns of prediction rows of every task, and of the tasks that have them (see `xclrun.store.predictions`).
EVERY_TASK = _named(
    Column("gold", "int16"), Column("predicted", "int16"), Column("log2_gold", "float32"),
    Column("gold_tags", "list<int16>"), Column("predicted_tags", "list<int16>"),
    Column("tp", "int16", 0), Column("fp", "int16", 0), Column("fn", "int16", 0),
    Column("log2_gold_tags", "float32"), Column("tokens", "int16"),
)  # fmt: skip
COLUMNS: dict[str, Column] = {}
TASKS: dict[str, Task] = {}

# Keys of ``model`` that only some encodings read. They are part of IDs only if an encoding of the dataset reads them.
OPTIONAL_SETTINGS = ("windows", "max_target")
# Encoding → those of these keys that it reads; `xclrun.data.encodings.register` adds the encodings of plug-ins.
SETTINGS_READ: dict[str, tuple[str, ...]] = {"windows": ("windows",), "texts": ("max_target",)}


def register_metric(metric: Metric) -> Metric:
    """Register a metric of tasks that do not name it. Training does not use it; reports compute it for all runs.

    A notebook or script may register a metric again; then load the runs again.
    """
    if unknown := [name for name in metric.tasks if name not in TASKS]:
        raise UsageError(f"metric '{metric.name}': unknown task; {did_you_mean(unknown[0], TASKS)}")
    if metric.of is Scored.columns and not metric.tasks:
        raise UsageError(f"metric '{metric.name}': scores columns, so it needs the names of the tasks that have them")
    check_metric_names(metric)
    former = next((other for other in FURTHER if other.name == metric.name), None)
    if former is not None and replaces("metric", metric.name):
        _forget([former])
    _check_collisions("", (metric,))
    if metric in FURTHER:
        raise UsageError(f"metric '{metric.name}': this name is already registered; choose another")
    FURTHER.append(metric)
    _list(metric)
    provides("metric", metric.name, metric.definition)
    return metric


def select_metrics(names: Iterable[str], option: str = "--metric") -> None:
    """Add metrics that are shown only on request, for all following reads of runs in this process."""
    available = {metric.name: metric for metric in ON_REQUEST}
    for name in names:
        if name not in available:
            raise UsageError(f"{option} {name}: unknown metric; {did_you_mean(name, available)}")
        metric = available[name]
        if package := ON_REQUEST[metric]:
            require(package, f"{option} {name}", "text")
            metric = replace(metric, definition=f"{metric.definition}; {package} {version(package)}")
        if metric not in FURTHER:
            register_metric(metric)


def further_metrics(task: Task, tagged: bool) -> tuple[Metric, ...]:
    """Return the registered metrics of a task's predictions that the task does not name."""
    predicted = {
        Scored.labels: task.label is not None,
        Scored.words: tagged and task.tag is not None and not task.tag_spans,
        Scored.spans: tagged and task.tag_spans,
        Scored.answers: bool(task.answers),
        Scored.columns: bool(task.columns),
    }
    return tuple(
        metric
        for metric in FURTHER
        if (task.name in metric.tasks or not metric.tasks) and predicted.get(metric.of, False)
    )


def register(task: Task) -> Task:
    """Register a task and its metrics, so that ``dataset.task=NAME`` selects it."""
    if not task.metrics(tagged=True):
        raise UsageError(f"task '{task.name}': needs a metric of labels, of tags, of answers or of its own columns")
    former = TASKS.get(task.name) if replaces("task", task.name) else None
    if task.name in TASKS and former is None:
        raise UsageError(f"task '{task.name}': this name is already registered; choose another")
    units = {metric.unit: metric.name for metric in task.metrics(tagged=True)}
    if len(units) > 1:
        listed = " and ".join(f"'{name}' ({unit})" for unit, name in units.items())
        raise UsageError(
            f"task '{task.name}': the mean of its metrics {listed} selects epochs, so they need the same unit; move "
            "others to beside"
        )
    predictions = {Scored.labels: task.label, Scored.answers: task.answers, Scored.columns: task.columns}
    for metric in task.beside:
        if not predictions.get(metric.of, task.tag):
            raise UsageError(
                f"task '{task.name}': its metric '{metric.name}' scores {metric.of.value}; "
                f"the task predicts no {metric.of.value}"
            )
    if former is not None:
        del TASKS[former.name]
        _forget(former.measured(tagged=True))
        for column in former.columns:
            if not any(column in other.columns for other in TASKS.values()):
                del COLUMNS[column.name]
    for column in task.columns:
        if (other := COLUMNS.setdefault(column.name, column)) != column or column.name in EVERY_TASK:
            raise UsageError(
                f"task '{task.name}': its column '{column.name}' has the name of another column "
                f"({EVERY_TASK.get(column.name, other).type}); rename it"
            )
    for metric in task.measured(tagged=True):
        check_metric_names(metric)
    _add_metrics(task)
    TASKS[task.name] = task
    provides("task", task.name)
    return task


def described(task: Task) -> dict[str, Any]:
    """Return a task as plain data, for manifests of runs with a plug-in's task (see `restored`)."""
    content = asdict(task) | {"target": task.target is not None}
    for metric in (content["label"], content["tag"], *content["beside"], *content["answers"], *content["own"]):
        if metric is not None:
            # Functions cannot be stored; ``statistics`` records only whether there are any.
            own = metric.pop("score") is not None or metric["statistics"] is not None
            metric |= {"of": metric["of"].value, "statistics": own}
    return content


def restored(content: Mapping[str, Any]) -> Task:
    """Return the task that a manifest describes and register its metrics, but not the task.

    A metric with its own functions (`Metric.computed`) needs its plug-in. If the plug-in is not loaded, such metrics
    are removed from ``beside``, and computing such a main metric raises ValueError.
    """
    metrics: dict[str, Any] = {
        "label": content["label"] and _metric(content["label"]),
        "tag": content["tag"] and _metric(content["tag"]),
        "beside": tuple(m for m in map(_metric, content["beside"]) if m in METRICS or not m.computed),
        "answers": tuple(map(_metric, content["answers"])),
        "own": tuple(map(_metric, content.get("own", ()))),
        "columns": tuple(Column(**column) for column in content.get("columns", ())),
        "target": None,
    }
    return _add_metrics(Task(**{**content, **metrics, "classes": tuple(content["classes"])}))


def _metric(content: Mapping[str, Any]) -> Metric:
    def unavailable(_: Any) -> Any:
        raise ValueError(
            f"the metric {content['name']} is computed by a plug-in that is not loaded; use --plugin FILE.py"
        )

    # Manifests of version 0.2.0 have hits and totals, ``count``, or the metrics of a mean, ``mean_of``.
    own = any(map(content.get, ("statistics", "count", "mean_of")))
    known = {field.name: content[field.name] for field in fields(Metric) if field.name in content}
    known |= {"of": Scored(content["of"]), "tasks": tuple(content.get("tasks", ()))}
    metric = Metric(**known | {"statistics": unavailable if own else None})
    return next((registered for registered in METRICS if registered == metric), metric)


def _add_metrics(task: Task) -> Task:
    """Register the metrics of a task; return the task."""
    metrics = task.measured(tagged=True)
    _check_collisions(f"task '{task.name}': its ", metrics)
    for new in metrics:
        _list(new)
    return task


def check_metric_names(metric: Metric) -> None:
    """Raise a `UsageError` if ``name`` or ``short`` cannot name files and curves."""
    for attribute in ("name", "short"):
        check_plain(f"metric '{metric.name}': {attribute}", getattr(metric, attribute))


def _check_collisions(prefix: str, metrics: Iterable[Metric]) -> None:
    for new in metrics:
        for kind, name in (("name", new.name), ("short name", new.short)):
            if other := next((m for m in METRICS if m != new and name in (m.name, m.short)), None):
                raise UsageError(
                    f"{prefix}metric '{new.name}': {kind} '{name}' is taken by metric '{other.name}'; choose another"
                )


def _forget(metrics: Iterable[Metric]) -> None:
    """Remove metrics that no registered task measures."""
    measured = {m for task in (*TASKS.values(), WORD_TAGS, TEXT_ANSWERS) for m in task.measured(tagged=True)}
    for metric in metrics:
        if metric not in measured:
            METRICS.remove(metric)
            del BY_NAME[metric.name], BY_SHORT[metric.short]
            if metric in FURTHER:
                FURTHER.remove(metric)


def _list(metric: Metric) -> None:
    if metric not in METRICS:
        METRICS.append(metric)
        BY_NAME[metric.name] = BY_SHORT[metric.short] = metric


INTENT_SLOTS = register(Task("intent_slots", INTENT_ACCURACY, SLOT_F1, crf=True, outside="O"))
SEQUENCE_CLASS = register(Task("sequence_class", CLASS_ACCURACY, None, pooled=True, pairs=True))
# ``token_tags`` with ``dataset.tags_are=words``. Not registered, because TOKEN_TAGS has this name; see `task_of`.
WORD_TAGS = _add_metrics(Task("token_tags", None, TOKEN_ACCURACY, tags_needed=True))
TOKEN_TAGS = register(Task("token_tags", None, ENTITY_F1, tags_needed=True))
STATEMENT_TRUTH = register(
    Task(
        "statement_truth", STATEMENT_ACCURACY, None, pooled=True, pairs=True, beside=BESIDE_STATEMENTS,
        classes=("false", "true"), grouped=True,
    )
)  # fmt: skip
SPAN = register(
    Task(
        "span", pairs=True, answers=(ANSWER_F1, EXACT_MATCH), head="answers", encoding="windows",
        columns=(
            Column("answer", "string"), Column("answer_start", "int32"), Column("answer_end", "int32"),
            Column("gold_answers", "list<string>"), Column("log2_classes", "float32"), Column("text", "int32"),
        ),
    )
)  # fmt: skip
# The prompt is the example's text; columns of rows are described in `xclrun.scores.generated`.
TEXT_TO_TEXT = register(
    Task(
        TEXTS, target=reply, own=(REFERENCE_BITS,), head="writer", encoding="texts", writes=True, settings="text",
        beside=(TEXT_EXACT, CHRF, ENDED, TEXT_CHOICE, TEXT_CHOICE_BYTES),
        columns=(
            Column("generated", "string"), Column("ended", "bool"), Column("log2_reference", "float32"),
            Column("reference_bytes", "int32"), Column("reference_pieces", "int32"),
            Column("references", "list<string>"), Column("choices", "list<string>"),
            Column("choice_log2", "list<float32>"), Column("right_choice", "int16"),
        ),
    )
)  # fmt: skip

# The column ``log2_reference`` is log2 p(document).
LANGUAGE_MODELLING = register(
    Task(
        DOCUMENTS, own=(BITS_PER_BYTE,), head="documents", encoding="documents", writes=True, scores_only=True,
        columns=(
            Column("log2_reference", "float32"), Column("reference_bytes", "int32"),
            Column("reference_pieces", "int32"),
        ),
    )
)  # fmt: skip

# ``text_to_text`` with ``dataset.as_text=answers``. Not registered: TEXT_TO_TEXT has this name; see `text_task`.
TEXT_ANSWERS = _add_metrics(
    replace(TEXT_TO_TEXT, beside=(TEXT_ANSWER_EXACT, *(m for m in TEXT_TO_TEXT.beside if m is not TEXT_EXACT)))
)

packaged("task", TASKS)

TAGS_ARE = ("spans", "words")


def task_of(name: str, tags_are: str = "spans") -> Task:
    """Return the task of a dataset.

    Args:
        name: ``dataset.task``.
        tags_are: ``dataset.tags_are``: ``spans`` (BIO) or ``words``.
    """
    if name not in TASKS:
        raise UsageError(f"dataset.task={name}: unknown; {did_you_mean(str(name), TASKS)}")
    if tags_are not in TAGS_ARE:
        raise UsageError(f"dataset.tags_are={tags_are}: unknown; {did_you_mean(str(tags_are), TAGS_ARE)}")
    if tags_are == "spans":
        return TASKS[name]
    if name != TOKEN_TAGS.name:
        raise UsageError(f"dataset.tags_are=words: needs dataset.task={TOKEN_TAGS.name}; tags of other tasks are spans")
    return WORD_TAGS


def text_task(as_text: Any) -> Task:
    """Return the task of examples that are read as texts; ``as_text``: value of ``dataset.as_text``."""
    return TEXT_ANSWERS if getattr(as_text, "value", as_text) == "answers" else TEXT_TO_TEXT


def tasks_of_dataset(dataset: Mapping[str, Any]) -> tuple[Task, ...]:
    """Return the tasks of a resolved config's dataset, each once."""
    if dataset.get("as_text") is not None:
        return (text_task(dataset["as_text"]),)
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
    """Return the task with this `Task.identified`, or raise a `UsageError`."""
    name, _, words = identified.partition("/")
    return task_of(name, words or "spans")


def makes_statements(dataset: Mapping[str, Any]) -> bool:
    """Return whether a resolved config's dataset, or a part of it, is converted to statements."""
    kinds = [(dataset.get("statements") or {}).get("kind")]
    kinds += [part.get("statements") for part in (dataset.get("parts") or {}).values()]
    return any(kind is not None for kind in kinds)


def unread_settings(dataset: Mapping[str, Any]) -> frozenset[str]:
    """Return the `OPTIONAL_SETTINGS` that no encoding of a resolved config's dataset reads."""
    read = (SETTINGS_READ.get(task.encoding, ()) for task in _registered(dataset))
    return frozenset(OPTIONAL_SETTINGS).difference(*read)


def writes(dataset: Mapping[str, Any]) -> bool:
    """Return whether models of a resolved config's dataset, or of a part of it, generate texts."""
    return any(task.writes and not task.scores_only for task in _registered(dataset))


def scores_texts(dataset: Mapping[str, Any]) -> bool:
    """Return whether models of a resolved config's dataset, or of a part of it, are causal language models."""
    return any(task.writes for task in _registered(dataset))


def reads_documents(dataset: Mapping[str, Any]) -> bool:
    """Return whether a resolved config's dataset, or a part of it, has documents in windows (``evaluate.stride``)."""
    return any(task.encoding == LANGUAGE_MODELLING.encoding for task in _registered(dataset))


def _registered(dataset: Mapping[str, Any]) -> list[Task]:
    """Return the registered tasks that a resolved config's dataset names."""
    if dataset.get("as_text") is not None:
        return [TEXT_TO_TEXT]
    names = [dataset.get("task"), *(part.get("task") for part in (dataset.get("parts") or {}).values())]
    return [STATEMENT_TRUTH] if makes_statements(dataset) else [TASKS[name] for name in names if name in TASKS]


def statement_of(example_id: str) -> tuple[str, int | None]:
    """Return the example ID and the number k of a statement ``EXAMPLE#k``: k = 0 is true, all others are false.

    Any other ID (see `xclrun.data.statements`) is returned unchanged, with k = None.

    >>> statement_of("dev#7#0"), statement_of("mine")
    (('dev#7', 0), ('mine', None))
    """
    example, _, number = example_id.rpartition("#")
    return (example, int(number)) if example and number.isdecimal() else (example_id, None)
