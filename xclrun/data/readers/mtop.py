"""MTOP's release layout (Li et al. 2021, arXiv:2008.09335): one folder per language, one TSV file per split.

Columns: [id,] intent, slots, utterance, domain, locale, decoupled form, tokens. Releases exist with and without the id;
the first column that starts with ``IN:`` tells, line by line. Slots are the flat, top-level ones,
``start:end:SL:NAME`` joined by commas. Tokens are JSON,
``{"tokens": ["how", …], "tokenSpans": [{"start": 0, "length": 3}, …]}``.

Slots and token spans count in the same unit from the same origin, so tags come from comparing the two, never from
slicing the utterance: code points, as in the published files, UTF-16 units or bytes all give the same tags.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from xclrun.data.example import OUTSIDE, Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.files import BadRow, Place, parse_json

LAYOUT = ("{language}/{split}.txt", "{language}/{split}.tsv")
COLUMNS = ("intent", "slots", "utterance", "domain", "locale", "decoupled form", "tokens")
_SLOT = re.compile(r"(\d+):(\d+):SL:(\S+)", re.ASCII)

# From the most training sentences to the fewest: where a subset makes languages equally large, h2l and l2h still mean
# what they mean on all of MTOP.
LANGUAGES = ("en", "de", "fr", "hi", "es", "th")


@row_reader("mtop", LAYOUT, languages=LANGUAGES)
def parse(line: str, place: Place) -> Example:
    """Return the example of one line, intent and slots without their prefixes ``IN:`` and ``SL:``, and its domain.

    Counts ``slots_inside_words``, which begin or end inside a token.
    """
    fields = line.split("\t")
    first = next((i for i, field in enumerate(fields[:2]) if field.startswith("IN:")), None)
    if first is None:
        raise BadRow("no intent: neither the first nor the second column starts with IN:")
    if len(fields) != first + len(COLUMNS):
        expected = ", ".join(("id", *COLUMNS) if first else COLUMNS)
        raise BadRow(f"{len(fields)} columns instead of {first + len(COLUMNS)} ({expected})")
    intent, slots, utterance, domain, *_, tokens_json = fields[first:]
    tokens, starts, ends = _tokens(tokens_json)
    tags, cuts = _tags(slots, starts, ends, max(len(utterance), ends[-1]))
    if cuts:
        place.odd["slots_inside_words"] += cuts
    label = intent.removeprefix("IN:").strip()
    if not label:
        raise BadRow("the intent has no name after IN:")
    text = utterance if utterance != " ".join(tokens) else None
    name = (first and fields[0].strip()) or place.name
    return Example(name, place.language, tokens, label, tags, text, facts={"domain": domain.strip()})


def _tokens(column: str) -> tuple[tuple[str, ...], list[int], list[int]]:
    """Return the tokens, and where each starts and ends."""
    parsed = parse_json(column, "the tokens column")
    try:
        tokens, spans = parsed["tokens"], parsed["tokenSpans"]
        starts = [span["start"] for span in spans]
        ends = [span["start"] + span["length"] for span in spans]
    except (KeyError, TypeError):
        raise BadRow('the tokens column is not {"tokens": […], "tokenSpans": [{"start": …, "length": …}, …]}') from None
    if not tokens:
        raise BadRow("empty sentence: no tokens")
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token.strip() for token in tokens):
        raise BadRow("tokens must be a list of strings that are not blank")
    if len(tokens) != len(spans):
        raise BadRow(f"{len(tokens)} tokens but {len(spans)} tokenSpans")
    if not all(type(offset) is int for offset in (*starts, *ends)):
        raise BadRow("start and length of tokenSpans must be whole numbers")
    # 0 ≤ start < end ≤ start < end ≤ …: no token is empty, none overlaps the one before.
    if not all(before <= start < end for before, start, end in zip([0, *ends], starts, ends, strict=False)):
        raise BadRow("the tokenSpans are not in order, or one is empty")
    return tuple(tokens), starts, ends


def _tags(column: str, starts: list[int], ends: list[int], length: int) -> tuple[tuple[str, ...], int]:
    """Return one BIO tag per token and the number of slots that begin or end inside a token.

    Such a slot covers every token that it overlaps; a token that two slots reach is the earlier one's.
    """
    tags = [OUTSIDE] * len(starts)
    inside = 0
    slot_end = free = 0
    for start, end, name in sorted(_slot(slot) for slot in column.split(",") if slot):
        if not start < end <= length:
            raise BadRow(f"slot {start}:{end}:SL:{name} does not lie inside the sentence (0 to {length})")
        if start < slot_end:
            raise BadRow(f"slot {start}:{end}:SL:{name} overlaps the one before it, which ends at {slot_end}")
        begin, last = bisect_right(ends, start), bisect_left(starts, end)
        first = max(begin, free)
        if first >= last:
            raise BadRow(f"slot {start}:{end}:SL:{name} covers no token of its own")
        tags[first:last] = [f"B-{name}", *[f"I-{name}"] * (last - first - 1)]
        inside += starts[begin] < start or ends[last - 1] > end
        slot_end, free = end, last
    return tuple(tags), inside


def _slot(text: str) -> tuple[int, int, str]:
    match = _SLOT.fullmatch(text.strip())
    if match is None:
        raise BadRow(f"slot '{text}' is not start:end:SL:NAME")
    return int(match[1]), int(match[2]), match[3]
