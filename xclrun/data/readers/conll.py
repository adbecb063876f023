"""Tagged data of users in CoNLL format: one word per line, in columns.

Columns are separated by tabs, or by spaces in a line without a tab. ``dataset.word_column`` and ``dataset.tag_column``
select the columns of the word and its tag. Sentences are separated by blank lines. The line of a word must have as many
columns as most lines of the file. Before the first word of a sentence, a line that begins with ``#`` is a comment if it
has the form ``# key = value`` or ``# newdoc``, a different number of columns, or no tag where the tag of a word stands;
``#`` and ``#hashtag`` can thus be words. ``sent_id`` and ``text`` are read from comments as in CoNLL-U. Blocks of
comments and ``-DOCSTART-`` lines are skipped.

If the first column numbers the words of each sentence, as in CoNLL-U, lines of multi-word tokens (``1-2``) and empty
nodes (``1.1``) are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from xclrun.config.schema import DatasetConfig
from xclrun.core.errors import UsageError
from xclrun.data.example import Example
from xclrun.data.readers import reader
from xclrun.data.readers.collect import BadRow, Notes, Place, Splits, read_files
from xclrun.data.readers.files import SplitFile, blocks, find_files
from xclrun.data.readers.rows import NO_WORD, tagged
from xclrun.data.readers.values import DOCUMENT, check_tag

LAYOUT = tuple(
    f"{{language}}{separator}{{split}}.{ending}" for ending in ("conll", "txt") for separator in (".", "/", "-", "_")
)
_COMMENT = re.compile(r"#[ \t]*([\w.-]+(?: [\w.-]+)?) += *(.*)")
# Comments without a value, for example in Universal Dependencies.
_KEYWORDS = ("newdoc", "newpar")


@dataclass(frozen=True)
class Columns:
    """The columns of a file.

    Attributes:
        width: number of columns that most lines have.
        numbered: whether the first column numbers the words of each sentence.
        small: whether a tag is in small letters, as comments often are.
    """

    width: int
    numbered: bool
    small: bool


@reader("conll", LAYOUT, gives=["tags"])
def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    columns = cfg.word_column, cfg.tag_column
    for key, column in zip(("word_column", "tag_column"), columns, strict=True):
        if not column:
            raise UsageError(f"dataset.{key}=0: columns are numbered from 1, or from the last with -1, -2, …")
    if cfg.word_column == cfg.tag_column:
        raise UsageError(f"dataset.word_column={cfg.word_column}: equals dataset.tag_column; set two different columns")
    return read_files(cfg, find_files(cfg, LAYOUT), partial(parse, columns=columns), partial(rows, columns=columns))


def rows(file: SplitFile, columns: tuple[int, int]) -> Iterator[tuple[list[bytes], Columns] | tuple[()]]:
    """Yield the blocks of a file, each with the columns of the file."""
    sentences = list(blocks(file))
    lines = [_fields(line.decode("latin-1")) for block in sentences for line in block]
    # Comments may be more frequent than words.
    counts = Counter(len(fields) for fields in lines if fields[:3:2] != ["#", "="]) or Counter(map(len, lines))
    width = counts.most_common(1)[0][0] if counts else 0
    words = [fields for fields in lines if len(fields) == width and not fields[0].startswith("#")]
    place = columns[1] - 1 if columns[1] > 0 else width + columns[1]
    small = 0 <= place < width and any(fields[place].isalpha() and fields[place].islower() for fields in words)
    about = Columns(width, _numbered(words), small)
    if about.numbered and columns[0] in (1, -width):
        raise UsageError(
            f"{file.name}: dataset.word_column={columns[0]} holds the numbers of words; set dataset.word_column to the "
            "column of the words, such as 2"
        )
    for block in sentences:
        yield (block, about) if block else ()


def _numbered(words: list[list[str]]) -> bool:
    """Whether the first column of nearly all words is their number in the sentence."""
    numbers = [int(fields[0]) for fields in words if fields[0].isdecimal() and len(fields[0]) < 7]
    steps = sum(number in (1, before + 1) for before, number in zip([0, *numbers], numbers, strict=False))
    return 2 in numbers and min(len(numbers), steps) > 0.9 * sum(not NO_WORD.fullmatch(fields[0]) for fields in words)


def parse(row: tuple[list[str], Columns], place: Place, columns: tuple[int, int]) -> Example | None:
    """Return the example of a block (lines, columns of the file); None for comments or the beginning of a document.

    Args:
        columns: columns of the word and of its tag, counted from 1, or from the last column with −1, −2, …
    """
    block, about = row
    facts: dict[str, str] = {}
    begun = False

    def word(line: str) -> tuple[str, str] | None:
        nonlocal begun
        fields = _fields(line)
        if line.startswith("#") and not begun and _is_comment(line, fields, about, place, columns[1]):
            if comment := _COMMENT.match(line):
                facts.setdefault(comment[1], comment[2].strip())
            return None
        if fields[0] == DOCUMENT or (about.numbered and NO_WORD.fullmatch(fields[0])):
            return None
        if about.numbered and begun and fields[0] == "1":
            raise BadRow("word 1 after other words; is a blank line missing between two sentences?")
        begun = True
        return _word(fields, about.width, columns)

    try:
        return tagged(block, place, word, facts=facts, numbered=True)
    except BadRow:
        if begun or any(not line.startswith("#") and _fields(line)[0] != DOCUMENT for line in block):
            raise
        place.odd["no_words"] += bool({"sent_id", "text"} & facts.keys())
        return None


def _is_comment(line: str, fields: list[str], about: Columns, place: Place, tag_column: int) -> bool:
    """Whether a line that begins with ``#``, before the first word of a sentence, is a comment."""
    if len(fields) != about.width or ("\t" not in line and _COMMENT.match(line)):
        return True
    at = tag_column - 1 if tag_column > 0 else about.width + tag_column
    tag = fields[at] if 0 <= at < about.width else ""
    # Small letters would be a tag that no other word has; a single letter may be a mistaken O.
    if len(tag) > 1 and tag.isalpha() and tag.islower() and not about.small:
        return True
    if fields[0] != "#" or about.width < 2:
        return False
    if place.task.tag_spans:
        try:
            check_tag(tag, place.task)
        except BadRow:
            return True
    return tag in _KEYWORDS


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
