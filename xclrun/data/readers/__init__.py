"""Readers: one file per data layout. `READERS` is the registry: ``dataset.reader`` → `Reader`.

To add a reader, write a file in this folder with a function that is decorated with `row_reader` (or `reader`, if the
data are not files of rows), and a YAML in ``conf/dataset`` that names the reader. Files of this folder are imported
automatically.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import packaged, provides, replaces
from xclrun.core.task import task_of
from xclrun.data.example import Example
from xclrun.data.readers.collect import Notes, Parse, Place, Splits, read_files
from xclrun.data.readers.files import SPLIT_NAMES, SplitFile, check_layout, find_files, lines, named_files

_CONTENT = {"label": "a label of each text", "tags": "tags of words", "answers": "questions with answers",
            "target": "a target of each text", "text": "documents"}  # fmt: skip
COLUMNS = frozenset(_CONTENT)
# Default columns of a reader.
USUAL = frozenset(("label", "tags"))
Read = Callable[[DatasetConfig], tuple[Splits, Notes]]


@dataclass(frozen=True)
class Reader:
    """A reader of one layout.

    Attributes:
        read: takes the dataset's config; returns (examples by language and split, counts for the manifest). Languages
            are in the order of ``dataset.languages``, if set.
        layout: file names under ``dataset.root`` (see `xclrun.data.readers.files`); may be empty.
        gives: names from `COLUMNS` that the files can contain; tasks that need other columns are refused.
        languages: the default order of languages; other languages follow by name.
        config: settings of ``dataset=NAME``, such as the task. Only for plug-ins, whose readers have no YAML file.
        defects: known defects of the release (see `row_reader`).
    """

    read: Read
    layout: tuple[str, ...] = ()
    gives: frozenset[str] = USUAL
    languages: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    defects: Mapping[str, str] = field(default_factory=dict)


READERS: dict[str, Reader] = {}


def register(name: str, reader: Reader) -> None:
    """Make a reader available as ``dataset.reader=name``."""
    if name in READERS and not replaces("dataset", name):
        raise UsageError(f"dataset reader '{name}': this name is already registered; choose another")
    if not reader.gives or not reader.gives <= COLUMNS:
        columns = ", ".join(map(str, reader.gives)) or "nothing"
        raise UsageError(f"dataset reader '{name}': gives={columns}; list some of {', '.join(sorted(COLUMNS))}")
    READERS[name] = reader
    function: Any = reader.read
    while isinstance(function, partial):
        function = function.keywords.get("parse", function.func)
    provides("dataset", name, function.__doc__)


def reader(
    name: str,
    layout: Iterable[str] = (),
    gives: Collection[str] = USUAL,
    languages: Iterable[str] = (),
    **config: Any,
) -> Callable[[Read], Read]:
    """Register a function that reads a whole dataset (see `Reader`)."""

    def decorate(read: Read) -> Any:
        register(name, Reader(read, tuple(layout), frozenset(gives), tuple(languages), config))
        return read

    return decorate


def row_reader(
    name: str,
    layout: Sequence[str],
    gives: Collection[str] = USUAL,
    languages: Iterable[str] = (),
    rows: Callable[[SplitFile], Iterable[Any]] = lines,
    split_names: Mapping[str, tuple[str, ...]] = SPLIT_NAMES,
    language_names: Mapping[str, str] | None = None,
    may_lack: Collection[str] = (),
    files: Mapping[str, Sequence[str]] | None = None,
    unit: str = "",
    defects: Mapping[str, str] | None = None,
    **config: Any,
) -> Callable[[Callable[[Any, Place], Example | None]], Callable[[Any, Place], Example | None]]:
    """Register a function (row, `Place`) → example that parses one row of a file.

    The function returns None for a header, and raises `BadRow` for a row that it cannot read.

    Args:
        rows: function that yields the rows of a file: `lines`, or `blocks` of lines between blank lines.
        split_names: split → its names in file names.
        language_names: name in file names → language key; other names are keys themselves.
        may_lack: splits that no language needs (see `find_files`); they are empty in a language without their file.
        files: split → possible file names, of which the first that exists is used; splits that are not listed are
            empty. Replaces ``layout`` for data in one language, the first of ``languages``.
        unit: name of a row in errors if it is not a line.
        defects: known defects of the release: note (`xclrun.data.notes.NOTES`) → affected files. The parser treats
            these defects in a fixed way and counts them; in other readers they are errors.
        config: see `Reader`.
    """
    try:
        check_layout(layout)
    except UsageError as error:
        raise UsageError(f"dataset reader '{name}': {error}") from None
    if not callable(rows):
        raise UsageError(f"dataset reader '{name}': rows={rows!r} must be a function such as lines or blocks")
    keys = tuple(languages)
    find: Callable[[DatasetConfig], list[SplitFile]] = partial(
        find_files, layout=layout, split_names=split_names, languages=language_names, may_lack=may_lack
    )
    if files is not None:
        find = partial(named_files, language=keys[0], files=files)

    def decorate(parse: Parse) -> Any:
        read = partial(_read_rows, find=find, parse=parse, rows=rows, unit=unit, defects=frozenset(defects or ()))
        register(name, Reader(read, tuple(layout), frozenset(gives), keys, config, dict(defects or {})))
        return parse

    return decorate


def _read_rows(cfg: DatasetConfig, find: Callable[[DatasetConfig], list[SplitFile]], **how: Any) -> Any:
    return read_files(cfg, find(cfg), **how)


def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    if cfg.reader not in READERS:
        problem = "must be given" if cfg.reader is None else "unknown"
        raise UsageError(f"dataset.reader={cfg.reader}: {problem}; {did_you_mean(str(cfg.reader), READERS)}")
    assert cfg.reader is not None
    reader, task = READERS[cfg.reader], task_of(cfg.task, cfg.tags_are.value)
    if not task.needs <= reader.gives:
        content = " and ".join(_CONTENT[column] for column in _CONTENT if column in reader.gives)
        raise UsageError(f"dataset.task={cfg.task}: the files of dataset.reader={cfg.reader} contain only {content}")
    splits, notes = reader.read(cfg)
    if cfg.languages is None and reader.languages:
        rank = {language: i for i, language in enumerate(reader.languages)}
        splits = dict(sorted(splits.items(), key=lambda item: (rank.get(item[0][0], len(rank)), item[0][0])))
    return splits, notes


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
packaged("dataset", READERS)
