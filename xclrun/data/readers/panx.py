"""Tagged words in columns: WikiANN, also called PAN-X (Pan et al. 2017; splits of Rahimi et al. 2019).

A line is a word and its tag between them a tab, and sentences stand between blank lines. In the release words have the
language before them (``de:Mainz``), one folder or name per language; XTREME's copy has names like ``test-de.tsv`` and
bare words. A file has language prefixes if more than half of its lines begin with one; then each line must have the
prefix of the file's language. Lines of more columns are read by the first and the last. Sentences have no ids: theirs
are the split and the number of their first line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

from xclrun.core.languages import language_of
from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, SplitFile, blocks, check_tags, shortened

LAYOUT = (
    "{language}/{split}",
    "{language}-{split}",
    "{split}-{language}.tsv",
    "{language}/{split}.tsv",
    "{language}-{split}.tsv",
)


# Wikipedia's codes: ``de``, ``zh-min-nan``, ``simple``.
_PREFIX = re.compile(rb"[ \t]*(?:simple|[a-z]{2,3}(?:-[a-z]+)*):")


def rows(file: SplitFile) -> Iterator[tuple[list[bytes], bool] | tuple[()]]:
    """Yield the blocks of a file as `blocks` does, each with whether the words of the file have language prefixes."""
    sentences = list(blocks(file))
    prefixed = sum((1 if _PREFIX.match(line) else -1) for block in sentences for line in block) > 0
    for block in sentences:
        yield (block, prefixed) if block else ()


@row_reader("panx", LAYOUT, gives=["tags"], rows=rows)
def parse(row: tuple[list[str], bool], place: Place) -> Example:
    """Return the example of one block of lines.

    Raises:
        BadRow: a line has no tag or no word, or lacks the prefix of the file's language where the file has prefixes; or
            the tags are not BIO where they are spans.
    """
    block, prefixed = row
    words: list[str] = []
    tags: list[str] = []
    for place.below, line in enumerate(block):
        word, *others = (field.strip() for field in line.split("\t"))
        if not others:
            raise BadRow("a word and its tag are needed, between them a tab")
        if not word:
            raise BadRow("the word is blank")
        tag = others[-1]
        check_tags([tag], [word], place.task)
        words.append(_bare(word, place.language) if prefixed else word)
        tags.append(tag)
    return Example(place.name, place.language, tuple(words), None, tuple(tags))


def _bare(word: str, language: str) -> str:
    """Return a word without the prefix of its language; a prefix alone is a word.

    Raises:
        BadRow: the word has no prefix, or the prefix of another language.
    """
    prefix, colon, bare = word.partition(":")
    if not colon or not (prefix == language or _same_language(prefix, language)):
        problem = f"begins with '{prefix}:'" if colon else "has no language prefix"
        raise BadRow(f"{shortened(word)!r} {problem} in a file of '{language}', whose words begin with '{language}:'")
    return bare or word


@cache
def _same_language(one: str, other: str) -> bool:
    """Check whether two codes name the same language, such as ``de`` and ``deu``."""
    first, second = language_of(one), language_of(other)
    return first is not None and second is not None and first.code == second.code
