"""From scores of starts and ends to answers: the best span of all windows of a text, and how likely the gold one is.

A span of a window scores s + e, its first piece's emission of start and its last one's of end, as in BERT's SQuAD
recipe (Devlin et al. 2019, section 4.2): start ≤ end, at most `Windows.longest` pieces, all of the text. The answer is
the best span of all windows; of equals the first window's, and there the first, the shortest.

**Probability.** An answer's is the softmax over all such spans of all windows together:

    p(span) = Σ over windows that have it of exp(s + e), divided by Σ over windows and their spans of exp(s + e).

So it is one distribution over the spans of the whole text, whichever windows they are in: with n pieces and at most D
in a span, Y = Σ over starts i of min(D, n − i) of them. A span longer than what two windows share may be in none, and
has no probability then.

**No answer**, where training has questions without one: its score is s + e of [CLS], the lowest of all windows (SQuAD
2.0's rule). It is the answer if it is above the best span's, and counts once in the sum and in Y.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from xclrun.data.batches import Windows
from xclrun.data.example import Example, text_numbers


@dataclass(frozen=True)
class Readings:
    """What a model made of n windows; all but ``windows`` and ``span`` are float64, (n,), in nats.

    Attributes:
        windows: of one split, all.
        span: (n, 2) int64, the words at which the best span starts and ends.
        best: its score.
        total: log-sum-exp of the scores of all spans.
        gold: score of the gold span; −∞ where the window has none, or if it is too long.
        none: score of [CLS].
    """

    windows: Windows
    span: np.ndarray
    best: np.ndarray
    total: np.ndarray
    gold: np.ndarray
    none: np.ndarray

    @classmethod
    def empty(cls, windows: Windows) -> Readings:
        """Return readings to be filled by `note`."""
        n = len(windows.examples)
        return cls(windows, np.zeros((n, 2), np.int64), *(np.full(n, -np.inf) for _ in range(4)))

    def note(self, rows: np.ndarray, emissions: np.ndarray, mask: np.ndarray) -> None:
        """Take note of some windows.

        Args:
            rows: (B,) which.
            emissions: (B, W, 2) of start and end; the first word is [CLS].
            mask: (B, W) bool, True on words.
        """
        scores, longest = span_scores(emissions, mask, self.windows.longest)
        flat = scores.reshape(len(rows), -1)
        at = flat.argmax(axis=1)
        self.span[rows] = np.stack([at // longest, at // longest + at % longest], axis=1)
        self.best[rows] = best = flat[np.arange(len(rows)), at]
        self.total[rows] = best + np.log(np.exp(flat - best[:, np.newaxis]).sum(axis=1))
        start, end = self.windows.gold[rows].T
        known = (start > 0) & (end - start < longest)
        self.gold[rows[known]] = scores[np.flatnonzero(known), start[known], (end - start)[known]]
        self.none[rows] = emissions[:, 0].astype(np.float64).sum(axis=1)


def span_scores(emissions: np.ndarray, mask: np.ndarray, longest: int) -> tuple[np.ndarray, int]:
    """Return the scores of spans, (B, W, D) float64, and D: at [b, i, d] that of words i to i + d.

    −∞ if that is no span of text. D is ``longest``, or W if that is less.
    """
    inside = mask.copy()
    inside[:, 0] = False
    scores = np.where(inside[:, :, np.newaxis], emissions.astype(np.float64), -np.inf)
    longest = min(longest, mask.shape[1])
    ends = np.pad(scores[:, :, 1], ((0, 0), (0, longest - 1)), constant_values=-np.inf)
    return scores[:, :, :1] + sliding_window_view(ends, longest, axis=1), longest


def span_count(pieces: int, longest: int) -> int:
    """Return Y: how many spans of at most ``longest`` pieces a text of ``pieces`` has."""
    most = min(longest, pieces)
    return most * pieces - most * (most - 1) // 2


def answers_of(readings: Readings, examples: Sequence[Example], nullable: bool) -> dict[str, list[Any]]:
    """Return the columns of answers (`xclrun.store.predictions`), and log2 p(gold answer) as ``log2_gold``.

    Args:
        examples: of the split, in order.
        nullable: whether the model may say that there is no answer.
    """
    windows, starts = readings.windows, readings.windows.starts
    best = np.maximum.reduceat(readings.best, starts)
    total, gold = (np.logaddexp.reduceat(values, starts) for values in (readings.total, readings.gold))
    none = np.minimum.reduceat(readings.none, starts)
    # The first of the windows of each example that have its best score.
    hit = np.flatnonzero(readings.best == best[windows.examples])
    row = hit[np.unique(windows.examples[hit], return_index=True)[1]]
    words = windows.characters.offsets[row, np.newaxis] + readings.span[row]
    begin, end = windows.characters.values[words[:, 0], 0], windows.characters.values[words[:, 1], 1]
    silent = (none > best) & nullable
    if nullable:
        total = np.logaddexp(total, none)
        gold = np.where([not e.answers for e in examples], none, gold)
    with np.errstate(invalid="ignore"):
        # A certain answer's sum may be less than itself, by rounding.
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
