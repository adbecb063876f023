"""A user's own data: JSON Lines files, or a dataset on the Hugging Face hub, read through the ``datasets`` library.

One row per example::

    {"id": "7", "language": "de", "split": "train", "tokens": ["wie", "warm", "wird", "es"],
     "tags": ["O", "O", "O", "O"], "text": "wie warm wird es", "text_b": null, "label": "weather"}

Each row needs ``tokens`` or ``text``; without ``tokens``, ``text`` is split at white space. A row also needs ``label``
if the task has labels, ``tags`` if the task is ``token_tags``, and, in a file, ``id``. Labels or tags that the task
does not predict are ignored. ``facts`` is an object of additional strings, which can select the examples of a part
(``dataset.parts``). If present, ``language`` and ``split`` must match the file name (``de.train.jsonl``).

A hub dataset has one config per language, or a column ``language``. ``dataset.hub_columns`` maps columns with other
names to the keys above; all other columns are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unicodedata import normalize

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.task import INTENT_SLOTS, TOKEN_TAGS, Task
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import files, reader
from xclrun.data.readers.files import SPLIT_NAMES, BadRow, Notes, Place, Source, Splits, choose_languages
from xclrun.data.readers.rows import field, own_text

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.jsonl{packed}" for packed in ("", ".gz") for separator in (".", "/", "-", "_")
)
KEYS = ("id", "language", "split", "tokens", "tags", "text", "text_b", "label", "facts")
Rows = dict[str, list[dict[str, Any]]]


@reader("jsonl", LAYOUT)
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    if cfg.hub is None:
        # `datasets` does not report the line of a bad row, and takes a second to import.
        return files.read_files(
            cfg, files.find_files(cfg, LAYOUT), _parse_line, lambda file: map(bytes.strip, files.lines(file))
        )
    if cfg.root is not None:
        raise UsageError(f"dataset.root={cfg.root} and dataset.hub={cfg.hub}: set one of them, and the other to null")
    return files.collect(cfg, _hub_sources(cfg), _parse_hub_row)


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
    read = {key: value for key, value in row.items() if key in KEYS and key not in ("language", "split")}
    return _compared(parse_row({"id": place.name, **read}, place.language, place.split, place.task), place)


def _compared(example: Example, place: Place) -> Example:
    """Return the example, and count it if its tokens and its text differ in more than white space."""
    words, text = ("".join(normalize("NFKC", part).split()) for part in ("".join(example.tokens), example.whole))
    if words != text:
        place.odd["text_differs"] += 1
    return example


def _hub_sources(cfg: DatasetConfig) -> Iterator[Source]:
    """Yield the splits of a hub dataset: one config per language, or one config with a column ``language``."""
    with _quiet():
        configs = [cfg.hub_config] if cfg.hub_config else _hub(cfg, "get_dataset_config_names")
        if len(configs) > 1:
            chosen = choose_languages(cfg.languages, configs, f"the configs of {cfg.hub}")
            per_language = {language: _hub_splits(cfg, language) for language in chosen}
        else:
            per_language = _by_language(cfg, _hub_splits(cfg, configs[0]))
    for language, splits in per_language.items():
        for split, rows in splits.items():
            yield Source(language, split, f"dataset.hub={cfg.hub} {language} {split}", rows)


def _hub_splits(cfg: DatasetConfig, config: str) -> Rows:
    published = _hub(cfg, "load_dataset", config)
    for key in cfg.hub_columns or {}:
        if key not in KEYS:
            raise UsageError(f"dataset.hub_columns: unknown key '{key}'; {did_you_mean(key, KEYS)}")
    splits = {}
    for split in SPLITS:
        name = next((name for name in SPLIT_NAMES[split] if name in published), None)
        if name is None:
            raise UsageError(f"dataset.hub={cfg.hub} {config}: no {split} split; it has {', '.join(published)}")
        table = published[name]
        for key, column in (cfg.hub_columns or {}).items():
            if column not in table.column_names:
                names = did_you_mean(column, table.column_names)
                raise UsageError(f"dataset.hub_columns: {cfg.hub} {config} has no column '{column}'; {names}")
            if key != column:
                # The mapped column replaces one that already has this name.
                table = table.remove_columns([key]) if key in table.column_names else table
                table = table.rename_column(column, key)
        splits[split] = _rows(table)
    return splits


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a split, with the names of classes and tags in place of their ids; −1 means no label."""
    rows = list(table)
    if names := getattr(table.features.get("label"), "names", None):
        for row in rows:
            row["label"] = None if row["label"] in (None, -1) else names[row["label"]]
    tags = table.features.get("tags")
    if names := getattr(getattr(tags, "feature", None), "names", None):
        for row in rows:
            row["tags"] = None if row["tags"] is None else [names[tag] for tag in row["tags"]]
    return rows


def _by_language(cfg: DatasetConfig, splits: Rows) -> dict[str, Rows]:
    """Return language → split → rows, by the rows' column ``language``."""
    languages = {row.get("language") for rows in splits.values() for row in rows}
    if not all(isinstance(language, str) for language in languages):
        raise UsageError(
            f"dataset.hub={cfg.hub}: needs one config per language, or a column 'language' with a key in every row; "
            "or set dataset.root to a local folder"
        )
    chosen = choose_languages(cfg.languages, set(map(str, languages)), f"the column 'language' of {cfg.hub}")
    return {
        language: {split: [row for row in rows if row["language"] == language] for split, rows in splits.items()}
        for language in chosen
    }


def _hub(cfg: DatasetConfig, function: str, *arguments: str) -> Any:
    """Call a function of ``datasets`` on the hub dataset; its errors become one line."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    local = "set dataset.root to a local folder"
    try:
        return getattr(datasets, function)(cfg.hub, *arguments)
    except DatasetNotFoundError:
        raise UsageError(f"dataset.hub={cfg.hub}: the hub has no such dataset, or it needs a login; {local}") from None
    except ConnectionError:
        raise UsageError(f"dataset.hub={cfg.hub}: the hub cannot be reached; {local}") from None
    except (OSError, ValueError, DatasetsError) as error:
        raise UsageError(f"dataset.hub={cfg.hub}: {' '.join(str(error).split())}; or {local}") from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the library's progress bars and retry notices, and restore its settings afterwards."""
    import datasets

    had_bars = not datasets.are_progress_bars_disabled()
    hub_log = logging.getLogger("huggingface_hub")
    level = hub_log.level
    datasets.disable_progress_bars()
    hub_log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        hub_log.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()
