"""What a dataset is made of: examples of a task in several languages, with train, dev and test splits.

Everything here is plain data, without torch: plans, fingerprints and audits need no model.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

SPLITS = ("train", "dev", "test")
OUTSIDE = "O"


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled sentence.

    Attributes:
        id: unique within (language, split); stable between runs, so that resamples can be paired.
        language: key of the part of the dataset it belongs to (glossary: *language*).
        tokens: the words, in order; never empty.
        label: intent or class name.
        tags: one BIO tag per word (``O``, ``B-location``, ``I-location``), or None where the dataset has none.
        text: the sentence as written, where it is not just the words joined by spaces.
        text_b: the second sentence of a pair.
    """

    id: str
    language: str
    tokens: tuple[str, ...]
    label: str
    tags: tuple[str, ...] | None = None
    text: str | None = None
    text_b: str | None = None


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
    second = () if example.text_b is None else ("\n", *example.text_b.split())
    return tuple(token.casefold() for token in (*example.tokens, *second))


@dataclass(frozen=True)
class Dataset:
    """Labelled examples in several languages; knows its task and its label sets.

    Label sets come from the training splits of all its languages alone, sorted by name, so that ids depend neither on
    the order of languages nor on what dev or test hold. ``tags`` starts with ``O``; it is empty where no example has
    tags.

    Attributes:
        name: name in conf (``mini``, ``mtop``, …).
        task: ``intent_slots`` (glossary: *task*).
        languages: keys, in the order of the config.
        splits: (language, split) → examples.
        notes: counts that a manifest must tell, for example ``{"skipped": {"de/train": 2}}``.
        whole: the dataset that its buckets were drawn from; None without buckets. Label sets, and all else that must be
            equal in all buckets (vocabularies, what names an untrained encoder), come from it: see `origin`.
    """

    name: str
    task: str
    languages: tuple[str, ...]
    splits: Mapping[tuple[str, str], tuple[Example, ...]]
    notes: dict[str, dict[str, int]] = field(default_factory=dict)
    whole: Dataset | None = None

    @property
    def origin(self) -> Dataset:
        """The dataset itself, or the one that its buckets were drawn from."""
        return self if self.whole is None else self.whole

    def split(self, language: str, split: str) -> tuple[Example, ...]:
        """Return the examples of one language and split."""
        return self.splits[language, split]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Class names seen in training, sorted."""
        if self.whole is not None:
            return self.whole.labels
        return tuple(sorted({e.label for language in self.languages for e in self.splits[language, "train"]}))

    @cached_property
    def tags(self) -> tuple[str, ...]:
        """Tags seen in training: ``O`` first, then sorted; empty where the dataset has no tags."""
        if self.whole is not None:
            return self.whole.tags
        seen = {t for language in self.languages for e in self.splits[language, "train"] for t in e.tags or ()}
        return (OUTSIDE, *sorted(seen - {OUTSIDE})) if seen else ()

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
        labels, tags = set(self.labels), set(self.tags)
        counts = {}
        for (language, split), examples in self.splits.items():
            if split != "train":
                n = sum(e.label not in labels or any(t not in tags for t in e.tags or ()) for e in examples)
                if n:
                    counts[f"{language}/{split}"] = n
        return counts

    def sizes(self, split: str = "train") -> dict[str, int]:
        """Return language → number of examples in ``split``."""
        return {language: len(self.splits[language, split]) for language in self.languages}
