"""Datasets of one class per text or pair of texts, from local files as they are released.

| reader | released as | label |
|---|---|---|
| ``xnli`` (Conneau et al. 2018) | ``XNLI-1.0/xnli.{dev,test}.tsv``, all languages in one, and \
``XNLI-MT-1.0/multinli/multinli.train.LANGUAGE.tsv`` | entailment, neutral, contradiction |
| ``pawsx`` (Yang et al. 2019) | ``LANGUAGE/{train,translated_train}.tsv``, ``dev_2k.tsv``, ``test_2k.tsv`` | 0, 1 |
| ``mldoc`` (Schwenk & Li 2018) | ``NAME.train.SIZE``, ``NAME.dev``, ``NAME.test``, of a language's English name | \
CCAT, ECAT, GCAT, MCAT |
| ``marc`` (Keung et al. 2020) | ``SPLIT/dataset_LANGUAGE_SPLIT.json``, one object per line | 1 to 5 stars |

Texts are kept as they are between tabs; their words are what stands between spaces. Languages are ISO 639-1 keys. A
language of XNLI without a training file has an empty training split: it is evaluated, and may get a bucket. MARC's
second text is the title and the product's category, as FS has them.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers.files import (
    SPLIT_NAMES,
    BadRow,
    Notes,
    Source,
    SplitFile,
    Splits,
    choose_languages,
    collect,
    find_files,
    lines,
    parse_json,
    parse_utf8,
    root_of,
    task_of_files,
)

# What a line says: id or None, text, second text or None, label.
Fields = tuple[str | None, str, str | None, str]

ISO = {"english": "en", "german": "de", "spanish": "es", "french": "fr", "italian": "it", "japanese": "ja",
       "russian": "ru", "chinese": "zh"}  # fmt: skip


def _pawsx(line: str) -> Fields | None:
    fields = line.split("\t")
    if len(fields) != 4:
        raise BadRow(f"{len(fields)} columns between tabs instead of id, sentence1, sentence2, label")
    name, one, two, label = (text.strip() for text in fields)
    if (name, label) == ("id", "label"):
        return None
    return name, one, two, _known(label, ("0", "1"))


def _mldoc(line: str) -> Fields | None:
    label, tab, text = line.partition("\t")
    if not tab:
        raise BadRow("a label and a text are needed, between them a tab")
    if text[:2] in ("b'", 'b"'):
        # What the released script writes under Python 3: bytes as Python shows them.
        try:
            text = ast.literal_eval(text).decode()
        except (ValueError, SyntaxError, AttributeError):
            raise BadRow("the text looks like Python's bytes, and is none") from None
    return None, text.strip(), None, _known(label.strip(), ("CCAT", "ECAT", "GCAT", "MCAT"))


def _marc(line: str) -> Fields | None:
    row = parse_json(line, "the line")
    if not isinstance(row, dict):
        raise BadRow(f"a review is an object, not {type(row).__name__}")
    texts = []
    for key in ("review_id", "review_body", "review_title", "product_category"):
        value = row.get(key)
        if not isinstance(value, str):
            raise BadRow(f"'{key}' must be a string, not {value!r}")
        texts.append(value.strip())
    name, body, title, category = texts
    return name, body, f"{title} . {category}", _known(str(row.get("stars")), tuple("12345"))


def _known(label: str, labels: tuple[str, ...]) -> str:
    if label not in labels:
        raise BadRow(f"label {label!r} is none of {', '.join(labels)}")
    return label


@dataclass(frozen=True)
class Format:
    """How a dataset is released.

    Attributes:
        layout: file names (see `xclrun.data.readers.files`).
        fields: of a line's text; None: a header.
        split_names: split → its names in file names.
        languages: a language's name in file names → its key, where it is not the key.
    """

    layout: tuple[str, ...]
    fields: Callable[[str], Fields | None]
    split_names: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPLIT_NAMES)
    languages: Mapping[str, str] = field(default_factory=dict)


FORMATS = {
    "pawsx": Format(
        ("{language}/{split}.tsv",),
        _pawsx,
        {"train": ("translated_train", "train"), "dev": ("dev_2k",), "test": ("test_2k",)},
    ),
    "mldoc": Format(
        (
            "{language}.{split}",
            "{language}.{split}.{any}",
            "{any}/{language}.{split}",
            "{any}/{language}.{split}.{any}",
        ),
        _mldoc,
        languages=ISO,
    ),
    "marc": Format(("{any}/dataset_{language}_{split}.json", "dataset_{language}_{split}.json"), _marc),
}


def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language of PAWS-X, MLDoc or MARC under ``dataset.root``.

    Raises:
        UsageError: the task has no labels; see `find_files` and `collect`.
    """
    task_of_files(cfg, tags=False)
    how = FORMATS[cfg.reader]
    files = find_files(cfg, how.layout, how.split_names, how.languages)
    sources = (Source(f.language, f.split, f.shown, lines(f)) for f in files)
    return collect(sources, partial(_parse, fields=how.fields), cfg.on_bad_line)


