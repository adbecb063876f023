"""Check and clean values of rows, for all readers: tags of spans, missing labels, IDs, lines with column names.

`read_source` applies these functions to the rows of every reader. Each changed or skipped value is counted in a note
(`xclrun.data.notes.NOTES`); values that no rule covers are errors of their row (`BadRow`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any

from xclrun.core.task import TOKEN_TAGS, Task
from xclrun.data.example import OUTSIDE, Example

# Values of a label that mean "no label", in data with fixed labels.
NO_LABEL = frozenset(("", "-", "-1", "_", "?", "null", "NULL", "None", "none", "nan", "NaN", "N/A"))
# Values of a word's tag that often mean "no tag".
NO_TAG = frozenset(("_", "-", "-1", "-100", "null", "None", "nan", "NaN"))
# The word of a line that begins a document, in the format of CoNLL-2003.
DOCUMENT = "-DOCSTART-"
# Prefixes of tags of spans → the prefix in BIO: BIOES, BILOU (also called BILUO), BMES, BMEWO.
_PREFIXES = {"B": "B", "I": "I", "S": "B", "U": "B", "W": "B", "E": "I", "L": "I", "M": "I"}
_SPAN = re.compile(rf"([{''.join(_PREFIXES)}])-(\S+)")
# Names of columns in the first line of a file, in lower case.
_COLUMNS = frozenset(
    ("id", "idx", "index", "index_id", "number", "sentence_id", "sent_id", "sentence #", "word", "words", "token",
     "tokens", "form", "text", "text_a", "text_b", "text1", "text2", "sentence", "sentence1", "sentence2", "premise",
     "hypothesis", "utterance", "utt", "review", "content", "title", "description", "label", "labels", "gold_label",
     "gold label", "class", "class index", "category", "sentiment", "intent", "intents", "slot", "slots",
     "slot_labels", "tag", "tags", "ner", "ner_tag", "ner_tags", "pos", "pos_tag", "upos", "xpos", "lemma", "chunk",
     "entity", "target", "domain", "language", "lang", "locale", "split")
)  # fmt: skip


class BadRow(ValueError):
    """A row of a file or of a hub dataset cannot be read. The message gives the reason; `collect` adds the place."""


class Skip(BadRow):
    """A row that readers skip and count, without ``dataset.on_bad_line=skip``.

    Attributes:
        note: the note that counts the row; empty for rows without content, which are not counted.
        sentence: whether the row is a sentence, which has a number in its split (`Place.sentence`).
    """

    def __init__(self, note: str, message: str, sentence: bool = True) -> None:
        super().__init__(message)
        self.note = note
        self.sentence = sentence


def check_tag(tag: str, task: Task) -> None:
    """Raise `BadRow` for a blank tag and, if tags are spans, for a tag that `span_tags` cannot read."""
    if task.tag_spans and tag != OUTSIDE and not _SPAN.fullmatch(tag):
        raise BadRow(f"tag {tag!r} is not O, B-name or I-name{_scheme(tag, task)}")
    if not tag.strip():
        raise BadRow("a tag is blank")


def _scheme(tag: str, task: Task) -> str:
    """Return the likely cause of a tag that is not BIO, for an error line."""
    hint = "; if tags are not spans, set dataset.tags_are=words" if task == TOKEN_TAGS else ""
    if tag in ("0", "o"):
        return f"; {'the digit zero' if tag == '0' else 'a small o'} must be the letter O"
    if tag in NO_TAG:
        return f"; it often means no tag: use O, or remove the sentence{hint}"
    if not tag.strip():
        return hint
    if re.fullmatch(r"\S+-[BIESLU]", tag):
        return f"; put the prefix in front ({tag[-1]}-{tag[:-2]})"
    if re.match(r"[bieslumw]-|[BIESLU]_", tag):
        return f"; write {tag[0].upper()}-{tag[2:]}"
    return f"; tags without B- and I- look like IO: convert them to BIO (B- at the first word of each span){hint}"


@lru_cache(maxsize=100_000)
def _bio(tag: str) -> tuple[str, str]:
    """Return a tag of spans in BIO, and the note that counts the change; tags of other forms are unchanged."""
    match = _SPAN.fullmatch(tag)
    if match is None:
        return tag, ""
    if match[2] == OUTSIDE:
        return OUTSIDE, "typed_outside"
    prefix = _PREFIXES[match[1]]
    return f"{prefix}-{match[2]}", "" if prefix == match[1] else "bioes"


def cleaned(example: Example, task: Task, odd: Counter[str]) -> Example:
    """Return an example whose tags of spans are in BIO, and count changed and missing tags in ``odd``.

    ``B-O`` and ``I-O`` are read as ``O``, which would otherwise be an entity type. A ``-DOCSTART-`` is no sentence.
    """
    if example.tags is None or task.tag is None:
        return example
    if len(example.tokens) == 1 and example.tokens[0].partition(" ")[0] == DOCUMENT:
        raise Skip("", "the beginning of a document", sentence=False)
    if not task.tag_spans:
        # Readers of treebanks count these tags themselves.
        if "unknown_upos" not in odd and (missing := sum(tag in NO_TAG for tag in example.tags)):
            odd["missing_tags"] += missing
        return example
    read = [_bio(tag) for tag in example.tags]
    odd.update(note for _, note in read if note)
    tags = tuple(tag for tag, _ in read)
    return example if tags == example.tags else replace(example, tags=tags)


def whole(value: Any) -> Any:
    """Return a float without a fraction as an integer, which pandas writes so if the column has missing values."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def missing_labels(labels: Collection[str], split_labels: Collection[str]) -> frozenset[str]:
    """Return the labels of a split that mean "no label": ``nan``, and ``-`` and ``-1`` unless they are classes.

    ``-`` is a class next to ``+``. ``-1`` is a class in the labels −1, 0 and 1; a split whose only label is −1 has no
    labels.

    Args:
        labels: the labels of all splits.
        split_labels: the labels of this split.
    """
    missing = {"nan", "NaN"} & set(split_labels)
    if "-" in split_labels and "+" not in labels:
        missing.add("-")
    if "-1" in split_labels:
        rest = set(labels) - {"-1"}
        polarity = bool(rest) and rest <= {"0", "1"}
        if not polarity or (set(split_labels) == {"-1"} and rest == {"0", "1"}):
            missing.add("-1")
    return frozenset(missing)


