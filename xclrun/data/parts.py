"""Composite datasets: parts of one or several datasets (``dataset.parts``).

The key of a part is its name, or ``PART-LANGUAGE`` if the part has several languages. Each part is read as a separate
dataset, by any reader. Its labels and tags then get the part's prefix, so that a shared head distinguishes the classes
of all parts (LL, section 3). Orders, strategies and reports treat each key as a language.

If a setting of a part is null, the part inherits the dataset's value. A relative ``root`` of a part starts at
``dataset.root``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from os.path import join
from typing import Any

from xclrun.config.schema import DatasetConfig, PartConfig, StatementsConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import check_name
from xclrun.core.task import Task, task_of
from xclrun.data.example import OUTSIDE, Example, predicted
from xclrun.data.readers import read
from xclrun.data.readers.collect import Notes, Splits
from xclrun.data.readers.files import choose_languages

# Settings that a part inherits from the dataset.
_SHARED = (
    "reader", "task", "tags_are", "on_bad_line", "word_column", "tag_column", "tag_names", "text_column",
    "label_column", "text_b_column", "language_column", "header",
)  # fmt: skip
# A part that sets a root, or one of these keys, inherits neither the root nor any of these keys.
_HUB = ("hub", "hub_config", "hub_columns")


@dataclass(frozen=True)
class Part:
    """The content of one part.

    Attributes:
        name: its name in ``dataset.parts``; empty for a dataset that is not composite.
        cfg: the part's settings, as the config of a dataset.
        splits: its examples by key and split.
        notes: counts for the manifest, by key and split.
    """

    name: str
    cfg: DatasetConfig
    splits: Splits
    notes: Notes
    task: Task

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(key for key, _ in self.splits))


def read_parts(cfg: DatasetConfig) -> list[Part]:
    """Read the parts that contain the selected keys; a dataset that is not composite is read as one part."""
    if not cfg.parts:
        task, (content, notes) = task_of(cfg.task, cfg.tags_are.value), read(cfg)
        splits = {at: tuple(predicted(e, task) for e in examples) for at, examples in content.items()}
        return [Part("", cfg, splits, notes, task)]
    configs = {
        name: _config(cfg, name, part)
        for name, part in cfg.parts.items()
        # Only the files of selected parts are required.
        if cfg.languages is None or any(key == name or key.startswith(f"{name}-") for key in cfg.languages)
    }
    cache: dict[str, tuple[Splits, Notes]] = {}
    parts: list[Part] = []
    for name, config in configs.items():
        part = cfg.parts[name]
        content, notes = _read(name, config, cache)
        content = _where(name, config.reader, content, part.where)
        keys = _keys(name, content, parts)
        # Statements have no prefix, since their labels are true and false under every key.
        prefix = "" if stating(cfg) or part.label_prefix == "" else f"{part.label_prefix or name}:"
        task = task_of(config.task, config.tags_are.value)
        splits = {
            (keys[language], split): tuple(_renamed(e, keys[language], prefix, task) for e in examples)
            for (language, split), examples in content.items()
        }
        by_key = {
            note: {f"{keys[place.rpartition('/')[0]]}/{place.rpartition('/')[2]}": n for place, n in counts.items()}
            for note, counts in notes.items()
        }
        parts.append(Part(name, config, splits, by_key, task))
    return _chosen(cfg, parts)


def stating(cfg: DatasetConfig) -> bool:
    """Whether the dataset, or a part, converts examples to statements."""
    return cfg.statements.kind is not None or any(part.statements is not None for part in cfg.parts.values())


def _config(cfg: DatasetConfig, name: str, part: PartConfig) -> DatasetConfig:
    """Return the config of a part as a dataset, with inherited settings."""
    check_name("dataset.parts", name)
    if (prefix := part.label_prefix) is not None:
        key = f"dataset.parts.{name}.label_prefix={prefix}"
        if stating(cfg):
            raise UsageError(f"{key}: statements are labeled true or false, without a prefix; remove label_prefix")
        if ":" in prefix or (prefix and prefix.split() != [prefix]):
            raise UsageError(f"{key}: must be one word without ':'")
    settings: dict[str, Any] = {f: value for f in _SHARED if (value := getattr(part, f)) is not None}
    hub = {f: getattr(part, f) for f in _HUB}
    if part.root is not None or any(hub.values()):
        root = part.root if part.root is None or cfg.root is None else join(cfg.root, part.root)
        settings |= {"root": root, **hub}
    return replace(cfg, **settings, parts={}, statements=StatementsConfig(), languages=part.languages)


def _read(name: str, cfg: DatasetConfig, cache: dict[str, tuple[Splits, Notes]]) -> tuple[Splits, Notes]:
    """Read a part; parts of the same dataset share one read."""
    same = repr([getattr(cfg, f.name) for f in fields(cfg) if f.name not in ("buckets", "replay", "source_lr")])
    if same not in cache:
        try:
            cache[same] = read(cfg)
        except UsageError as error:
            message = str(error)
            if message.startswith("dataset."):
                message = f"dataset.parts.{name}.{message.removeprefix('dataset.')}"
            raise UsageError(message) from None
    return cache[same]


def _where(name: str, reader: str | None, splits: Splits, where: Mapping[str, list[str]]) -> Splits:
    """Return the examples that ``where`` (name of a fact → accepted values) selects."""
    for field, values in where.items():
        key = f"dataset.parts.{name}.where.{field}"
        fields = {fact for examples in splits.values() for e in examples[:1] for fact in e.facts or ()}
        if field not in fields:
            hint = did_you_mean(field, fields) if fields else "they have no facts to select by"
            raise UsageError(f"{key}: the files of dataset.reader={reader} have no '{field}'; {hint}")
        present = {(e.facts or {}).get(field, "") for examples in splits.values() for e in examples}
        for value in values:
            if value not in present:
                raise UsageError(f"{key}: no example has '{value}'; {did_you_mean(value, present)}")
        splits = {
            at: tuple(e for e in examples if (e.facts or {}).get(field) in values) for at, examples in splits.items()
        }
    if where:
        for (language, split), examples in splits.items():
            if not examples and split != "dev":
                raise UsageError(
                    f"dataset.parts.{name}.where: no example of {language}/{split} matches; select other values"
                )
    return splits


def _keys(name: str, splits: Splits, before: list[Part]) -> dict[str, str]:
    """Return language → key: the part's name, followed by the language if there are several."""
    languages = list(dict.fromkeys(language for language, _ in splits))
    keys = {language: name if len(languages) == 1 else f"{name}-{language}" for language in languages}
    for key in keys.values():
        if other := next((part.name for part in before if key in part.keys), None):
            raise UsageError(f"dataset.parts.{name}: the part '{other}' has the key '{key}' too; rename one part")
    return keys


