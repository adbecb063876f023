"""Readers: one file for each layout of data. `READERS` is the registry: ``dataset.reader`` → `Reader`.

To add one, write a file in this folder with a function under `row_reader` (or `reader`, where the data are no files of
rows), and a YAML in ``conf/dataset`` that names it. Files of this folder are imported with it.
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
from xclrun.core.plugins import provides
from xclrun.core.task import task_of
from xclrun.data.example import Example
from xclrun.data.readers.files import (
    SPLIT_NAMES,
    Notes,
    Place,
    SplitFile,
    Splits,
    check_layout,
    find_files,
    lines,
    named_files,
    read_files,
)

COLUMNS = frozenset(("label", "tags", "answers"))
# What a reader gives that does not say.
USUAL = frozenset(("label", "tags"))
_HELD = {"label": "a label of each text", "tags": "tags of words", "answers": "questions about texts, with answers"}


@dataclass(frozen=True)
class Reader:
    """How the data of one layout are read.

    Attributes:
        read: the config's dataset group → the examples of every wanted language and split, languages in order, and
            counts for the manifest. Raises `UsageError` for what it cannot read.
        layout: file names that it looks for under ``dataset.root`` (see `xclrun.data.readers.files`); empty: none.
        gives: what it can know of an example, of `COLUMNS`; a task that needs more is refused.
        languages: how languages are ordered where the config names none; others follow, by name.
        config: values of the choice ``dataset=`` of a plug-in's reader, which has no YAML, such as its task.
    """

    read: Callable[[DatasetConfig], tuple[Splits, Notes]]
    layout: tuple[str, ...] = ()
    gives: frozenset[str] = USUAL
    languages: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)


READERS: dict[str, Reader] = {}


def register(name: str, reader: Reader) -> None:
    """Make a reader known as ``dataset.reader=name``.

    Raises:
        UsageError: the name is taken, or the reader gives nothing that a task could predict.
    """
    if name in READERS:
        raise UsageError(f"dataset reader '{name}': there is one of this name already")
    if not reader.gives or not reader.gives <= COLUMNS:
        told = ", ".join(map(str, reader.gives)) or "nothing"
        raise UsageError(f"dataset reader '{name}': gives some of {', '.join(sorted(COLUMNS))}, not {told}")
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
) -> Callable[[Callable[[DatasetConfig], tuple[Splits, Notes]]], Callable[[DatasetConfig], tuple[Splits, Notes]]]:
    """Register a function that reads a dataset whole; see `Reader`."""

    def decorate(read: Callable[[DatasetConfig], tuple[Splits, Notes]]) -> Any:
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
    **config: Any,
) -> Callable[[Callable[[Any, Place], Example | None]], Callable[[Any, Place], Example | None]]:
    """Register a function that makes an example of one row of a file.

    The function takes the row and its `Place`; it returns None for a header, and raises `BadRow` for what it cannot
    read.

    Args:
        rows: a file's rows: `lines`, or `blocks` of lines between blank ones.
        split_names: split → what represents it in file names.
        language_names: what represents a language in file names → its key; others are keys themselves.
        may_lack: splits that a language need not have; they are empty then.
        files: of data in one language (the first of ``languages``), in place of the layout: split → names of its file;
            the first that is there counts, and other splits are empty.
        unit: what errors call a row that is not a line.
        config: see `Reader`.
    """

    try:
        check_layout(layout)
    except UsageError as error:
        raise UsageError(f"dataset reader '{name}': {error}") from None
    if not callable(rows):
        raise UsageError(f"dataset reader '{name}': rows={rows!r}: a function such as lines or blocks, not its name")
    keys = tuple(languages)
    find: Callable[[DatasetConfig], list[SplitFile]] = partial(
        find_files, layout=layout, split_names=split_names, languages=language_names, may_lack=may_lack
    )
    if files is not None:
        find = partial(named_files, language=keys[0], files=files)

    def decorate(parse: Callable[[Any, Place], Example | None]) -> Any:
        read = partial(_read_rows, find=find, parse=parse, rows=rows, unit=unit)
        register(name, Reader(read, tuple(layout), frozenset(gives), keys, config))
        return parse

    return decorate


def _read_rows(
    cfg: DatasetConfig,
    find: Callable[[DatasetConfig], list[SplitFile]],
    parse: Callable[[Any, Place], Example | None],
    rows: Callable[[SplitFile], Iterable[Any]],
    unit: str,
) -> tuple[Splits, Notes]:
    return read_files(cfg, find(cfg), parse, rows, unit)


def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read all examples of the languages that a config wants.

    Raises:
        UsageError: the reader or the task is unknown; the reader does not give what the task needs; or see `Reader`.
    """
    if cfg.reader not in READERS:
        what = "must be given" if cfg.reader is None else "unknown"
        raise UsageError(f"dataset.reader={cfg.reader}: {what}; {did_you_mean(str(cfg.reader), READERS)}")
    assert cfg.reader is not None
    found, task = READERS[cfg.reader], task_of(cfg.task, cfg.tags_are.value)
    needs = {column for column, of in (("label", task.label), ("tags", task.tag), ("answers", task.answers)) if of}
    if not needs <= found.gives:
        held = f"{' and '.join(_HELD[column] for column in _HELD if column in found.gives)} alone"
        raise UsageError(f"dataset.task={cfg.task}: the files of dataset.reader={cfg.reader} hold {held}")
    splits, notes = found.read(cfg)
    if cfg.languages is None and found.languages:
        rank = {language: i for i, language in enumerate(found.languages)}
        splits = dict(sorted(splits.items(), key=lambda item: (rank.get(item[0][0], len(rank)), item[0][0])))
    return splits, notes


for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
