"""Tagged words in columns: WikiANN, also called PAN-X (Pan et al. 2017; splits of Rahimi et al. 2019).

A line is a word and its tag between them a tab, and sentences stand between blank lines. In the release words have the
language before them (``de:Mainz``), one folder or name per language; XTREME's copy has names like ``test-de.tsv`` and
bare words. Lines of more columns are read by the first and the last. Sentences have no ids: theirs are the split and
the number of their first line.
"""

from __future__ import annotations

from functools import partial

from xclrun.config.schema import DatasetConfig
from xclrun.core.task import Task
from xclrun.data.example import Example
from xclrun.data.readers.files import (
    BadRow,
    Notes,
    Source,
    Splits,
    blocks,
    check_tags,
    collect,
    find_files,
    parse_utf8,
    task_of_files,
)

LAYOUT = (
    "{language}/{split}",
    "{language}-{split}",
    "{split}-{language}.tsv",
    "{language}/{split}.tsv",
    "{language}-{split}.tsv",
)


def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language under ``dataset.root``.

    Raises:
        UsageError: the task is not one of tags; see `find_files` and `collect`.
    """
    task = task_of_files(cfg, tags=True)
    sources = (Source(f.language, f.split, f.shown, blocks(f)) for f in find_files(cfg, LAYOUT))
    return collect(sources, partial(parse_sentence, task=task), cfg.on_bad_line)


def parse_sentence(block: list[bytes], language: str, split: str, number: int, task: Task) -> Example:
    """Return the example of one block of lines; ``number`` is that of its first line.

    Raises:
        BadRow: a line has no tag or no word, or the tags are not BIO where they are spans.
    """
    words: list[str] = []
    tags: list[str] = []
    for below, raw in enumerate(block):
        try:
            word, *_, tag = [field.strip() for field in parse_utf8(raw).split("\t")] or [""]
            bare = word.removeprefix(f"{language}:") or word
            if not bare:
                raise BadRow("the word is blank")
            check_tags([tag], [bare], task)
        except ValueError as bad:
            reason = str(bad) if isinstance(bad, BadRow) else "a word and its tag are needed, between them a tab"
            raise BadRow(reason, below) from None
        words.append(bare)
        tags.append(tag)
    return Example(f"{split}-{number}", language, tuple(words), None, tuple(tags))
