"""English datasets for streams of tasks, from local files as released.

``boolq`` (Clark et al. 2019), ``wic`` (Pilehvar & Camacho-Collados 2019), ``wsc`` (Levesque et al. 2012), ``fewrel``
(Han et al. 2018), ``mnli`` (Williams et al. 2018), ``snli`` (Bowman et al. 2015), and ``yelp``, ``amazon``, ``agnews``,
``dbpedia``, ``yahoo`` (Zhang et al. 2015). docs/data.md lists their files.

BoolQ, WiC and WSC are in SuperGLUE's format (Wang et al. 2019). Most test splits are released without labels. As in LL,
the validation files are therefore the test splits, and dev splits are empty. The only language is ``en``.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.collect import BadRow, Place
from xclrun.data.readers.files import SplitFile, json_file
from xclrun.data.readers.rows import field, json_row, one_of, text_example
from xclrun.data.readers.values import NO_LABEL, Skip

NLI = ("contradiction", "entailment", "neutral")
# The classes of released CSV files, by their number from 1; the classes of reviews are numbers of stars.
CLASSES = {
    "yelp": ("1", "2", "3", "4", "5"),
    "amazon": ("1", "2", "3", "4", "5"),
    "agnews": ("World", "Sports", "Business", "Sci/Tech"),
    "dbpedia": (
        "Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder", "MeanOfTransportation", "Building",
        "NaturalPlace", "Village", "Animal", "Plant", "Album", "Film", "WrittenWork",
    ),
    "yahoo": (
        "Society & Culture", "Science & Mathematics", "Health", "Education & Reference", "Computers & Internet",
        "Sports", "Business & Finance", "Entertainment & Music", "Family & Relationships", "Politics & Government",
    ),
}  # fmt: skip
# Dataset → (columns after the class, columns that are read). LL ignores the titles of news and of articles.
COLUMNS = {
    "yelp": (("text",), ("text",)),
    "amazon": (("title", "text"), ("title", "text")),
    "agnews": (("title", "text"), ("text",)),
    "dbpedia": (("title", "content"), ("content",)),
    "yahoo": (("title", "question", "answer"), ("title", "question", "answer")),
}


_english = partial(row_reader, gives=["label"], languages=["en"])
_PAIR = {"train": ("train.jsonl",), "test": ("val.jsonl", "dev.jsonl")}


def _string(row: dict[str, Any], key: str) -> str:
    text: str = field(row, "text", key)
    return text.strip()


def _truth(row: dict[str, Any], *keys: str) -> str:
    if any(row.get(key, "") in (None, -1, "-") for key in keys):
        raise Skip("unlabeled", f"'{keys[0]}' is missing")
    return str(field(row, "boolean", *keys)).lower()


@_english("boolq", ("{split}.jsonl",), files=_PAIR)
def parse_boolq(line: str, place: Place) -> Example:
    """Yes-or-no questions about a passage."""
    row = json_row(line)
    text, question, label = _string(row, "passage"), _string(row, "question"), _truth(row, "label", "answer")
    return text_example(place, row.get("idx"), text, label, question)


@_english("wic", ("{split}.jsonl",), files=_PAIR)
def parse_wic(line: str, place: Place) -> Example:
    """Whether a word has the same sense in two sentences."""
    row = json_row(line)
    facts = {key: _string(row, key) for key in ("word", "sentence1", "sentence2")}
    # Append the word to the second text, so that the model knows it. Statements contain the word already.
    second = f"{facts['sentence2']} {facts['word']}"
    return text_example(place, row.get("idx"), facts["sentence1"], _truth(row, "label"), second, facts)


@_english("wsc", ("{split}.jsonl",), files=_PAIR)
def parse_wsc(line: str, place: Place) -> Example:
    """Whether a pronoun refers to a noun."""
    row = json_row(line)
    target = field(row, "object", "target")
    facts = {"noun": _string(target, "span1_text"), "pronoun": _string(target, "span2_text")}
    second = f"{facts['noun']} {facts['pronoun']}"
    return text_example(place, row.get("idx"), _string(row, "text"), _truth(row, "label"), second, facts)


def _inference(line: str, place: Place, genre: bool) -> Example | None:
    row = json_row(line)
    label = one_of(_string(row, "gold_label"), (*NLI, "-"))
    if label == "-":
        # Skip examples on which the annotators disagreed.
        place.odd["disputed"] += 1
        return None
    facts = {"genre": _string(row, "genre")} if genre else None
    pair = _string(row, "sentence1"), _string(row, "sentence2")
    return text_example(place, row.get("pairID"), pair[0], label, pair[1], facts)


@_english(
    "mnli",
    ("multinli_1.0_{split}.jsonl",),
    files={"train": ("multinli_1.0_train.jsonl",), "test": ("multinli_1.0_dev_matched.jsonl",)},
)
def parse_mnli(line: str, place: Place) -> Example | None:
    """Inference in ten genres; parts can select them."""
    return _inference(line, place, genre=True)


@_english(
    "snli", ("snli_1.0_{split}.jsonl",), files={split: (f"snli_1.0_{split}.jsonl",) for split in ("train", "test")}
)
def parse_snli(line: str, place: Place) -> Example | None:
    """Inference about captions of pictures."""
    return _inference(line, place, genre=False)


def _relations(file: SplitFile) -> Iterator[tuple[str, str, int, Any]]:
    """Yield (code of a relation, its name, number, example) of FewRel's file, which is one JSON object.

    A name that several codes share is followed by the code: ``part of (P361)``.
    """
    path = file.path.with_name("pid2name.json")
    listed = json_file(path, f"{Path(file.name).parent}/{path.name}") if path.is_file() else {}
    names = {code: row[0] for code, row in listed.items() if isinstance(row, list) and row and isinstance(row[0], str)}
    times = Counter(names.values())
    for code, examples in json_file(file.path, file.name).items():
        if not isinstance(examples, list):
            raise UsageError(f"{file.name}: the relation '{code}' must be a list of examples")
        name = names.get(code, code)
        name = f"{name} ({code})" if times[name] > 1 else name
        for number, example in enumerate(examples, 1):
            yield code, name, number, example


@_english(
    "fewrel",
    ("{split}_wiki.json",),
    rows=_relations,
    files={"train": ("train_wiki.json",), "test": ("val_wiki.json",)},
)
def parse_fewrel(row: tuple[str, str, int, Any], place: Place) -> Example:
    """The relation between two names in a sentence."""
    code, relation, number, example = row
    try:
        parts = {"tokens": example["tokens"], "h": example["h"][0], "t": example["t"][0]}
    except (KeyError, TypeError, IndexError):
        raise BadRow(f"example {number} of the relation '{code}' needs tokens, h and t") from None
    try:
        tokens, head, tail = field(parts, "words", "tokens"), field(parts, "text", "h"), field(parts, "text", "t")
    except BadRow as bad:
        raise BadRow(f"example {number} of the relation '{code}': {bad}") from None
    facts = {"head": head, "tail": tail}
    return Example(f"{code}-{number}", place.language, tuple(tokens), relation, None, None, f"{head} {tail}", facts)


def _parse_csv(line: str, place: Place, name: str) -> Example:
    columns, read = COLUMNS[name]
    try:
        fields = next(csv.reader([line], strict=True), [])
    except csv.Error as error:
        raise BadRow(f"not a line of CSV ({error})") from None
    if len(fields) != 1 + len(columns):
        raise BadRow(f"{len(fields)} columns instead of {1 + len(columns)}: class, {', '.join(columns)}")
    number, classes = fields[0].strip(), CLASSES[name]
    if number in NO_LABEL:
        raise Skip("unlabeled", "the class is missing")
    if number not in map(str, range(1, len(classes) + 1)):
        raise BadRow(f"the class must be a number from 1 to {len(classes)}, not {number!r}")
    # Line breaks of the texts are written as \\n.
    texts = {name: " ".join(text.replace("\\n", " ").split()) for name, text in zip(columns, fields[1:], strict=True)}
    text = " ".join(texts[column] for column in read if texts[column])
    return text_example(place, None, text, classes[int(number) - 1])


for _name in CLASSES:
    _english(_name, ("{split}.csv",), files={split: (f"{split}.csv",) for split in ("train", "test")})(
        partial(_parse_csv, name=_name)
    )
