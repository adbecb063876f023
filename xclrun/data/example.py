"""What a dataset is made of: examples of a task in several languages, with train, dev and test splits.

Everything here is plain data, without torch: plans, fingerprints and audits need no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from xclrun.core.task import Task

SPLITS = ("train", "dev", "test")
OUTSIDE = "O"


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
        text: the sentence as written, where it is not just the words joined by spaces.
        text_b: the second sentence of a pair.
        facts: what else the files say of it: name → value, such as MTOP's domain or MNLI's genre. Parts of a dataset
            and statements are made of them; no model sees them, so they are no part of what the example is.
    """

    id: str
    language: str
    tokens: tuple[str, ...]
    label: str | None
    tags: tuple[str, ...] | None = None
    text: str | None = None
    text_b: str | None = None
    facts: Mapping[str, str] | None = field(default=None, compare=False)

    @property
    def tokens_b(self) -> tuple[str, ...]:
        """The words of the second sentence; none where there is one sentence."""
        return () if self.text_b is None else tuple(self.text_b.split())


def fingerprint(examples: Iterable[Example]) -> str:
    """Return the SHA-256 (hex) of the examples' content, in order: one changed character changes it."""
    digest = hashlib.sha256()
    for e in examples:
        row = [e.id, e.language, list(e.tokens), e.label, None if e.tags is None else list(e.tags), e.text, e.text_b]
        digest.update(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())
        digest.update(b"\n")
    return digest.hexdigest()


def same_sentence(example: Example) -> tuple[str, ...]:
    """Return what two examples have in common that are the same sentence: words alike but for case."""
    second = () if example.text_b is None else ("\n", *example.tokens_b)
    return tuple(map(str.casefold, (*example.tokens, *second)))


@dataclass(frozen=True)
class Dataset:
    """Labelled examples in several languages; knows its task and its label sets.

    Label sets come from the training splits of all its languages alone, sorted by name, so that ids depend neither on
    the order of languages nor on what dev or test hold; or they are known beforehand, where the task says so. ``tags``
    starts with ``O`` where tags are spans; it is empty where no example has tags.

    Attributes:
        name: name in conf (``mini``, ``mtop``, …).
        task: what is predicted (docs/glossary.md).
        languages: keys, in the order of the config: languages, or the keys of a composite dataset.
        splits: (language, split) → examples.
        notes: counts that a manifest must tell, for example ``{"skipped": {"de/train": 2}}``.
        whole: the dataset that its buckets were drawn from; None without buckets. Label sets, and all else that must be
            equal in all buckets (vocabularies, what names an untrained encoder), come from it: see `origin`.
        part_of: key → the entry of ``dataset.parts`` that it comes from; empty for a dataset that is not composite.
    """

    name: str
    task: Task
    languages: tuple[str, ...]
    splits: Mapping[tuple[str, str], tuple[Example, ...]]
    notes: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: Dataset | None = None
    part_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def origin(self) -> Dataset:
        """The dataset itself, or the one that its buckets were drawn from."""
        return self if self.whole is None else self.whole

    def split(self, language: str, split: str) -> tuple[Example, ...]:
        """Return the examples of one language and split."""
        return self.splits[language, split]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names: those seen in training, sorted, or those of the task."""
        if self.task.classes:
            return self.task.classes
        if self.whole is not None:
            return self.whole.labels
        seen = {e.label for language in self.languages for e in self.splits[language, "train"]}
        return tuple(sorted(label for label in seen if label is not None))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags seen in training, sorted, ``O`` first where they are spans; empty where the dataset has no tags."""
        if self.whole is not None:
            return self.whole.tags
        seen = {t for language in self.languages for e in self.splits[language, "train"] for t in e.tags or ()}
        if not self.task.tag_spans:
            return tuple(sorted(seen))
        return (OUTSIDE, *sorted(seen - {OUTSIDE})) if seen else ()

    def unseen(self, example: Example) -> bool:
        """Whether training never had the example's label, or one of its tags."""
        return (example.label is not None and example.label not in self._known[0]) or any(
            tag not in self._known[1] for tag in example.tags or ()
        )

    @cached_property
    def _known(self) -> tuple[frozenset[str], frozenset[str]]:
        return frozenset(self.labels), frozenset(self.tags)

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
