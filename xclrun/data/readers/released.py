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
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import SPLITS, Example
from xclrun.data.readers import reader, row_reader
from xclrun.data.readers.files import (
    BadRow,
    Notes,
    Place,
    Source,
    SplitFile,
    Splits,
    choose_languages,
    collect,
    first_file,
    lines,
    parse_json,
    root_of,
)

_SHOWN = re.compile(r"b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")

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
        # What the released script writes under Python 3: bytes as Python shows them. Nothing else is given to Python's
        # parser, which deep nesting overflows.
        try:
            if not _SHOWN.fullmatch(text.rstrip()):
                raise ValueError
            text = ast.literal_eval(text).decode()
        except (ValueError, SyntaxError):
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


def _example(name: str | None, text: str, second: str | None, label: str, place: Place) -> Example:
    words = tuple(text.split())
    if not words or (second is not None and not second.strip()):
        raise BadRow("a text is blank")
    kept = None if text == " ".join(words) else text
    return Example(name or place.name, place.language, words, label, None, kept, second)


def _parse(line: str, place: Place, fields: Callable[[str], Fields | None]) -> Example | None:
    found = fields(line)
    return None if found is None else _example(*found, place)


row_reader(
    "pawsx",
    ("{language}/{split}.tsv",),
    gives=["label"],
    split_names={"train": ("translated_train", "train"), "dev": ("dev_2k",), "test": ("test_2k",)},
)(partial(_parse, fields=_pawsx))
row_reader(
    "mldoc",
    ("{language}.{split}", "{language}.{split}.{any}", "{any}/{language}.{split}", "{any}/{language}.{split}.{any}"),
    gives=["label"],
    language_names=ISO,
)(partial(_parse, fields=_mldoc))
row_reader("marc", ("{any}/dataset_{language}_{split}.json", "dataset_{language}_{split}.json"), gives=["label"])(
    partial(_parse, fields=_marc)
)


# XNLI: one file of all languages for dev and for test, one of each language for training.

XNLI_LABELS = ("contradiction", "entailment", "neutral")
EVALUATED = ("XNLI-1.0/xnli.{split}.tsv", "xnli.{split}.tsv")
TRAINED = (
    "XNLI-MT-1.0/multinli/multinli.train.{language}.tsv",
    "multinli/multinli.train.{language}.tsv",
    "multinli.train.{language}.tsv",
)


@reader("xnli", (EVALUATED[0], TRAINED[0]), gives=["label"])
def read_xnli(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language of XNLI under ``dataset.root``.

    Raises:
        UsageError: a file is missing; see `collect`.
    """
    root, shown = root_of(cfg, TRAINED[:1])
    rows = {}
    for split in ("dev", "test"):
        name = first_file(root, [name.format(split=split) for name in EVALUATED])
        if name is None:
            raise UsageError(f"dataset.root={shown}: no {split} split; looked for {EVALUATED[0].format(split=split)}")
        rows[split] = f"{shown}/{name}", _by_language(*_table(root / name, f"{shown}/{name}"))
    evaluated = rows["dev"][0]
    known = rows["dev"][1].keys() & rows["test"][1].keys()
    if not known:
        raise UsageError(f"{evaluated}: no column 'language', or no language that the test split has too")
    sources = []
    languages = choose_languages(cfg.languages, known, evaluated)
    for language in languages:
        name = first_file(root, [name.format(language=language) for name in TRAINED])
        if name is not None:
            header, below = _table(root / name, f"{shown}/{name}")
            trained = [None, *((header, line) if line.strip() else None for line in below)]
            sources.append(Source(language, "train", f"{shown}/{name}", trained))
        sources += [Source(language, split, file, of[language]) for split, (file, of) in rows.items()]
    splits, notes = collect(cfg, sources, _parse_xnli)
    return {(language, split): splits.get((language, split), ()) for language in languages for split in SPLITS}, notes


def _table(path: Path, shown: str) -> tuple[bytes, list[bytes]]:
    """Return the header of a file and the lines below it."""
    header, *below = lines(SplitFile("", "", path, shown))
    return header, below


def _by_language(header: bytes, below: list[bytes]) -> dict[str, list[tuple[bytes, bytes] | None]]:
    """Return the value of the column ``language`` → (header, line) of the lines that have it, None for all others."""
    columns = header.split(b"\t")
    found: dict[str, list[tuple[bytes, bytes] | None]] = {}
    if b"language" not in columns:
        return {}
    at = columns.index(b"language")
    for number, line in enumerate(below, 1):
        fields = line.split(b"\t") if line.strip() else []
        if at < len(fields):
            rows = found.setdefault(fields[at].decode(errors="replace"), [None] * (len(below) + 1))
            rows[number] = header, line
    return found


def _parse_xnli(row: tuple[str, str], place: Place) -> Example:
    columns, fields = (line.split("\t") for line in row)
    if len(fields) != len(columns):
        raise BadRow(f"{len(fields)} columns between tabs instead of {len(columns)}")
    of = dict(zip(columns, fields, strict=True))
    named = (("sentence1", "premise"), ("sentence2", "hypo"), ("gold_label", "label"))
    found = [next((of[key] for key in keys if key in of), None) for keys in named]
    if None in found:
        missing = " or ".join(named[found.index(None)])
        raise BadRow(f"the header has no column {missing}")
    one, two, label = (str(text).strip() for text in found)
    label = _known("contradiction" if label == "contradictory" else label, XNLI_LABELS)
    return _example(of.get("pairID"), one, two, label, place)
