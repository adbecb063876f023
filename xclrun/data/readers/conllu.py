"""Universal Dependencies in CoNLL-U: the words of a sentence and their universal part-of-speech tags.

A sentence is a block of lines of ten columns between tabs, of which FORM (2) and UPOS (4) are read; comments begin with
``#``. Multi-word tokens (``1-2``) and empty nodes (``1.1``) are left out: tags stand on syntactic words. The id is
``sent_id`` where there is one, else the split and the sentence's number of its first line; ``text`` is kept where it is
not just the words joined by spaces. Words are numbered from 1 without gaps; a number that does not grow is an error,
since two sentences have run together there, while gaps and tags beyond the 17 of UPOS are counted. See https://universaldependencies.org/format.html.
"""

from __future__ import annotations

import re

from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, blocks
from xclrun.data.readers.rows import COMMENT, tagged

# The first name that fits counts: a release's names, then one file per language and split.
LAYOUT = (
    "{language}_{any}-ud-{split}.conllu",
    "{any}/{language}_{any}-ud-{split}.conllu",
    "{language}-{split}.conllu",
    "{language}/{split}.conllu",
)
COLUMNS = 10
_NUMBER = re.compile(r"\d{1,9}")
_LEFT_OUT = re.compile(r"\d+[-.]\d+")
UPOS = frozenset(
    ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
     "SYM", "VERB", "X")
)  # fmt: skip


@row_reader("conllu", LAYOUT, gives=["tags"], rows=blocks)
def parse(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines; counts ``missing_words`` and ``unknown_upos``."""
    last = 0

    def word(line: str) -> tuple[str, str] | None:
        nonlocal last
        fields = line.split("\t")
        if len(fields) != COLUMNS:
            raise BadRow(f"{len(fields)} columns between tabs instead of {COLUMNS}")
        number, form, _, tag = fields[:4]
        if _LEFT_OUT.fullmatch(number):
            return None
        if not _NUMBER.fullmatch(number):
            raise BadRow(f"the first column must be the word's number, not {number!r}")
        if form.strip() and (not tag.strip() or (tag == "_" and form != "_")):
            raise BadRow(f"'{form}' has no UPOS tag")
        if int(number) <= last:
            raise BadRow(f"word {int(number)} after word {last}; is a blank line missing between two sentences?")
        if int(number) > last + 1:
            place.odd["missing_words"] = 1
        if tag not in UPOS:
            place.odd["unknown_upos"] += 1
        last = int(number)
        return form, tag

    return tagged(block, place, word, COMMENT)
