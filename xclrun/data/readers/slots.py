"""Intents and slots of utterances, released in columns: MultiATIS++ and xSID.

``multiatis`` (Xu et al. 2020, LDC2021T04): id, words, their BIO tags, intent, after a header. ``xsid`` (van der Goot et
al. 2021): blocks of number, word, intent, BIO tag, with comments ``# id`` and ``# text``. docs/data.md lists their
files.

A language without a training or dev file has an empty split: xSID has training sentences in English, and machine
translations in other languages. Ids begin with the split, since the releases number each split from the start.
Sentences with the same id are translations, except xSID's training sentences, whose ids are their line numbers. xSID's
English dev and test sentences have no ids; their numbers are the ids of their translations.

Releases 0.4, 0.6 and 0.7 of xSID have defects with a fixed treatment: blank words are skipped, as is a sentence without
other words; words with a wrong number are read in order; if the words of a sentence have several intents, its comment
``# intent`` decides; if the words of two sentences follow each other, those of the comment ``# text`` are read.
"""

from __future__ import annotations

import re
from dataclasses import replace

from xclrun.data.example import Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.collect import BadRow, Place, check_tags
from xclrun.data.readers.files import blocks
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
    defects={
        "blank_words": "0.4, 0.6, 0.7: zh; 0.7: no",
        "no_words": "0.7: no",
        "misnumbered": "0.4, 0.6: en; 0.6: de-ba",
        "two_sentences": "0.6: de-ba",
        "intents_differ": "0.7: de-muc",
    },
)
def parse_xsid(block: list[str], place: Place) -> Example:
    """Return the example of one block; counts ``misnumbered``, ``two_sentences`` and ``intents_differ``."""
    if (own := _own_words(block)) is not None:
        place.odd["two_sentences"] = 1
        block = own
    facts: dict[str, str] = {}
    intents: list[str] = []

    def word(line: str) -> tuple[str, str]:
        number, form, intent, tag = columns(line.split("\t"), ("number", "word", "intent", "tag"))
        expected = str(len(intents) + 1)
        if number != expected:
            if "1" in (number, expected) or not number.isdecimal():
                raise BadRow(f"word number {number} instead of {expected}; is a blank line missing?")
            place.odd["misnumbered"] = 1
        intents.append(intent)
        if intent != intents[0]:
            if facts.get("intent") not in intents:
                raise BadRow(f"intent {intent!r} after {intents[0]!r} in one sentence")
            place.odd["intents_differ"] = 1
        return form, tag

    sentence = tagged(block, place, word, _COMMENT, facts)
    by_id = f"{place.split}-{facts['id']}" if facts.get("id") else place.sentence_name
    # The ids of training sentences are not those of their translations.
    name = place.name if place.split == "train" else by_id
    intent = facts["intent"] if "intents_differ" in place.odd else intents[0]
    return replace(sentence, id=name, label=intent)


def _own_words(block: list[str]) -> list[str] | None:
    """Return a block with the words of its text alone, if the words of several sentences follow each other.

    None if the block has one sentence, or if its text is none of its sentences. The lines of other sentences become
    comments, so that the numbers of lines stay correct.
    """
    starts = [i for i, line in enumerate(block) if line.startswith("1\t")]
    if len(starts) < 2:
        return None
    text = next((match[2] for line in block if (match := _COMMENT.match(line)) and match[1] == "text"), "")
    for start, end in zip(starts, [*starts[1:], len(block)], strict=True):
        words = [line.split("\t")[1] for line in block[start:end] if line.count("\t") == 3]
        if "".join("".join(words).split()) == "".join(text.split()):
            return ["#" if i >= starts[0] and not start <= i < end else line for i, line in enumerate(block)]
    return None
