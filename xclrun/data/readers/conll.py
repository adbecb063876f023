"""Tagged data of users in CoNLL format: one word per line, in columns.

Columns are separated by tabs, or by spaces in a line without a tab. ``dataset.word_column`` and ``dataset.tag_column``
select the columns of the word and its tag. Sentences are separated by blank lines. The line of a word must have as many
columns as most lines of the file. Before the first word of a sentence, a line that begins with ``#`` is a comment if it
has the form ``# key = value``, or a different number of columns; ``#`` and ``#hashtag`` can thus be words. ``sent_id``
and ``text`` are read from comments as in CoNLL-U. ``-DOCSTART-`` lines are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from functools import partial

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers import reader
from xclrun.data.readers.files import (
    SPLIT_NAMES,
    BadRow,
    Notes,
    Place,
    SplitFile,
    Splits,
    blocks,
    find_files,
    read_files,
)
from xclrun.data.readers.rows import tagged

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.{ending}" for ending in ("conll", "txt") for separator in (".", "/", "-", "_")
)
_NAMES = {**SPLIT_NAMES, "dev": (*SPLIT_NAMES["dev"], "valid")}
_COMMENT = re.compile(r"#[ \t]*([\w.-]+) += *(.*)")
_DOCUMENT = "-DOCSTART-"


@reader("conll", LAYOUT, gives=["tags"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    columns = cfg.word_column, cfg.tag_column
    for key, column in zip(("word_column", "tag_column"), columns, strict=True):
        if not column:
            raise UsageError(f"dataset.{key}=0: columns are numbered from 1, or from the last with -1, -2, …")
    if cfg.word_column == cfg.tag_column:
        raise UsageError(f"dataset.word_column={cfg.word_column}: equals dataset.tag_column; set two different columns")
    return read_files(cfg, find_files(cfg, LAYOUT, _NAMES), partial(parse, columns=columns), rows)


def rows(file: SplitFile) -> Iterator[tuple[list[bytes], int] | tuple[()]]:
    """Yield the blocks of a file, each with the number of columns that most lines of the file have."""
    sentences = list(blocks(file))
    widths = Counter(len(_fields(line.decode("latin-1"))) for block in sentences for line in block)
    for block in sentences:
        yield (block, widths.most_common(1)[0][0]) if block else ()


def parse(row: tuple[list[str], int], place: Place, columns: tuple[int, int]) -> Example | None:
    """Return the example of a block (lines, number of columns of a word); None for the beginning of a document.

    Args:
        columns: columns of the word and of its tag, counted from 1, or from the last column with −1, −2, …
    """
    block, width = row
    facts: dict[str, str] = {}
    begun = False

    def word(line: str) -> tuple[str, str] | None:
        nonlocal begun
        fields = _fields(line)
        comment = _COMMENT.match(line)
        if line.startswith("#") and not begun and (len(fields) != width or (comment and "\t" not in line)):
            if comment:
                facts.setdefault(comment[1], comment[2].strip())
            return None
        if fields[0] == _DOCUMENT:
            return None
        begun = True
        return _word(fields, width, columns)

    try:
        return tagged(block, place, word, facts=facts)
    except BadRow:
        if not begun and any(_fields(line)[0] == _DOCUMENT for line in block):
            return None
        raise


def _fields(line: str) -> list[str]:
    """Return the columns of a line; a no-break space can be part of a word."""
    line = line.rstrip("\t ")
    return [field.strip(" ") for field in line.split("\t")] if "\t" in line else re.split(" +", line.lstrip(" "))


def _word(row: list[str], width: int, columns: tuple[int, int]) -> tuple[str, str]:
    count = f"{len(row)} column{'' if len(row) == 1 else 's'}"
    places = [column - 1 if column > 0 else len(row) + column for column in columns]
    for key, column, place in zip(("word", "tag"), columns, places, strict=True):
        if not 0 <= place < len(row):
            raise BadRow(f"{count}; dataset.{key}_column={column} does not exist")
    if places[0] == places[1]:
        raise BadRow(f"{count}; a word and its tag are needed, separated by a tab or spaces")
    if len(row) != width:
        raise BadRow(f"{count} where most lines of the file have {width}")
    return row[places[0]], row[places[1]]
