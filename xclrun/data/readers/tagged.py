"""Published datasets with tagged words: CoNLL-U, MasakhaNER 2, Universal NER and WikiANN.

``conllu`` (Universal Dependencies): ten tab-separated columns, including number, FORM (2) and UPOS (4). ``masakhaner``
(Adelani et al. 2022): word and tag, separated by a space. ``uner`` (Mayhew et al. 2024): number, word, tag and, in some
lines, ``-`` and the annotator. ``panx`` (WikiANN: Pan et al. 2017; splits of Rahimi et al. 2019; also XTREME's copy):
tab-separated columns, of which the first is the word and the last the tag. docs/data.md lists their files.

Sentences are separated by blank lines. The id is ``sent_id``, or in CoNLL-U and UNER the split and the number of the
sentence, otherwise the split and the number of the sentence's first line. Blocks of comments are skipped.

CoNLL-U and UNER: multi-word tokens (``1-2``) and empty nodes (``1.1``) are skipped, since tags belong to syntactic
words. CoNLL-U numbers the words from 1 without gaps. A number that does not increase is an error, since a blank line
is missing. Gaps and tags other than the 17 of UPOS are counted (https://universaldependencies.org/format.html).

UNER: keys are language and treebank (``en_ewt``), since some languages have several treebanks. A treebank without a
training or dev file has an empty split. Annotators could also set two tags that the published tag set does not contain,
``B-O`` and ``OTH`` (other entities); both are read as ``O`` and counted.

WikiANN: in the release, words have a language prefix (``de:Mainz``). If more than half of a file's lines begin with a
prefix, each line must have the prefix of the file's language.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from xclrun.core.languages import language_of
from xclrun.data.example import OUTSIDE, Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.collect import BadRow, Place, shortened
from xclrun.data.readers.files import SplitFile, blocks
from xclrun.data.readers.rows import COMMENT, NO_WORD, tagged

_NUMBER = re.compile(r"\d{1,9}")
UPOS = frozenset(
    ("ADJ", "ADP", "ADV", "AUX", "CCONJ", "DET", "INTJ", "NOUN", "NUM", "PART", "PRON", "PROPN", "PUNCT", "SCONJ",
     "SYM", "VERB", "X")
)  # fmt: skip
# Universal NER's tag of entities that its published tag set does not contain.
OTHER = "OTH"
# Prefixes of WikiANN, which are Wikipedia's codes: ``de``, ``zh-min-nan``, ``simple``.
_PREFIX = re.compile(rb"[ \t]*(?:simple|[a-z]{2,3}(?:-[a-z]+)*):")


@row_reader(
    "conllu",
    # Names in the release, then names of one file per language and split.
    (
        "{language}_{treebank}-ud-{split}.conllu",
        "{any}/{language}_{treebank}-ud-{split}.conllu",
        # Training data of large treebanks, in parts.
        "{language}_{treebank}-ud-{split}-{part}.conllu",
        "{any}/{language}_{treebank}-ud-{split}-{part}.conllu",
        # Names until UD 2.1.
        "{language}-ud-{split}.conllu",
        "{any}/{language}-ud-{split}.conllu",
        "{language}-ud-{split}-{part}.conllu",
        "{any}/{language}-ud-{split}-{part}.conllu",
        "{language}-{split}.conllu",
        "{language}/{split}.conllu",
    ),
    gives=["tags"],
    rows=blocks,
)
def parse_conllu(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines; counts ``missing_words`` and ``unknown_upos``."""
    last = 0

    def word(line: str) -> tuple[str, str] | None:
        nonlocal last
        fields = line.split("\t")
        if len(fields) != 10:
            raise BadRow(f"{len(fields)} tab-separated columns instead of 10")
        number, form, _, tag = fields[:4]
        if NO_WORD.fullmatch(number):
            return None
        if not _NUMBER.fullmatch(number):
            raise BadRow(f"the first column must be the number of the word, not {number!r}")
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

    return tagged(block, place, word, COMMENT, numbered=True)


@row_reader(
    "masakhaner",
    ("{language}/{split}.txt",),
    gives=["tags"],
    rows=blocks,
    defects={"blank_words": "MasakhaNER 2: xho/train"},
)
def parse_masakhaner(block: list[str], place: Place) -> Example:
    """Return the example of one block of lines."""

    def word(line: str) -> tuple[str, str]:
        form, _, tag = line.strip().rpartition(" ")
        if not form and not line[0].isspace():
            raise BadRow("a word and its tag are needed, separated by a space")
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
            raise BadRow(f"{len(fields)} tab-separated columns; number, word and tag are needed")
        number, form, tag = fields[:3]
        if NO_WORD.fullmatch(number):
            return None
        if not number.isdecimal():
            raise BadRow(f"the first column must be the number of the word, not {number!r}")
        if tag == f"B-{OTHER}":
            place.odd["other_entities"] += 1
        return form, OUTSIDE if tag in (f"B-{OTHER}", f"I-{OTHER}") else tag

    return tagged(block, place, word, COMMENT, numbered=True)


def _prefixed(file: SplitFile) -> Iterator[tuple[list[bytes], bool] | tuple[()]]:
    """Yield the blocks of a file, each with whether the words of the file have language prefixes."""
    sentences = list(blocks(file))
    prefixed = sum((1 if _PREFIX.match(line) else -1) for block in sentences for line in block) > 0
    for block in sentences:
        yield (block, prefixed) if block else ()


@row_reader(
    "panx",
    (
        "{language}/{split}",
        "{language}-{split}",
        "{split}-{language}.tsv",
        "{language}/{split}.tsv",
        "{language}-{split}.tsv",
    ),
    gives=["tags"],
    rows=_prefixed,
)
def parse_panx(row: tuple[list[str], bool], place: Place) -> Example:
    """Return the example of one block of lines."""
    block, prefixed = row

    def word(line: str) -> tuple[str, str]:
        form, *rest = (field.strip() for field in line.split("\t"))
        if not rest:
            raise BadRow("a word and its tag are needed, separated by a tab")
        return _bare(form, place.language) if prefixed and form else form, rest[-1]

    return tagged(block, place, word)


def _bare(word: str, language: str) -> str:
    """Return a word without the prefix of its language; a prefix alone is a word."""
    prefix, colon, bare = word.partition(":")
    if not colon or not (prefix == language or _same_language(prefix, language)):
        problem = f"begins with '{prefix}:'" if colon else "has no language prefix"
        raise BadRow(f"{shortened(word)!r} {problem} in a file of '{language}', whose words begin with '{language}:'")
    return bare or word


@cache
def _same_language(code: str, other: str) -> bool:
    """Check whether two codes name the same language, such as ``de`` and ``deu``."""
    first, second = language_of(code), language_of(other)
    return first is not None and second is not None and first.code == second.code
