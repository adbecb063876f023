"""TP, FP and FN over labeled spans, as in seqeval's default mode (conlleval). docs/metrics.md, "Base scores"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

Span = tuple[str, int, int]


def spans(tags: Iterable[str]) -> list[Span]:
    """Return the labeled spans of one sentence as (type, first word, last word).

    ``I-`` or ``E-`` after ``B-`` or ``I-`` of the same type continues a span; any other tag except ``O`` starts one.

    >>> spans(["B-city", "I-city", "O", "I-date", "I-time"])
    [('city', 0, 1), ('date', 3, 3), ('time', 4, 4)]
    """
    result: list[Span] = []
    before, type_before, start = "O", "", 0
    for i, tag in enumerate((*tags, "O")):
        prefix, type_ = _parse(tag)
        if type_ != type_before or prefix not in "IE" or before not in "BI":
            if before != "O":
                result.append((type_before, start, i - 1))
            start = i
        before, type_before = prefix, type_
    return result


def span_counts(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return (TP, FP, FN) over the labeled spans of one sentence; a hit has the same type and bounds."""
    if len(gold) != len(predicted):
        raise ValueError(f"{len(gold)} gold tags, but {len(predicted)} predicted tags")
    expected, output = spans(gold), spans(predicted)
    hits = len(expected) if expected == output else len(set(expected).intersection(output))
    return hits, len(output) - hits, len(expected) - hits


def word_counts(gold: Sequence[str], predicted: Sequence[str]) -> tuple[int, int, int]:
    """Return (TP, FP, FN) over the words of one sentence: a wrong tag is an FP and an FN, so micro F1 is accuracy."""
    hits = sum(a == b for a, b in zip(gold, predicted, strict=True))
    return hits, len(gold) - hits, len(gold) - hits


@lru_cache(maxsize=65536)
def _parse(tag: str) -> tuple[str, str]:
    """Split ``B-city`` into (``B``, ``city``); a tag without a prefix B, I, E or S is outside (``O``)."""
    prefix = tag[:1]
    return (prefix, tag[1:].split("-", 1)[-1] or "_") if prefix and prefix in "BIES" else ("O", "")
