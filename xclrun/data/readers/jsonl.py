"""A user's own data: JSON Lines files, or a dataset on the Hugging Face hub, read through the ``datasets`` library.

One row per example::

    {"id": "7", "language": "de", "split": "train", "tokens": ["wie", "warm", "wird", "es"],
     "tags": ["O", "O", "O", "O"], "text": "wie warm wird es", "text_b": null, "label": "weather"}

``facts``, where given, is an object of further strings, by which a dataset can be cut into parts (``dataset.parts``);
``label`` is needed where the task has labels, ``tags`` if it is one of tags, and ``tokens`` or ``text`` (then the
tokens are its words between spaces); files also need ``id``. What the task does not predict is not read. ``language``
and ``split``, where given, must be those of the file. A hub dataset has one config per language, or a column
``language``; columns beyond these are not read, and ``dataset.hub_columns`` tells those that have other names.
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
from xclrun.data.readers import reader
from xclrun.data.readers.files import (
    SPLIT_NAMES,
    BadRow,
    Notes,
    Place,
    Source,
    SplitFile,
    Splits,
    check_tags,
    choose_languages,
    collect,
    find_files,
    lines,
    parse_json,
    read_files,
)
from xclrun.data.readers.rows import own_text, strings_of

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.jsonl{packed}" for packed in ("", ".gz") for separator in (".", "/", "-", "_")
)
KEYS = ("id", "language", "split", "tokens", "tags", "text", "text_b", "label", "facts")


@reader("jsonl", LAYOUT)
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language from ``dataset.root`` or ``dataset.hub``."""
    if cfg.hub is None:
        return read_files(cfg, find_files(cfg, LAYOUT), _parse_line, _lines)
    if cfg.root is not None:
        raise UsageError(f"dataset.root={cfg.root} and dataset.hub={cfg.hub}: give one of them, and null for the other")
    return collect(cfg, _hub_sources(cfg), _parse_hub_row)


def parse_row(row: Any, language: str, split: str, task: Task = INTENT_SLOTS) -> Example:
    """Return the example that a row describes."""
    if not isinstance(row, dict):
        raise BadRow(f"a row is an object with the keys {', '.join(KEYS)}, not {type(row).__name__}")
    for key in row:
        if key not in KEYS:
            raise BadRow(f"unknown key '{key}'; {did_you_mean(key, KEYS)}")
    if row.get("language") not in (None, language):
        raise BadRow(f"language {row['language']!r} in the file of '{language}'")
    if row.get("split") not in (None, *SPLIT_NAMES[split]):
        raise BadRow(f"split {row['split']!r} in the file of {split}")
    text, text_b = _text(row, "text"), _text(row, "text_b")
    tokens = strings_of(row, "tokens")
    if tokens is None:
        if text is None:
            raise BadRow("neither 'tokens' nor 'text' is given")
        tokens = tuple(text.split())
    if not tokens:
        raise BadRow("empty sentence: no tokens")
    if not all(token.strip() for token in tokens):
        raise BadRow("a token is blank")
    tags = None if task.tag is None else strings_of(row, "tags")
    if tags is not None:
        check_tags(tags, tokens, task)
    elif task.tags_needed:
        raise BadRow("'tags' is missing")
    if task.label is not None and row.get("label") is None:
        hint = f"; for tags alone set dataset.task={TOKEN_TAGS.name}" if tags is not None else ""
        raise BadRow(f"'label' is missing, which dataset.task={task.name} predicts{hint}")
    label = None if task.label is None else _name(row, "label")
    facts = row.get("facts")
    if facts is not None and not (isinstance(facts, dict) and all(isinstance(item, str) for item in facts.values())):
        raise BadRow(f"'facts' must be an object of strings, not {facts!r}")
    return Example(_name(row, "id"), language, tokens, label, tags, own_text(text, tokens), text_b, facts)


def _name(row: dict[str, Any], key: str) -> str:
    """Return an id or a label; whole numbers are names too."""
    value = row.get(key)
    if value is None:
        raise BadRow(f"'{key}' is missing")
    if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
        raise BadRow(f"'{key}' must be a string that is not blank, or a whole number, not {value!r}")
    return str(value)


def _text(row: dict[str, Any], key: str) -> str | None:
    value = row.get(key)
    if value is not None and (not isinstance(value, str) or not value.strip()):
        raise BadRow(f"'{key}' must be a string that is not blank, not {value!r}")
    return value


