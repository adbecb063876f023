"""Intervals and tests of one comparison: tables, figures, and the marks that other tables carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations

import numpy as np

from xclrun.analysis.aggregate import BASELINE, Comparison
from xclrun.analysis.anova import Anova, anova, blocked_anova, tukey
from xclrun.analysis.bootstrap import paired_p_value
from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.ranks import CriticalDifference, critical_difference
from xclrun.analysis.reference import References, is_control, is_reference
from xclrun.analysis.replicates import Replicates, crossed, given_references
from xclrun.analysis.resampling import Resampled, replicates
from xclrun.analysis.significance import (
    MIXED_ORDERS,
    Pair,
    crossed_test,
    holm,
    mixed_model,
    t_test,
    untested,
    wilcoxon,
    with_holm,
)
from xclrun.core.task import short_name
from xclrun.report.tables import Cell, Reasons, Table, percent

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))

DIFFERENCES = (
    "Δ: a − b in points, with the interval of blocked Tukey; d_z: Δ over the standard deviation of differences "
    "between replicates, with 95 % interval"
)
EXPLORATORY = "exploratory: significance marks and “What was found” use the primary comparisons only"
P_VALUES = "p-values: Tukey's are adjusted for all pairs; the others by Holm over all pairs"
P_VALUES_OF_ORDERS = f"{P_VALUES}; paired bootstrap: over test sentences, of these runs alone"
MIXED_NOTE = (
    "mixed model: t with Satterthwaite's degrees of freedom, Δ is the model's own estimate; where it estimates the "
    "variance of strategy × order as 0, it takes runs of one order as independent and its p-values are too small"
)
# The numbers are those of docs/statistics.md.
TUKEY = (
    "Tukey's HSD is the CCL paper's method. Its pooled error assumes that all strategies have the same spread: with 10 "
    "strategies that do not differ and 6 orders, it finds a difference from the baseline in 1 % of studies with equal "
    "spreads, in 14 % if the baseline's spread is three times the others', and in 22 % at ten times"
)
SHARED = (
    "orders of one seed share its reference models and hop 0; only the paired t takes this into account (seeds crossed "
    "with orders)"
)
# Names of the tests of all pairs that are asked for elsewhere.
PAPER, BLOCKED, PAIRED_T = "Tukey, orders (CCL)", "Tukey, blocks", "paired t"
MIXED = "mixed model"
# Measures of the primary comparisons (`--primary`).
PRIMARY = ("F", "FP")
REPLICATES = {"order": "orders", "languages": "sets of languages", "bucket": "buckets", "seed": "seeds"}


@dataclass(frozen=True)
class Tests:
    """All tests of one measure of one metric.

    Attributes:
        data: all runs; tests are over its replicates, the mixed model over all of it.
        few_shot: the languages of its blocks are targets, each a replicate; else sets of languages.
        resampled: the bootstrap of the measure called ``name``; None: there is none.
        shared: whether orders of one seed share inputs of the measure (`xclrun.analysis.measures.Measure.shared`).
    """

    data: Replicates
    higher_is_better: bool
    few_shot: bool = False
    resampled: Resampled | None = None
    name: str = ""
    shared: bool = False

    @cached_property
    def averaged(self) -> Replicates:
        return self.data.averaged()

    @property
    def replicates(self) -> str:
        """What the replicates are, in one word."""
        if self.few_shot:
            return "languages" if self.data.kind == "languages" else "buckets"
        return REPLICATES[self.data.kind]

    @property
    def warnings(self) -> list[str]:
        """Effects that tests on so few replicates cannot detect."""
        k, n = self.averaged.values.shape
        return [] if self.few_shot and n < 2 else power_warnings(n, k * (k - 1) // 2)

    @property
    def scope(self) -> str:
        """What the replicates are, and which conclusions they support."""
        n, runs = len(self.averaged.blocks), len(self.data.blocks)
        if self.few_shot and n < 2:
            return (
                f"replicates: one bucket of {self.data.languages[0]}; a test needs two languages, or two buckets of one"
            )
        text = f"replicates: {n} {self.replicates}"
        if runs > n:
            text += f" ({runs} runs per strategy, averaged within each replicate)"
        if self.few_shot and self.data.kind != "languages":
            text += f" of one language: the tests speak of {self.data.languages[0]} alone"
        elif self.data.kind == "seed":
            text += f" of one order: the tests speak of {self.data.blocks[0][0]} alone"
        elif self.data.kind == "bucket":
            text += " of one set of languages: the tests speak of these languages alone"
        if self.given:
            text += f"; {self.given}"
        elif self._crossed is not None:
            text += f"; {SHARED}"
        return text

    @property
    def given(self) -> str:
        """Condition under which the tests hold, where orders share reference models; empty if there is none."""
        return given_references(self.data.blocks) if self.shared and self.data.kind == "order" else ""

    @cached_property
    def _crossed(self) -> np.ndarray | None:
        return crossed(self.data.blocks) if self.shared and self.data.kind == "order" else None

    def t_test(self, a: str, b: str) -> Pair:
        """Test one pair by the paired t-test, with the pair's own variance and without correction."""
        data = self.averaged if self._crossed is None else self.data
        one, other = (data.values[data.strategies.index(label)] for label in (a, b))
        differences = one - other
        if self._crossed is None:
            return t_test(a, b, differences, data.tolerance)
        return crossed_test(a, b, differences, self._crossed, data.tolerance)

    def against(self, baseline: str) -> dict[str, Pair]:
        """Test each strategy against the baseline, without correction; no p where the test is conditional (`given`)."""
        labels = self.data.strategies if baseline in self.data.strategies else ()
        pairs = {label: self.t_test(label, baseline) for label in labels if label != baseline}
        if not self.given:
            return pairs
        nan = math.nan
        return {
            label: replace(pair, low=nan, high=nan, p=nan, effect=nan, reason=self.given)
            for label, pair in pairs.items()
        }

    @cached_property
    def blocked(self) -> tuple[Anova, list[Pair]]:
        """Two-way ANOVA, strategy + replicate, and Tukey on it."""
        fitted = blocked_anova(self.averaged)
        return fitted, tukey(self.averaged, fitted)

    @cached_property
    def ranks(self) -> CriticalDifference:
        return critical_difference(self.averaged, self.higher_is_better)

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
            tests[MIXED] = mixed_model(self.data)
        tests[PAIRED_T] = with_holm([self.t_test(a, b) for a, b in combinations(data.strategies, 2)])
        tests["Wilcoxon"] = wilcoxon(data)
        if self.resampled is not None:
            draws = {label: self.resampled.of_strategy(label, self.name) for label in data.strategies}
            both = [(pair, draws[pair.a], draws[pair.b]) for pair in untested(data, "")]
            tests["paired bootstrap"] = with_holm([
                replace(pair, p=math.nan if one is None or other is None else paired_p_value(one - other))
                for pair, one, other in both
            ])  # fmt: skip
        return tests


