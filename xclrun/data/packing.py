"""Packed batches: several sentences share a row, instead of one padded row per sentence.

A row is as wide as the longest sentence of the batch, or up to 4 times as wide. A block-diagonal mask restricts
attention to single sentences, and positions restart with each sentence. Sentences are assigned to rows by first-fit in
decreasing length (Johnson 1973, "Near-optimal bin packing algorithms"), with the width that minimizes
multiplications: wider rows have less padding, but the cost of attention is quadratic in the width.

CUDA graphs need few shapes: for them, all rows of a hop are as wide as its longest sentence, and few different numbers
of rows occur (`Packing.fixed`): a token budget per batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Candidate widths, as multiples of the longest sentence.
WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0)
# With a fixed width, the number of rows is a multiple of the number of sentences divided by this number.
ROW_COUNTS = 16


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

    @property
    def rows(self) -> np.ndarray:
        """``source``, ``positions`` and ``sentences`` together, (3, R, C) int64."""
        return np.stack([self.source, self.positions, self.sentences])

    @classmethod
    def of(cls, lengths: np.ndarray, padded: int, linear: int) -> Packing:
        """Choose rows for sentences.

        Args:
            lengths: (B,) subwords of each sentence, at least 1.
            padded: width of the padded batch.
            linear: a layer's multiplications in linear maps per position, divided by its multiplications in attention
                per pair of positions. It equals 2 · hidden size + intermediate size.
        """
        longest = int(lengths.max())
        fits = (_first_fit(lengths, int(longest * factor)) for factor in WIDTHS)
        rows, starts, used = min(fits, key=lambda fit: len(fit[2]) * max(fit[2]) * (linear + max(fit[2])))
        return cls._placed(lengths, padded, rows, starts, (len(used), max(used)))

    @classmethod
    def fixed(cls, lengths: np.ndarray, padded: int, width: int) -> Packing:
        """Fill rows of this width, at least that of the longest sentence; few different numbers of rows occur."""
        rows, starts, used = _first_fit(lengths, width)
        multiple = -(-len(lengths) // ROW_COUNTS)
        return cls._placed(lengths, padded, rows, starts, (-(-len(used) // multiple) * multiple, width))

    @classmethod
    def _placed(
        cls, lengths: np.ndarray, padded: int, rows: np.ndarray, starts: np.ndarray, shape: tuple[int, int]
    ) -> Packing:
        first = rows * shape[1] + starts
        sentence = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(sentence)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        at = first[sentence] + within
        source, positions, sentences = np.zeros((3, shape[0] * shape[1]), np.int64)
        source[at], positions[at], sentences[at] = sentence * padded + within, within, sentence + 1
        return cls(source.reshape(shape), positions.reshape(shape), sentences.reshape(shape), first)


def _first_fit(lengths: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """Return row and start of each sentence, (B,) int64 each, and the used width of each row.

    Plain Python is faster than numpy for the few sentences of a batch.
    """
    order = np.argsort(-lengths, kind="stable")
    placed, used = list[tuple[int, int]](), list[int]()
    for length in lengths[order].tolist():
        for row, filled in enumerate(used):
            if filled + length <= width:
                placed.append((row, filled))
                used[row] += length
                break
        else:
            placed.append((len(used), 0))
            used.append(length)
    rows, starts = np.empty((2, len(lengths)), np.int64)
    rows[order], starts[order] = np.array(placed, np.int64).reshape(-1, 2).T
    return rows, starts, used
