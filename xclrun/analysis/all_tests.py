"""All tests of one measure of one metric: of all strategies, and of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from xclrun.analysis.anova import Anova, anova, blocked_anova, tukey
from xclrun.analysis.bootstrap import paired_p_value
from xclrun.analysis.critical_difference import CriticalDifference, critical_difference
from xclrun.analysis.power import Components, detectable_effect, power_warnings
from xclrun.analysis.replicates import Replicates, crossed, given_references
from xclrun.analysis.resampling import Resampled
from xclrun.analysis.significance import (
    FEW,
    MIXED_ORDERS,
    Pair,
    crossed_test,
    mixed_model,
    not_compared,
    t_test,
    untested,
    wilcoxon,
    with_holm,
)
from xclrun.core.quantity import Quantity

SHARED = (
    "orders with the same seed share reference models and hop 0; only the paired t-test accounts for this, by treating "
    "seeds as crossed with orders"
)
# Names of tests of all pairs.
PAPER, BLOCKED, PAIRED_T = "Tukey, orders (CCL)", "Tukey, blocks", "paired t"
MIXED = "mixed model"
ONE_CLUSTER = "all orders share trained hops, so there is one replicate; a test needs further seeds"
DEPENDENT = "a strategy shares trained hops in all orders; only the paired t-test accounts for this"
REPLICATES = {"order": "orders", "languages": "sets of languages", "bucket": "buckets", "seed": "seeds"}


@dataclass(frozen=True)
class Tests:
    """All tests of one measure of one metric.

    Attributes:
        data: values of strategies with common blocks, for tests of all strategies. The mixed model uses all values;
            other tests use means of replicates (`averaged`).
        quantity: the quantity of the values.
        few_shot: the runs are few-shot runs, so a block has one language (the target) instead of a set.
        resampled: the bootstrap of the measure ``name``; None without a bootstrap.
        shared: orders with the same seed share inputs of the measure (`xclrun.analysis.measures.Measure.shared`).
        labels: all strategies, including those that ``data`` leaves out; empty: the strategies of ``data``.
        of: returns the values of some strategies in all blocks that these strategies have, or why there are none;
            None: the values in ``data``.
    """

    data: Replicates
    quantity: Quantity
    few_shot: bool = False
    resampled: Resampled | None = None
    name: str = ""
    shared: bool = False
    labels: tuple[str, ...] = ()
    of: Callable[[Sequence[str]], Replicates | str] | None = None

    @property
    def strategies(self) -> tuple[str, ...]:
        """All strategies; `data` may lack some of them."""
        return self.labels or self.data.strategies

    @cached_property
    def clustered(self) -> Replicates:
        """``data`` with clusters of orders that share trained hops.

        If a further strategy joins all orders, for example because it trains each language separately, tests of all
        strategies use the orders, as otherwise this strategy would remove the replicates of the others.
        """
        data = self.data.clustered()
        return self.data if data.kind != self.data.kind and len(self.data.strategies) > 2 else data

    @cached_property
    def averaged(self) -> Replicates:
        return self.clustered.averaged()

    @property
    def replicates(self) -> str:
        """The plural noun for the replicates."""
        if self.few_shot:
            return "languages" if self.data.kind == "languages" else "buckets"
        if self.clustered is not self.data and self.clustered.kind == "order":
            return "clusters of orders"
        return REPLICATES[self.clustered.kind]

    @property
    def warnings(self) -> list[str]:
        """Warnings about effects that tests with so few replicates cannot detect."""
        k, n = self.averaged.values.shape
        return [] if self.few_shot and n < 2 else power_warnings(n, k * (k - 1) // 2)

    @property
    def scope(self) -> str:
        """The replicates, and the conclusions that they support."""
        n, runs = len(self.averaged.blocks), len(self.data.blocks)
        if self.few_shot and n < 2:
            return f"replicates: one bucket of {self.data.languages[0]}; a test needs two languages or two buckets"
        text = f"replicates: {n} {self.replicates}"
        if runs > n:
            text += f" ({runs} runs per strategy, averaged within each replicate)"
        if self.clustered is not self.data:
            orders = sum(map(len, self.data.clusters))
            clusters = f"{len(self.data.clusters)} clusters" if len(self.data.clusters) > 1 else "one cluster"
            text += f"; {orders} orders form {clusters}, because some share trained hops"
        elif self.data.kind == "order" and len(self.data.clusters) < n:
            text += f"; {DEPENDENT}"
        if self.few_shot and self.data.kind != "languages":
            text += f" of one language: the tests apply only to {self.data.languages[0]}"
        elif self.clustered.kind == "seed":
            noun = "one order" if self.clustered is self.data else "one cluster of orders"
            text += f" of {noun}: the tests apply only to {self.clustered.blocks[0][0]}"
        elif self.clustered.kind == "bucket":
            text += " of one set of languages: the tests apply only to these languages"
        if self.condition:
            text += f"; tests {self.condition}"
        elif self._crossed is not None:
            text += f"; {SHARED}"
        return text

    @property
    def left_out(self) -> list[str]:
        """A note on strategies that have too few blocks in common with the others to be in ``data``."""
        names = [label for label in self.strategies if label not in self.data.strategies]
        return [f"not in this table, because it needs replicates that all strategies have: {', '.join(names)}"][
            : len(names)
        ]

    @property
    def condition(self) -> str:
        """A caveat if orders share reference models, so that tests hold only for these models; otherwise empty."""
        return given_references(self.clustered.blocks) if self.shared and self.clustered.kind == "order" else ""

    @cached_property
    def _crossed(self) -> np.ndarray | None:
        return crossed(self.clustered.blocks) if self.shared and self.clustered.kind == "order" else None

    def blocks_of(self, *labels: str) -> Replicates | str:
        """Return the values of ``labels`` in all blocks that these strategies have, or why there are none."""
        if self.of is not None:
            return self.of(labels)
        return self.data.only(labels)

    def of_pair(self, a: str, b: str) -> Tests | None:
        """Return the tests of two strategies in all blocks that both have; None if there are none."""
        data = self.blocks_of(a, b)
        return None if isinstance(data, str) else replace(self, data=data, labels=(), of=None)

    def mean(self, label: str) -> float:
        """Return the mean of a strategy: over the orders of `data` if it is part of them, else over its own.

        As in tables of means, orders that form a cluster count separately.
        """
        data = self.data if label in self.data.strategies else self.blocks_of(label)
        if isinstance(data, str):
            return math.nan
        return float(data.averaged().values[data.strategies.index(label)].mean())

    def t_test(self, a: str, b: str) -> Pair:
        """Run a paired t-test over all replicates that both strategies have, without correction."""
        orders = self.blocks_of(a, b)
        if isinstance(orders, str):
            return not_compared(a, b, orders)
        # Only hops of these two strategies decide which orders form a cluster.
        data = orders.clustered()
        averaged = data.averaged()
        cells = crossed(data.blocks) if self.shared and data.kind == "order" else None
        differences = data.values[0] - data.values[1]
        if cells is not None:
            return replace(crossed_test(a, b, differences, cells, data.tolerance), n=len(averaged.blocks))
        pair = t_test(a, b, averaged.values[0] - averaged.values[1], data.tolerance)
        return replace(pair, reason=ONE_CLUSTER) if pair.reason == FEW and data is not orders else pair

    def detectable(self, a: str, b: str) -> float:
        """Return the true difference that a paired t-test detects with 80 % power, given the spread of a − b.

        NaN if replicates are too few, or if orders and seeds are crossed.
        """
        differences = self.t_test(a, b).differences
        return detectable_effect(len(differences)) * float(np.std(differences, ddof=1)) if differences else math.nan

    def components(self, a: str, b: str) -> Components | None:
        """Return the variance components of a − b; None with fewer than two orders.

        If orders differ in their seeds, seeds are averaged first.
        """
        data = self.blocks_of(a, b)
        data = data if isinstance(data, str) else data.clustered()
        if isinstance(data, str) or data.kind != "order":
            return None
        cells = crossed(data.blocks)
        data, cells = (data.averaged(), None) if cells is None else (data, cells)
        differences = data.values[0] - data.values[1]
        return Components.of(differences[:, np.newaxis] if cells is None else differences[cells])

    def against(self, baseline: str) -> dict[str, Pair]:
        """Test each strategy against the baseline, without correction; p is NaN if there is a `condition`."""
        labels = self.strategies if baseline in self.strategies else ()
        return {label: self._conditional(self.t_test(label, baseline)) for label in labels if label != baseline}

    def _conditional(self, pair: Pair) -> Pair:
        orders = self.blocks_of(pair.a, pair.b)
        if not self.shared or isinstance(orders, str) or pair.reason or (data := orders.clustered()).kind != "order":
            return pair
        nan, condition = math.nan, given_references(data.blocks)
        return replace(pair, low=nan, high=nan, p=nan, effect=nan, reason=condition) if condition else pair

    @cached_property
    def blocked(self) -> tuple[Anova, list[Pair]]:
        """Two-way ANOVA (strategy + replicate) and its Tukey test."""
        fitted = blocked_anova(self.averaged)
        return fitted, tukey(self.averaged, fitted)

    @cached_property
    def ranks(self) -> CriticalDifference:
        return critical_difference(self.averaged, self.quantity.higher_is_better)

    @cached_property
    def analyses(self) -> dict[str, Anova]:
        paper = {} if self.few_shot else {"one-way, orders (CCL)": anova(self.data.by_order())}
        return paper | {f"two-way, blocks: {self.replicates}": self.blocked[0]}

    @cached_property
    def pairs(self) -> dict[str, list[Pair]]:
        data, tests = self.averaged, {}
        if not self.few_shot:
            tests[PAPER] = tukey(self.data.by_order(), anova(self.data.by_order()))
        tests[BLOCKED] = self.blocked[1]
        if data.kind == "order" and len(data.blocks) >= MIXED_ORDERS and not self.few_shot:
            tests[MIXED] = mixed_model(self.clustered)
        shared = replace(self, of=None)
        tests[PAIRED_T] = with_holm([shared.t_test(a, b) for a, b in combinations(data.strategies, 2)])
        tests["Wilcoxon"] = wilcoxon(data)
        if self.resampled is not None:
            drawn = [(pair, self.resampled.difference(pair.a, pair.b, self.name)) for pair in untested(data, "")]
            tests["paired bootstrap"] = with_holm([
                replace(pair, p=math.nan if draws is None else paired_p_value(draws)) for pair, draws in drawn
            ])  # fmt: skip
        return tests
