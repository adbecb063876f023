"""Datasets of one class per text or pair of texts, from local files as they are released.

| reader | released as | label |
|---|---|---|
| ``xnli`` (Conneau et al. 2018) | ``XNLI-1.0/xnli.{dev,test}.tsv``, all languages in one, and \
``XNLI-MT-1.0/multinli/multinli.train.LANGUAGE.tsv`` | entailment, neutral, contradiction |
| ``pawsx`` (Yang et al. 2019) | ``LANGUAGE/{train,translated_train}.tsv``, ``dev_2k.tsv``, ``test_2k.tsv`` | 0, 1 |
| ``mldoc`` (Schwenk & Li 2018) | ``NAME.train.SIZE``, ``NAME.dev``, ``NAME.test``, of a language's English name | \
CCAT, ECAT, GCAT, MCAT |
| ``marc`` (Keung et al. 2020) | ``SPLIT/dataset_LANGUAGE_SPLIT.json``, one object per line | 1 to 5 stars |
| ``sib200`` (Adelani et al. 2024) | ``data/annotated/LANGUAGE/{train,dev,test}.tsv``; the root is ``annotated``; \
quoted as in CSV where the text has quotes | seven topics |
| ``taxi1500`` (Ma et al. 2023) | ``eng_data/eng_train.tsv``, or ``train/LANGUAGE.tsv`` as the authors' scripts write; \
without quoting | six topics |

Texts are kept unchanged between tabs; their words are what stands between spaces. Languages are ISO 639-1 keys,
but ``eng_Latn`` with the script in SIB-200 and ISO 639-3 codes in Taxi1500, where an id is the same sentence in every
language. A language of XNLI without a training file has an empty training split: it is evaluated, and may get a bucket;
so has one of SIB-200 and Taxi1500, where the dev file may lack too. MARC's second text is the title and the product's
category, as FS has them.
"""

from __future__ import annotations

import ast
import csv
import re
from pathlib import Path

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
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
    root_of,
)
from xclrun.data.readers.rows import columns, json_row, one_of, strings, text_example

_SHOWN = re.compile(r"b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")

ISO = {"english": "en", "german": "de", "spanish": "es", "french": "fr", "italian": "it", "japanese": "ja",
       "russian": "ru", "chinese": "zh"}  # fmt: skip
TOPICS = ("entertainment", "geography", "health", "politics", "science/technology", "sports", "travel")
TAXI = ("Description", "Faith", "Grace", "Recommendation", "Sin", "Violence")


@row_reader(
    "pawsx",
    ("{language}/{split}.tsv",),
    gives=["label"],
    split_names={"train": ("translated_train", "train"), "dev": ("dev_2k",), "test": ("test_2k",)},
)
def parse_pawsx(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for the header."""
    name, one, two, label = columns(line.split("\t"), ("id", "sentence1", "sentence2", "label"))
    if (name, label) == ("id", "label"):
        return None
    return text_example(place, name or None, one, one_of(label, ("0", "1")), two)


@row_reader(
    "mldoc",
    ("{language}.{split}", "{language}.{split}.{any}", "{any}/{language}.{split}", "{any}/{language}.{split}.{any}"),
    gives=["label"],
    language_names=ISO,
)
def parse_mldoc(line: str, place: Place) -> Example:
    """Return the example of one line."""
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
    return text_example(place, None, text.strip(), one_of(label.strip(), ("CCAT", "ECAT", "GCAT", "MCAT")))


@row_reader("marc", ("{any}/dataset_{language}_{split}.json", "dataset_{language}_{split}.json"), gives=["label"])
def parse_marc(line: str, place: Place) -> Example:
    """Return the example of one line: a review, and its title and category."""
    row = json_row(line)
    keys = ("review_id", "review_body", "review_title", "product_category")
    name, body, title, category = (value.strip() for value in strings(row, *keys))
    stars = one_of(str(row.get("stars")), tuple("12345"))
    return text_example(place, name or None, body, stars, f"{title} . {category}")


@row_reader("sib200", ("{language}/{split}.tsv",), gives=["label"], may_lack=("train", "dev"))
def parse_sib200(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for the header."""
    header = ["index_id", "category", "text"]
    try:
        [fields] = csv.reader([line], delimiter="\t", strict=True)
    except csv.Error as error:
        raise BadRow(f"not tab-separated columns with quotes as in CSV ({error})") from None
    if fields == header:
        return None
    name, label, text = columns(fields, header)
    return text_example(place, name, text, one_of(label, TOPICS))


@row_reader(
    "taxi1500",
    ("{folder}/{language}_{split}.tsv", "{split}/{language}.tsv", "{language}/{split}.tsv", "{language}_{split}.tsv"),
    gives=["label"],
    may_lack=("train", "dev"),
)
def parse_taxi1500(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for a header."""
    header = ["id", "label", "verse"]
    fields = columns(line.split("\t"), header)
    if fields == header:
        return None
    name, label, text = fields
    return text_example(place, name, text, one_of(label, TAXI))


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
    """Read every wanted language of XNLI under ``dataset.root``."""
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
    for language in choose_languages(cfg.languages, known, evaluated):
        name = first_file(root, [name.format(language=language) for name in TRAINED])
        if name is not None:
            header, below = _table(root / name, f"{shown}/{name}")
            trained = [None, *((header, line) if line.strip() else None for line in below)]
            sources.append(Source(language, "train", f"{shown}/{name}", trained))
        sources += [Source(language, split, file, of[language]) for split, (file, of) in rows.items()]
    return collect(cfg, sources, parse_xnli)


def _table(path: Path, shown: str) -> tuple[bytes, list[bytes]]:
    """Return the header of a file and the lines below it."""
    header, *below = lines(SplitFile("", "", path, shown))
    return header, below


def _by_language(header: bytes, below: list[bytes]) -> dict[str, list[tuple[bytes, bytes] | None]]:
    """Return the value of the column ``language`` → (header, line) of the lines that have it, None for all others."""
    names = header.split(b"\t")
    found: dict[str, list[tuple[bytes, bytes] | None]] = {}
    if b"language" not in names:
        return {}
    at = names.index(b"language")
    for number, line in enumerate(below, 1):
        fields = line.split(b"\t") if line.strip() else []
        if at < len(fields):
            rows = found.setdefault(fields[at].decode(errors="replace"), [None] * (len(below) + 1))
            rows[number] = header, line
    return found


def parse_xnli(row: tuple[str, str], place: Place) -> Example:
    """Return the example of a line, after the header of its file."""
    names, fields = (line.split("\t") for line in row)
    if len(fields) != len(names):
        raise BadRow(f"{len(fields)} columns between tabs instead of {len(names)}")
    of = dict(zip(names, fields, strict=True))
    found = []
    for keys in (("sentence1", "premise"), ("sentence2", "hypo"), ("gold_label", "label")):
        if not of.keys() & set(keys):
            raise BadRow(f"the header has no column {' or '.join(keys)}")
        found.append(next(of[key] for key in keys if key in of).strip())
    one, two, label = found
    label = one_of("contradiction" if label == "contradictory" else label, XNLI_LABELS)
    return text_example(place, of.get("pairID") or None, one, label, two)
