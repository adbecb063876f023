"""Packed batches: sentences end to end in a few rows, in place of a row of padding each.

A row is as wide as the longest sentence of the batch, or a small multiple of that; attention keeps to a sentence by a
mask of blocks, and positions begin anew with each. Rows are chosen by first-fit, longest sentences first (Johnson 1973,
"Near-optimal bin packing algorithms"), in the width at which the encoder has the least to multiply: wider rows are
fuller, but attention looks at each row's positions in pairs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Widths that are tried, as multiples of the longest sentence.
WIDTHS = (1.0, 1.5, 2.0, 3.0, 4.0)


@dataclass(frozen=True)
class Packing:
    """Where the subwords of a batch of B sentences are in R rows of width C; a function of their lengths.

    Attributes:
        source: (R, C) int64, the piece in the padded batch, counted through its rows, that is there; 0 where none.
        positions: (R, C) int64, its number in its sentence, from 0; 0 where none.
        sentences: (R, C) int64, its sentence, from 1; 0 if none is there.
        first: (B,) int64, where each sentence's first piece stands, counted through the rows.
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
            linear: multiplications of a position in a layer's linear maps, over those of a pair of positions in its
                attention: 2 · hidden size + intermediate size.
        """
        order = np.argsort(-lengths, kind="stable")
        sorted_ = lengths[order].tolist()
        fits = (_first_fit(sorted_, int(sorted_[0] * factor)) for factor in WIDTHS)
        placed, used = min(fits, key=lambda found: len(found[1]) * max(found[1]) * (linear + max(found[1])))
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
    """Return each sentence's row and where it starts there, and how much of each row is used; longest ones first.

    In plain Python: a batch has too few sentences for arrays to be worth their calls.
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
