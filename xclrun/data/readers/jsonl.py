"""A user's own data: JSON Lines files, or a dataset on the Hugging Face hub, read through the ``datasets`` library.

One row per example::

    {"id": "7", "language": "de", "split": "train", "tokens": ["wie", "warm", "wird", "es"],
     "tags": ["O", "O", "O", "O"], "text": "wie warm wird es", "text_b": null, "label": "weather"}

Each row needs ``tokens`` or ``text``; without ``tokens``, ``text`` is split at white space. A row also needs ``label``
if the task has labels, ``tags`` if the task is ``token_tags``, and ``target`` if the task has targets. A row whose
label or target is null, or whose label is ``-`` or −1 without being a class, is skipped and counted. A row without
``id`` is named by split and number. Labels or tags that the task does not predict are ignored, as are other columns; a
note counts them. A column that resembles a missing key is an error. ``facts`` is an object of additional strings, which
can select the examples of a part (``dataset.parts``). If present, ``language`` and ``split`` must match the file name
(``de.train.jsonl``).

Tags may be integers, with their names in ``dataset.tag_names``. The rows of a hub dataset have the same keys
(`xclrun.data.readers.hub`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any
from unicodedata import normalize

from xclrun.config.schema import DatasetConfig
from xclrun.core.task import INTENT_SLOTS, TOKEN_TAGS, Task, task_of
from xclrun.data.example import Example
from xclrun.data.readers import files, hub, reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Splits, check_tags, collect, read_files, shortened
from xclrun.data.readers.files import SPLIT_NAMES
from xclrun.data.readers.rows import field, own_text
from xclrun.data.readers.values import Skip, similar

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.jsonl{packed}" for packed in ("", ".gz") for separator in (".", "/", "-", "_")
)
KEYS = ("id", "language", "split", "tokens", "tags", "text", "text_b", "label", "facts")
TARGET = "target"


@reader("jsonl", LAYOUT, gives=["label", "tags", "target"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    if cfg.hub is None:
        # `datasets` does not report the line of a bad row, and takes a second to import.
        parse = partial(_parse_line, tag_names=cfg.tag_names)
        return read_files(cfg, files.find_files(cfg, LAYOUT), parse, lambda file: map(bytes.strip, files.lines(file)))
    task = task_of(cfg.task, cfg.tags_are.value)
    needs = [("text", "tokens"), *([("label",)] if task.label else []), *([("tags",)] if task.tags_needed else [])]
    needs += [(TARGET,)] if task.target is not None else []
    sources = hub.sources(cfg, [key for key in keys_of(task) if key != "split"], needs)
    return collect(cfg, sources, partial(_parse_hub_row, tag_names=cfg.tag_names))


def keys_of(task: Task) -> tuple[str, ...]:
    """Return the keys that a row can have: `KEYS`, and `TARGET` if the task has targets."""
    return KEYS if task.target is None else (*KEYS, TARGET)


def parse_row(row: Any, language: str, split: str, task: Task = INTENT_SLOTS, name: str = "") -> Example:
    """Return the example of a row; ``name`` is the id of a row without one."""
    if not isinstance(row, dict):
        raise BadRow(f"a row must be an object with the keys {', '.join(keys_of(task))}, not {type(row).__name__}")
    known = _relevant(row, task)
    for key in row:
        if key not in keys_of(task) and (near := similar(key, known)) is not None:
            raise BadRow(f"unknown key '{key}'; did you mean '{near}'?")
    for key, values in (("language", (language,)), ("split", SPLIT_NAMES[split])):
        if row.get(key) not in (None, *values):
            raise BadRow(f"{key} {row[key]!r} in the file of '{values[0]}'")
    text, text_b = field(row, "text", "text", optional=True), field(row, "text", "text_b", optional=True)
    listed = field(row, "words", "tokens", optional=True)
    if listed is None and text is None:
        raise BadRow("neither 'tokens' nor 'text' is given; set one of them")
    tokens = tuple(text.split() if listed is None else listed)
    tags = None if task.tag is None else field(row, "strings", "tags", optional=not task.tags_needed)
    if tags is not None:
        check_tags(tags, tokens, task)
    # NaN, which differs from itself, is what pandas writes for a missing label.
    if task.label is not None and (row.get("label") is None or row["label"] != row["label"]):
        hint = f"; for tags alone set dataset.task={TOKEN_TAGS.name}" if tags is not None else ""
        message = f"'label' is missing, which dataset.task={task.name} predicts{hint}"
        raise Skip("unlabeled", message) if "label" in row else BadRow(message)
    label = None if task.label is None else str(field(row, "name", "label"))
    facts = field(row, "facts", "facts", optional=True)
    tags = None if tags is None else tuple(tags)
    id = field(row, "name", "id", optional=bool(name))
    name, target = name if id is None else str(id), None if task.target is None else _target(row, task)
    return Example(name, language, tokens, label, tags, own_text(text, tokens), text_b, facts, target=target)


def _target(row: dict[str, Any], task: Task) -> Any:
    """Return the target of a row, as the task converts it."""
    assert task.target is not None
    value = row.get(TARGET)
    if value is None or value != value:
        message = f"'{TARGET}' is missing, which dataset.task={task.name} predicts"
        raise Skip("unlabeled", message) if TARGET in row else BadRow(message)
    try:
        return task.target(value)
    except (TypeError, ValueError) as error:
        raise BadRow(f"'{TARGET}' {shortened(repr(value))}: {error}") from None


def _relevant(row: dict[str, Any], task: Task) -> list[str]:
    """Return the keys that a row lacks and that can change its example."""
    used = {"text_b", "facts", "id", *(["label"] if task.label else []), *(["tags"] if task.tag else [])}
    used |= {TARGET} if task.target is not None else set()
    if "tokens" not in row and "text" not in row:
        used |= {"tokens", "text"}
    return [key for key in keys_of(task) if key in used and key not in row]


def _without_blank_id(row: Any) -> Any:
    """Return a row in which an empty id, or NaN, is null."""
    if isinstance(row, dict) and (row.get("id") == "" or row.get("id") != row.get("id")):
        return {**row, "id": None}
    return row


def _with_names(row: Any, task: Task, tag_names: Sequence[str] | None) -> Any:
    """Return a row whose integer tags are replaced by their names (``dataset.tag_names``)."""
    tags = row.get("tags") if isinstance(row, dict) and task.tag is not None else None
    if not isinstance(tags, list) or not any(type(tag) is int for tag in tags):
        return row
    if not tag_names:
        raise BadRow("'tags' are integers; set dataset.tag_names to the names of 0, 1, …, such as [O,B-PER,I-PER]")
    for tag in tags:
        if type(tag) is not int or not 0 <= tag < len(tag_names):
            raise BadRow(f"tag {tag!r}: dataset.tag_names has names for 0 to {len(tag_names) - 1}")
    return {**row, "tags": [tag_names[tag] for tag in tags]}


def _parse_line(line: str, place: Place, tag_names: Sequence[str] | None = None) -> Example:
    row = _with_names(_without_blank_id(files.parse_json(line, "the line")), place.task, tag_names)
    example = parse_row(row, place.language, place.split, place.task, place.sentence_name)
    # Every row has the same columns, so those of the first row are counted.
    if place.sentence == 1 and (ignored := sum(key not in keys_of(place.task) for key in row)):
        place.odd["ignored_columns"] = ignored
    return _compared(example, place)


def _parse_hub_row(row: dict[str, Any], place: Place, tag_names: Sequence[str] | None = None) -> Example:
    row = _with_names(_without_blank_id(row), place.task, tag_names)
    read = {key: value for key, value in row.items() if key != "language"}
    return _compared(parse_row(read, place.language, place.split, place.task, place.name), place)


def _compared(example: Example, place: Place) -> Example:
    """Return the example, and count it if its tokens and its text differ in more than white space."""
    words, text = ("".join(normalize("NFKC", part).split()) for part in ("".join(example.tokens), example.whole))
    if words != text:
        place.odd["text_differs"] += 1
    return example
