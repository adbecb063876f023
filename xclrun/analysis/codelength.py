"""Online (prequential) codelength: bits to send all labels, each coded by a model trained on those sent before.

Examples in a fixed order are split into growing subsets S_1 ⊂ … ⊂ S_M:

    L = |S_1| log2 |Y| − Σ_{i=2…M} log2 p(labels of S_i \\ S_{i−1}; model trained on S_{i−1})

For tagging, Y is the tag set and every token of S_1 is coded uniformly; a sentence's code after that is the CRF's
log-probability of its gold tags. Source: "Learning and Evaluating General Linguistic Intelligence" §4 (GLI).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Codelength:
    """Length of a code in bits, and for how many examples it is."""

    bits: float
    examples: int

    @property
    def kbits(self) -> float:
        return self.bits / 1000

    @property
    def bits_per_example(self) -> float:
        return self.bits / self.examples


def online_codelength(symbols: ArrayLike, log2_gold: Sequence[ArrayLike], classes: int) -> Codelength:
    """Compute L.

    Args:
        symbols: what of each example of S_1 is coded uniformly, shape (|S_1|,): 1 for a class, its number of tokens
            for tags.
        log2_gold: for i = 2…M the log2-probabilities of the gold labels of S_i without S_{i−1}, one per example,
            under the model trained on S_{i−1}; all at most 0.
        classes: |Y|, at least 1.

    Raises:
        ValueError: no example, no class, or a log-probability that is positive or not a number (a gold label that
            training never had has no finite code).
    """
    uniform = np.asarray(symbols, dtype=float)
    parts = [np.asarray(part, dtype=float).ravel() for part in log2_gold]
    examples = uniform.size + sum(part.size for part in parts)
    if classes < 1 or not examples:
        raise ValueError("a codelength needs at least one class and one example")
    if any((~np.isfinite(part) | (part > 0)).any() for part in parts):
        raise ValueError("log2-probabilities of gold labels must be finite and at most 0")
    return Codelength(float(uniform.sum() * np.log2(classes) - sum(part.sum() for part in parts)), examples)
