"""Labelled spans in tag sequences, counted as seqeval's default mode does (conlleval), without seqeval.

A sentence gives three counts (TP, FP, FN): `xclrun.analysis.base_scores` makes F1 of them. docs/metrics.md,
"Base scores".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

Span = tuple[str, int, int]


def spans(tags: Iterable[str]) -> list[Span]:
    """Return the labelled spans of one sentence as (type, first word, last word), in order.

    A tag continues with the span before it when it is ``I-`` (or ``E-``), follows ``B-`` or ``I-`` and has the same
    type; any other tag that is not ``O`` begins a span, ``I-`` without ``B-`` too.

    >>> spans(["B-city", "I-city", "O", "I-date", "I-time"])
    [('city', 0, 1), ('date', 3, 3), ('time', 4, 4)]
    """
    found: list[Span] = []
    before, type_before, start = "O", "", 0
    for i, tag in enumerate((*tags, "O")):
        prefix, type_ = _parse(tag)
        if type_ != type_before or prefix not in "IE" or before not in "BI":
            if before != "O":
                found.append((type_before, start, i - 1))
            start = i
        before, type_before = prefix, type_
    return found


def span_counts(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return (TP, FP, FN) over the labelled spans of one sentence: a hit has the same type and the same bounds.

    Raises:
        ValueError: the two do not have the same number of tags.
    """
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold tags but {len(predicted)} predicted ones")
    wanted, found = spans(gold), spans(predicted)
    hits = len(wanted) if wanted == found else len(set(wanted).intersection(found))
    return hits, len(found) - hits, len(wanted) - hits


def word_counts(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return (TP, FP, FN) over single words of one sentence: a wrong tag is one found too many and one missed.

    So micro F1 over words is the share of words whose tag is right.

    Raises:
        ValueError: the two do not have the same number of tags.
    """
    hits = sum(one == other for one, other in zip(gold, predicted, strict=True))
    return hits, len(gold) - hits, len(gold) - hits


@lru_cache(maxsize=65536)
def _parse(tag: str) -> tuple[str, str]:
    """Split ``B-city`` into (``B``, ``city``); what has none of the prefixes B, I, E, S is outside."""
    prefix = tag[:1]
    return (prefix, tag[1:].split("-", 1)[-1] or "_") if prefix and prefix in "BIES" else ("O", "")