def _parse_line(line: str, place: Place) -> Example:
    return _noted(parse_row(parse_json(line, "the line"), place.language, place.split, place.task), place)


def _parse_hub_row(row: dict[str, Any], place: Place) -> Example:
    known = {key: value for key, value in row.items() if key in KEYS and key not in ("language", "split")}
    return _noted(parse_row({"id": place.name, **known}, place.language, place.split, place.task), place)


def _noted(example: Example, place: Place) -> Example:
    """Return the example; counts it where tokens and text differ in more than blanks."""
    words, text = ("".join(normalize("NFKC", part).split()) for part in ("".join(example.tokens), example.whole))
    if words != text:
        place.odd["text_differs"] += 1
    return example


def _lines(file: SplitFile) -> Iterator[bytes]:
    """Return the lines of a file. ``datasets`` would not name the line of a bad row, and takes a second to import."""
    return map(bytes.strip, lines(file))


def _hub_sources(cfg: DatasetConfig) -> Iterator[Source[dict[str, Any]]]:
    """Yield the splits of a hub dataset: one config per language, or one config with a column ``language``."""
    with _quiet():
        configs = [cfg.hub_config] if cfg.hub_config else _hub(cfg, "get_dataset_config_names")
        if len(configs) > 1:
            per_language = {
                language: _hub_splits(cfg, language)
                for language in choose_languages(cfg.languages, configs, f"the configs of {cfg.hub}")
            }
        else:
            per_language = _by_language(cfg, _hub_splits(cfg, configs[0]))
    for language, splits in per_language.items():
        for split, rows in splits.items():
            yield Source(language, split, f"dataset.hub={cfg.hub} {language} {split}", rows)


def _hub_splits(cfg: DatasetConfig, config: str) -> dict[str, list[dict[str, Any]]]:
    """Return split → rows of one config."""
    published = _hub(cfg, "load_dataset", config)
    renamed = {theirs: ours for ours, theirs in (cfg.hub_columns or {}).items()}
    for ours in renamed.values():
        if ours not in KEYS:
            raise UsageError(f"dataset.hub_columns: unknown key '{ours}'; {did_you_mean(ours, KEYS)}")
    splits = {}
    for split in SPLITS:
        name = next((name for name in SPLIT_NAMES[split] if name in published), None)
        if name is None:
            raise UsageError(f"dataset.hub={cfg.hub} {config}: no {split} split; it has {', '.join(published)}")
        table = published[name]
        for theirs, ours in renamed.items():
            if theirs not in table.column_names:
                known = did_you_mean(theirs, table.column_names)
                raise UsageError(f"dataset.hub_columns: {cfg.hub} {config} has no column '{theirs}'; {known}")
            # What had our name gives way to the column that is asked for.
            table = table.remove_columns([ours]) if ours in table.column_names and ours != theirs else table
            table = table.rename_column(theirs, ours) if ours != theirs else table
        splits[split] = _rows(table)
    return splits


def _rows(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a split, ids of classes and tags as the names that the hub gives them; −1 is no label."""
    rows = list(table)
    if names := getattr(table.features.get("label"), "names", None):
        for row in rows:
            row["label"] = None if row["label"] in (None, -1) else names[row["label"]]
    tags = table.features.get("tags")
    if names := getattr(getattr(tags, "feature", None), "names", None):
        for row in rows:
            row["tags"] = None if row["tags"] is None else [names[tag] for tag in row["tags"]]
    return rows


def _by_language(
    cfg: DatasetConfig, splits: dict[str, list[dict[str, Any]]]
) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Return language → split → rows, by the rows' column ``language``."""
    known = {row.get("language") for rows in splits.values() for row in rows}
    if not all(isinstance(language, str) for language in known):
        raise UsageError(
            f"dataset.hub={cfg.hub}: needs one config per language, or a column 'language' with a key in every row; "
            "or give a local path with dataset.root=…"
        )
    chosen = choose_languages(
        cfg.languages, {str(language) for language in known}, f"the column 'language' of {cfg.hub}"
    )
    return {
        language: {split: [row for row in rows if row["language"] == language] for split, rows in splits.items()}
        for language in chosen
    }


def _hub(cfg: DatasetConfig, function: str, *arguments: str) -> Any:
    """Call a function of ``datasets`` on the hub's dataset, with errors for people."""
    import datasets
    from datasets.exceptions import DatasetNotFoundError, DatasetsError

    local = "give a local path with dataset.root=…"
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
    """Keep the library's progress bars and retry notices off the terminal, and leave its settings as they were."""
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
