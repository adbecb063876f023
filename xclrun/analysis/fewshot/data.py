"""Data of few-shot runs beyond their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from xclrun.analysis.fewshot.words import Outcome, Words

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class FewShotData:
    """Data of few-shot runs beyond their scores, by run ID.

    Attributes:
        outcomes: metric → run ID → predictions for the target's test split.
        words: words of source, bucket and test split.
        attention: summaries of the attention from [CLS] (see `xclrun.analysis.fewshot.attention`).
        reasons: why data could not be read.
    """

    outcomes: Mapping[str, Mapping[str, Outcome]] = field(default_factory=dict)
    words: Mapping[str, Words] = field(default_factory=dict)
    attention: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()