def _renamed(example: Example, key: str, prefix: str, task: Task) -> Example:
    """Return an example with its key and with prefixed labels and tags (after ``B-`` in tags of spans)."""
    example = predicted(example, task)
    label = None if example.label is None else prefix + example.label
    tags = None if example.tags is None else tuple(_tag(tag, prefix, task.tag_spans) for tag in example.tags)
    return replace(example, language=key, label=label, tags=tags)


def _tag(tag: str, prefix: str, spans: bool) -> str:
    if not spans:
        return prefix + tag
    return tag if tag == OUTSIDE else f"{tag[:2]}{prefix}{tag[2:]}"


def _chosen(cfg: DatasetConfig, parts: list[Part]) -> list[Part]:
    """Return the parts of the selected keys, in the order of ``dataset.languages``."""
    if cfg.languages is None:
        return parts
    by_key = {key: part for part in parts for key in part.keys}
    unread = cfg.parts.keys() - {part.name for part in parts}
    chosen = []
    for key in choose_languages(cfg.languages, {*by_key, *unread}, "dataset.parts"):
        part = by_key[key]
        splits = {at: examples for at, examples in part.splits.items() if at[0] == key}
        notes = {
            note: {place: n for place, n in counts.items() if place.rpartition("/")[0] == key}
            for note, counts in part.notes.items()
        }
        chosen.append(replace(part, splits=splits, notes={note: counts for note, counts in notes.items() if counts}))
    return chosen
