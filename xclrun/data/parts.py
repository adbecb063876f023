"""A composite dataset: parts of several datasets, or of one, under their own keys (``dataset.parts``).

A *key* is an element of a stream (docs/glossary.md): a language of a plain dataset; here a part, or one of its
languages, ``PART-LANGUAGE``, where it has several. Each part is read as its own dataset, by any reader; then its
examples get the key for their language, and their labels and tags the part's prefix, so that a shared head tells the
classes of all parts apart (LL, section 3). Orders, strategies and reports work on keys as on languages.

What a part leaves open (null) is as the dataset has it, and a relative root lies below ``dataset.root``, if that is
given.
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
from xclrun.data.example import OUTSIDE, Example
from xclrun.data.readers import read
from xclrun.data.readers.files import Notes, Splits, choose_languages

# What a part takes over from the dataset.
_SHARED = ("reader", "task", "tags_are", "on_bad_line", "word_column", "tag_column")
# A part that names one of these, or a root, inherits none.
_HUB = ("hub", "hub_config", "hub_columns")


@dataclass(frozen=True)
class Part:
    """One part as it was read.

    Attributes:
        name: its name in ``dataset.parts``; empty for the one part of a dataset that is not composite.
        cfg: the dataset that it is.
        splits: its examples by key and split.
        notes: counts for the manifest, by key and split.
        task: what is predicted of its examples.
    """

    name: str
    cfg: DatasetConfig
    splits: Splits
    notes: Notes
    task: Task

    @property
    def keys(self) -> tuple[str, ...]:
        """Its keys, in order."""
        return tuple(dict.fromkeys(key for key, _ in self.splits))


def read_parts(cfg: DatasetConfig) -> list[Part]:
    """Read the parts of a dataset, with the keys of ``dataset.languages``; one that is not composite is one part."""
    if not cfg.parts:
        return [Part("", cfg, *read(cfg), task_of(cfg.task, cfg.tags_are.value))]
    wanted = {
        name: _config(cfg, name, part)
        for name, part in cfg.parts.items()
        # Files of other parts need not be there.
        if cfg.languages is None or any(key == name or key.startswith(f"{name}-") for key in cfg.languages)
    }
    known: dict[str, tuple[Splits, Notes]] = {}
    parts: list[Part] = []
    for name, of in wanted.items():
        part = cfg.parts[name]
        content, notes = _read(name, of, known)
        content = _where(name, of.reader, content, part.where)
        keys = _keys(name, content, parts)
        # Statements are true or false under every key.
        prefix = "" if stating(cfg) or part.label_prefix == "" else f"{part.label_prefix or name}:"
        task = task_of(of.task, of.tags_are.value)
        splits = {
            (keys[language], split): tuple(_renamed(e, keys[language], prefix, task) for e in examples)
            for (language, split), examples in content.items()
        }
        noted = {
            what: {f"{keys[place.rpartition('/')[0]]}/{place.rpartition('/')[2]}": n for place, n in counts.items()}
            for what, counts in notes.items()
        }
        parts.append(Part(name, of, splits, noted, task))
    return _chosen(cfg, parts)


def stating(cfg: DatasetConfig) -> bool:
    """Whether examples are made into statements: the dataset, or a part, says of which kind."""
    return cfg.statements.kind is not None or any(part.statements is not None for part in cfg.parts.values())


def _config(cfg: DatasetConfig, name: str, part: PartConfig) -> DatasetConfig:
    """Return a part as a dataset: what it leaves open is as the whole has it."""
    check_name("dataset.parts", name)
    if (prefix := part.label_prefix) is not None:
        key = f"dataset.parts.{name}.label_prefix={prefix}"
        if stating(cfg):
            raise UsageError(f"{key}: statements have no labels of their own")
        if ":" in prefix or (prefix and prefix.split() != [prefix]):
            raise UsageError(f"{key}: one word without ':'")
    own: dict[str, Any] = {f: value for f in _SHARED if (value := getattr(part, f)) is not None}
    hub = {f: getattr(part, f) for f in _HUB}
    if part.root is not None or any(hub.values()):
        root = part.root if part.root is None or cfg.root is None else join(cfg.root, part.root)
        own |= {"root": root, **hub}
    return replace(cfg, **own, parts={}, statements=StatementsConfig(), languages=part.languages)


def _read(name: str, cfg: DatasetConfig, known: dict[str, tuple[Splits, Notes]]) -> tuple[Splits, Notes]:
    """Read a part; parts of one dataset read it once."""
    same = repr([getattr(cfg, f.name) for f in fields(cfg) if f.name not in ("buckets", "replay", "source_lr")])
    if same not in known:
        try:
            known[same] = read(cfg)
        except UsageError as error:
            message = str(error)
            own = message.startswith("dataset.")
            raise UsageError(f"dataset.parts.{name}.{message.removeprefix('dataset.')}" if own else message) from None
    return known[same]


def _where(name: str, reader: str | None, splits: Splits, wanted: Mapping[str, list[str]]) -> Splits:
    """Return the examples whose facts are among the values wanted."""
    for field, values in wanted.items():
        key = f"dataset.parts.{name}.where.{field}"
        told = {fact for examples in splits.values() for e in examples[:1] for fact in e.facts or ()}
        if field not in told:
            possible = did_you_mean(field, told) if told else "they tell nothing that parts can be made of"
            raise UsageError(f"{key}: the files of dataset.reader={reader} have no '{field}'; {possible}")
        there = {(e.facts or {}).get(field, "") for examples in splits.values() for e in examples}
        for value in values:
            if value not in there:
                raise UsageError(f"{key}: no example has '{value}'; {did_you_mean(value, there)}")
        kept = frozenset(values)
        splits = {
            of: tuple(e for e in examples if (e.facts or {}).get(field) in kept) for of, examples in splits.items()
        }
    if wanted:
        for (language, split), examples in splits.items():
            if not examples and split != "dev":
                raise UsageError(f"dataset.parts.{name}.where: no example of {language}/{split} is left")
    return splits


def _keys(name: str, splits: Splits, before: list[Part]) -> dict[str, str]:
    """Return language → key: the part's name, or with the language if there are several."""
    languages = list(dict.fromkeys(language for language, _ in splits))
    keys = {language: name if len(languages) == 1 else f"{name}-{language}" for language in languages}
    for key in keys.values():
        if other := next((part.name for part in before if key in part.keys), None):
            raise UsageError(f"dataset.parts.{name}: its key '{key}' is one of the part '{other}' too")
    return keys


