"""Datasets: examples of a task in several languages, with train, dev and test splits; without torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple
from unicodedata import is_normalized, normalize

from xclrun.config.schema import plain
from xclrun.core.task import MetricsOfKeys, Task
from xclrun.core.texts import Reply

SPLITS = ("train", "dev", "test")
OUTSIDE = "O"


class Answer(NamedTuple):
    """A gold answer: a span of an example's text, and its first character (Unicode code points, from 0)."""

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """One labeled sentence.

    Attributes:
        id: unique within (language, split); stable between runs, so that resamples can be paired.
        language: language or key (docs/glossary.md).
        tokens: the words; never empty.
        label: intent or class; None if the task has none.
        tags: one tag per word, in BIO where tags are spans (``O``, ``B-location``, ``I-location``); None if the dataset
            has none.
        text: the sentence as written; None if it equals the words joined by spaces.
        text_b: the second sentence of a pair.
        facts: metadata from the files, such as MTOP's domain or MNLI's genre. Parts select examples by facts, and
            statements can contain them. Apart from statements, models never see facts. Equality of examples (``==``)
            and fingerprints therefore ignore them.
        answers: gold answers to the question ``text_b``, spans of the text; training uses the first answer. Empty if
            the text contains no answer; None if the task has no answers.
        target: value that the task predicts, as its `Task.target` converts it; None if the task has none.
    """

    id: str
    language: str
    tokens: tuple[str, ...]
    label: str | None
    tags: tuple[str, ...] | None = None
    text: str | None = None
    text_b: str | None = None
    facts: Mapping[str, str] | None = field(default=None, compare=False)
    answers: tuple[Answer, ...] | None = None
    target: Any = None

    @property
    def whole(self) -> str:
        """The original text."""
        return " ".join(self.tokens) if self.text is None else self.text

    @property
    def tokens_b(self) -> tuple[str, ...]:
        """The words of the second sentence; empty without one."""
        return () if self.text_b is None else tuple(self.text_b.split())


def predicted(example: Example, task: Task) -> Example:
    """Return an example without the columns that the task does not predict."""
    return replace(
        example,
        label=None if task.label is None else example.label,
        tags=None if task.tag is None else example.tags,
        answers=example.answers if task.answers else None,
        target=None if task.target is None else example.target,
    )


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 (hex) of the examples' content, in order."""
    digest = hashlib.sha256()
    for e in examples:
        row: list[Any] = [
            e.id,
            e.language,
            list(e.tokens),
            e.label,
            None if e.tags is None else list(e.tags),
            e.text,
            e.text_b,
        ]
        row += [] if e.answers is None else [[list(answer) for answer in e.answers]]
        row += [] if e.target is None else [{"target": e.target}]
        digest.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def same_sentence(example: Example) -> tuple[str, ...]:
    """Return a key that is equal for two examples with the same words, ignoring case and Unicode normalization.

    Words of a dialogue are those of all turns before the target.
    """
    second = () if example.text_b is None else ("\n", *example.tokens_b)
    turns = example.target.turns if isinstance(example.target, Reply) else ()
    before = (word for _, content in turns for word in (*content.split(), "\n"))
    words = (*before, *example.tokens, *second)
    if not is_normalized("NFC", " ".join(words)):
        words = tuple(normalize("NFC", word) for word in words)
    return tuple(map(str.casefold, words))


def text_numbers(examples: Sequence[Example]) -> list[int]:
    """Number the distinct (first) texts from 0 in order of occurrence, and return the number of each example's text."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(e.whole for e in examples))}
    return [numbers[e.whole] for e in examples]


@dataclass(frozen=True)
class Targets:
    """The label sets of one task.

    Attributes:
        keys: the keys of this task.
        labels: classes in the training data, sorted, or the task's fixed classes.
        tags: tags in the training data, sorted, ``O`` first if they are spans; may be empty.
        unanswerable: whether training has questions without an answer, so that models can predict "no answer".
        settings: the settings of the task (`Task.settings`), a config node; None without settings.
    """

    task: Task
    keys: tuple[str, ...]
    labels: tuple[str, ...]
    tags: tuple[str, ...]
    unanswerable: bool = False
    settings: Any = None

    @property
    def sets(self) -> list[Any]:
        """The values that enter the hashes in run IDs and stage keys."""
        further = [] if self.settings is None else [plain(self.settings)]
        return [self.task.identified, self.labels, self.tags, *(["silence"] if self.unanswerable else []), *further]

    @cached_property
    def _seen(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.labels), frozenset(self.tags)

    def unseen(self, example: Example) -> bool:
        """Whether the example's label, or one of its tags if the task has tags, is not in the training data."""
        labels, tags = self._seen
        return (example.label is not None and example.label not in labels) or any(
            tag not in tags for tag in example.tags or ()
        )


