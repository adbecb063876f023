"""Quantities: how values read, and which of two values is better."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Quantity:
    """A score, a difference of scores, or another number in tables and figures.

    Attributes:
        unit: ``%`` or ``points`` for fractions, which are printed in percent; other values are printed unscaled.
        bounds: smallest and largest possible value.
        decimals: number of printed decimals.
    """

    higher_is_better: bool = True
    unit: str = "%"
    bounds: tuple[float, float] = (-math.inf, math.inf)
    decimals: int = 2

    @property
    def arrow(self) -> str:
        return "↑" if self.higher_is_better else "↓"

    @property
    def scale(self) -> int:
        """Factor by which values are multiplied for printing."""
        return 100 if self.unit in ("%", "points") else 1

    @property
    def label(self) -> str:
        """The unit in running text: ``percent``, ``points``, ``bits``."""
        return "percent" if self.unit == "%" else self.unit

    @property
    def best(self) -> Callable[..., Any]:
        """`max` or `min`."""
        return max if self.higher_is_better else min

    @property
    def difference(self) -> Quantity:
        """Differences of two values, such as points for percentages."""
        return replace(self, unit="points" if self.unit == "%" else self.unit, bounds=Quantity.bounds)

    def printed(self, value: float) -> float:
        """Return a value as printed: scaled and rounded, and never −0."""
        return round(self.scale * value, self.decimals) + 0.0

    def shown(self, value: float) -> str:
        """Format a value, without ``-0.00``."""
        return f"{self.printed(value):.{self.decimals}f}"

    def spread(self, mean: float, std: float) -> str:
        """Format a mean and a standard deviation: ``91.06 ± 0.40``; only the mean if ``std`` is NaN."""
        return self.shown(mean) + (f" ± {self.shown(std)}" if std == std else "")

    def interval(self, low: float, high: float) -> str:
        """Format the ends of an interval: ``[90.12, 91.99]``."""
        return f"[{self.shown(low)}, {self.shown(high)}]"

    def change(self, difference: float) -> str:
        """Format a difference with its sign: ``+1.20``, ``-0.50``."""
        text = self.shown(difference)
        return text if text.startswith("-") else f"+{text}"


# A share of a whole, printed in percent.
SHARE = Quantity(bounds=(0.0, 1.0))
