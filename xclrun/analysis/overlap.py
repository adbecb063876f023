"""Gradient overlap over the main steps of a run: of which parameters consecutive steps have gradients (LL §5, Fig. 5).

A run's counts are those of its ``overlap.parquet`` (`xclrun.train.overlap`): for each hop, step and part the sizes of
S_t, S_t ∩ S_{t−1} and S_t ∪ S_{t−1}. The share of the overlap is |∩| / |∪|; NaN where there is no step before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Overlap:
    """One part of the parameters of one run, over T main steps, hop after hop.

    Attributes:
        hop: of each step, shape (T,).
        nonzero: parameters with a gradient, shape (T,).
        both: those that had one in the step before too, shape (T,).
        share: of both among those with a gradient in one of the two, shape (T,).
    """

    hop: np.ndarray
    nonzero: np.ndarray
    both: np.ndarray
    share: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """Whether a step is the first of its hop, after another hop: compared across a switch. Shape (T,)."""
        return np.concatenate([[False], np.diff(self.hop) > 0])

    def within(self) -> float:
        """Return the mean share between steps of the same hop; NaN where there are none."""
        return _mean(self.share[~self.first])

    def at_switches(self) -> float:
        """Return the mean share between the last step of a hop and the first of the next; NaN with one hop."""
        return _mean(self.share[self.first])


def overlap(counts: pd.DataFrame, part: str) -> Overlap:
    """Return one part (``embeddings`` or ``rest``) of the rows of a run's ``overlap.parquet``."""
    own = counts[counts["part"] == part].sort_values(["hop", "step"])
    nonzero, both, either = (own[name].to_numpy(dtype=float, na_value=np.nan) for name in ("nonzero", "both", "either"))
    # Two steps without any gradient of the part share nothing.
    share = np.divide(both, either, out=np.where(np.isnan(either), np.nan, 0.0), where=either > 0)
    return Overlap(own["hop"].to_numpy(), nonzero, both, share)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Return the means of ``window`` values around each, fewer at the ends; NaN counts for nothing. Shape as given."""
    there = np.isfinite(values)
    ones = np.ones(max(1, window))
    total, count = (np.convolve(of, ones, "same") for of in (np.where(there, values, 0.0), there.astype(float)))
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0.5)


def _mean(values: np.ndarray) -> float:
    there = values[np.isfinite(values)]
    return float(there.mean()) if there.size else float("nan")
