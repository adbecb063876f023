"""Tables of means over orders and seeds, by order, and by language.

Values have the unit of their metric, as mean ± standard deviation over runs. Missing values are ``n/a`` with a numbered
footnote.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xclrun.analysis.aggregate import MEAN, UNBALANCED, Comparison, compared, incomplete
from xclrun.analysis.measures import MEASURES, leaves_out, quantity
from xclrun.analysis.reference import is_control, is_ranked, is_reference
from xclrun.core.languages import language_of, scripts_of
from xclrun.core.task import BY_NAME, KEY_SCORE, headline, short_name
from xclrun.report.style import MOST, metric_title
from xclrun.report.tables import BEST_OF_ROW, BOLD, Cell, Reasons, Table, group_starts, mark_best

if TYPE_CHECKING:
    import pandas as pd


# Row with the scores of a constant classifier (always true or always false, whichever is better for the key).
CONSTANT = "constant answer"
HOP_0 = (
    "T0 is relative to hop 0, where an untrained head predicts almost the same label for every input; this label "
    "depends on the seed, so part of the variance of T0 between runs is not due to transfer"
)
UNEQUAL = (
    "orders have unequal numbers of runs: each mean is the mean of the orders' means; ± is over runs, weighted so that "
    "orders count equally"
)
RUNS = (
    "runs, “n of m”: the mean is over n runs; m is the number of combinations of order and seed that at least one "
    "strategy has finished"
)
SPAN_SCORING = {
    "span_micro": "micro F1 over labeled spans",
    "tag_macro": "macro F1 over single tags (evaluate.slot_f1=tag_macro), not span F1",
}


def ruled(comparison: Comparison, labels: Iterable[str]) -> tuple[int, ...]:
    """Return the index of the first reference model or control, above which tables have a horizontal line.

    Empty if the table has no reference model or control, or if its first row is a reference model or control.
    """
    first = next((k for k, label in enumerate(labels) if not is_ranked(comparison.strategies[label][0])), 0)
    return (first,) if first else ()


class Summary:
    """The means of one comparison.

    Args:
        frame: see `xclrun.analysis.aggregate.summarise`; ``unpaired`` must have the same value as in that call.
        marks: (strategy, metric, measure) → significance mark; ``marks_meaning`` explains them.
        chosen: how settings were selected on dev scores; empty if they were not.
        baseline: label of the baseline strategy.
        baseline_means: (incomplete strategy, metric, measure) → mean of the baseline over the runs that both have, and
            the number of these runs.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        comparison: Comparison,
        marks: Mapping[tuple[str, str, str], str] | None = None,
        unpaired: bool = False,
        marks_meaning: str = "",
        chosen: str = "",
        baseline: str = "",
        baseline_means: Mapping[tuple[str, str, str], tuple[float, int]] | None = None,
    ) -> None:
        self.comparison, self.marks, self.unpaired = comparison, marks or {}, unpaired
        self.baseline, self._baseline_means = baseline, baseline_means or {}
        orders = () if unpaired else (MEAN, *comparison.orders)
        # Order → strategies whose means are over other runs than the means of the complete strategies.
        self._incomplete = {order: incomplete(comparison, order) for order in orders}
        self.marks_meaning, self.chosen = marks_meaning, chosen
        self.measures = [measure.name for measure in comparison.headlines]
        rows = frame[(frame["dataset"] == comparison.dataset) & (frame["model"] == comparison.model)]
        self._rows = {(r.strategy, r.order, r.metric, r.measure, r.language): r for r in rows.itertuples(index=False)}
        self._behind = {
            (label, order): runs
            for order in (MEAN, *comparison.orders)
            for label, (runs, _) in compared(comparison, order, unpaired).items()
        }
        self.names = f"{comparison.dataset}, {comparison.model}"

    @property
    def complete(self) -> list[str]:
        """The strategies whose means over orders and seeds can be compared."""
        return [label for label in self.comparison.strategies if label not in self._incomplete.get(MEAN, ())]

    def means(self) -> list[Table]:
        return [
            self.main([metric], title=f"{headline(metric)}, mean over orders and seeds")
            for metric in self.comparison.metrics
        ]

    def main(self, metrics: Sequence[str], order: str = MEAN, title: str = "Mean over orders and seeds") -> Table:
        """Return the headline measures of ``metrics``, in one order or averaged over orders; each strategy is a row."""
        strategies = [strategy for strategy in self.comparison.strategies if self._has(strategy, order)]
        keys = [(metric, measure, "") for metric in metrics for measure in self.measures]
        return self._by_strategy(
            title, order, strategies, dict(zip(self._header(metrics), keys, strict=True)), counted=True
        )

    def orders(self, metric: str) -> Table:
        """Return the headline measures of one metric, with a row for each order and strategy."""
        reasons = Reasons()
        rows = []
        for order in self.comparison.orders:
            for strategy in self.comparison.strategies:
                if self._has(strategy, order):
                    cells = [self._cell(strategy, order, metric, measure, "", reasons) for measure in self.measures]
                    rows.append((order, strategy, self._runs(strategy, order, [metric]), *cells))
            floor = [self.floor(metric, order, measure) for measure in self.measures]
            if rows and set(floor) != {"–"}:
                rows.append((order, CONSTANT, Cell("–"), *map(Cell, floor)))
        header = ("order", "strategy", "runs", *self._header([metric]))
        notes = (
            *reasons.lines(),
            *self.reference_note(row[1] for row in rows if row[1] != CONSTANT),
            *self._hop_0([metric], self.measures),
            *self._behind_notes(self.comparison.strategies, self.comparison.orders),
            *self._footer([metric], [row[2] for row in rows]),
        )
        title = f"{headline(metric)}, by order"
        return Table(title, header, tuple(rows), notes, left=2, ruled=group_starts(rows))

    def languages(self, metric: str, measure: str) -> Table:
        """Return one measure by language. Each language is a column; with more than `MOST` languages, each is a row."""
        if len(self.comparison.languages) > MOST:
            return self._by_language(metric, measure)
        keys = {language: (metric, measure, language) for language in self.comparison.languages}
        strategies = [
            k for k in self.comparison.strategies if any((k, MEAN, *key) in self._rows for key in keys.values())
        ]
        scripts = scripts_of(self.comparison.languages)
        named = ", ".join(f"{name} ({', '.join(keys_of)})" for name, keys_of in scripts.items())
        title, further = f"{self._headline(metric, measure)} by language", [f"scripts: {named}"] if scripts else []
        return self._by_strategy(title, MEAN, strategies, keys, counted=False, further=further)

    def groups(self, metric: str, measure: str) -> Table | None:
        """Return one measure averaged over the languages of each family and of each script with several languages."""
        strategies = self._with_languages(metric, measure)
        rows: list[tuple[str, ...]] = []
        starts = []
        for kind in ("family", "script_name"):
            groups: dict[str, list[str]] = {}
            for key in self.comparison.languages:
                if (language := language_of(key)) is not None:
                    groups.setdefault(getattr(language, kind), []).append(key)
            starts.append(len(rows))
            for name, keys in sorted(groups.items(), key=lambda item: -len(item[1])):
                if len(keys) > 1:
                    cells = [self._mean_cell(k, metric, measure, keys) for k in strategies]
                    self._mark_row(strategies, cells, metric, measure)
                    rows.append((name, str(len(keys)), *cells))
        if not strategies or not rows:
            return None
        title = f"{self._headline(metric, measure)} by family and by script"
        notes = (
            "unweighted means over the languages of a family or script; families and scripts with a single language "
            "are not shown",
        )
        ruled = tuple(start for start in starts if 0 < start < len(rows))
        header = ("family; script", "languages", *strategies)
        return Table(title, header, tuple(rows), notes, raised=_best_of_row(rows), ruled=ruled)

    def _mean_cell(self, strategy: str, metric: str, measure: str, keys: Sequence[str]) -> Cell:
        values = [self.value(strategy, metric, measure, language=key) for key in keys]
        values = [value for value in values if not math.isnan(value)]
        mean = sum(values) / len(values) if values else math.nan
        return Cell(quantity(metric, measure).shown(mean), mean) if values else Cell("–")

    def _by_language(self, metric: str, measure: str) -> Table:
        """Return a row for each language with its name, family and script, sorted by family."""
        languages = {key: language_of(key) for key in self.comparison.languages}
        strategies, reasons, rows = self._with_languages(metric, measure), Reasons(), []
        floors = {key: self.floor(metric, MEAN, measure, key) for key in languages}
        has_floor = set(floors.values()) != {"–"}

        def place(key: str) -> tuple[object, ...]:
            language = languages[key]
            return (True, key) if language is None else (False, language.family, language.branch, key)

        for key in sorted(languages, key=place):
            language = languages[key]
            cells = [self._cell(k, MEAN, metric, measure, key, reasons) for k in strategies]
            self._mark_row(strategies, cells, metric, measure)
            facts = ("–", "–", "–") if language is None else (language.name, language.family, language.script_name)
            rows.append((key, *facts, *cells, *([floors[key]] if has_floor else [])))
        header = ("language", "name", "family", "script", *strategies, *([CONSTANT] if has_floor else []))
        notes = (
            *reasons.lines(),
            *self.reference_note(strategies),
            *self._hop_0([metric], [measure]),
            *self._behind_notes(strategies, [MEAN]),
            *self._footer([metric], []),
        )
        return Table(
            f"{self._headline(metric, measure)} by language", header, tuple(rows) if strategies else (), notes, left=4,
            raised=_best_of_row(rows), ruled=group_starts([row[2:] for row in rows]),
        )  # fmt: skip

    def _headline(self, metric: str, measure: str) -> str:
        return f"{headline(metric)} {measure} {quantity(metric, measure).arrow}"

    def _with_languages(self, metric: str, measure: str) -> list[str]:
        languages = self.comparison.languages
        return [
            strategy
            for strategy in self.comparison.strategies
            if any(not math.isnan(self.value(strategy, metric, measure, language=key)) for key in languages)
        ]

    def _mark_row(self, strategies: Sequence[str], cells: Sequence[Cell], metric: str, measure: str) -> None:
        comparable = [self.is_ranked(strategy) and strategy in self.complete for strategy in strategies]
        ranked = [cell for cell, is_comparable in zip(cells, comparable, strict=True) if is_comparable]
        mark_best(ranked, quantity(metric, measure))

    def measured(self, metric: str, measures: Sequence[str], title: str) -> Table:
        """Return the ``measures`` of one metric, averaged over orders and seeds, with their definitions."""
        keys = {f"{name} {quantity(metric, name).arrow}": (metric, name, "") for name in measures}
        strategies = [strategy for strategy in self.comparison.strategies if self._has(strategy, MEAN)]
        table = self._by_strategy(title, MEAN, strategies, keys, counted=True)
        return replace(table, notes=(*table.notes, *(f"{name}: {MEASURES[name].definition}" for name in measures)))

    def floors(self, metric: str) -> list[str]:
        """Return the scores of a constant classifier (`CONSTANT`) on each language and their mean; empty if unknown."""
        floors = [self.floor(metric, MEAN, "FP", language) for language in (*self.comparison.languages, "")]
        return [] if set(floors) == {"–"} else floors

    def _by_strategy(
        self, title: str, order: str, strategies: Sequence[str], keys: Mapping[str, tuple[str, str, str]],
        counted: bool, further: Sequence[str] = (),
    ) -> Table:  # fmt: skip
        """Return a table with a row for each strategy, and a row `CONSTANT` if its scores are known.

        Args:
            keys: name of a column → metric, measure and language.
            counted: add a column with the number of runs and, in tables of means over orders, significance marks.
            further: additional notes; the definitions of metrics follow them.
        """
        reasons, metrics = Reasons(), list(dict.fromkeys(metric for metric, _, _ in keys.values()))
        behind = self._incomplete.get(order, set())
        strategies = sorted(strategies, key=lambda k: (not self.is_ranked(k), k in behind))
        columns = [self._column(strategies, order, *key, reasons, counted and order == MEAN) for key in keys.values()]
        counts = [self._runs(strategy, order, metrics) for strategy in strategies]
        rows: list[tuple[str, ...]] = list(zip(strategies, *([counts] if counted else []), *columns, strict=True))
        floor = [self.floor(metric, order, measure, language) for metric, measure, language in keys.values()]
        starts = ruled(self.comparison, strategies)
        first = next((k for k, label in enumerate(strategies) if label in behind), 0)
        starts = tuple(sorted({*starts, first} - {0}))
        for k, label in reversed([*enumerate(strategies)] if counted and order == MEAN else []):
            if label in behind and (row := self._baseline_row(label, list(keys.values()))):
                rows.insert(k + 1, row)
                starts = tuple(start + (start > k) for start in starts)
        if rows and set(floor) != {"–"}:
            starts = (*starts, len(rows))
            rows.append((CONSTANT, *(["–"] if counted else []), *floor))
        unbalanced = any(UNBALANCED in r.status for k, r in self._rows.items() if k[1] == order and k[2] in metrics)
        cells = [cell for column in columns for cell in column]
        notes = (
            *reasons.lines(),
            *self.reference_note(strategies),
            *([UNEQUAL] if unbalanced else []),
            *self._hop_0(metrics, (measure for _, measure, _ in keys.values())),
            *further,
            *self._behind_notes(strategies, [order]),
            *self._footer(metrics, counts, counted),
        )
        header = ("strategy", *(["runs"] if counted else []), *keys)
        raised = [self.marks_meaning] if any(cell.mark for cell in cells) else []
        raised += [BOLD] if any(cell.best for cell in cells) else []
        return Table(title, header, tuple(rows), notes, raised=tuple(raised), ruled=starts)

    def _baseline_row(self, label: str, keys: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
        """Return the means of the baseline over the runs that it shares with ``label``; empty if there are none."""
        found = [self._baseline_means.get((label, metric, measure)) for metric, measure, _ in keys]
        counts = [n for _, n in filter(None, found)]
        if not counts:
            return ()
        shown = [quantity(metric, measure).shown for metric, measure, _ in keys]
        cells = [
            Cell("–") if mean is None else Cell(as_text(mean[0]), mean[0])
            for as_text, mean in zip(shown, found, strict=True)
        ]
        count = Cell(" to ".join(map(str, sorted({min(counts), max(counts)}))), float(max(counts)))
        return (f"{self.baseline} (runs of {label})", count, *cells)

    def floor(self, metric: str, order: str, measure: str, language: str = "") -> str:
        """Return the final score (FP) of a constant classifier on ``language``, or – if it is unknown.

        Without ``language``, return the mean over all languages.
        """
        name = BY_NAME[metric].floor
        runs = [r for r in self.comparison.runs if order in (MEAN, r.order) and measure == "FP" and name in r.scores]
        # Take the score from any run, because all runs have the same test sentences of a language.
        by_key = {k: run.scores[name][-1, j] for run in runs for j, k in enumerate(run.languages)}
        values = [float(value) for k, value in by_key.items() if language in ("", k)]
        return quantity(metric, "FP").shown(sum(values) / len(values)) if values else "–"

    def value(self, strategy: str, metric: str, measure: str, order: str = MEAN, language: str = "") -> float:
        row = self._rows.get((strategy, order, metric, measure, language))
        return math.nan if row is None else float(row.value)

    def std(self, strategy: str, metric: str, measure: str) -> float:
        row = self._rows.get((strategy, MEAN, metric, measure, ""))
        return math.nan if row is None else float(row.std)

    def title(self, metric: str) -> str:
        return metric_title(metric, self.comparison.runs)

    def is_ranked(self, strategy: str) -> bool:
        return is_ranked(self.comparison.strategies[strategy][0])

    def reference_note(self, strategies: Iterable[str]) -> list[str]:
        """Name the rows that are not ranked: reference models, and controls without texts."""
        first = {strategy: self.comparison.strategies[strategy][0] for strategy in strategies}
        hidden = [strategy for strategy, run in first.items() if is_control(run)]
        names = [strategy for strategy, run in first.items() if is_reference(run) and strategy not in hidden]
        notes = [f"reference models (not ranked): {', '.join(names)}"] if names else []
        notes += (
            [f"controls without texts, trained only on statements (not ranked): {', '.join(hidden)}"] if hidden else []
        )
        return notes

    def behind(
        self, strategy: str, order: str = MEAN, metric: str = "", measure: str = "", language: str = ""
    ) -> tuple[str, ...]:
        """Return the IDs of the runs behind a row or, with a metric, measure and language, behind a cell."""
        return tuple(
            run.run_id
            for run in self._behind.get((strategy, order), ())
            if (not metric or metric in run.metrics) and not (language and leaves_out(run, measure, language))
        )

    def _header(self, metrics: Sequence[str]) -> list[str]:
        named = {metric: f"{short_name(metric)} " if len(metrics) > 1 else "" for metric in metrics}
        return [
            f"{named[metric]}{measure} {quantity(metric, measure).arrow}"
            for metric in metrics
            for measure in self.measures
        ]

    def _has(self, strategy: str, order: str) -> bool:
        return any((strategy, order, metric, "FP", "") in self._rows for metric in self.comparison.metrics)

    def _column(
        self, strategies: Sequence[str], order: str, metric: str, measure: str, language: str, reasons: Reasons,
        marked: bool = False,
    ) -> list[Cell]:  # fmt: skip
        cells = [self._cell(strategy, order, metric, measure, language, reasons) for strategy in strategies]
        behind = self._incomplete.get(order, ())
        ranked = {k: cell for k, cell in zip(strategies, cells, strict=True) if self.is_ranked(k) and k not in behind}
        over = {frozenset(run.languages) for strategy in ranked for run in self.comparison.strategies[strategy]}
        # Do not compare means over different languages.
        if language or len(over) == 1:
            mark_best(ranked.values(), quantity(metric, measure))
        for strategy, cell in zip(strategies, cells, strict=True):
            cell.mark = self.marks.get((strategy, metric, measure), "") if marked else ""
        return cells

    def _cell(self, strategy: str, order: str, metric: str, measure: str, language: str, reasons: Reasons) -> Cell:
        row = self._rows.get((strategy, order, metric, measure, language))
        if row is None:
            return Cell("–")
        if row.status.startswith("n/a"):
            return Cell(f"n/a {reasons.mark(row.status.removeprefix('n/a: '))}")
        text = quantity(metric, measure).spread(row.value, row.std)
        return Cell(text, float(row.value), self.behind(strategy, order, metric, measure, language))

    def _runs(self, strategy: str, order: str, metrics: Iterable[str]) -> Cell:
        """Return the number of runs behind a row's values of ``metrics``.

        ``2 of 6`` if other strategies have more runs; ``3 to 4`` if some runs lack a metric or measure.
        """
        keys = [(strategy, order, metric, measure, "") for metric in metrics for measure in self.measures]
        rows = [self._rows[key] for key in keys if key in self._rows]
        interim = [row.status.split(";")[0] for row in rows if row.status.startswith("interim")]
        counts = sorted({row.n for row in rows if row.n})
        text = " to ".join(map(str, (counts[0], counts[-1]) if len(counts) > 1 else counts)) or "–"
        text = interim[0].removeprefix("interim: ").removesuffix(" runs") if interim else text
        return Cell(text, float(counts[-1] if counts else 0), self.behind(strategy, order))

    def _hop_0(self, metrics: Sequence[str], measures: Iterable[str]) -> list[str]:
        has_floor = any(self.floor(metric, MEAN, "FP") != "–" for metric in metrics)
        return [HOP_0] if has_floor and "T0" in measures else []

    def _behind_notes(self, strategies: Iterable[str], orders: Iterable[str]) -> list[str]:
        """Name the incomplete strategies, whose means are over their own runs."""
        behind = set().union(*(self._incomplete.get(order, set()) for order in orders))
        names = [label for label in strategies if label in behind]
        if not names:
            return []
        if set(self.comparison.strategies) <= behind:
            return ["strategies have no order, seed and bucket in common; each mean is over the runs of its strategy"]
        text = f"incomplete (not ranked): {', '.join(names)}; each mean is over the runs of its strategy"
        if any(label in names for label, *_ in self._baseline_means):
            text += f"; {self.baseline} (runs of …): mean of the baseline over the runs that both have"
        return [text]

    def _footer(self, metrics: Sequence[str], runs: Iterable[str], counted: bool = True) -> list[str]:
        """Return notes on selected settings, runs and metrics; ``counted``: the table has the column ``runs``."""
        lines = [self.chosen] if self.chosen else []
        if any(" of " in count for count in runs):
            every = "complete" if any(self._incomplete.values()) else "all"
            runs_used = f"; each mean is over the runs that {every} strategies have finished" if self.complete else ""
            runs_used = "; each mean is over all runs of its strategy" if self.unpaired else runs_used
            lines.append(f"interim: not all strategies have finished all orders and seeds{runs_used}")
            lines += [RUNS] if counted else []
        return [*lines, *self.definitions(metrics)]

    def definitions(self, metrics: Sequence[str]) -> list[str]:
        """Return the definitions of metrics whose names do not explain them."""
        lines = []
        for metric in (BY_NAME[metric] for metric in metrics):
            definition = metric.definition
            if metric.span_f1:
                used = sorted({run.slot_f1 for run in self.comparison.runs})
                definition = " and ".join(SPAN_SCORING.get(name, name) for name in used)
                definition += " (the scoring differs between rows)" if len(used) > 1 else ""
            if metric is KEY_SCORE:
                definition += f": {of_keys(self.comparison)}"
            lines += [f"{metric.short}: {definition}"] if definition else []
        return lines


def _best_of_row(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    return (BEST_OF_ROW,) if any(isinstance(cell, Cell) and cell.best for row in rows for cell in row) else ()


def of_keys(comparison: Comparison) -> str:
    """Return the metric of each key, if keys have several tasks: ``class accuracy (a, b), entity F1 (c)``."""
    metric_of = {key: metric for run in comparison.runs for key, metric in run.metric_of.items()}
    keys: dict[str, list[str]] = {}
    for key in comparison.languages:
        if metric := metric_of.get(key):
            keys.setdefault(metric, []).append(key)
    return ", ".join(f"{BY_NAME[metric].title} ({', '.join(each)})" for metric, each in keys.items())