class Verdicts:
    """Tests of several measures of the same strategies: tables of them, and the marks that follow.

    The primary comparisons are the one confirmatory family of a section: each strategy against the baseline on the
    primary measures, by paired t-tests with Holm's correction over all of them. docs/metrics.md, "Significance".

    Args:
        tests: (metric, measure) → its tests, or what `SUBJECTS` names.
        baseline: label of the strategy that marks compare with.
        primary: measures of the primary comparisons; None: all.
    """

    SUBJECTS = ("metric", "measure")

    def __init__(
        self, tests: Mapping[tuple[str, str], Tests], baseline: str, primary: Sequence[str] | None = PRIMARY
    ) -> None:
        self.tests, self.baseline, self._primary = tests, baseline, primary

    def of(self, metric: str) -> dict[str, Tests]:
        """Return measure → its tests of one metric."""
        return {name: tests for (other, name), tests in self.tests.items() if other == metric}

    @cached_property
    def unadjusted(self) -> dict[tuple[str, str, str], Pair]:
        """(strategy, metric, measure) → its test against the baseline, of the primary measures, without correction."""
        return {
            (label, metric, name): pair
            for (metric, name), tests in self.tests.items()
            if self._primary is None or name in self._primary
            for label, pair in tests.against(self.baseline).items()
        }

    @property
    def p_values(self) -> list[float]:
        return [pair.p for pair in self.unadjusted.values() if not math.isnan(pair.p)]

    @property
    def family(self) -> list[float]:
        """The p-values of the whole section, those of `p_values` first."""
        return self.p_values

    @cached_property
    def primary(self) -> dict[tuple[str, str, str], Pair]:
        """(strategy, metric, measure) → its test against the baseline, Holm over the family."""
        adjusted = iter(holm(self.family))
        return {
            key: pair if math.isnan(pair.p) else replace(pair, p=float(next(adjusted)))
            for key, pair in self.unadjusted.items()
        }

    @property
    def method(self) -> str:
        names = " and ".join(dict.fromkeys(name for _, _, name in self.unadjusted))
        replicates = " or ".join(dict.fromkeys(tests.replicates for tests in self.tests.values())) or "orders"
        one = next((t for t in self.tests.values() if t.data.kind == "seed" and not t.few_shot), None)
        alone = f" (of {one.data.blocks[0][0]} alone)" if one else ""
        n = len(self.family)
        return f"paired t-test over {replicates}{alone}, Holm over {n} comparison{'s' * (n != 1)} ({names})"

    @property
    def marks_meaning(self) -> str:
        return f"* ** ***: differs from the baseline, {self.baseline}: {self.method}, p < 0.05, 0.01, 0.001"

    def baseline_notes(self) -> list[str]:
        """Say if there are no marks since the baseline was not tested."""
        if not self.tests:
            return []
        without = [" ".join(subject(key)) for key, t in self.tests.items() if self.baseline not in t.data.strategies]
        if not without:
            return []
        where = "" if len(without) == len(self.tests) else f" of {', '.join(without)}"
        return [f"no significance marks{where}: the baseline, {self.baseline}, is not among the strategies tested"]

    def marks(self) -> dict[tuple[str, str, str], str]:
        """Return (strategy, metric, measure) → mark of its primary comparison with the baseline."""
        return {key: next((mark for level, mark in LEVELS if pair.p < level), "") for key, pair in self.primary.items()}

    def comparisons(self, title: str = "Primary comparisons with the baseline") -> Table | None:
        reasons, rows = Reasons(), []
        for (label, metric, name), pair in self.primary.items():
            raw = self.unadjusted[label, metric, name]
            effect = Cell(_number(pair.effect), pair.effect)
            p_values = [_p_cell(one.p, one.reason, reasons) for one in (raw, pair)]
            difference = Cell(percent(pair.difference), pair.difference)
            rows.append((*subject((metric, name)), label, difference, _interval(pair), effect, *p_values))
        if not rows:
            return None
        notes = (
            *reasons.lines(),
            *self._of_each(lambda tests: [tests.scope], {key[1:] for key in self.primary}),
            f"Δ: strategy − {self.baseline}, the baseline, in points, with the 95 % interval of the paired t-test "
            "(each pair has its own variance, no correction); d_z: Δ over the standard deviation of the differences",
            f"p (Holm): {self.method}; significance marks and “What was found” use these p-values only",
        )
        header = (*self.SUBJECTS, "strategy", "Δ", "95 % interval", "d_z", "p", "p (Holm)")
        return Table(title, header, tuple(rows), notes, left=3)

    def anovas(self, title: str = "Do strategies differ") -> Table | None:
        """Return the table of analyses of variance: does any strategy differ at all?"""
        if not self.tests:
            return None
        rows, reasons = [], Reasons()
        for key, tests in self.tests.items():
            for what, fitted in tests.analyses.items():
                df = f"{fitted.df[0]}, {fitted.df[1]}"
                p = _p_cell(fitted.p, fitted.reason, reasons)
                rows.append((*subject(key), what, df, _number(fitted.f), p, _number(fitted.eta_squared, 3)))
        scopes = self._of_each(
            lambda tests: [f"{tests.scope}; {len(tests.data.strategies)} strategies", *tests.warnings]
        )
        notes = (
            *reasons.lines(),
            *scopes,
            f"{EXPLORATORY}; p-values without correction over measures",
            "η²: share of the variance that strategies explain (partial, with blocks)",
        )
        header = (*self.SUBJECTS, "analysis of variance", "df", "F ratio", "p", "η²")
        return Table(title, header, tuple(rows), notes, left=3)

    def all_pairs(self, title: str = "All pairs of strategies") -> Table | None:
        if not self.tests:
            return None
        reasons, rows = Reasons(), []
        names = list(dict.fromkeys(name for tests in self.tests.values() for name in tests.pairs))
        for key, tests in self.tests.items():
            for k, pair in enumerate(tests.pairs[PAIRED_T]):
                effect = _number(pair.effect)
                if pair.effect_low == pair.effect_low:
                    effect += f" [{_number(pair.effect_low, 1)}, {_number(pair.effect_high, 1)}]"
                difference = Cell(percent(pair.difference), pair.difference)
                cells = {name: _p_cell(pairs[k].p, pairs[k].reason, reasons) for name, pairs in tests.pairs.items()}
                if MIXED in cells and not (fitted := tests.pairs[MIXED][k]).reason:
                    cells[MIXED] = Cell(f"{percent(fitted.difference)}, p {p_text(fitted.p, sign=True)}", fitted.p)
                interval = _interval(tests.pairs[BLOCKED][k])
                rows.append((*subject(key), pair.a, pair.b, difference, interval, Cell(effect, pair.effect),
                             *(cells.get(name, Cell("–")) for name in names)))  # fmt: skip
        scopes = self._of_each(lambda tests: [f"{tests.scope}; the replicates are the blocks"])
        p_values = P_VALUES if all(tests.few_shot for tests in self.tests.values()) else P_VALUES_OF_ORDERS
        header = (*self.SUBJECTS, "a", "b", "Δ", "interval", "d_z", *names)
        further = [MIXED_NOTE] if MIXED in names else []
        notes = (*reasons.lines(), *scopes, EXPLORATORY, DIFFERENCES, p_values, *further, TUKEY)
        return Table(title, header, tuple(rows), notes, left=4)

    def _of_each(self, say: Callable[[Tests], list[str]], keys: Collection[tuple[str, str]] | None = None) -> list[str]:
        """Return the notes on the tests with these keys (None: all): each once, with its subjects if it is on some."""
        subjects: dict[str, list[str]] = {}
        about = {key: tests for key, tests in self.tests.items() if keys is None or key in keys}
        for key, tests in about.items():
            for line in say(tests):
                subjects.setdefault(line, []).append(" ".join(subject(key)))
        return [line if len(on) == len(about) else f"{', '.join(on)}: {line}" for line, on in subjects.items()]


