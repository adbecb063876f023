"""Answers from start and end scores: the best span over all windows of a text, and the probability of the gold span.

The score of a span is s + e: the start emission of its first subword plus the end emission of its last subword (Devlin
et al. 2019, section 4.2). A span has at most `Windows.longest` subwords of the text. The answer is the span with the
highest score in any window; ties go to the first window, then to the first and shortest span.

**Probability.** A softmax over the spans of all windows together:

    p(span) = Σ exp(s + e) over the windows that contain the span / Σ exp(s + e) over all spans of all windows.

This is one distribution over the spans of the whole text. If a span has at most D subwords, a text of n subwords has
Y = Σ over starts i of min(D, n − i) spans. A span that no window contains has no probability.

**No answer** can be predicted if some training questions have no answer. Its score is s + e at [CLS], in the window
where this sum is lowest (SQuAD 2.0). "No answer" is predicted if its score exceeds the best span's score. It adds one
term to the denominator of p, and 1 to Y.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from xclrun.data.batches import Windows
from xclrun.data.example import Example, text_numbers


def read_windows(windows: Windows, rows: np.ndarray, emissions: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of the windows ``rows``, (B,), in nats; position 0 of ``emissions`` is [CLS].

    Args:
        emissions: (B, W, 2).
        mask: (B, W), true on words.

    Returns:
        ``span``: (B, 2) int64, first and last position of the best span. As float64 arrays of shape (B,): ``best``, the
        score of the best span; ``total``, the log-sum-exp of the scores of all spans; ``gold_span``, the score of the
        gold span, −∞ if the window does not contain the span or the span is too long; ``none``, s + e of [CLS].
    """
    scores, longest = span_scores(emissions, mask, windows.longest)
    flat = scores.reshape(len(rows), -1)
    at = flat.argmax(axis=1)
    best = flat[np.arange(len(rows)), at]
    start, end = windows.gold[rows].T
    scored = (start > 0) & (end - start < longest)
    gold = np.full(len(rows), -np.inf)
    gold[scored] = scores[np.flatnonzero(scored), start[scored], (end - start)[scored]]
    return {
        "span": np.stack([at // longest, at // longest + at % longest], axis=1),
        "best": best,
        "total": best + np.log(np.exp(flat - best[:, np.newaxis]).sum(axis=1)),
        "gold_span": gold,
        "none": emissions[:, 0].astype(np.float64).sum(axis=1),
    }


def span_scores(emissions: np.ndarray, mask: np.ndarray, longest: int) -> tuple[np.ndarray, int]:
    """Return (scores of spans, D): scores are (B, W, D) float64, and D = min(``longest``, W).

    Entry [b, i, d] is the score of the span from position i to i + d. Entries outside the text are −∞.
    """
    inside = mask.copy()
    inside[:, 0] = False
    scores = np.where(inside[:, :, np.newaxis], emissions.astype(np.float64), -np.inf)
    longest = min(longest, mask.shape[1])
    ends = np.pad(scores[:, :, 1], ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    return scores[:, :, :1] + sliding_window_view(ends, longest, axis=1), longest


def span_count(pieces: int, longest: int) -> int:
    """Return Y, the number of spans of at most ``longest`` subwords in a text of ``pieces`` subwords."""
    most = min(longest, pieces)
    return most * pieces - most * (most - 1) // 2


def answers_of(
    windows: Windows, values: Mapping[str, np.ndarray], examples: Sequence[Example], nullable: bool
) -> dict[str, list[Any]]:
    """Return the answer columns of `xclrun.store.predictions`, and log2 p(gold answer) as ``log2_gold``.

    Args:
        values: the results of `read_windows` for all windows of the split.
        examples: the examples of the split, in order.
        nullable: whether "no answer" is a possible prediction.
    """
    starts = windows.starts
    best = np.maximum.reduceat(values["best"], starts)
    total, gold = (np.logaddexp.reduceat(values[name], starts) for name in ("total", "gold_span"))
    none = np.minimum.reduceat(values["none"], starts)
    # For each example, the first window with the best score.
    hit = np.flatnonzero(values["best"] == best[windows.examples])
    row = hit[np.unique(windows.examples[hit], return_index=True)[1]]
    words = windows.characters.offsets[row, np.newaxis] + values["span"][row]
    begin, end = windows.characters.values[words[:, 0], 0], windows.characters.values[words[:, 1], 1]
    silent = (none > best) & nullable
    if nullable:
        total = np.logaddexp(total, none)
        gold = np.where([not e.answers for e in examples], none, gold)
    with np.errstate(invalid="ignore"):
        # If p is nearly 1, rounding can make gold exceed the total, so limit log2 p to 0.
        log2_gold = np.where(np.isfinite(gold), np.minimum((gold - total) / math.log(2), 0.0), np.nan)
    count = [span_count(int(n), windows.longest) + nullable for n in windows.pieces[starts]]
    places = [None if none else (int(b), int(e)) for none, b, e in zip(silent, begin, end, strict=True)]
    return {
        "answer": ["" if at is None else e.whole[at[0] : at[1]] for e, at in zip(examples, places, strict=True)],
        "answer_start": [None if at is None else at[0] for at in places],
        "answer_end": [None if at is None else at[1] for at in places],
        "gold_answers": [[answer.text for answer in e.answers or ()] for e in examples],
        "log2_gold": log2_gold.tolist(),
        "log2_classes": [math.log2(n) for n in count],
        "text": text_numbers(examples),
    }
