"""What parsers of rows share: objects in JSON, columns between tabs, texts, and sentences of tagged words."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from xclrun.data.example import Answer, Example
from xclrun.data.readers.files import BadRow, Place, check_tag, parse_json

# A comment of CoNLL-U: ``# sent_id = 7``.
COMMENT = re.compile(r"#([^=]*)=?(.*)")


def json_row(line: str) -> dict[str, Any]:
    """Return the object that a line of JSON says."""
    row = parse_json(line, "the line")
    if not isinstance(row, dict):
        raise BadRow(f"an example is an object, not {type(row).__name__}")
    return row


def strings(row: Mapping[str, Any], *keys: str) -> list[str]:
    """Return the values of keys that must be strings; they may be blank."""
    for key in keys:
        if not isinstance(row.get(key), str):
            raise BadRow(f"'{key}' must be a string, not {row.get(key)!r}")
    return [row[key] for key in keys]


def strings_of(row: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    """Return the list of strings under a key of a row, or None without the key; anything else is a `BadRow`."""
    value = row.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise BadRow(f"'{key}' must be a list of strings")
    return tuple(value)


def columns(fields: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the columns of a line without blanks around them; ``names`` says which are needed."""
    if len(fields) != len(names):
        raise BadRow(f"{len(fields)} columns between tabs instead of {', '.join(names)}")
    return [field.strip() for field in fields]


def one_of(label: str, labels: Collection[str]) -> str:
    """Return a label of a fixed set."""
    if label not in labels:
        raise BadRow(f"label {label!r} is none of {', '.join(labels)}")
    return label


def own_text(text: str | None, words: Sequence[str]) -> str | None:
    """Return `Example.text`: a text, or None if it is just the words joined by spaces."""
    return None if not text or text == " ".join(words) else text


def text_example(
    place: Place,
    name: object,
    text: str,
    label: str | None = None,
    text_b: str | None = None,
    facts: Mapping[str, str] | None = None,
    answers: tuple[Answer, ...] | None = None,
) -> Example:
    """Return the example of a text or a pair, whose words are what stands between spaces; None: no id in the data."""
    words = tuple(text.split())
    if not words or (text_b is not None and not text_b.strip()):
        raise BadRow("the text is blank")
    own = place.name if name is None else str(name)
    return Example(own, place.language, words, label, None, own_text(text, words), text_b, facts, answers)


def tagged(
    block: Sequence[str],
    place: Place,
    word: Callable[[str], tuple[str, str] | None],
    comment: re.Pattern[str] | None = None,
    facts: dict[str, str] | None = None,
) -> Example:
    """Return the example of a block of lines with a word and its tag in each.

    Args:
        word: line → word and tag, or None for a line silently.
        comment: of a line that begins with ``#``: a fact's name and value; None: such lines are words too.
        facts: facts that ``word`` reads. The id is ``sent_id``, if any, and the text is ``text``.

    Raises:
        BadRow: a word is blank; the tags are not BIO if they are spans; the sentence has no words.
    """
    facts = {} if facts is None else facts
    words: list[str] = []
    tags: list[str] = []
    for place.below, line in enumerate(block):
        if comment is not None and line.startswith("#"):
            if (match := comment.match(line)) is not None:
                facts.setdefault(match[1].strip(), match[2].strip())
        elif (found := word(line)) is not None:
            form, tag = found
            if not form.strip():
                raise BadRow("the word is blank")
            check_tag(tag, place.task)
            words.append(form)
            tags.append(tag)
    place.below = 0
    if not words:
        raise BadRow("a sentence without words")
    name = facts.get("sent_id") or place.name
    return Example(name, place.language, tuple(words), None, tuple(tags), own_text(facts.get("text"), words))
