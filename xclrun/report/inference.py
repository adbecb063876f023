"""Intervals and tests of one comparison: tables, figures, and the marks that other tables carry."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from xclrun.analysis.aggregate import BASELINE, Comparison
from xclrun.analysis.anova import Anova, anova, blocked_anova, tukey
from xclrun.analysis.bootstrap import paired_p_value
from xclrun.analysis.measures import MEASURES
from xclrun.analysis.power import power_warnings
from xclrun.analysis.ranks import CriticalDifference, critical_difference
from xclrun.analysis.reference import References, is_control, is_reference
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.resampling import Resampled, replicates
from xclrun.analysis.significance import Pair, mixed_model, paired_t, untested, wilcoxon, with_holm
from xclrun.core.task import short_name
from xclrun.report.tables import Cell, Reasons, Table, percent

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))

DIFFERENCES = (
    "Δ: a − b in points, with the interval of blocked Tukey; d_z: Δ over the standard deviation of differences "
    "between replicates, with 95 % interval"
)
P_VALUES = "p-values: Tukey's are adjusted for all pairs; the others by Holm over all pairs"
P_VALUES_OF_ORDERS = (
    f"{P_VALUES}; mixed model: t with Satterthwaite's degrees of freedom; paired bootstrap: over test sentences, of "
    "these runs alone"
)
# Names of the tests of all pairs that are asked for elsewhere.
PAPER, BLOCKED, PAIRED_T = "Tukey, orders (CCL)", "Tukey, blocks", "paired t"
REPLICATES = {"order": "orders", "languages": "sets of languages", "bucket": "buckets", "seed": "seeds"}


@dataclass(frozen=True)
class Tests:
    """All tests of one measure of one metric.

    Attributes:
        data: all runs; tests are over its replicates, the mixed model over all of it.
        few_shot: the languages of its blocks are targets, each a replicate; else sets of languages.
        resampled: gives the measure, ``name``, of each strategy in every resample; None: there is no bootstrap.
    """

    data: Replicates
    higher_is_better: bool
    few_shot: bool = False
    resampled: Resampled | None = None
    name: str = ""

    @cached_property
    def averaged(self) -> Replicates:
        """One block for each replicate."""
        return self.data.averaged()

    @property
    def replicates(self) -> str:
        """What the replicates are, in one word."""
        kind = self.data.kind
        if self.few_shot:
            return "languages" if kind == "languages" else "buckets"
        return REPLICATES[kind]

    @property
    def warnings(self) -> list[str]:
        """What so few replicates cannot find."""
        k, n = self.averaged.values.shape
        return [] if self.few_shot and n < 2 else power_warnings(n, k * (k - 1) // 2)

    @property
    def scope(self) -> str:
        """What the replicates are, and what they allow to say."""
        n, runs = len(self.averaged.blocks), len(self.data.blocks)
        if self.few_shot and n < 2:
            return (
                f"replicates: one bucket of {self.data.languages[0]}; a test needs two languages, or two buckets of one"
            )
        text = f"replicates: {n} {self.replicates}"
        if runs > n:
            text += f" ({runs} runs of each strategy; what is inside one of the {self.replicates} is averaged first)"
        if self.few_shot and self.data.kind != "languages":
            text += f" of one language: the tests speak of {self.data.languages[0]} alone"
        elif self.data.kind == "seed":
            text += f" of one order: the tests speak of {self.data.blocks[0][0]} alone"
        elif self.data.kind == "bucket":
            text += " of one set of languages: the tests speak of these languages alone"
        return text

    @cached_property
    def paper(self) -> tuple[Anova, list[Pair]]:
        """One-way ANOVA and Tukey over orders."""
        fitted = anova(self.data.by_order())
        return fitted, tukey(self.data.by_order(), fitted)

    @cached_property
    def blocked(self) -> tuple[Anova, list[Pair]]:
        """Two-way ANOVA, strategy + replicate, and Tukey on it."""
        fitted = blocked_anova(self.averaged)
        return fitted, tukey(self.averaged, fitted)

    @cached_property
    def ranks(self) -> CriticalDifference:
        return critical_difference(self.averaged, self.higher_is_better)

    @property
    def analyses(self) -> dict[str, Anova]:
        """The analyses of variance by name."""
        paper = {} if self.few_shot else {"one-way, orders (CCL)": self.paper[0]}
        return paper | {f"two-way, blocks: {self.replicates}": self.blocked[0]}

    @cached_property
    def pairs(self) -> dict[str, list[Pair]]:
        """The tests of all pairs by name."""
        blocked, data = {BLOCKED: self.blocked[1]}, self.averaged
        if not self.few_shot:
            blocked = {PAPER: self.paper[1], **blocked, "mixed model (Satterthwaite)": mixed_model(self.data)}
        bootstrap = {} if self.resampled is None else {"paired bootstrap": self._bootstrap(self.resampled)}
        return {**blocked, PAIRED_T: paired_t(data), "Wilcoxon": wilcoxon(data), **bootstrap}

    def _bootstrap(self, resampled: Resampled) -> list[Pair]:
        of = {label: resampled.of_strategy(label, self.name) for label in self.averaged.strategies}
        pairs = []
        for pair in untested(self.averaged, ""):
            one, other = of[pair.a], of[pair.b]
            p = math.nan if one is None or other is None else paired_p_value(one - other)
            pairs.append(replace(pair, p=p))
        return with_holm(pairs)


class Verdicts:
    """Tests of several measures of the same strategies: tables of them, and the marks that follow.

    Args:
        tests: (metric, measure) → its tests, or what `SUBJECTS` names.
        baseline: label of the strategy that marks compare with.
    """

    SUBJECTS = ("metric", "measure")

    def __init__(self, tests: Mapping[tuple[str, str], Tests], baseline: str) -> None:
        self.tests, self.baseline = tests, baseline

    def of(self, metric: str) -> dict[str, Tests]:
        """Return measure → its tests of one metric."""
        return {name: tests for (other, name), tests in self.tests.items() if other == metric}

    @property
    def marks_meaning(self) -> str:
        """What marks mean."""
        first = next(iter(self.tests.values()), None)
        blocks = " or ".join(dict.fromkeys(tests.replicates for tests in self.tests.values())) or "orders"
        by = f"Tukey's HSD with {blocks} as blocks"
        by += (
            f" (of {first.data.blocks[0][0]} alone)"
            if first and first.data.kind == "seed" and not first.few_shot
            else ""
        )
        return f"* ** ***: differs from the baseline, {self.baseline}, by {by}, p < 0.05, 0.01, 0.001"

    def baseline_notes(self) -> list[str]:
        """Say where there are no marks since the baseline was not tested."""
        if not self.tests:
            return []
        without = [" ".join(subject(key)) for key, t in self.tests.items() if self.baseline not in t.data.strategies]
        if not without:
            return []
        where = "" if len(without) == len(self.tests) else f" of {', '.join(without)}"
        return [f"no significance marks{where}: the baseline, {self.baseline}, is not among the strategies tested"]

    def marks(self) -> dict[tuple[str, str, str], str]:
        """Return (strategy, metric, measure) → mark of its difference from the baseline, by Tukey over replicates.

        Marks come from this test since it keeps to its level (docs/statistics.md).
        """
        marks = {}
        for (metric, name), tests in self.tests.items():
            for pair in tests.blocked[1]:
                if self.baseline in (pair.a, pair.b):
                    other = pair.b if pair.a == self.baseline else pair.a
                    marks[other, metric, name] = next((mark for level, mark in LEVELS if pair.p < level), "")
        return marks

    def anovas(self, title: str = "Do strategies differ") -> Table | None:
        """Return the table of analyses of variance: does any strategy differ at all?"""
        rows, reasons = [], Reasons()
        for key, tests in self.tests.items():
            for what, fitted in tests.analyses.items():
                df = f"{fitted.df[0]}, {fitted.df[1]}"
                p = _p_cell(fitted.p, fitted.reason, reasons)
                rows.append((*subject(key), what, df, _number(fitted.f), p, _number(fitted.eta_squared, 3)))
        if not rows:
            return None
        scopes = self._of_each(
            lambda tests: [f"{tests.scope}; {len(tests.data.strategies)} strategies", *tests.warnings]
        )
        notes = (*reasons.lines(), *scopes, "η²: share of the variance that strategies explain (partial, with blocks)")
        header = (*self.SUBJECTS, "analysis of variance", "df", "F ratio", "p", "η²")
        return Table(title, header, tuple(rows), notes, left=3)

    def all_pairs(self, title: str = "All pairs of strategies") -> Table | None:
        """Return the pairs of all measures of all metrics in one table."""
        if not self.tests:
            return None
        reasons, rows = Reasons(), []
        names = list(dict.fromkeys(name for tests in self.tests.values() for name in tests.pairs))
        for key, tests in self.tests.items():
            for k, pair in enumerate(tests.pairs[PAIRED_T]):
                blocked = tests.pairs[BLOCKED][k]
                interval = f"[{percent(blocked.low)}, {percent(blocked.high)}]" if blocked.low == blocked.low else "–"
                effect = _number(pair.effect)
                if pair.effect_low == pair.effect_low:
                    effect += f" [{_number(pair.effect_low, 1)}, {_number(pair.effect_high, 1)}]"
                difference = Cell(percent(pair.difference), pair.difference)
                own = {name: _p_cell(pairs[k].p, pairs[k].reason, reasons) for name, pairs in tests.pairs.items()}
                rows.append((*subject(key), pair.a, pair.b, difference, interval, Cell(effect, pair.effect),
                             *(own.get(name, Cell("–")) for name in names)))  # fmt: skip
        scopes = self._of_each(lambda tests: [f"{tests.scope}; the replicates are the blocks"])
        p_values = P_VALUES if all(tests.few_shot for tests in self.tests.values()) else P_VALUES_OF_ORDERS
        header = (*self.SUBJECTS, "a", "b", "Δ", "interval", "d_z", *names)
        return Table(title, header, tuple(rows), (*reasons.lines(), *scopes, DIFFERENCES, p_values), left=4)

    def _of_each(self, say: Callable[[Tests], list[str]]) -> list[str]:
        """Return what there is to say of the tests, each line once, with what it is said of where that is not all."""
        said: dict[str, list[str]] = {}
        for key, tests in self.tests.items():
            for line in say(tests):
                said.setdefault(line, []).append(" ".join(subject(key)))
        return [line if len(of) == len(self.tests) else f"{', '.join(of)}: {line}" for line, of in said.items()]


class Inference(Verdicts):
    """Everything that is said of a comparison beyond means.

    Args:
        comparison: its strategies.
        references: gives M.
        resampled: metric → its bootstrap; a metric that is missing has none.
        kind: of the bootstrap's intervals; None: each measure's default.
        baseline: label of the strategy that marks compare with; None: ``naive``, else the first that is tested.
    """

    def __init__(
        self,
        comparison: Comparison,
        references: References,
        resampled: Mapping[str, Resampled],
        kind: str | None = None,
        baseline: str | None = None,
    ) -> None:
        self.comparison, self.resampled, self.kind = comparison, resampled, kind
        tests: dict[tuple[str, str], Tests] = {}
        for metric in comparison.metrics:
            for name, data in replicates(comparison, references, metric).items():
                if len(data.blocks) > 1:
                    better = MEASURES[name].higher_is_better
                    tests[metric, name] = Tests(data, better, resampled=resampled.get(metric), name=name)
        super().__init__(tests, self._default_baseline(tests) if baseline is None else baseline)

    def baseline_notes(self) -> list[str]:
        if self.baseline and self.baseline not in self.comparison.strategies:
            return [f"no significance marks: the baseline, {self.baseline}, has no runs in this section"]
        return super().baseline_notes()

    def _default_baseline(self, tests: Mapping[tuple[str, str], Tests]) -> str:
        tested = [label for them in tests.values() for label in them.data.strategies]
        of = {label: self.comparison.strategies[label][0] for label in tested}
        last = {label: (is_control(run), run.strategy != BASELINE, is_reference(run)) for label, run in of.items()}
        ranked = sorted(of, key=last.__getitem__)
        return ranked[0] if ranked else ""


def subject(key: tuple[str, str]) -> tuple[str, str]:
    """Return how tables write a metric and a measure: the metric's short name."""
    return short_name(key[0]), key[1]


def p_text(p: float, sign: bool = False) -> str:
    """Return a p-value as it is printed: three decimals, ``< 0.001`` below."""
    if p != p:
        return "–"
    return "< 0.001" if p < 0.001 else f"{'= ' if sign else ''}{p:.3f}"


def _p_cell(p: float, reason: str, reasons: Reasons) -> Cell:
    return Cell(f"n/a {reasons.mark(reason)}" if reason else p_text(p), p)


def _number(value: float, digits: int = 2) -> str:
    return "–" if value != value else "∞" if math.isinf(value) else f"{value:.{digits}f}"
