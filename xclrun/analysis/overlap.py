"""Gradient overlap of consecutive main steps of a run: |S_t ∩ S_{t−1}| / |S_t ∪ S_{t−1}| (LL §5, Fig. 5).

S_t is the set of parameters with a gradient at step t. A run's ``overlap.parquet`` (`xclrun.train.overlap`) has the
sizes of S_t, the intersection and the union for each hop, step and part of the parameters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Overlap:
    """Gradient overlap of one part of the parameters of a run, over T main steps; arrays of shape (T,).

    Attributes:
        nonzero: |S_t|.
        both: |S_t ∩ S_{t−1}|.
        share: |S_t ∩ S_{t−1}| / |S_t ∪ S_{t−1}|; NaN for the first step.
    """

    hop: np.ndarray
    nonzero: np.ndarray
    both: np.ndarray
    share: np.ndarray

    @property
    def first(self) -> np.ndarray:
        """Whether each step is the first step of its hop, shape (T,); False throughout the run's first hop."""
        return np.concatenate([[False], np.diff(self.hop) > 0])

    def within(self) -> float:
        """Return the mean overlap of consecutive steps within a hop."""
        return _mean(self.share[~self.first])

    def at_switches(self) -> float:
        """Return the mean overlap of the last step of a hop and the first step of the next hop."""
        return _mean(self.share[self.first])


def overlap(counts: pd.DataFrame, part: str) -> Overlap:
    """Return the overlap of one part (``embeddings`` or ``rest``) from the rows of ``overlap.parquet``."""
    rows, names = counts[counts["part"] == part].sort_values(["hop", "step"]), ("nonzero", "both", "either")
    nonzero, both, either = (rows[name].to_numpy(dtype=float, na_value=np.nan) for name in names)
    # Two steps without any gradient have an overlap of 0.
    share = np.divide(both, either, out=np.where(np.isnan(either), np.nan, 0.0), where=either > 0)
    return Overlap(rows["hop"].to_numpy(), nonzero, both, share)


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Return centred moving averages over ``window`` values, ignoring NaN, in the shape of ``values``."""
    finite = np.isfinite(values)
    ones = np.ones(max(1, window))
    total, count = (np.convolve(x, ones, "same") for x in (np.where(finite, values, 0.0), finite.astype(float)))
    return np.divide(total, count, out=np.full(len(values), np.nan), where=count > 0.5)


def _mean(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.mean()) if finite.size else float("nan")