def unused_id(id: str, seen: dict[str, int]) -> str:
    """Return an ID that no earlier example has: the ID itself, or with a suffix ``~2``, ``~3``, …

    Args:
        seen: ID → number of its last suffix, for all earlier examples; the returned ID is added.
    """
    name = id
    while name in seen:
        seen[id] += 1
        name = f"{id}~{seen[id]}"
    seen[name] = 1
    return name


def below_header(row: Any) -> Any:
    """Return a row without a first line of column names (empty if nothing is left), or None if it has no such line.

    Args:
        row: one line, a list of lines, or a tuple that begins with a list of lines; other rows have no such line.
    """
    if isinstance(row, tuple):
        rest = below_header(row[0]) if isinstance(row[0], list) else None
        return None if rest is None else ((rest, *row[1:]) if rest else ())
    if isinstance(row, list):
        return row[1:] if row and isinstance(row[0], str) and _names_columns(row[0]) else None
    return "" if isinstance(row, str) and _names_columns(row) else None


def _names_columns(line: str) -> bool:
    separator = next((mark for mark in ("\t", ";", ",") if mark in line), None)
    fields = [field.strip().strip('"').lower() for field in line.strip().split(separator)]
    return 2 <= len(fields) == len(set(fields)) and _COLUMNS.issuperset(fields)


def similar(key: str, keys: Iterable[str]) -> str | None:
    """Return the key that a column probably means: it differs in case or in one letter."""
    for known in keys:
        same_case, short = key.lower() == known.lower(), min(len(key), len(known)) < 3
        if same_case or (not short and _one_letter_apart(key.lower(), known.lower())):
            return known
    return None


def _one_letter_apart(first: str, second: str) -> bool:
    """Whether one insertion, deletion, or change of a letter makes two words equal."""
    shorter, longer = sorted((first, second), key=len)
    i = next((i for i, (a, b) in enumerate(zip(shorter, longer, strict=False)) if a != b), len(shorter))
    if len(shorter) == len(longer):
        return shorter[i + 1 :] == longer[i + 1 :]
    return len(longer) == len(shorter) + 1 and shorter[i:] == longer[i + 1 :]
