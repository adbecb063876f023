"""Intervals and tests of one comparison: tables, figures, and the marks that other tables carry."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from xclrun.analysis.aggregate import BASELINE, Comparison
from xclrun.analysis.bootstrap import RESAMPLES, SENTENCES, paired_p_value
from xclrun.analysis.measures import MEASURES, headlines
from xclrun.analysis.reference import References, is_reference
from xclrun.analysis.resampling import Resampled, replicates
from xclrun.analysis.significance import (
    Anova,
    CriticalDifference,
    Pair,
    Replicates,
    anova,
    blocked_anova,
    critical_difference,
    holm,
    mixed_model,
    p_matrix,
    paired_t,
    power_warnings,
    tukey,
    wilcoxon,
)
from xclrun.core.task import short_name
from xclrun.report.style import GREY, METRIC_NAMES, WIDEST, tickless
from xclrun.report.tables import Cell, Notes, Table, percent, ruled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEVELS = ((0.001, "***"), (0.01, "**"), (0.05, "*"))

KINDS = {
    "basic": "95 % basic interval: the percentile interval mirrored at the value, around the value less its bias, "
    "so that it can leave the value itself out (F holds a maximum, and so is measured too high: of all kinds this one "
    "holds the truth most often)",
    "centred": "95 % interval, centred: the percentile interval shifted by −bias, so that it lies around the value",
    "percentile": "95 % percentile interval (of F, which holds a maximum, it can miss the value)",
    "bca": "95 % BCa interval",
    "paper": "bootstrap mean ± t·s/√B: the standard error of the bootstrap mean, no interval for the score",
}
PAIRS_TOLD = (
    "Δ: a − b in points, with the interval of blocked Tukey; d_z: Δ over the standard deviation of differences "
    "between replicates, with 95 % interval",
    "p-values: Tukey's are adjusted for all pairs; the others by Holm over all pairs",
)
MORE_TOLD = (
    "; mixed model: t with Satterthwaite's degrees of freedom; paired bootstrap: over test sentences, of these runs "
    "alone"
)
BLOCKED = "Tukey, blocks"
REPLICATES = {"order": "orders", "languages": "sets of languages", "bucket": "buckets", "seed": "seeds"}


@dataclass(frozen=True)
class Tests:
    """All tests of one measure of one metric.

    Attributes:
        data: all runs; tests are over its replicates, the mixed model over all of it.
        few_shot: the languages of its blocks are targets, each a replicate; else sets of languages.
    """

    data: Replicates
    higher_is_better: bool
    few_shot: bool = False

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
    def told(self) -> str:
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


class Verdicts:
    """Tests of several measures of the same strategies: tables of them, and the marks that follow.

    Args:
        tests: (metric, measure) → its tests, or what `SUBJECTS` names.
        baseline: label of the strategy that marks compare with.
    """

    SUBJECTS = ("metric", "measure")
    PAIRS_TOLD = PAIRS_TOLD

    def __init__(self, tests: Mapping[tuple[str, str], Tests], baseline: str) -> None:
        self.tests, self.baseline = tests, baseline

    @property
    def marks_told(self) -> str:
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
        without = [" ".join(_shown(key)) for key, t in self.tests.items() if self.baseline not in t.data.strategies]
        if not without:
            return []
        where = "" if len(without) == len(self.tests) else f" of {', '.join(without)}"
        return [f"no significance marks{where}: the baseline, {self.baseline}, is not among the strategies tested"]

    def marks(self) -> dict[tuple[str, str, str], str]:
        """Return (strategy, metric, measure) → mark of its difference from the baseline, by Tukey over replicates.

        Marks come from this test since it keeps to its level (docs/statistics.md).
        """
        found = {}
        for (metric, name), tests in self.tests.items():
            for pair in tests.blocked[1]:
                if self.baseline in (pair.a, pair.b):
                    other = pair.b if pair.a == self.baseline else pair.a
                    found[other, metric, name] = next((mark for level, mark in LEVELS if pair.p < level), "")
        return found

    def anovas(self, title: str = "Do strategies differ") -> Table | None:
        """Return the table of analyses of variance: does any strategy differ at all?"""
        rows, reasons = [], Notes()
        for key, tests in self.tests.items():
            for what, fitted in self._analyses(tests).items():
                df = f"{fitted.df[0]}, {fitted.df[1]}"
                p = _p_cell(fitted.p, fitted.reason, reasons)
                rows.append((*_shown(key), what, df, _number(fitted.f), p, _number(fitted.eta_squared, 3)))
        if not rows:
            return None
        told = self._told(lambda tests: [f"{tests.told}; {len(tests.data.strategies)} strategies", *tests.warnings])
        notes = (*reasons.lines(), *told, "η²: share of the variance that strategies explain (partial, with blocks)")
        header = (*self.SUBJECTS, "analysis of variance", "df", "F ratio", "p", "η²")
        return Table(title, header, tuple(rows), notes, left=3)

    def all_pairs(self, title: str = "All pairs of strategies") -> Table | None:
        """Return the pairs of all measures of all metrics in one table."""
        reasons = Notes()
        found = {key: self._rows(key, reasons) for key in self.tests}
        if not found:
            return None
        names = list(dict.fromkeys(name for columns, _ in found.values() for name in columns))
        rows = []
        for key, (columns, own) in found.items():
            for row in own:
                p_values = dict(zip(columns, row[5:], strict=True))
                rows.append((*_shown(key), *row[:5], *(p_values.get(column, Cell("–")) for column in names)))
        told = self._told(lambda tests: [f"{tests.told}; the replicates are the blocks"])
        header = (*self.SUBJECTS, "a", "b", "Δ", "interval", "d_z", *names)
        return Table(title, header, tuple(rows), (*reasons.lines(), *told, *self.PAIRS_TOLD), left=4)

    def _analyses(self, tests: Tests) -> dict[str, Anova]:
        """Return the analyses of variance of one measure by name."""
        return {f"two-way, blocks: {tests.replicates}": tests.blocked[0]}

    def _columns(self, tests: Tests) -> dict[str, list[Pair]]:
        """Return the tests of all pairs of one measure by name."""
        data = tests.averaged
        return {BLOCKED: tests.blocked[1], "paired t": paired_t(data), "Wilcoxon": wilcoxon(data)}

    def _rows(self, key: tuple[str, str], reasons: Notes) -> tuple[list[str], list[tuple[str, ...]]]:
        """Return the names of the tests of one measure, and a row for each pair."""
        columns = self._columns(self.tests[key])
        rows: list[tuple[str, ...]] = []
        for k, pair in enumerate(columns["paired t"]):
            blocked = columns[BLOCKED][k]
            interval = f"[{percent(blocked.low)}, {percent(blocked.high)}]" if blocked.low == blocked.low else "–"
            effect = _number(pair.effect)
            if pair.effect_low == pair.effect_low:
                effect += f" [{_number(pair.effect_low, 1)}, {_number(pair.effect_high, 1)}]"
            told = [_p_cell(pairs[k].p, pairs[k].reason, reasons) for pairs in columns.values()]
            rows.append((pair.a, pair.b, Cell(percent(pair.difference), pair.difference), interval,
                         Cell(effect, pair.effect), *told))  # fmt: skip
        return list(columns), rows

    def _told(self, say: Callable[[Tests], list[str]]) -> list[str]:
        """Return what there is to say of the tests, once where it is the same of all, else for each."""
        said = {key: say(tests) for key, tests in self.tests.items()}
        if all(lines == next(iter(said.values())) for lines in said.values()):
            return next(iter(said.values()))
        return [f"{' '.join(_shown(key))}: {line}" for key, lines in said.items() for line in lines]


class Inference(Verdicts):
    """Everything that is said of a comparison beyond means.

    Args:
        comparison: its strategies.
        references: gives M.
        resampled: metric → its bootstrap; a metric that is missing has none.
        kind: of the bootstrap's intervals.
        baseline: label of the strategy that marks compare with; None: ``naive``, else the first that is tested.
    """

    PAIRS_TOLD = (PAIRS_TOLD[0], PAIRS_TOLD[1] + MORE_TOLD)

    def __init__(
        self,
        comparison: Comparison,
        references: References,
        resampled: Mapping[str, Resampled],
        kind: str = "basic",
        baseline: str | None = None,
    ) -> None:
        self.comparison, self.resampled, self.kind = comparison, resampled, kind
        tests: dict[tuple[str, str], Tests] = {}
        for metric in comparison.metrics:
            for name, data in replicates(comparison, references, metric).items():
                if len(data.blocks) > 1:
                    tests[metric, name] = Tests(data, MEASURES[name].higher_is_better)
        super().__init__(tests, self._default_baseline(tests) if baseline is None else baseline)

    def _default_baseline(self, tests: Mapping[tuple[str, str], Tests]) -> str:
        tested = [label for them in tests.values() for label in them.data.strategies]
        of = {label: self.comparison.strategies[label][0] for label in tested}
        ranked = sorted(of, key=lambda label: (of[label].strategy != BASELINE, is_reference(of[label])))
        return ranked[0] if ranked else ""

    def pairs(self, metric: str, name: str) -> Table | None:
        """Return all pairs of strategies by every test."""
        tests = self.tests.get((metric, name))
        if tests is None:
            return None
        names, rows = self._rows((metric, name), reasons := Notes())
        notes = (*reasons.lines(), f"{tests.told}; the replicates are the blocks", *self.PAIRS_TOLD)
        title = f"{short_name(metric).capitalize()} {name}: pairs of strategies"
        return Table(title, ("a", "b", "Δ", "interval", "d_z", *names), tuple(rows), notes, left=2)

    def _analyses(self, tests: Tests) -> dict[str, Anova]:
        return {"one-way, orders (CCL)": tests.paper[0], **super()._analyses(tests)}

    def _columns(self, tests: Tests) -> dict[str, list[Pair]]:
        own = super()._columns(tests)
        return {
            "Tukey, orders (CCL)": tests.paper[1],
            BLOCKED: own.pop(BLOCKED),
            "mixed model (Satterthwaite)": mixed_model(tests.data),
            **own,
        }

    def _rows(self, key: tuple[str, str], reasons: Notes) -> tuple[list[str], list[tuple[str, ...]]]:
        names, rows = super()._rows(key, reasons)
        bootstrap = self._bootstrap_p(*key, self.tests[key].averaged)
        if bootstrap is None:
            return names, rows
        cells = [Cell(p_text(p), p) for p in bootstrap]
        return [*names, "paired bootstrap"], [(*row, cell) for row, cell in zip(rows, cells, strict=True)]

    def _bootstrap_p(self, metric: str, name: str, data: Replicates) -> list[float] | None:
        resampled = self.resampled.get(metric)
        if resampled is None:
            return None
        values = {label: resampled.of_strategy(label, name) for label in data.strategies}
        raw = []
        for i, a in enumerate(data.strategies):
            for b in data.strategies[i + 1 :]:
                one, other = values[a], values[b]
                raw.append(math.nan if one is None or other is None else paired_p_value(one - other))
        return holm(raw).tolist()

    def intervals(self) -> Table | None:
        """Return the bootstrap intervals of every strategy's means over the test sentences."""
        if not self.resampled:
            return None
        metrics, reasons = list(self.resampled), Notes()
        rows = []
        for label in self.comparison.strategies:
            cells = []
            for resampled in self.resampled.values():
                for one in headlines():
                    found = resampled.estimate(label, one.name, self.kind)
                    if found is None:
                        cells.append(Cell("–"))
                        continue
                    ends = found.interval
                    told = f"[{percent(ends.low)}, {percent(ends.high)}]"
                    told = f"n/a {reasons.mark(ends.reason)}" if ends.reason else told
                    cells.append(Cell(f"{percent(found.value)} (bias {_signed(found.bias)}) {told}", found.value))
            if any(cell != "–" for cell in cells):
                rows.append((label, *cells))
        several = len(metrics) > 1
        keys = [(metric, one.name) for metric in metrics for one in headlines()]
        header = ("strategy", *(" ".join(_shown(key)) if several else key[1] for key in keys))
        sizes = next(iter(self.resampled.values())).size
        n = "as many sentences as the test set has" if sizes is None else f"{SENTENCES} test sentences at most"
        notes = (
            *reasons.lines(),
            f"value from the data; bias: mean over {RESAMPLES} resamples of {n}, minus the value; {KINDS[self.kind]}",
            "the same draws for all strategies; these intervals are about the choice of test sentences; ± of other "
            "tables is about orders and seeds",
        )
        shown = ruled(self.comparison, [row[0] for row in rows])
        return Table("Bootstrap over test sentences", header, tuple(rows), notes, ruled=shown)

    def _replicates(self, metric: str) -> str:
        return next(tests.replicates for (of, _), tests in self.tests.items() if of == metric)

    def p_values(self, metric: str) -> Figure | None:
        """Draw the p-values of all pairs, a panel per measure: below the diagonal the paper's, above it blocked."""
        shown = {name: tests for (of, name), tests in self.tests.items() if of == metric}
        if not shown:
            return None
        from matplotlib.figure import Figure

        most = max(len(tests.data.strategies) for tests in shown.values())
        side = max(1.3, 0.43 * most + 0.3)
        # Side by side as long as the digits can be read on a page of usual width; else two by two.
        columns = len(shown) if side * len(shown) <= WIDEST else min(2, len(shown))
        rows = math.ceil(len(shown) / columns)
        figure = Figure(figsize=(side * columns + 2.6, side * rows + 0.6 + 1.3 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for k, (axes, (name, tests)) in enumerate(zip(panels, shown.items(), strict=False)):
            _p_panel(axes, tests, name, labelled=k % columns == 0 or len(tests.data.strategies) != most)
        for axes in panels[len(shown) :]:
            axes.set_visible(False)
        _p_key(figure)
        text = (
            f"{self.comparison.dataset}, {self.comparison.model}: {METRIC_NAMES[metric]}; Tukey's HSD, p-values. "
            f"Below the diagonal: one-way, over orders (CCL); above: {self._replicates(metric)} as blocks"
        )
        figure.suptitle(textwrap.fill(text, int(13 * figure.get_size_inches()[0])), fontsize=10)
        return figure

    def critical_differences(self, metric: str) -> Figure | None:
        """Draw mean ranks over blocks, a line per measure; bars join what is not told apart (Nemenyi)."""
        shown = {name: tests for (of, name), tests in self.tests.items() if of == metric}
        if not shown:
            return None
        from matplotlib.figure import Figure

        most = max(len(tests.data.strategies) for tests in shown.values())
        figure = Figure(figsize=(8.4, (0.95 + 0.2 * ((most + 1) // 2)) * len(shown) + 0.6), layout="constrained")
        for axes, (name, tests) in zip(figure.subplots(len(shown), 1, squeeze=False)[:, 0], shown.items(), strict=True):
            _ranks(axes, tests.ranks, f"{name}  (Friedman p {p_text(tests.ranks.p, sign=True)})")
        text = (
            f"{self.comparison.dataset}, {self.comparison.model}: {METRIC_NAMES[metric]}; mean ranks over "
            f"{self._replicates(metric)}, 1 is best; CD: critical difference at 0.05"
        )
        figure.suptitle(textwrap.fill(text, 100), fontsize=10)
        return figure


def _shown(key: tuple[str, str]) -> tuple[str, str]:
    return short_name(key[0]), key[1]


def p_text(p: float, sign: bool = False) -> str:
    """Return a p-value as it is printed: three decimals, ``< 0.001`` below."""
    if p != p:
        return "–"
    return "< 0.001" if p < 0.001 else f"{'= ' if sign else ''}{p:.3f}"


def _p_cell(p: float, reason: str, reasons: Notes) -> Cell:
    return Cell(f"n/a {reasons.mark(reason)}" if reason else p_text(p), p)


def _signed(difference: float) -> str:
    text = percent(difference)
    return text if text.startswith("-") else f"+{text}"


def _number(value: float, digits: int = 2) -> str:
    return "–" if value != value else "∞" if math.isinf(value) else f"{value:.{digits}f}"


# From strong to no evidence; light enough for black digits, and told apart by colour-blind readers.
_STEPS = (0.0, 0.001, 0.01, 0.05, 0.1, 1.0)
_COLOURS = ("#2b83ba", "#74b3d8", "#b8d9ec", "#fde6c4", "#f4f4f4")


def _p_panel(axes: Axes, tests: Tests, name: str, labelled: bool) -> None:
    from matplotlib.colors import BoundaryNorm, ListedColormap

    strategies = tests.data.strategies
    paper, blocked = (p_matrix(strategies, pairs) for pairs in (tests.paper[1], tests.blocked[1]))
    matrix = np.where(np.tri(len(strategies), k=-1, dtype=bool), paper, blocked)
    axes.set_facecolor("white")
    axes.imshow(np.ma.masked_invalid(matrix), cmap=ListedColormap(_COLOURS), norm=BoundaryNorm(_STEPS, len(_COLOURS)))
    for (i, j), p in np.ndenumerate(matrix):
        text = "" if i == j else "–" if p != p else "<.001" if p < 0.001 else f"{p:.3f}".removeprefix("0")
        axes.text(j, i, text, ha="center", va="center", fontsize=6.5, in_layout=False)
    axes.set_xticks(range(len(strategies)), strategies, rotation=40, ha="right", rotation_mode="anchor", fontsize=7)
    axes.set_yticks(range(len(strategies)), strategies if labelled else [""] * len(strategies), fontsize=7)
    tickless(axes)
    axes.set_title(name, fontsize=9)
    axes.spines[:].set_color("#cccccc")


def _p_key(figure: Figure) -> None:
    from matplotlib.patches import Patch

    names = [f"p < {_STEPS[1]:g}", *(f"p < {high:g}" for high in _STEPS[2:-1]), f"p ≥ {_STEPS[-2]:g}"]
    handles = [Patch(facecolor=c, edgecolor="#999999", label=name) for c, name in zip(_COLOURS, names, strict=True)]
    figure.legend(handles=handles, loc="outside right center", fontsize=7, frameon=False)


def _ranks(axes: Axes, found: CriticalDifference, title: str) -> None:
    """Draw a critical-difference diagram (Demšar 2006): best left, names below, bars for groups."""
    k = len(found.strategies)
    below = (k + 1) // 2
    width = min(found.critical, k - 1)
    told = f"CD = {found.critical:.2f}" + ("" if width == found.critical else " (longer than the axis)")
    # Beside the axis there is room for the longest text, a name with its rank: a share of the width for each character.
    share = min(0.32, 0.0076 * max(len(told), 8 + max(map(len, found.strategies))))
    margin = max(0.4 + 0.12 * k, share / (1 - 2 * share) * k)
    axes.set(xlim=(1 - margin, k + margin), ylim=(-1.1 - 0.62 * below, 2.0))
    axes.axis("off")
    axes.plot([1, k], [0, 0], color="black", linewidth=1)
    for rank in range(1, k + 1):
        axes.plot([rank, rank], [0, 0.18], color="black", linewidth=1)
        axes.text(rank, 0.28, str(rank), ha="center", va="bottom", fontsize=7)
    for place, (name, rank) in enumerate(zip(found.strategies, found.ranks, strict=True)):
        left = place < below
        level = -1.0 - 0.62 * (place if left else k - 1 - place)
        end = axes.get_xlim()[0] + 0.02 if left else axes.get_xlim()[1] - 0.02
        axes.plot([rank, rank, end], [0, level, level], color=GREY, linewidth=0.7)
        text = f"{name} ({rank:.2f})"
        axes.text(end, level + 0.06, text, ha="left" if left else "right", va="bottom", fontsize=7)
    for step, (first, last) in enumerate(found.groups):
        height = -0.22 - 0.16 * (step % 4)
        ends = [found.ranks[first] - 0.03, found.ranks[last] + 0.03]
        axes.plot(ends, [height, height], color="#0072B2", linewidth=3, solid_capstyle="butt")
    axes.plot([1, 1 + width], [1.35, 1.35], color="black", linewidth=1.5)
    axes.text(1 + width + 0.05, 1.35, told, va="center", fontsize=7)
    axes.set_title(title, fontsize=8, loc="left", fontweight="bold")
