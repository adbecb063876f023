"""Slot and entity F1 from tag sequences: labelled spans counted as seqeval's default mode does (conlleval), without
seqeval.

A sentence gives three counts (TP, FP, FN); micro F1 over a test set is the F1 of their sums, so resamples are sums.
docs/metrics.md, "Base scores".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Span = tuple[str, int, int]


def spans(tags: Iterable[str]) -> list[Span]:
    """Return the labelled spans of one sentence as (type, first word, last word), in order.

    A tag goes on with the span before it when it is ``I-`` (or ``E-``), follows ``B-`` or ``I-`` and has the same
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


def f1(tp: ArrayLike, fp: ArrayLike, fn: ArrayLike) -> Any:
    """F1 = 2 TP / (2 TP + FP + FN), element by element; 0 where there is nothing to find and nothing found."""
    hits = 2.0 * np.asarray(tp, dtype=float)
    total = hits + np.asarray(fp, dtype=float) + np.asarray(fn, dtype=float)
    score = np.divide(hits, total, out=np.zeros_like(total), where=total != 0)
    return score if score.ndim else float(score)


def tag_macro_f1(gold: Iterable[Sequence[str]], predicted: Iterable[Sequence[str]]) -> float:
    """Macro F1 over single tag strings (``O``, ``B-x`` and ``I-x`` are three classes), as the public CCL code scores
    slots.

    The mean runs over the tags that occur in ``gold`` or in ``predicted`` (sentences of tags); 0 where there are
    none.

    Raises:
        ValueError: a sentence has not the same number of gold and predicted tags, or there are more sentences in one.
    """
    pairs = [pair for g, p in zip(gold, predicted, strict=True) for pair in zip(g, p, strict=True)]
    ids = {tag: i for i, tag in enumerate(sorted({tag for pair in pairs for tag in pair}))}
    flat = np.array([(ids[g], ids[p]) for g, p in pairs], dtype=np.int64).reshape(-1, 2)
    return macro_f1(flat[:, 0], flat[:, 1], len(ids))


def macro_f1(gold: np.ndarray, predicted: np.ndarray, classes: int) -> float:
    """Macro F1 of class ids in 0…``classes`` − 1, over the classes that occur in either; 0 where there are none."""
    hits = np.bincount(gold[gold == predicted], minlength=classes)
    wanted, found = np.bincount(gold, minlength=classes), np.bincount(predicted, minlength=classes)
    occurs = wanted + found > 0
    scores = f1(hits, found - hits, wanted - hits)[occurs]
    return float(scores.mean()) if scores.size else 0.0


@lru_cache(maxsize=65536)
def _parse(tag: str) -> tuple[str, str]:
    """Split ``B-city`` into (``B``, ``city``); what has none of the prefixes B, I, E, S is outside."""
    prefix = tag[:1]
    return (prefix, tag[1:].split("-", 1)[-1] or "_") if prefix and prefix in "BIES" else ("O", "")
