"""Packed batches: several sentences share a row, instead of one padded row per sentence.

A row is as wide as the longest sentence of the batch, or up to 4 times as wide. A block-diagonal mask restricts
attention to single sentences, and positions restart with each sentence. Sentences are assigned to rows by first-fit in
decreasing length (Johnson 1973, "Near-optimal bin packing algorithms"), with the width that minimizes
multiplications: wider rows have less padding, but the cost of attention is quadratic in the width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Candidate widths, as multiples of the longest sentence.
WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class Packing:
    """The positions of the subwords of B sentences in R rows of width C.

    Attributes:
        source: (R, C) int64, flat index of the subword in the padded batch; 0 on padding.
        positions: (R, C) int64, position in the sentence, from 0; 0 on padding.
        sentences: (R, C) int64, number of the sentence, from 1; 0 on padding.
        first: (B,) int64, flat index of each sentence's first subword.
    """

    source: np.ndarray
    positions: np.ndarray
    sentences: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, lengths: np.ndarray, padded: int, linear: int) -> Packing:
        """Choose rows for sentences.

        Args:
            lengths: (B,) subwords of each sentence, at least 1.
            padded: width of the padded batch.
            linear: a layer's multiplications in linear maps per position, divided by its multiplications in attention
                per pair of positions. It equals 2 · hidden size + intermediate size.
        """
        order = np.argsort(-lengths, kind="stable")
        sorted_ = lengths[order].tolist()
        fits = (_first_fit(sorted_, int(sorted_[0] * factor)) for factor in WIDTHS)
        placed, used = min(fits, key=lambda fit: len(fit[1]) * max(fit[1]) * (linear + max(fit[1])))
        count, width = len(used), max(used)
        first = np.empty_like(lengths)
        first[order] = [row * width + start for row, start in placed]
        sentence = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(sentence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = first[sentence] + within
        source, positions, sentences = np.zeros((3, count * width), np.int64)
        source[at], positions[at], sentences[at] = sentence * padded + within, within, sentence + 1
        shape = (count, width)
        return cls(source.reshape(shape), positions.reshape(shape), sentences.reshape(shape), first)


def _first_fit(lengths: list[int], width: int) -> tuple[list[tuple[int, int]], list[int]]:
    """Return (row, start) of each sentence, and the used width of each row; ``lengths`` must be descending.

    Plain Python is faster than numpy for the few sentences of a batch.
    """
    placed, used = list[tuple[int, int]](), list[int]()
    for length in lengths:
        for row, filled in enumerate(used):
            if filled + length <= width:
                placed.append((row, filled))
                used[row] += length
                break
        else:
            placed.append((len(used), 0))
            used.append(length)
    return placed, used
