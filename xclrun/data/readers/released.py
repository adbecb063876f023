"""Published datasets with one class per text or pair of texts, from local files in the released format.

``xnli`` (Conneau et al. 2018), ``pawsx`` (Yang et al. 2019), ``mldoc`` (Schwenk & Li 2018), ``marc`` (Keung et al.
2020), ``sib200`` (Adelani et al. 2024; with CSV quoting of texts with quotes) and ``taxi1500`` (Ma et al. 2023; without
CSV quoting; files of the authors' scripts are read too). docs/data.md lists their files.

Words are separated by spaces. Languages are ISO 639-1 keys, except in SIB-200 (``eng_Latn``, with the script) and
Taxi1500 (ISO 639-3 codes); in these two, sentences with the same id are translations. In XNLI, SIB-200 and Taxi1500, a
language without a training file has an empty training split: it is evaluated, and may have a bucket. SIB-200 and
Taxi1500 may also lack the dev file. MARC's second text is the title and the product's category, as in FS.
"""

from __future__ import annotations

import ast
import csv
import re

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers import reader, row_reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Source, Splits, collect
from xclrun.data.readers.files import SplitFile, choose_languages, lines, root_of
from xclrun.data.readers.rows import columns, field, json_row, one_of, text_example

_BYTES = re.compile(r"b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")")

ISO = {"english": "en", "german": "de", "spanish": "es", "french": "fr", "italian": "it", "japanese": "ja",
       "russian": "ru", "chinese": "zh"}  # fmt: skip
TOPICS = ("entertainment", "geography", "health", "politics", "science/technology", "sports", "travel")
TAXI = ("Description", "Faith", "Grace", "Recommendation", "Sin", "Violence")


@row_reader(
    "pawsx",
    ("{language}/{split}.tsv",),
    gives=["label"],
    split_names={"train": ("translated_train", "train"), "dev": ("dev_2k",), "test": ("test_2k",)},
    defects={"blank_texts": "x-final: translated_train.tsv, dev_2k.tsv and test_2k.tsv of several languages"},
)
def parse_pawsx(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for the header."""
    name, first, second, label = columns(line.split("\t"), ("id", "sentence1", "sentence2", "label"))
    if (name, label) == ("id", "label"):
        return None
    return text_example(place, name or None, first, one_of(label, ("0", "1")), second)


@row_reader(
    "mldoc",
    ("{language}.{split}", "{language}.{split}.{any}", "{any}/{language}.{split}", "{any}/{language}.{split}.{any}"),
    gives=["label"],
    language_names=ISO,
)
def parse_mldoc(line: str, place: Place) -> Example:
    label, tab, text = line.partition("\t")
    if not tab:
        raise BadRow("a label and a text are needed, separated by a tab")
    if text[:2] in ("b'", 'b"'):
        # Under Python 3, the released script writes the repr of bytes. Nothing else may reach Python's parser, which
        # deep nesting would overflow.
        try:
            if not _BYTES.fullmatch(text.rstrip()):
                raise ValueError
            text = ast.literal_eval(text).decode()
        except (ValueError, SyntaxError):
            raise BadRow("the text looks like bytes in Python, but is not valid") from None
    return text_example(place, None, text.strip(), one_of(label.strip(), ("CCAT", "ECAT", "GCAT", "MCAT")))


@row_reader("marc", ("{any}/dataset_{language}_{split}.json", "dataset_{language}_{split}.json"), gives=["label"])
def parse_marc(line: str, place: Place) -> Example:
    row = json_row(line)
    keys = ("review_id", "review_body", "review_title", "product_category")
    name, body, title, category = (field(row, "string", key).strip() for key in keys)
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


# XNLI: one file of all languages for dev and for test, one file per language for training.

XNLI_LABELS = ("contradiction", "entailment", "neutral")
EVALUATED = ("XNLI-1.0/xnli.{split}.tsv", "xnli.{split}.tsv")
TRAINED = (
    "XNLI-MT-1.0/multinli/multinli.train.{language}.tsv",
    "multinli/multinli.train.{language}.tsv",
    "multinli.train.{language}.tsv",
)


@reader("xnli", (EVALUATED[0], TRAINED[0]), gives=["label"])
def read_xnli(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    root = root_of(cfg, TRAINED[:1])
    rows = {}
    for split in ("dev", "test"):
        names = [name.format(split=split) for name in EVALUATED]
        if (file := (root.first if split == "dev" else root.required)("", split, names)) is not None:
            rows[split] = file.name, _by_language(file)
    for name, by_language in rows.values():
        if not by_language:
            raise UsageError(f"{name}: no column 'language'")
    evaluated, available = rows["test"][0], rows["test"][1].keys()
    sources = []
    for language in choose_languages(cfg.languages, available, evaluated):
        train = root.first(language, "train", [name.format(language=language) for name in TRAINED])
        if train is not None:
            header, *below = lines(train)
            pairs = [None, *((header, line) if line.strip() else None for line in below)]
            sources.append(Source(language, "train", train.name, pairs))
        sources += [
            Source(language, split, name, by_language[language])
            for split, (name, by_language) in rows.items()
            if language in by_language
        ]
    return collect(cfg, sources, parse_xnli)


def _by_language(file: SplitFile) -> dict[str, list[tuple[bytes, bytes] | None]]:
    """Return language → a row per line of the file: (header, line) if the line is in this language, otherwise None."""
    header, *below = lines(file)
    names = header.split(b"\t")
    rows: dict[str, list[tuple[bytes, bytes] | None]] = {}
    if b"language" not in names:
        return {}
    at = names.index(b"language")
    for number, line in enumerate(below, 1):
        fields = line.split(b"\t") if line.strip() else []
        if at < len(fields):
            language = fields[at].decode(errors="replace")
            rows.setdefault(language, [None] * (len(below) + 1))[number] = header, line
    return rows


def parse_xnli(row: tuple[str, str], place: Place) -> Example:
    """Return the example of (header of the file, line)."""
    names, fields = (line.split("\t") for line in row)
    if len(fields) != len(names):
        raise BadRow(f"{len(fields)} tab-separated columns instead of {len(names)}")
    by_name = dict(zip(names, fields, strict=True))
    values = []
    for keys in (("sentence1", "premise"), ("sentence2", "hypo"), ("gold_label", "label")):
        if not by_name.keys() & set(keys):
            raise BadRow(f"the header has no column {' or '.join(keys)}")
        values.append(next(by_name[key] for key in keys if key in by_name).strip())
    first, second, label = values
    label = one_of("contradiction" if label == "contradictory" else label, XNLI_LABELS)
    return text_example(place, by_name.get("pairID") or None, first, label, second)