def _parse(
    line: bytes, language: str, split: str, number: int, fields: Callable[[str], Fields | None]
) -> Example | None:
    found = fields(parse_utf8(line))
    return None if found is None else _example(*found, language, split, number)


def _example(
    name: str | None, text: str, second: str | None, label: str, language: str, split: str, number: int
) -> Example:
    words = tuple(text.split())
    if not words or (second is not None and not second.strip()):
        raise BadRow("a text is blank")
    kept = None if text == " ".join(words) else text
    return Example(name or f"{split}-{number}", language, words, label, None, kept, second)


# XNLI: one file of all languages for dev and for test, one of each language for training.

XNLI_LABELS = ("contradiction", "entailment", "neutral")
EVALUATED = ("XNLI-1.0/xnli.{split}.tsv", "xnli.{split}.tsv")
TRAINED = (
    "XNLI-MT-1.0/multinli/multinli.train.{language}.tsv",
    "multinli/multinli.train.{language}.tsv",
    "multinli.train.{language}.tsv",
)


def read_xnli(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language of XNLI under ``dataset.root``.

    Raises:
        UsageError: the task has no labels; a file is missing; see `collect`.
    """
    task_of_files(cfg, tags=False)
    root, shown = root_of(cfg, TRAINED[:1])
    rows = {}
    for split in ("dev", "test"):
        name = _there(root, [name.format(split=split) for name in EVALUATED])
        if name is None:
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {EVALUATED[0].format(split=split)}")
        rows[split] = _Table(SplitFile("", split, root / name, f"{shown}/{name}"))
    known = set(rows["dev"].by("language")) & set(rows["test"].by("language"))
    if not known:
        raise UsageError(f"{rows['dev'].file.shown}: no column 'language', or no language that the test split has too")
    sources: list[Source[Any]] = []
    for language in choose_languages(cfg.languages, known, rows["dev"].file.shown):
        name = _there(root, [name.format(language=language) for name in TRAINED])
        if name is not None:
            table = _Table(SplitFile(language, "train", root / name, f"{shown}/{name}"))
            sources.append(Source(language, "train", table.file.shown, table.rows()))
        for split, table in rows.items():
            sources.append(Source(language, split, table.file.shown, table.by("language")[language]))
    splits, notes = collect(sources, _parse_xnli, cfg.on_bad_line)
    return {
        (language, split): splits.get((language, split), ())
        for language in dict.fromkeys(source.language for source in sources)
        for split in SPLIT_NAMES
    }, notes


def _there(root: Path, names: list[str]) -> str | None:
    return next((name for name in names if (root / name).is_file()), None)


class _Table:
    """Lines between tabs under a header: each row with its columns by name, bytes as they are."""

    def __init__(self, file: SplitFile) -> None:
        self.file = file
        header, *self._lines = lines(file)
        self.columns = header.split(b"\t")

    def rows(self) -> list[tuple[list[bytes], bytes] | None]:
        """Return (columns, line) of each line of the file; None for the header and for blank lines."""
        return [None, *((self.columns, line) if line.strip() else None for line in self._lines)]

    def by(self, column: str) -> Mapping[str, list[tuple[list[bytes], bytes] | None]]:
        """Return the value of a column → the rows that have it, None in the place of the others."""
        if column.encode() not in self.columns:
            return {}
        at = self.columns.index(column.encode())
        rows = self.rows()
        of = [None if row is None else row[1].split(b"\t")[at : at + 1] for row in rows]
        names = {name.decode(errors="replace") for found in of for name in found or ()}
        return {n: [row if v == [n.encode()] else None for row, v in zip(rows, of, strict=True)] for n in names}


def _parse_xnli(row: tuple[list[bytes], bytes], language: str, split: str, number: int) -> Example:
    columns, line = (parse_utf8(b"\t".join(row[0])).split("\t"), parse_utf8(row[1]).split("\t"))
    if len(line) != len(columns):
        raise BadRow(f"{len(line)} columns between tabs instead of {len(columns)}")
    of = dict(zip(columns, line, strict=True))
    named = (("sentence1", "premise"), ("sentence2", "hypo"), ("gold_label", "label"))
    found = [next((of[key] for key in keys if key in of), None) for keys in named]
    if None in found:
        missing = " or ".join(named[found.index(None)])
        raise BadRow(f"the header has no column {missing}")
    one, two, label = (str(text).strip() for text in found)
    label = _known("contradiction" if label == "contradictory" else label, XNLI_LABELS)
    return _example(of.get("pairID"), one, two, label, language, split, number)