@dataclass(frozen=True)
class Dataset:
    """Labeled examples in several languages, with their tasks and label sets.

    The label set of a task is collected from the training splits of all its languages and sorted by name. Label ids
    therefore depend neither on the order of languages nor on the dev and test splits. Some tasks have a fixed label set
    instead.

    Attributes:
        name: the name in conf (``mini``, ``mtop``, …).
        task: the task of all keys; None if keys have several tasks (see `task_of`).
        languages: languages or keys, in the order of the config.
        splits: (language, split) → examples.
        notes: counts for the manifest, for example ``{"skipped": {"de/train": 2}}``.
        whole: the dataset that its buckets were drawn from; None without buckets. Label sets, vocabularies and
            everything else that must be equal in all buckets come from it (see `origin`).
        part_of: key → its entry in ``dataset.parts``; empty for a dataset that is not composite.
        tasks: key → its task, if keys have several; empty otherwise.
        reader: ``dataset.reader``; empty for a composite dataset.
        settings: `Task.settings` → this key's node of the config, for the tasks that have one.
    """

    name: str
    task: Task | None
    languages: tuple[str, ...]
    splits: Mapping[tuple[str, str], tuple[Example, ...]]
    notes: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: Dataset | None = None
    part_of: Mapping[str, str] = field(default_factory=dict)
    tasks: Mapping[str, Task] = field(default_factory=dict)
    reader: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def origin(self) -> Dataset:
        """The dataset that the buckets were drawn from, or the dataset itself."""
        return self if self.whole is None else self.whole

    def split(self, language: str, split: str) -> tuple[Example, ...]:
        return self.splits[language, split]

    def task_of(self, key: str) -> Task:
        return self.tasks[key] if self.task is None else self.task

    @cached_property
    def targets(self) -> tuple[Targets, ...]:
        """The label sets of each task, in an order that does not depend on the order of keys."""
        if self.whole is not None:
            return self.whole.targets
        if self.task is not None:
            return (self._targets(self.task, self.languages),)
        tasks = sorted(dict.fromkeys(self.tasks.values()), key=lambda task: task.identified)
        return tuple(
            self._targets(task, tuple(key for key in self.languages if self.tasks[key] == task)) for task in tasks
        )

    def _targets(self, task: Task, keys: tuple[str, ...]) -> Targets:
        seen = [e for key in keys for e in self.splits[key, "train"]]
        labels = task.classes or tuple(sorted({e.label for e in seen if e.label is not None}))
        tags = {t for e in seen for t in e.tags or ()}
        first = (OUTSIDE,) if task.tag_spans and tags else ()
        unanswerable = any(e.answers == () for e in seen)
        settings = self.settings.get(task.settings)
        return Targets(task, keys, labels, (*first, *sorted(tags.difference(first))), unanswerable, settings)

    def targets_of(self, key: str) -> Targets:
        if self.task is not None:
            return self.targets[0]
        return next(targets for targets in self.targets if targets.task == self.tasks[key])

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes of a dataset with one task."""
        [targets] = self.targets
        return targets.labels

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of a dataset with one task."""
        [targets] = self.targets
        return targets.tags

    def unseen(self, example: Example) -> bool:
        """Whether the example's label, or one of its tags, is not in the training data."""
        return self.targets_of(example.language).unseen(example)

    @property
    def metrics(self) -> MetricsOfKeys:
        by_task = {target.task: target.task.metrics(tagged=bool(target.tags)) for target in self.targets}
        if self.task is not None:
            return MetricsOfKeys(by_task[self.task], reader=self.reader, grouped=self.task.grouped)
        by_key = {key: by_task[self.tasks[key]] for key in self.languages}
        grouped = frozenset(key for key in by_key if self.tasks[key].grouped)
        return MetricsOfKeys(by_key=by_key, reader=self.reader, grouped=grouped)

    @cached_property
    def fingerprints(self) -> dict[tuple[str, str], str]:
        """(language, split) → content hash."""
        original = self.origin.splits
        return {
            key: self.origin.fingerprints[key] if self.whole and original[key] is examples else fingerprint(examples)
            for key, examples in self.splits.items()
        }

    @cached_property
    def unseen_labels(self) -> dict[str, int]:
        """``language/split`` → number of dev or test examples with an unseen label or tag, which count as wrong."""
        counts = {}
        for (language, split), examples in self.splits.items():
            if split != "train":
                n = sum(map(self.unseen, examples))
                if n:
                    counts[f"{language}/{split}"] = n
        return counts

    def sizes(self, split: str = "train") -> dict[str, int]:
        """Return language → number of examples in ``split``."""
        return {language: len(self.splits[language, split]) for language in self.languages}
