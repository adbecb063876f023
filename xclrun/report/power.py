"""How many orders a study needs, according to a pilot: ``xclrun plan --power``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.confirmatory import PRIMARY
from xclrun.analysis.measures import quantity
from xclrun.analysis.power import MOST_ORDERS, POWER, Components
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.quantity import SHARE
from xclrun.core.terminal import fitted, many, table
from xclrun.report.inference import Inference, subject

# Numbers of seeds for which the number of orders is computed.
SEEDS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Needed:
    """The orders that one primary comparison needs.

    Attributes:
        components: variance components of the pilot; None if it has fewer than two orders, or if seeds and orders
            are crossed in the test of the measure.
        orders: number of seeds → orders; None if no number suffices. If the pilot does not separate seeds, the only
            number is 1, which stands for its seeds.
    """

    strategy: str
    metric: str
    measure: str
    components: Components | None
    orders: dict[int, int | None]

    def to_json(self) -> dict[str, Any]:
        of = self.components
        spread = None if of is None else [None if v != v else v**0.5 for v in (of.order, of.seed, of.residual)]
        pilot = {} if of is None or spread is None else {
            "pilot_orders": of.orders, "pilot_seeds": of.seeds,
            "std": dict(zip(("order", "seed", "residual"), spread, strict=True)),
        }  # fmt: skip
        head = {"strategy": self.strategy, "metric": self.metric, "measure": self.measure}
        return head | pilot | {"orders": {str(seeds): n for seeds, n in self.orders.items()}}


@dataclass(frozen=True)
class Power:
    """The orders that the primary comparisons of a section need.

    Attributes:
        effect: true difference, as a fraction.
        comparisons: size of the family of Holm's correction.
    """

    title: str
    baseline: str
    effect: float
    comparisons: int
    rows: tuple[Needed, ...]

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title, "baseline": self.baseline, "effect": self.effect, "power": POWER,
            "comparisons": self.comparisons, "rows": [row.to_json() for row in self.rows],
        }  # fmt: skip

    def render(self) -> str:
        """Return a table for the terminal, with notes."""
        rows = []
        for row in self.rows:
            of = row.components
            spread = [] if of is None else [of.order, of.seed, of.residual]
            shown = quantity(row.metric, row.measure).shown
            parts = ["–" if v != v else shown(v**0.5) for v in spread] or ["–"] * 3
            needed = [_orders(row, seeds) for seeds in SEEDS]
            rows.append(("\n".join([row.strategy, " ".join(subject((row.metric, row.measure)))]), *parts, *needed))
        units = dict.fromkeys(quantity(row.metric, row.measure).difference.unit for row in self.rows)
        header = ("strategy", "order", "seed", "run", *(f"×{seeds}" for seeds in SEEDS))
        lines = [
            f"{self.title}: orders that detect a difference of {SHARE.shown(self.effect)} points from {self.baseline} "
            f"with {100 * POWER:.0f} % power",
            table(header, rows),
            f"order, seed, run: standard deviations of the difference in the pilot, in {' or '.join(units)}, uncertain "
            "if the pilot is small. Without two seeds that all orders have, order is their sum, and ×1 stands for "
            "the pilot's seeds",
            "×N: orders with N seeds each, for paired t-tests with Bonferroni's correction over "
            f"{many(self.comparisons, 'comparison')} (Holm's has at least its power). Orders that share trained hops "
            "count as one. –: the pilot is too small, or its differences do not vary",
        ]
        return "\n".join(fitted(line, sys.stdout) if k != 1 else line for k, line in enumerate(lines))


def _orders(row: Needed, seeds: int) -> str:
    if row.components is None or seeds not in row.orders:
        return "–"
    return f"> {MOST_ORDERS}" if (orders := row.orders[seeds]) is None else str(orders)


def powers(records: Sequence[RunRecord], effect: float, chosen: Mapping[str, Any] | None = None) -> list[Power]:
    """Return the power of the primary comparisons of each section, given the finished runs of a pilot.

    Args:
        effect: true difference, as a fraction.
        chosen: baseline and primary measures of the study (`xclrun.analysis.confirmatory.chosen`).
    """
    chosen = chosen or {}
    references, found = References(records), []
    for comparison in comparisons(records):
        primary = chosen.get("primary", PRIMARY)
        inference = Inference(comparison, references, {}, baseline=chosen.get("baseline"), primary=primary)
        family = max(len(inference.family), 1)
        rows = []
        for label, metric, name in inference.unadjusted:
            tests = inference.tests.get((metric, name))
            # Measures such as T, which orders share, have another test (`Components.power`).
            # The effect is in points, so it says nothing about other units.
            testable = tests is not None and not tests.shared and tests.quantity.scale == SHARE.scale
            of = tests.components(label, inference.baseline) if testable and tests is not None else None
            # A pilot with one seed says nothing about other numbers of seeds.
            seeds = () if of is None or not of.varies else SEEDS if of.seeds > 1 else (1,)
            orders = {n: of.orders_for(effect, n, family) for n in seeds if of is not None}
            rows.append(Needed(label, metric, name, of, orders))
        if rows:
            title = f"{comparison.dataset} · {comparison.model}"
            found.append(Power(title, inference.baseline, effect, family, tuple(rows)))
    return found
