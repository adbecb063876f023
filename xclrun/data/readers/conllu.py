"""Universal Dependencies in CoNLL-U: the words of a sentence and their universal part-of-speech tags.

A sentence is a block of lines of ten columns between tabs, of which FORM (2) and UPOS (4) are read; comments begin with
``#``. Multi-word tokens (``1-2``) and empty nodes (``1.1``) are left out: tags stand on syntactic words. The id is
``sent_id`` where there is one, else the split and the sentence's number of its first line; ``text`` is kept where it is
not just the words joined by spaces. Words are numbered from 1 without gaps; a number that does not grow is an error,
since two sentences have run together there, while gaps and tags beyond the 17 of UPOS are counted. See https://universaldependencies.org/format.html.
"""

from __future__ import annotations

import re
from collections import Counter

from xclrun.config.schema import DatasetConfig
from xclrun.data.example import Example
from xclrun.data.readers.files import (
    BadRow,
    Notes,
    Source,
    Splits,
    blocks,
    collect,
    find_files,
    parse_utf8,
    task_of_files,
)

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


def read(cfg: DatasetConfig) -> tuple[Splits, Notes]:
    """Read every wanted language under ``dataset.root``.

    Returns:
        The examples, and as notes the sentences with ``missing_words`` and the words with ``unknown_upos``.

    Raises:
        UsageError: the task is not one of tags; see `find_files` and `collect`.
    """
    task_of_files(cfg, tags=True)
    odd: dict[str, dict[str, int]] = {}

    def parse(block: list[bytes], language: str, split: str, number: int) -> Example:
        example, counts = parse_sentence(block, language, split, number)
        for what, count in counts.items():
            of, place = odd.setdefault(what, {}), f"{language}/{split}"
            of[place] = of.get(place, 0) + count
        return example

    sources = (Source(f.language, f.split, f.shown, blocks(f)) for f in find_files(cfg, LAYOUT))
    splits, notes = collect(sources, parse, cfg.on_bad_line)
    return splits, notes | odd


def parse_sentence(block: list[bytes], language: str, split: str, number: int) -> tuple[Example, Counter[str]]:
    """Return the example of one block of lines, and what is odd about it, counted: see `read`.

    ``number`` is that of the block's first line.

    Raises:
        BadRow: a line is not of this format, or the sentence has no words.
    """
    odd: Counter[str] = Counter()
    last = 0
    facts: dict[str, str] = {}
    words: list[str] = []
    tags: list[str] = []
    for below, raw in enumerate(block):
        try:
            line = parse_utf8(raw)
            if line.startswith("#"):
                key, _, value = line[1:].partition("=")
                facts.setdefault(key.strip(), value.strip())
                continue
            if (found := _word(line)) is None:
                continue
            place, form, tag = found
            if place <= last:
                raise BadRow(f"word {place} after word {last}; is a blank line missing between two sentences?")
            if place > last + 1:
                odd["missing_words"] = 1
            odd.update(["unknown_upos"] if tag not in UPOS else ())
            last = place
            words.append(form)
            tags.append(tag)
        except BadRow as bad:
            raise BadRow(str(bad), below) from None
    if not words:
        raise BadRow("a sentence without words")
    text = facts.get("text") or None
    text = None if text == " ".join(words) else text
    name = facts.get("sent_id") or f"{split}-{number}"
    return Example(name, language, tuple(words), None, tuple(tags), text), odd


def _word(line: str) -> tuple[int, str, str] | None:
    """Return the number of a line's word, the word and its tag; None where the line is no syntactic word."""
    fields = line.split("\t")
    if len(fields) != COLUMNS:
        raise BadRow(f"{len(fields)} columns between tabs instead of {COLUMNS}")
    number, form, _, tag = fields[:4]
    if _LEFT_OUT.fullmatch(number):
        return None
    if not _NUMBER.fullmatch(number):
        raise BadRow(f"the first column must be the word's number, not {number!r}")
    if not form.strip():
        raise BadRow("the word is blank")
    if not tag.strip() or (tag == "_" and form != "_"):
        raise BadRow(f"'{form}' has no UPOS tag")
    return int(number), form, tag
