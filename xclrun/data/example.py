"""What a dataset is made of: examples of a task in several languages, with train, dev and test splits.

Everything here is plain data, without torch: plans, fingerprints and audits need no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from xclrun.core.task import MetricsOfKeys, Task

SPLITS = ("train", "dev", "test")
OUTSIDE = "O"


class Answer(NamedTuple):
    """A gold answer: a span of an example's text.

    Attributes:
        text: as it is written there.
        start: its first character in the text, from 0; characters are Unicode code points.
    """

    text: str
    start: int


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled sentence.

    Attributes:
        id: unique within (language, split); stable between runs, so that resamples can be paired.
        language: key of the part of the dataset it belongs to (docs/glossary.md).
        tokens: the words, in order; never empty.
        label: intent or class name; None where the task has none.
        tags: one tag per word, in BIO where tags are spans (``O``, ``B-location``, ``I-location``); None where the
            dataset has none.
        text: the sentence as written, if it is not just the words joined by spaces.
        text_b: the second sentence of a pair.
        facts: what else the files say of it: name → value, such as MTOP's domain or MNLI's genre. Parts of a dataset
            and statements are made of them; no model sees them, so they are no part of what the example is.
        answers: gold answers to the question ``text_b``, spans of the text; the first is what training learns. Empty
            where the text has none; None where the task has no answers.
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

    @property
    def whole(self) -> str:
        """The text as it is written."""
        return " ".join(self.tokens) if self.text is None else self.text

    @property
    def tokens_b(self) -> tuple[str, ...]:
        """The words of the second sentence; none if there is one sentence."""
        return () if self.text_b is None else tuple(self.text_b.split())


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 (hex) of the examples' content, in order: one changed character changes it."""
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
        digest.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def same_sentence(example: Example) -> tuple[str, ...]:
    """Return what two examples have in common that are the same sentence: words alike but for case."""
    second = () if example.text_b is None else ("\n", *example.tokens_b)
    return tuple(map(str.casefold, (*example.tokens, *second)))


def text_numbers(examples: Sequence[Example]) -> list[int]:
    """Return for each example the number of its (first) text among the different texts, from 0, as they come."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(e.whole for e in examples))}
    return [numbers[e.whole] for e in examples]


@dataclass(frozen=True)
class Targets:
    """What the heads of one task tell apart.

    Attributes:
        task: the task.
        keys: the keys whose task it is.
        labels: class names: those seen in training, sorted, or those of the task.
        tags: tags seen in training, sorted, ``O`` first if they are spans; empty where no example has tags.
        unanswerable: whether training has questions without an answer, so that a model may say that there is none.
    """

    task: Task
    keys: tuple[str, ...]
    labels: tuple[str, ...]
    tags: tuple[str, ...]
    unanswerable: bool = False

    @property
    def sets(self) -> list[Any]:
        """What of it enters ids and keys."""
        return [self.task.identified, self.labels, self.tags, *(["silence"] if self.unanswerable else [])]

    @cached_property
    def _known(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.labels), frozenset(self.tags)

    def unseen(self, example: Example) -> bool:
        """Whether training never had the example's label, or one of its tags."""
        labels, tags = self._known
        return (example.label is not None and example.label not in labels) or any(
            tag not in tags for tag in example.tags or ()
        )


@dataclass(frozen=True)
class Dataset:
    """Labelled examples in several languages; knows its tasks and their label sets.

    Label sets come from the training splits of all languages of a task alone, sorted by name, so that ids depend
    neither on the order of languages nor on what dev or test hold; or they are known beforehand, where the task says
    so. Most datasets have one task: then `labels` and `tags` are its sets.

    Attributes:
        name: name in conf (``mini``, ``mtop``, …).
        task: what is predicted (docs/glossary.md); None where keys have several tasks: see `task_of`.
        languages: keys, in the order of the config: languages, or the keys of a composite dataset.
        splits: (language, split) → examples.
        notes: counts that a manifest must tell, for example ``{"skipped": {"de/train": 2}}``.
        whole: the dataset that its buckets were drawn from; None without buckets. Label sets, and all else that must be
            equal in all buckets (vocabularies, what names an untrained encoder), come from it: see `origin`.
        part_of: key → the entry of ``dataset.parts`` that it comes from; empty for a dataset that is not composite.
        tasks: key → its task, where keys have several; empty otherwise.
        reader: ``dataset.reader``; empty for a composite dataset.
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

    @property
    def origin(self) -> Dataset:
        """The dataset itself, or the one that its buckets were drawn from."""
        return self if self.whole is None else self.whole

    def split(self, language: str, split: str) -> tuple[Example, ...]:
        """Return the examples of one language and split."""
        return self.splits[language, split]

    def task_of(self, key: str) -> Task:
        """Return the task of a key."""
        return self.tasks[key] if self.task is None else self.task

    @cached_property
    def targets(self) -> tuple[Targets, ...]:
        """What is distinguished, for each task; in an order that no order of keys changes."""
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
        return Targets(task, keys, labels, (*first, *sorted(tags.difference(first))), unanswerable)

    def targets_of(self, key: str) -> Targets:
        """Return what is distinguished in the examples of a key."""
        if self.task is not None:
            return self.targets[0]
        return next(targets for targets in self.targets if targets.task == self.tasks[key])

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names of the one task; see `targets` if there are several."""
        [targets] = self.targets
        return targets.labels

    @property
    def tags(self) -> tuple[str, ...]:
        """Tags of the one task; see `targets` if there are several."""
        [targets] = self.targets
        return targets.tags

    def unseen(self, example: Example) -> bool:
        """Whether training never had the example's label, or one of its tags."""
        return self.targets_of(example.language).unseen(example)

    @property
    def metrics(self) -> MetricsOfKeys:
        """The base scores of its keys."""
        by_task = {of.task: of.task.metrics(tagged=bool(of.tags)) for of in self.targets}
        if self.task is not None:
            return MetricsOfKeys(by_task[self.task], reader=self.reader)
        return MetricsOfKeys(own={key: by_task[self.tasks[key]] for key in self.languages}, reader=self.reader)

    @cached_property
    def fingerprints(self) -> dict[tuple[str, str], str]:
        """(language, split) → content hash."""
        known = self.origin.splits
        return {
            key: self.origin.fingerprints[key] if self.whole and known[key] is examples else fingerprint(examples)
            for key, examples in self.splits.items()
        }

    @cached_property
    def unseen_labels(self) -> dict[str, int]:
        """Examples of dev and test whose label, or one of whose tags, no training split holds: ``language/split`` →
        count.

        They are scored as wrong and never enter the label sets.
        """
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
