"""MTOP's release layout (Li et al. 2021, arXiv:2008.09335): one folder per language, one TSV file per split.

Columns: [id,] intent, slots, utterance, domain, locale, decoupled form, tokens. Some releases have no id: the intent is
the first column that starts with ``IN:``. Slots are flat, ``start:end:SL:NAME`` joined by commas. Tokens are JSON,
``{"tokens": ["how", …], "tokenSpans": [{"start": 0, "length": 3}, …]}``.

Slots are only compared with token spans; the utterance is never sliced. Tags are therefore the same whether offsets
count code points (as in the published files), UTF-16 units or bytes.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right

from xclrun.data.example import OUTSIDE, Example
from xclrun.data.readers import row_reader
from xclrun.data.readers.collect import BadRow, Place
from xclrun.data.readers.files import parse_json
from xclrun.data.readers.rows import field

LAYOUT = ("{language}/{split}.txt", "{language}/{split}.tsv")
COLUMNS = ("intent", "slots", "utterance", "domain", "locale", "decoupled form", "tokens")
_SLOT = re.compile(r"(\d+):(\d+):SL:(\S+)", re.ASCII)

# Sorted by decreasing number of training sentences in the full dataset. On subsets of equal size, h2l and l2h then keep
# the order that they have on the full dataset.
LANGUAGES = ("en", "de", "fr", "hi", "es", "th")


@row_reader("mtop", LAYOUT, languages=LANGUAGES)
def parse(line: str, place: Place) -> Example:
    """Return the example of one line, without the prefixes ``IN:`` and ``SL:``.

    Counts ``slots_inside_words``: slots that begin or end inside a token.
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
    parsed = parse_json(column, "the tokens column")
    try:
        tokens, spans = parsed["tokens"], parsed["tokenSpans"]
        starts = [span["start"] for span in spans]
        ends = [span["start"] + span["length"] for span in spans]
    except (KeyError, TypeError):
        raise BadRow('the tokens column is not {"tokens": […], "tokenSpans": [{"start": …, "length": …}, …]}') from None
    field(parsed, "words", "tokens")
    if len(tokens) != len(spans):
        raise BadRow(f"{len(tokens)} tokens but {len(spans)} tokenSpans")
    if not all(type(offset) is int for offset in (*starts, *ends)):
        raise BadRow("start and length of tokenSpans must be whole numbers")
    # 0 ≤ start < end ≤ start < end ≤ …: no token is empty, and tokens do not overlap.
    if not all(before <= start < end for before, start, end in zip([0, *ends], starts, ends, strict=False)):
        raise BadRow("the tokenSpans are not in order, or one is empty")
    return tuple(tokens), starts, ends


def _tags(column: str, starts: list[int], ends: list[int], length: int) -> tuple[tuple[str, ...], int]:
    """Return one BIO tag per token and the number of slots that begin or end inside a token.

    Such a slot covers every token that it overlaps; a token that two slots overlap belongs to the earlier slot.
    """
    tags = [OUTSIDE] * len(starts)
    inside = 0
    slot_end = free = 0
    slots = []
    for text in filter(None, column.split(",")):
        if (match := _SLOT.fullmatch(text.strip())) is None:
            raise BadRow(f"slot '{text}' is not start:end:SL:NAME")
        slots.append((int(match[1]), int(match[2]), match[3]))
    for start, end, name in sorted(slots):
        if not start < end <= length:
            raise BadRow(f"slot {start}:{end}:SL:{name} does not lie inside the sentence (0 to {length})")
        if start < slot_end:
            raise BadRow(f"slot {start}:{end}:SL:{name} overlaps the previous slot, which ends at {slot_end}")
        begin, last = bisect_right(ends, start), bisect_left(starts, end)
        first = max(begin, free)
        if first >= last:
            raise BadRow(f"slot {start}:{end}:SL:{name} covers no token, or only tokens of earlier slots")
        tags[first:last] = [f"B-{name}", *[f"I-{name}"] * (last - first - 1)]
        inside += starts[begin] < start or ends[last - 1] > end
        slot_end, free = end, last
    return tuple(tags), inside
