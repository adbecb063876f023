"""A user's own data: JSON Lines files, or a dataset on the Hugging Face hub, read through the ``datasets`` library.

One row per example::

    {"id": "7", "language": "de", "split": "train", "tokens": ["wie", "warm", "wird", "es"],
     "tags": ["O", "O", "O", "O"], "text": "wie warm wird es", "text_b": null, "label": "weather"}

Each row needs ``tokens`` or ``text``; without ``tokens``, ``text`` is split at white space. A row also needs ``label``
if the task has labels, ``tags`` if the task is ``token_tags``, and, in a file, ``id``. Labels or tags that the task
does not predict are ignored. ``facts`` is an object of additional strings, which can select the examples of a part
(``dataset.parts``). If present, ``language`` and ``split`` must match the file name (``de.train.jsonl``).

The rows of a hub dataset have the same keys (`xclrun.data.readers.hub`).
"""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import INTENT_SLOTS, TOKEN_TAGS, Task, task_of
from xclrun.data.example import Example
from xclrun.data.readers import files, hub, reader
from xclrun.data.readers.files import SPLIT_NAMES, BadRow, Notes, Place, Splits
from xclrun.data.readers.rows import field, own_text

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.jsonl{packed}" for packed in ("", ".gz") for separator in (".", "/", "-", "_")
)
KEYS = ("id", "language", "split", "tokens", "tags", "text", "text_b", "label", "facts")


@reader("jsonl", LAYOUT)
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    if cfg.hub is None:
        # `datasets` does not report the line of a bad row, and takes a second to import.
        return files.read_files(
            cfg, files.find_files(cfg, LAYOUT), _parse_line, lambda file: map(bytes.strip, files.lines(file))
        )
    if cfg.root is not None:
        raise UsageError(f"dataset.root={cfg.root} and dataset.hub={cfg.hub}: set one of them, and the other to null")
    task = task_of(cfg.task, cfg.tags_are.value)
    needs = [("text", "tokens"), *([("label",)] if task.label else []), *([("tags",)] if task.tags_needed else [])]
    return files.collect(cfg, hub.sources(cfg, [key for key in KEYS if key != "split"], needs), _parse_hub_row)


def parse_row(row: Any, language: str, split: str, task: Task = INTENT_SLOTS) -> Example:
    if not isinstance(row, dict):
        raise BadRow(f"a row must be an object with the keys {', '.join(KEYS)}, not {type(row).__name__}")
    for key in row:
        if key not in KEYS:
            raise BadRow(f"unknown key '{key}'; {did_you_mean(key, KEYS)}")
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
        files.check_tags(tags, tokens, task)
    if task.label is not None and row.get("label") is None:
        hint = f"; for tags alone set dataset.task={TOKEN_TAGS.name}" if tags is not None else ""
        raise BadRow(f"'label' is missing, which dataset.task={task.name} predicts{hint}")
    label = None if task.label is None else str(field(row, "name", "label"))
    facts = field(row, "facts", "facts", optional=True)
    tags = None if tags is None else tuple(tags)
    return Example(str(field(row, "name", "id")), language, tokens, label, tags, own_text(text, tokens), text_b, facts)


def _parse_line(line: str, place: Place) -> Example:
    return _compared(parse_row(files.parse_json(line, "the line"), place.language, place.split, place.task), place)


def _parse_hub_row(row: dict[str, Any], place: Place) -> Example:
    read = {key: value for key, value in row.items() if key != "language"}
    return _compared(parse_row({"id": place.name, **read}, place.language, place.split, place.task), place)


def _compared(example: Example, place: Place) -> Example:
    """Return the example, and count it if its tokens and its text differ in more than white space."""
    words, text = ("".join(normalize("NFKC", part).split()) for part in ("".join(example.tokens), example.whole))
    if words != text:
        place.odd["text_differs"] += 1
    return example
