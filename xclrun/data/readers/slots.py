"""Intents and slots of utterances, released in columns: MultiATIS++ and xSID.

``multiatis`` (Xu et al. 2020, LDC2021T04): id, words, their BIO tags, intent, after a header. ``xsid`` (van der Goot et
al. 2021): blocks of number, word, intent, BIO tag, with comments ``# id`` and ``# text``. docs/data.md lists their
files.

A language without a training or dev file has an empty split: xSID has training sentences in English, and machine
translations in other languages. Ids begin with the split, since the releases number each split from the start.
Sentences with the same id are translations, except xSID's training sentences, whose ids are their line numbers.
"""

from __future__ import annotations

import re
from dataclasses import replace

from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, blocks, check_tags
from xclrun.data.readers.rows import columns, tagged

HEADER = ("id", "utterance", "slot_labels", "intent")
MULTIATIS = {key.upper(): key for key in ("de", "en", "es", "fr", "hi", "ja", "pt", "tr", "zh")}
LAYOUT = ("{folder}/{language}.{split}.conll", "{language}.{split}.conll.fixed", "{language}.{split}.conll")
_COMMENT = re.compile(r"#\s*([\w-]+)\s*[=:](.*)")


@row_reader(
    "multiatis",
    ("{folder}/{split}_{language}.tsv", "{split}_{language}.tsv"),
    language_names=MULTIATIS,
    may_lack=("train", "dev"),
)
def parse_multiatis(line: str, place: Place) -> Example | None:
    """Return the example of one line; None for the header."""
    fields = columns(line.split("\t"), HEADER)
    if tuple(fields) == HEADER:
        return None
    name, utterance, tags, intent = fields
    words, word_tags = tuple(utterance.split()), tuple(tags.split())
    if not words:
        raise BadRow("the utterance is blank")
    check_tags(word_tags, words, place.task)
    return Example(f"{place.split}-{name}", place.language, words, intent, word_tags)


@row_reader(
    "xsid",
    LAYOUT,
    rows=blocks,
    split_names={"train": ("train", "projectedTrain"), "dev": ("valid",), "test": ("test",)},
    may_lack=("train", "dev"),
)
def parse_xsid(block: list[str], place: Place) -> Example:
    facts: dict[str, str] = {}
    intents: list[str] = []

    def word(line: str) -> tuple[str, str]:
        number, form, intent, tag = columns(line.split("\t"), ("number", "word", "intent", "tag"))
        if number != str(len(intents) + 1):
            raise BadRow(f"word number {number} instead of {len(intents) + 1}; is a blank line missing?")
        intents.append(intent)
        if intent != intents[0]:
            raise BadRow(f"intent {intent!r} after {intents[0]!r} in one sentence")
        return form, tag

    sentence = tagged(block, place, word, _COMMENT, facts)
    name = f"{place.split}-{facts['id']}" if facts.get("id") and place.split != "train" else place.name
    return replace(sentence, id=name, label=intents[0])