class Inference(Verdicts):
    """Tests and intervals of the strategies of a comparison.

    Args:
        references: has the scores M of the reference models.
        resampled: metric → its bootstrap, if there is one.
        kind: of the bootstrap's intervals; None: each measure's default.
        baseline: label of the strategy that marks compare with; None: ``naive``, else the first that is tested.
        primary: measures of the primary comparisons.
    """

    def __init__(
        self,
        comparison: Comparison,
        references: References,
        resampled: Mapping[str, Resampled],
        kind: str | None = None,
        baseline: str | None = None,
        primary: Sequence[str] = PRIMARY,
    ) -> None:
        self.comparison, self.resampled, self.kind = comparison, resampled, kind
        tests: dict[tuple[str, str], Tests] = {}
        for metric in comparison.metrics:
            for name, data in replicates(comparison, references, metric).items():
                if len(data.blocks) > 1:
                    one = MEASURES[name]
                    tests[metric, name] = Tests(
                        data, one.higher_is_better, resampled=resampled.get(metric), name=name, shared=one.shared
                    )
        super().__init__(tests, self._default_baseline(tests) if baseline is None else baseline, primary)

    def baseline_notes(self) -> list[str]:
        if self.baseline and self.baseline not in self.comparison.strategies:
            return [f"no significance marks: the baseline, {self.baseline}, has no runs in this section"]
        return super().baseline_notes()

    def _default_baseline(self, tests: Mapping[tuple[str, str], Tests]) -> str:
        def rank(label: str) -> tuple[bool, ...]:
            run = self.comparison.strategies[label][0]
            return is_control(run), run.strategy != BASELINE, is_reference(run)

        return min((label for each in tests.values() for label in each.data.strategies), key=rank, default="")


def subject(key: tuple[str, str]) -> tuple[str, str]:
    """Return how tables write a metric and a measure: the metric's short name."""
    return short_name(key[0]), key[1]


def p_text(p: float, sign: bool = False) -> str:
    """Return a p-value as it is printed: three decimals, ``< 0.001`` below."""
    if p != p:
        return "–"
    return "< 0.001" if p < 0.001 else f"{'= ' if sign else ''}{p:.3f}"


def _interval(pair: Pair) -> str:
    return f"[{percent(pair.low)}, {percent(pair.high)}]" if pair.low == pair.low else "–"


def _p_cell(p: float, reason: str, reasons: Reasons) -> Cell:
    return Cell(f"n/a {reasons.mark(reason)}" if reason else p_text(p), p)


def _number(value: float, digits: int = 2) -> str:
    return "–" if value != value else "∞" if math.isinf(value) else f"{value:.{digits}f}"
