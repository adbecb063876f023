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
from xclrun.data.readers.files import BadRow, Place, SplitFile, blocks, shortened
from xclrun.data.readers.rows import tagged

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
    """Return the example of one block of lines."""
    block, prefixed = row

    def word(line: str) -> tuple[str, str]:
        form, *others = (field.strip() for field in line.split("\t"))
        if not others:
            raise BadRow("a word and its tag are needed, between them a tab")
        return _bare(form, place.language) if prefixed and form else form, others[-1]

    return tagged(block, place, word)


def _bare(word: str, language: str) -> str:
    """Return a word without the prefix of its language; a prefix alone is a word."""
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
