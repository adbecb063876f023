"""Find content without information, which models would learn or score without notice.

Treebanks whose license withholds the text have ``_`` as every word. Tables have placeholders such as ``NS`` or ``nan``
as texts. Where blank lines are missing, sentences are many times longer than any real sentence. Labels may differ only
in case, spaces or Unicode normalization. With a single label, every model scores 100.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from unicodedata import normalize

from xclrun.core.errors import UsageError
from xclrun.core.task import Task
from xclrun.core.texts import Reply
from xclrun.data.example import SPLITS, Dataset, Example, Targets

# Words of a sentence with tags; longer sentences are noted.
LONG_SENTENCE = 500
# Training sentences that, with a label each, are no sample: such labels are probably IDs or texts.
SEVERAL = 20
# A word that replaces a withheld word.
_WITHHELD = re.compile(r"_|\[?(?:REDACTED|MASKED|WITHHELD)\]?|<(?:redacted|masked|withheld)>")
# Words that replace withheld words, but are also words, such as a line of asterisks.
_MASK = re.compile(r"[\x00-/:-@\[-`{-\x7f█■\u200b-\u200f\u2060\ufeff\ufffd]*|[Xx]{2,}")
# Texts of one word that replace a missing text. ``NS``: PAWS-X, "no sentence".
_PLACEHOLDERS = frozenset(
    ("NS", "N/A", "n/a", "#N/A", "NA", "NaN", "nan", "null", "NULL", "None", "NONE", "#NAME?", "#REF!", "#VALUE!",
     "[deleted]", "[removed]")
)  # fmt: skip


def content_notes(dataset: Dataset) -> dict[str, dict[str, int]]:
    """Return counts for `Dataset.notes`: name → ``language/split`` → count.

    Raises:
        UsageError: if nothing can be learned from a training split, or scored on a test split.
    """
    notes: dict[str, Counter[str]] = {}
    for (language, split), examples in dataset.splits.items():
        task, place = dataset.task_of(language), f"{language}/{split}"
        counts = Counter(note for example in examples for note in _notes_of(example, task))
        _check(dataset, language, split, counts)
        for note, count in counts.items():
            notes.setdefault(note, Counter())[place] = count
    for targets in dataset.targets:
        _add_label_notes(dataset, targets, notes)
    return {name: dict(counts) for name, counts in notes.items()}


def _notes_of(example: Example, task: Task) -> set[str]:
    notes = set()
    # All sentences are compared, so the first word decides in almost all cases.
    if _WITHHELD.fullmatch(example.tokens[0]) and all(map(_WITHHELD.fullmatch, example.tokens)):
        notes.add("withheld")
    first = example.tokens[0] if len(example.tokens) == 1 else ""
    # A choice may be "None".
    target = example.target.references[0] if isinstance(example.target, Reply) and not example.target.choices else ""
    if task.tag is None and not _PLACEHOLDERS.isdisjoint((first, (example.text_b or "").strip(), target.strip())):
        notes.add("placeholders")
    if task.tag is not None and len(example.tokens) > LONG_SENTENCE:
        notes.add("long_sentences")
    return notes


def _masked(example: Example) -> bool:
    # A question tells nothing about a masked text.
    second = [] if example.answers is not None else (example.text_b or "").split()
    return all(map(_MASK.fullmatch, (*example.tokens, *second)))


def _check(dataset: Dataset, language: str, split: str, counts: Counter[str]) -> None:
    """Refuse splits without information."""
    sentences = len(dataset.splits[language, split])
    place = f"dataset={dataset.name}: {language}/{split}"
    rest = "remove the language from dataset.languages"
    if sentences and (counts["withheld"] == sentences or all(map(_masked, dataset.splits[language, split]))):
        raise UsageError(
            f"{place}: all words are placeholders such as _, so the text is probably withheld; add it as the release "
            f"describes, or {rest}"
        )
    if sentences and counts["placeholders"] == sentences:
        raise UsageError(f"{place}: all texts are placeholders such as nan; correct the files, or {rest}")
    if split == "train" and sentences and counts["long_sentences"] == sentences:
        raise UsageError(
            f"{place}: every sentence has more than {LONG_SENTENCE} words; separate sentences by blank lines, or {rest}"
        )


def _add_label_notes(dataset: Dataset, targets: Targets, notes: dict[str, Counter[str]]) -> None:
    """Note labels that differ in their spelling only (`_spelling`), a single label, and a label for each sentence."""
    for language in targets.keys:
        for split in SPLITS:
            examples = dataset.splits[language, split]
            count = _respelled(targets.labels, {e.label for e in examples if e.label}, split == "train")
            count += _respelled(targets.tags, {tag for e in examples for tag in e.tags or ()}, split == "train")
            if count:
                notes.setdefault("equal_labels", Counter())[f"{language}/{split}"] = count
    if len(targets.labels or targets.tags) == 1:
        notes.setdefault("one_label", Counter())[f"{targets.keys[0]}/train"] = 1
    given = [e.label for language in targets.keys for e in dataset.splits[language, "train"] if e.label]
    if len(given) >= SEVERAL and len(set(given)) == len(given):
        notes.setdefault("labels_used_once", Counter())[f"{targets.keys[0]}/train"] = len(given)


def _respelled(names: Sequence[str], used: Collection[str], train: bool) -> int:
    """Count the used names that differ from one of ``names`` in their spelling only; outside of train, unseen names."""
    spellings: dict[str, set[str]] = {}
    for name in names:
        spellings.setdefault(_spelling(name), set()).add(name)
    return sum(bool(spellings.get(_spelling(name), set()) - {name}) for name in used if train or name not in names)


def _spelling(name: str) -> str:
    """Return a name without differences in case, white space and Unicode normalization."""
    return " ".join(normalize("NFKC", name).casefold().split())
