"""Named entities in BIO, as released: MasakhaNER 2 and Universal NER.

| reader | files | a line |
|---|---|---|
| ``masakhaner`` (Adelani et al. 2022) | ``data/LANGUAGE/{train,dev,test}.txt``; the root is ``data`` | word and tag, \
between them a space |
| ``uner`` (Mayhew et al. 2024) | ``UNER_English-EWT/en_ewt-ud-{train,dev,test}.iob2``, or all in one folder | number, \
word, tag and, where one was set, ``-`` and the annotator; comments ``# sent_id``, ``# text`` |

Sentences stand between blank lines. Keys of ``uner`` are language and treebank, ``en_ewt``, since some languages have
several; a treebank without training or dev file has an empty split. Its annotators could also set ``B-O``, which is
``O``, and ``OTH`` for other entities, which the published tag set does not have: they are read as ``O`` and counted.
"""

from __future__ import annotations

import re

from xclrun.data.example import OUTSIDE, Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, blocks
from xclrun.data.readers.rows import COMMENT, tagged

OTHER = "OTH"
# Multi-word tokens and empty nodes, as in CoNLL-U: tags stand on syntactic words.
_NO_WORD = re.compile(r"\d+[-.]\d+")


@row_reader("masakhaner", ("{language}/{split}.txt",), gives=["tags"], rows=blocks)
def parse_masakhaner(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines."""

    def word(line: str) -> tuple[str, str]:
        form, _, tag = line.strip().rpartition(" ")
        if not form:
            raise BadRow("a word and its tag are needed, between them a space")
        return form.strip(), tag

    return tagged(block, place, word)


@row_reader(
    "uner",
    ("{folder}/{language}-ud-{split}.iob2", "{language}-ud-{split}.iob2"),
    gives=["tags"],
    rows=blocks,
    may_lack=("train", "dev"),
)
def parse_uner(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines; counts ``other_entities``."""

    def word(line: str) -> tuple[str, str] | None:
        fields = [field.strip() for field in line.split("\t")]
        if len(fields) < 3:
            raise BadRow(f"{len(fields)} columns between tabs; number, word and tag are needed")
        number, form, tag = fields[:3]
        if _NO_WORD.fullmatch(number):
            return None
        if not number.isdecimal():
            raise BadRow(f"the first column must be the word's number, not {number!r}")
        if tag == f"B-{OTHER}":
            place.odd["other_entities"] += 1
        return form, OUTSIDE if tag[:2] in ("B-", "I-") and tag[2:] in (OTHER, OUTSIDE) else tag

    return tagged(block, place, word, COMMENT)