def _renamed(example: Example, key: str, prefix: str, task: Task) -> Example:
    """Return an example under its key, with what the task predicts of it alone, the prefix before it.

    In tags of spans the prefix follows ``B-``. What is not predicted goes: other parts may not have it.
    """
    label, tags = example.label, example.tags
    label = None if label is None or task.label is None else prefix + label
    tags = None if tags is None or task.tag is None else tuple(_tag(tag, prefix, task.tag_spans) for tag in tags)
    return replace(example, language=key, label=label, tags=tags, answers=example.answers if task.answers else None)


def _tag(tag: str, prefix: str, spans: bool) -> str:
    if not spans:
        return prefix + tag
    return tag if tag == OUTSIDE else f"{tag[:2]}{prefix}{tag[2:]}"


def _chosen(cfg: DatasetConfig, parts: list[Part]) -> list[Part]:
    """Return the parts with the keys of ``dataset.languages`` alone, in that order."""
    if cfg.languages is None:
        return parts
    of = {key: part for part in parts for key in part.keys}
    unread = cfg.parts.keys() - {part.name for part in parts}
    found = []
    for key in choose_languages(cfg.languages, {*of, *unread}, "dataset.parts"):
        splits = {at: examples for at, examples in of[key].splits.items() if at[0] == key}
        notes = {
            what: {place: n for place, n in counts.items() if place.rpartition("/")[0] == key}
            for what, counts in of[key].notes.items()
        }
        found.append(replace(of[key], splits=splits, notes={what: counts for what, counts in notes.items() if counts}))
    return found
