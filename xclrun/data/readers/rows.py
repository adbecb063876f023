"""Building blocks for parsers of rows: typed fields, columns, texts, and sentences of tagged words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from xclrun.data.example import Answer, Example
from xclrun.data.readers.collect import BadRow, Place, shortened
from xclrun.data.readers.files import parse_json
from xclrun.data.readers.values import NO_LABEL, Skip, check_tag, whole

# A comment of CoNLL-U: ``# sent_id = 7``.
COMMENT = re.compile(r"#([^=]*)=?(.*)")

# Numbers of multi-word tokens and of empty nodes in CoNLL-U.
NO_WORD = re.compile(r"\d+[-.]\d+")

# Type of a field → its description for errors, and the check of a value.
TYPES: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "string": ("a string", lambda v: isinstance(v, str)),
    "text": ("a string that is not blank", lambda v: isinstance(v, str) and bool(v.strip())),
    "name": ("a string that is not blank, or an integer", lambda v: type(v) in (str, int) and bool(str(v).strip())),
    "boolean": ("true or false", lambda v: isinstance(v, bool)),
    "integer": ("an integer", lambda v: type(v) is int),
    "object": ("an object", lambda v: isinstance(v, dict)),
    "strings": ("a list of strings", lambda v: isinstance(v, list) and all(isinstance(item, str) for item in v)),
    "words": (
        "a list of strings that are not blank",
        lambda v: isinstance(v, list) and bool(v) and all(isinstance(item, str) and item.strip() for item in v),
    ),
    "objects": ("a list of objects", lambda v: isinstance(v, list) and all(isinstance(item, dict) for item in v)),
    "facts": (
        "an object of strings",
        lambda v: isinstance(v, dict) and all(isinstance(item, str) for item in v.values()),
    ),
}


def field(row: Mapping[str, Any], kind: str, *keys: str, optional: bool = False) -> Any:
    """Return the value under the first of ``keys`` in a row; None for an optional value that is missing or null.

    Args:
        kind: the type of the value (`TYPES`); missing values and other types raise `BadRow`.
    """
    value = next((row[key] for key in keys if key in row), None)
    if value is None:
        if optional:
            return None
        raise BadRow(f"'{keys[0]}' is missing")
    if kind == "name":
        value = whole(value)
    description, valid = TYPES[kind]
    if not valid(value):
        raise BadRow(f"'{keys[0]}' must be {description}, not {shortened(repr(value))}")
    return value


def json_row(line: str) -> dict[str, Any]:
    row = parse_json(line, "the line")
    if not isinstance(row, dict):
        raise BadRow(f"a row must be an object, not {type(row).__name__}")
    return row


def columns(fields: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a line, stripped; the line must have as many columns as ``names``."""
    if len(fields) != len(names):
        raise BadRow(f"{len(fields)} tab-separated columns instead of {len(names)}: {', '.join(names)}")
    return [field.strip() for field in fields]


def one_of(label: str, labels: Collection[str]) -> str:
    """Return a label if it is in a fixed set; a row without a label (``-``, ``-1``, null) is skipped."""
    if label not in labels:
        if label in NO_LABEL:
            raise Skip("unlabeled", "the label is missing")
        raise BadRow(f"unknown label {label!r}; use {', '.join(labels)}")
    return label


def own_text(text: str | None, words: Sequence[str]) -> str | None:
    """Return `Example.text`: the text, or None if it equals the words joined by spaces."""
    return None if not text or text == " ".join(words) else text


def text_example(
    place: Place,
    id: object,
    text: str,
    label: str | None = None,
    text_b: str | None = None,
    facts: Mapping[str, str] | None = None,
    answers: tuple[Answer, ...] | None = None,
) -> Example:
    """Return the example of a text or a pair, split into words at spaces; ``place.name`` replaces a missing id."""
    words = tuple(text.split())
    if not words or (text_b is not None and not text_b.strip()):
        raise place.defect("blank_texts", "the text is blank")
    name = place.name if id is None else str(id)
    return Example(name, place.language, words, label, None, own_text(text, words), text_b, facts, answers)


def tagged(
    block: Sequence[str],
    place: Place,
    word: Callable[[str], tuple[str, str] | None],
    comment: re.Pattern[str] | None = None,
    facts: dict[str, str] | None = None,
    numbered: bool = False,
) -> Example:
    """Return the example of a block of lines with one word and its tag per line.

    Args:
        word: line → word and tag, or None to skip the line.
        comment: pattern of comment lines (``# name = value``), whose two groups are the name and value of a fact. None:
            lines that begin with ``#`` are parsed as words.
        facts: filled with the facts of the comments. If present, ``sent_id`` becomes the example's id, and ``text`` its
            text.
        numbered: name sentences without an id by their number instead of their first line.
    """
    facts = {} if facts is None else facts
    words: list[str] = []
    tags: list[str] = []
    for place.below, line in enumerate(block):
        if comment is not None and line.startswith("#"):
            if (match := comment.match(line)) is not None:
                facts.setdefault(match[1].strip(), match[2].strip())
        elif (pair := word(line)) is not None:
            form, tag = pair
            if not form.strip():
                if "blank_words" not in place.defects:
                    raise BadRow("the word is blank")
                place.odd["blank_words"] += 1
                continue
            check_tag(tag, place.task)
            words.append(form)
            tags.append(tag)
    place.below = 0
    if not words:
        if comment is not None and all(line.startswith("#") for line in block):
            # Comments on the file, or comments that a blank line separates from their sentence.
            note = "no_words" if {"sent_id", "id", "text"} & facts.keys() else ""
            raise Skip(note, "a block of comments", sentence=False)
        raise place.defect("no_words", "a sentence without words")
    name = facts.get("sent_id") or (place.sentence_name if numbered else place.name)
    return Example(name, place.language, tuple(words), None, tuple(tags), own_text(facts.get("text"), words))
