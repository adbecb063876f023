"""Statistical tests of one comparison: tables, and the significance marks of other tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import product

from xclrun.analysis.aggregate import BASELINE, Comparison
from xclrun.analysis.all_tests import BLOCKED, MIXED, PAIRED_T, REPLICATES, Tests
from xclrun.analysis.confirmatory import PRIMARY
from xclrun.analysis.measures import MEASURES, quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References, is_control, is_reference
from xclrun.analysis.replicates import Measured
from xclrun.analysis.resampling import ORDERED, Resampled, measured
from xclrun.analysis.significance import (
    ALPHA,
    FEW,
    SKEWED,
    Pair,
    holm,
    not_compared,
)
from xclrun.core.quantity import SHARE, Quantity
from xclrun.core.task import short_name
from xclrun.report.tables import Cell, Reasons, Table

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))

DIFFERENCES = (
    "Δ: a − b in {}, with the interval of Tukey's HSD with blocks; d_z: Δ divided by the standard deviation of "
    "a − b over replicates, with 95 % interval"
)
EXPLORATORY = (
    "exploratory table: significance marks and the report's section “What was found” use only the primary comparisons"
)
P_VALUES = "p-values: Tukey's HSD adjusts for all pairs; the other tests use Holm's correction over all pairs"
P_VALUES_OF_ORDERS = f"{P_VALUES}; the paired bootstrap resamples test sentences, so it applies only to these runs"
MIXED_NOTE = (
    "mixed model: t-test with Satterthwaite's degrees of freedom; the first number is the model's estimate of Δ. If "
    "the estimated variance of the interaction strategy × order is 0, runs of one order count as independent, and p is "
    "too small"
)
# The numbers are from docs/metrics.md.
TUKEY = (
    "Tukey's HSD is the CCL paper's method. Its pooled error assumes equal spreads: in simulated studies of 10 "
    "strategies with the same true mean over 6 orders, it reports a difference from the baseline in 1 % of studies if "
    "spreads are equal, in 14 % if the baseline's spread is three times the others' spread, in 22 % if it is ten times"
)
# What is tested: the values of the columns `Verdicts.SUBJECTS`, for example (metric, measure).
Subject = tuple[str, str]


class Verdicts:
    """Tests of several measures of the same strategies, with tables and significance marks of the results.

    The primary comparisons are the confirmatory family of a section: each strategy against the baseline on the primary
    measures, by paired t-tests with Holm's correction over all of them. See docs/metrics.md, "Significance".

    Args:
        tests: (metric, measure) → tests.
        baseline: label of the baseline strategy.
        primary: measures of the primary comparisons; None: all.
        margin: margin of the equivalence tests, as a fraction; None: no equivalence tests. Metrics that are not in
            percent have none.
    """

    SUBJECTS = ("metric", "measure")

    def __init__(
        self, tests: Mapping[Subject, Tests], baseline: str, primary: Sequence[str] | None = PRIMARY,
        margin: float | None = None,
    ) -> None:  # fmt: skip
        self.tests, self.baseline, self._primary, self.margin = tests, baseline, primary, margin
        # (strategy, metric, measure) → a primary comparison without `Tests`; it counts in the family.
        self._without_tests: dict[tuple[str, str, str], Pair] = {}

    def quantity(self, key: Subject) -> Quantity:
        """Return the quantity of a subject's values: scores of its metric."""
        return quantity(key[0])

    def units(self, keys: Iterable[tuple[str, str, str]]) -> str:
        """Return the units of the differences of primary comparisons: ``points``, ``points or bits``."""
        return " or ".join(dict.fromkeys(self.quantity(key[1:]).difference.unit for key in keys))

    def of_metric(self, metric: str) -> dict[str, Tests]:
        """Return measure → tests of one metric."""
        return {name: tests for (other, name), tests in self.tests.items() if other == metric}

    @cached_property
    def unadjusted(self) -> dict[tuple[str, str, str], Pair]:
        """(strategy, metric, measure) → its primary comparison, without correction."""
        return {
            (label, metric, name): pair
            for (metric, name), tests in self.tests.items()
            if self._primary is None or name in self._primary
            for label, pair in tests.against(self.baseline).items()
        } | (self._without_tests if self.tests else {})

    @property
    def p_values(self) -> list[float]:
        """The p-values of the primary comparisons; NaN for comparisons that could not be computed."""
        return [pair.p for pair in self.unadjusted.values()]

    @property
    def family(self) -> list[float]:
        """The p-values of all comparisons that Holm's correction counts, NaN included; `p_values` come first."""
        return self.p_values

    @property
    def is_tested(self) -> bool:
        return any(not math.isnan(p) for p in self.family)

    @cached_property
    def primary(self) -> dict[tuple[str, str, str], Pair]:
        """(strategy, metric, measure) → its primary comparison, with Holm's correction over the family."""
        adjusted = holm(self.family, count_missing=True).tolist()
        return {key: replace(pair, p=p) for (key, pair), p in zip(self.unadjusted.items(), adjusted, strict=False)}

    @property
    def equivalences(self) -> list[float]:
        """The p-values of the equivalence tests of the primary comparisons, without correction."""
        return [
            math.nan if self.margin is None or self.quantity(key[1:]).scale == 1 else pair.equivalence(self.margin)
            for key, pair in self.unadjusted.items()
        ]

    @property
    def equivalence_family(self) -> list[float]:
        return self.equivalences

    @cached_property
    def equivalent(self) -> dict[tuple[str, str, str], float]:
        """(strategy, metric, measure) → p of its equivalence test, with Holm's correction over the family."""
        return dict(zip(self.unadjusted, holm(self.equivalence_family, count_missing=True).tolist(), strict=False))

    @cached_property
    def _pairs(self) -> dict[tuple[str, str, str], Tests]:
        """(strategy, metric, measure) → the tests of a primary comparison alone; without those of one replicate."""
        pairs: dict[tuple[str, str, str], Tests] = {}
        for key in self.unadjusted:
            tests = self.tests.get(key[1:])
            of_pair = None if tests is None else tests.of_pair(key[0], self.baseline)
            if of_pair is not None:
                pairs[key] = of_pair
        return {key: tests for key, tests in pairs.items() if self.unadjusted[key].n > 1} or pairs

    def replicates_of(self, label: str, key: Subject) -> str:
        """Return the plural noun for the replicates of a primary comparison."""
        noun = self._pairs.get((label, *key), self.tests[key]).replicates
        return "seeds of one order" if noun == REPLICATES["seed"] else noun

    def means_of(self, label: str, key: Subject) -> tuple[float, float]:
        """Return the means of the baseline and of a strategy over the orders that both have; NaN if there are none."""
        tests = self.tests[key].of_pair(label, self.baseline)
        return (math.nan, math.nan) if tests is None else (tests.mean(self.baseline), tests.mean(label))

    @property
    def method(self) -> str:
        names = " and ".join(dict.fromkeys(name for _, _, name in self.unadjusted))
        of_pairs = list(self._pairs.values()) or list(self.tests.values())
        nouns = dict.fromkeys(
            f"{t.replicates} (of {t.clustered.blocks[0][0]} only)"
            if t.clustered.kind == "seed" and not t.few_shot else t.replicates
            for t in of_pairs
        )  # fmt: skip
        replicates = " or ".join(nouns) or "orders"
        n = len(self.family)
        comparisons = f"{n} comparison{'s' * (n != 1)} ({names})"
        return f"paired t-test over {replicates} with Holm's correction over {comparisons}"

    @property
    def marks_meaning(self) -> str:
        return f"* ** ***: different from the baseline, {self.baseline}, at p < 0.05, 0.01, 0.001 ({self.method})"

    def baseline_notes(self) -> list[str]:
        """Explain missing marks if the baseline was not tested."""
        if not self.tests:
            return []
        untested = [" ".join(subject(key)) for key, t in self.tests.items() if self.baseline not in t.strategies]
        if not untested:
            return []
        subjects = "" if len(untested) == len(self.tests) else f" for {', '.join(untested)}"
        return [f"no significance marks{subjects}: the baseline, {self.baseline}, is not among the tested strategies"]

    def marks(self) -> dict[tuple[str, str, str], str]:
        """Return (strategy, metric, measure) → significance mark."""
        return {key: next((mark for level, mark in LEVELS if pair.p < level), "") for key, pair in self.primary.items()}

    def comparisons(self, title: str = "Primary comparisons with the baseline") -> Table | None:
        reasons, rows, skewed = Reasons(), [], []
        family = max(len(self.family), 1)
        for key, pair in self.primary.items():
            label, metric, name = key
            effect = Cell(_number(pair.effect), pair.effect)
            p_values = [_p_cell(pair.p, pair.reason, reasons)]
            if self.margin is not None:
                p_values.append(_p_cell(self.equivalent[key], pair.reason, reasons))
            quantity = self.quantity((metric, name))
            difference = Cell("–" if math.isnan(pair.difference) else quantity.shown(pair.difference), pair.difference)
            both = "–" if math.isnan(pair.p) else quantity.interval(*pair.interval(family))
            count = Cell(str(pair.n), float(pair.n))
            rows.append(
                (*subject((metric, name)), label, count, difference, _interval(pair, quantity), both, effect, *p_values)
            )
            if pair.p < ALPHA and abs(pair.skew) > SKEWED:
                p = p_text(pair.sign_flip(), sign=True)
                skewed.append(f"{' '.join(subject((metric, name)))} {label} (skew {pair.skew:.1f}): p {p}")
        if not rows:
            return None
        joined = any(tests.clustered is not tests.data for tests in self._pairs.values())
        once = " (orders that share trained hops of these two strategies count once)" if joined else ""
        notes = (
            *reasons.lines(),
            *self.each_scope(),
            f"n: replicates that both strategies have{once}; Δ: strategy − baseline ({self.baseline}) in "
            f"{self.units(self.primary)}, with the 95 % interval of the paired t-test (the variance is estimated for "
            "each pair); d_z: Δ divided by the standard deviation of the differences over replicates, from three "
            "replicates on",
        )
        if self.is_tested:
            notes += (
                f"simultaneous: all {family} intervals contain the true differences in at least 95 % of studies "
                "(Bonferroni); "
                "such an interval excludes 0 only if p (Holm) < 0.05",
                f"p (Holm): {self.method}; significance marks and “What was found” use only these p-values",
            )
        if self.margin is not None:
            notes += (
                f"p (TOST): two one-sided t-tests of a true difference below {SHARE.shown(self.margin)} points, with "
                "Holm's correction over the same comparisons",
            )
        if skewed:
            notes += (
                f"skewed differences, for which t-tests reject too often; sign-flip test without correction: "
                f"{'; '.join(skewed)}",
            )
        tost = ["p (TOST)"] if self.margin is not None else []
        header = (*self.SUBJECTS, "strategy", "n", "Δ", "95 % interval", "simultaneous", "d_z", "p (Holm)", *tost)
        return Table(title, header, tuple(rows), notes, left=3)

    def variances(self, title: str = "Variance of the differences from the baseline") -> Table | None:
        """Return the variance components of the primary comparisons; None without two orders and two common seeds."""
        rows = []
        for label, metric, name in self.primary:
            tests = self.tests.get((metric, name))
            of = tests.components(label, self.baseline) if tests else None
            if tests is not None and of is not None and of.seeds > 1:
                parts = [Cell(tests.quantity.shown(v**0.5), v**0.5) for v in (of.order, of.seed, of.residual)]
                rows.append((*subject((metric, name)), label, str(of.orders), str(of.seeds), *parts))
        if not rows:
            return None
        notes = (
            f"standard deviations in {self.units(self.primary)} of the difference strategy − baseline, from a crossed "
            "analysis of variance; negative estimates are 0. `xclrun plan --power POINTS` computes how many orders a "
            "study needs",
        )
        header = (*self.SUBJECTS, "strategy", "orders", "seeds", "order", "seed", "residual")
        return Table(title, header, tuple(rows), notes, left=3)

    def each_scope(self) -> list[str]:
        """Return the scopes of the primary comparisons; a scope of some of them begins with their names."""
        scopes = {key: tests.scope for key, tests in self._pairs.items()}
        if not scopes:
            return self._of_each(lambda tests: [tests.scope], {key[1:] for key in self.primary})
        # Name the subject, the strategy or both, whichever is enough to tell the scopes apart.
        named = next(
            name
            for name in (
                lambda key: "",
                lambda key: " ".join(subject(key[1:])),
                lambda key: key[0],
                lambda key: " ".join((*subject(key[1:]), key[0])),
            )
            if len({(name(key), scope) for key, scope in scopes.items()}) == len({name(key) for key in scopes})
        )
        names: dict[str, dict[str, None]] = {}
        for key, scope in scopes.items():
            names.setdefault(scope, {})[named(key)] = None
        return [f"{', '.join(of)}: {scope}" if any(of) else scope for scope, of in names.items()]

    def anovas(self, title: str = "Do strategies differ") -> Table | None:
        """Return analyses of variance, which test whether any strategies differ."""
        if not self.tests:
            return None
        rows, reasons = [], Reasons()
        for key, tests in self.tests.items():
            for name, fitted in tests.analyses.items():
                df = f"{fitted.df[0]}, {fitted.df[1]}"
                p = _p_cell(fitted.p, fitted.reason, reasons)
                rows.append((*subject(key), name, df, _number(fitted.f), p, _number(fitted.eta_squared, 3)))
        scopes = self._of_each(
            lambda tests: [f"{tests.scope}; {len(tests.data.strategies)} strategies", *tests.left_out, *tests.warnings]
        )
        notes = (
            *reasons.lines(),
            *scopes,
            f"{EXPLORATORY}; its p-values are not corrected for multiple measures",
            "η²: share of the variance explained by strategies (partial η² with blocks)",
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
                difference = Cell(tests.quantity.shown(pair.difference), pair.difference)
                cells = {name: _p_cell(pairs[k].p, pairs[k].reason, reasons) for name, pairs in tests.pairs.items()}
                if MIXED in cells and not (fitted := tests.pairs[MIXED][k]).reason:
                    cells[MIXED] = Cell(
                        f"{tests.quantity.shown(fitted.difference)}, p {p_text(fitted.p, sign=True)}", fitted.p
                    )
                interval = _interval(tests.pairs[BLOCKED][k], tests.quantity)
                rows.append((*subject(key), pair.a, pair.b, difference, interval, Cell(effect, pair.effect),
                             *(cells.get(name, Cell("–")) for name in names)))  # fmt: skip
        scopes = self._of_each(lambda tests: [f"{tests.scope}; replicates serve as blocks", *tests.left_out])
        p_values = P_VALUES if all(tests.few_shot for tests in self.tests.values()) else P_VALUES_OF_ORDERS
        header = (*self.SUBJECTS, "a", "b", "Δ", "interval", "d_z", *names)
        further = [MIXED_NOTE] if MIXED in names else []
        differences = DIFFERENCES.format(self.units(("", *key) for key in self.tests))
        notes = (*reasons.lines(), *scopes, EXPLORATORY, differences, p_values, *further, TUKEY)
        return Table(title, header, tuple(rows), notes, left=4)

    def _of_each(self, describe: Callable[[Tests], list[str]], keys: Collection[Subject] | None = None) -> list[str]:
        """Return notes on the tests with these keys (None: all); a note on some of them begins with their names."""
        subjects: dict[str, list[str]] = {}
        described = {key: tests for key, tests in self.tests.items() if keys is None or key in keys}
        for key, tests in described.items():
            for line in describe(tests):
                subjects.setdefault(line, []).append(" ".join(subject(key)))
        return [
            line if len(names) == len(described) else f"{', '.join(names)}: {line}" for line, names in subjects.items()
        ]


class Inference(Verdicts):
    """Tests and intervals of the strategies of a comparison.

    Args:
        resampled: metric → its bootstrap; metrics without a bootstrap have no entry.
        kind: kind of bootstrap intervals; None: each measure's default.
        baseline: label of the baseline strategy; None: ``naive``, or the first tested strategy.
        unfinished: label → a run of a strategy that has no finished run (`xclrun.analysis.aggregate`). Its comparisons
            count in the family, which would otherwise depend on the runs that have finished.
    """

    def __init__(
        self,
        comparison: Comparison,
        references: References,
        resampled: Mapping[str, Resampled],
        kind: str | None = None,
        baseline: str | None = None,
        primary: Sequence[str] = PRIMARY,
        margin: float | None = None,
        unfinished: Mapping[str, RunRecord] | None = None,
    ) -> None:
        self.unfinished = unfinished or {}
        self.comparison, self.resampled, self.kind = comparison, resampled, kind
        tests: dict[Subject, Tests] = {}
        few: dict[Subject, Measured] = {}
        self._measured: dict[Subject, Measured] = {}
        for metric in comparison.metrics:
            for name, values in measured(comparison, references, metric).items():
                self._measured[metric, name] = values
                data = values.most()
                if data is None or len(data.blocks) < 2:
                    few[metric, name] = values
                    continue
                measure, bootstrap = MEASURES[name], resampled.get(metric)
                tests[metric, name] = Tests(
                    data, quantity(metric, name), resampled=bootstrap, name=name, shared=measure.shared,
                    labels=tuple(values.values), of=values.of,
                )  # fmt: skip
        labels = [label for each in tests.values() for label in each.strategies] or [
            label for values in few.values() for label in values.values
        ]
        super().__init__(tests, self._default_baseline(labels) if baseline is None else baseline, primary, margin)
        for (metric, name), values in few.items():
            for label in values.values if name in primary and self.baseline in values.values else ():
                pair = values.of((label, self.baseline))
                reason = pair if isinstance(pair, str) else FEW
                if label != self.baseline:
                    self._without_tests[label, metric, name] = not_compared(label, self.baseline, reason)
        for (metric, name), (label, run) in product(self._measured, self.unfinished.items()):
            if label != self.baseline and name in primary and run.stream in {*ORDERED} & {*MEASURES[name].streams}:
                reason = f"{label} has no finished run"
                self._without_tests[label, metric, name] = not_compared(label, self.baseline, reason)

    def baseline_means(self, labels: Iterable[str]) -> dict[tuple[str, str, str], tuple[float, int]]:
        """Return (strategy, metric, measure) → mean of the baseline over the runs that both have, number of runs.

        Strategies that share no run with the baseline are missing.
        """
        means = {}
        for label in set(labels) - {self.baseline}:
            for (metric, name), values in self._measured.items():
                data = values.of((label, self.baseline))
                if not isinstance(data, str):
                    means[label, metric, name] = float(data.averaged().values[1].mean()), len(data.blocks)
        return means

    def baseline_notes(self) -> list[str]:
        if self.baseline and self.baseline not in self.comparison.strategies:
            return [f"no significance marks: the baseline, {self.baseline}, has no runs in this section"]
        return super().baseline_notes()

    def quantity(self, key: Subject) -> Quantity:
        # A primary comparison may have no tests.
        return quantity(*key)

    @property
    def why_untested(self) -> list[str]:
        """The reasons, other than too few replicates, why primary comparisons were not tested, if none was."""
        reasons = dict.fromkeys(pair.reason for pair in self._without_tests.values())
        return [] if self.tests else [reason for reason in reasons if reason != FEW]

    def _default_baseline(self, labels: Iterable[str]) -> str:
        def rank(label: str) -> tuple[bool, ...]:
            run = self.comparison.strategies[label][0]
            return is_control(run), run.strategy != BASELINE, is_reference(run)

        return min(labels, key=rank, default="")


def subject(key: Subject) -> Subject:
    """Abbreviate the metric of a key."""
    return short_name(key[0]), key[1]


def p_text(p: float, sign: bool = False) -> str:
    """Format a p-value: three decimals, ``< 0.001`` below."""
    if p != p:
        return "–"
    return "< 0.001" if p < 0.001 else f"{'= ' if sign else ''}{p:.3f}"


def _interval(pair: Pair, quantity: Quantity) -> str:
    return quantity.interval(pair.low, pair.high) if pair.low == pair.low else "–"


def _p_cell(p: float, reason: str, reasons: Reasons) -> Cell:
    return Cell(f"n/a {reasons.mark(reason)}" if reason else p_text(p), p)


def _number(value: float, digits: int = 2) -> str:
    return "–" if value != value else "∞" if math.isinf(value) else f"{value:.{digits}f}"
