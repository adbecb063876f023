"""Tables of `xclrun.analysis.aggregate.summarise`: means over orders and seeds, by order, by language.

Values are percent with two decimals, as mean ± standard deviation over runs; a missing value is ``n/a`` with a
numbered reason under the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xclrun.analysis.aggregate import MEAN, UNBALANCED, Comparison, compared
from xclrun.analysis.measures import MEASURES, leaves_out
from xclrun.analysis.reference import is_control, is_ranked, is_reference
from xclrun.core.languages import language_of, scripts_of
from xclrun.core.task import BY_NAME, KEY_SCORE, headline, short_name
from xclrun.report.style import MOST, metric_title
from xclrun.report.tables import BEST_OF_ROW, BOLD, Cell, Reasons, Table, group_starts, mark_best

if TYPE_CHECKING:
    import pandas as pd


# Row of what a constant answer scores.
CONSTANT = "constant answer"
HOP_0 = (
    "T0: from hop 0, whose fresh head answers nearly always the same, by its seed the worse or the better of the two "
    "constant answers; so runs differ by more than what is transferred"
)


def ruled(comparison: Comparison, shown: Iterable[str]) -> tuple[int, ...]:
    """Return the row at which reference models and controls begin, below a rule; none if that is the first row."""
    first = next((k for k, label in enumerate(shown) if not is_ranked(comparison.strategies[label][0])), 0)
    return (first,) if first else ()


class Summary:
    """The means of one comparison.

    Args:
        frame: as `xclrun.analysis.aggregate.summarise` returns it.
        marks: (strategy, metric, measure) → mark of its difference from the baseline.
        unpaired: as given to `summarise`.
        marks_meaning: what marks mean.
        chosen: how the settings of the runs were chosen; empty where they were not.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        comparison: Comparison,
        marks: Mapping[tuple[str, str, str], str] | None = None,
        unpaired: bool = False,
        marks_meaning: str = "",
        chosen: str = "",
    ) -> None:
        self.comparison, self.marks, self.unpaired = comparison, marks or {}, unpaired
        self.marks_meaning, self.chosen = marks_meaning, chosen
        self.measures = [one.name for one in comparison.headlines]
        own = frame[(frame["dataset"] == comparison.dataset) & (frame["model"] == comparison.model)]
        self._rows = {(r.strategy, r.order, r.metric, r.measure, r.language): r for r in own.itertuples(index=False)}
        self._behind = {
            (label, order): runs
            for order in (MEAN, *comparison.orders)
            for label, (runs, _) in compared(comparison, order, unpaired).items()
        }
        self.scoring = _scoring(comparison)
        self.names = f"{comparison.dataset}, {comparison.model}"

    def means(self) -> list[Table]:
        return [
            self.main([metric], title=f"{headline(metric)}, mean over orders and seeds")
            for metric in self.comparison.metrics
        ]

    def main(self, metrics: Sequence[str], order: str = MEAN, title: str = "Mean over orders and seeds") -> Table:
        """Return the table of one order, or of the mean over orders: a row per strategy, F T T0 FP of each metric."""
        shown = [strategy for strategy in self.comparison.strategies if self._has(strategy, order)]
        keys = [(metric, measure, "") for metric in metrics for measure in self.measures]
        return self._by_strategy(title, order, shown, dict(zip(self._header(metrics), keys, strict=True)), counted=True)

    def orders(self, metric: str) -> Table:
        """Return all orders in one table: a row per order and strategy, F T T0 FP of one metric."""
        reasons = Reasons()
        rows = []
        for order in self.comparison.orders:
            for strategy in self.comparison.strategies:
                if self._has(strategy, order):
                    cells = [self._cell(strategy, order, metric, measure, "", reasons) for measure in self.measures]
                    rows.append((order, strategy, self._runs(strategy, order), *cells))
            floor = [self.floor(metric, order, measure) for measure in self.measures]
            if rows and set(floor) != {"–"}:
                rows.append((order, CONSTANT, Cell("–"), *map(Cell, floor)))
        header = ("order", "strategy", "runs", *self._header([metric]))
        footer = self._footer([metric], [row[2] for row in rows])
        named = self.reference_note(row[1] for row in rows if row[1] != CONSTANT)
        footer = [*named, *self._hop_0([metric], self.measures), *footer]
        title, notes = f"{headline(metric)}, by order", (*reasons.lines(), *footer)
        return Table(title, header, tuple(rows), notes, left=2, ruled=group_starts(rows))

    def languages(self, metric: str, measure: str) -> Table:
        """Return one measure of one metric by language, over orders and seeds; of more than `MOST` a row for each."""
        if len(self.comparison.languages) > MOST:
            return self._by_language(metric, measure)
        keys = {language: (metric, measure, language) for language in self.comparison.languages}
        shown = [k for k in self.comparison.strategies if any((k, MEAN, *key) in self._rows for key in keys.values())]
        scripts = scripts_of(self.comparison.languages)
        named = ", ".join(f"{name} ({', '.join(keys_of)})" for name, keys_of in scripts.items())
        title, further = _title_of_languages(metric, measure), [f"scripts: {named}"] if scripts else []
        return self._by_strategy(title, MEAN, shown, keys, counted=False, further=further)

    def groups(self, metric: str, measure: str) -> Table | None:
        """Return one measure of one metric by family and by script: means over the languages of each.

        Those of one language are left out. None where no strategy has the measure by language.
        """
        shown = self._with_languages(metric, measure)
        rows: list[tuple[str, ...]] = []
        starts = []
        for kind in ("family", "script_name"):
            groups: dict[str, list[str]] = {}
            for key in self.comparison.languages:
                if (language := language_of(key)) is not None:
                    groups.setdefault(getattr(language, kind), []).append(key)
            starts.append(len(rows))
            # The largest groups first.
            for name, keys in sorted(groups.items(), key=lambda item: -len(item[1])):
                if len(keys) > 1:
                    cells = [self._mean_cell(k, metric, measure, keys) for k in shown]
                    self._mark_row(shown, cells, measure)
                    rows.append((name, str(len(keys)), *cells))
        if not shown or not rows:
            return None
        title = f"{headline(metric)} {measure} {MEASURES[measure].arrow} by family and by script"
        notes = (
            "means over the languages of a family or script, of which each counts the same; those of one language are "
            "left out",
        )
        ruled = tuple(start for start in starts if 0 < start < len(rows))
        header = ("family; script", "languages", *shown)
        return Table(title, header, tuple(rows), notes, raised=_best_of_row(rows), ruled=ruled)

    def _mean_cell(self, strategy: str, metric: str, measure: str, keys: Sequence[str]) -> Cell:
        values = [self.value(strategy, metric, measure, language=key) for key in keys]
        known = [value for value in values if not math.isnan(value)]
        mean = sum(known) / len(known) if known else math.nan
        return Cell(MEASURES[measure].shown(mean), mean) if known else Cell("–")

    def _by_language(self, metric: str, measure: str) -> Table:
        """Return `languages` as a row for each language, with its name, family and script, family by family."""
        known = {key: language_of(key) for key in self.comparison.languages}
        shown, reasons, rows = self._with_languages(metric, measure), Reasons(), []
        floors = {key: self.floor(metric, MEAN, measure, key) for key in known}
        has_floor = set(floors.values()) != {"–"}

        def place(key: str) -> tuple[object, ...]:
            language = known[key]
            return (True, key) if language is None else (False, language.family, language.branch, key)

        for key in sorted(known, key=place):
            language = known[key]
            cells = [self._cell(k, MEAN, metric, measure, key, reasons) for k in shown]
            self._mark_row(shown, cells, measure)
            facts = ("–", "–", "–") if language is None else (language.name, language.family, language.script_name)
            rows.append((key, *facts, *cells, *([floors[key]] if has_floor else [])))
        header = ("language", "name", "family", "script", *shown, *([CONSTANT] if has_floor else []))
        notes = (
            *reasons.lines(),
            *self.reference_note(shown),
            *self._hop_0([metric], [measure]),
            *self._footer([metric], []),
        )
        title, families = _title_of_languages(metric, measure), group_starts([row[2:] for row in rows])
        return Table(
            title, header, tuple(rows) if shown else (), notes, left=4, raised=_best_of_row(rows), ruled=families
        )

    def _with_languages(self, metric: str, measure: str) -> list[str]:
        languages = self.comparison.languages
        return [
            strategy
            for strategy in self.comparison.strategies
            if any(not math.isnan(self.value(strategy, metric, measure, language=key)) for key in languages)
        ]

    def _mark_row(self, shown: Sequence[str], cells: Sequence[Cell], measure: str) -> None:
        ranked = [cell for strategy, cell in zip(shown, cells, strict=True) if self.is_ranked(strategy)]
        mark_best(ranked, highest=MEASURES[measure].higher_is_better)

    def measured(self, metric: str, measures: Sequence[str], title: str) -> Table:
        """Return some measures of one metric, over orders and seeds, with what they mean."""
        keys = {f"{name} {MEASURES[name].arrow}": (metric, name, "") for name in measures}
        shown = [strategy for strategy in self.comparison.strategies if self._has(strategy, MEAN)]
        table = self._by_strategy(title, MEAN, shown, keys, counted=True)
        return replace(table, notes=(*table.notes, *(f"{name}: {MEASURES[name].definition}" for name in measures)))

    def floors(self, metric: str) -> list[str]:
        """Return what a constant answer scores on each language, and on their mean; none if it is not known."""
        floors = [self.floor(metric, MEAN, "FP", language) for language in (*self.comparison.languages, "")]
        return [] if set(floors) == {"–"} else floors

    def _by_strategy(
        self, title: str, order: str, shown: Sequence[str], keys: Mapping[str, tuple[str, str, str]], counted: bool,
        further: Sequence[str] = (),
    ) -> Table:  # fmt: skip
        """Return a row per strategy; below them, ruled off, what a constant answer scores, if that is known.

        Args:
            shown: the strategies.
            keys: name of a column → metric, measure and language.
            counted: with numbers of runs, and in the mean over orders with the marks of tests.
            further: notes before those on metrics.
        """
        reasons, metrics = Reasons(), list(dict.fromkeys(metric for metric, _, _ in keys.values()))
        columns = [self._column(shown, order, *key, reasons, counted and order == MEAN) for key in keys.values()]
        counts = [self._runs(strategy, order) for strategy in shown]
        rows: list[tuple[str, ...]] = list(zip(shown, *([counts] if counted else []), *columns, strict=True))
        floor = [self.floor(metric, order, measure, language) for metric, measure, language in keys.values()]
        starts = ruled(self.comparison, shown)
        if rows and set(floor) != {"–"}:
            starts = (*starts, len(rows))
            rows.append((CONSTANT, *(["–"] if counted else []), *floor))
        notes = (
            *reasons.lines(),
            *self.reference_note(shown),
            *self._unbalanced(order, metrics),
            *self._hop_0(metrics, (measure for _, measure, _ in keys.values())),
            *further,
            *self._footer(metrics, counts),
        )
        header = ("strategy", *(["runs"] if counted else []), *keys)
        raised = self._raised(cell for column in columns for cell in column)
        return Table(title, header, tuple(rows), notes, raised=raised, ruled=starts)

    def floor(self, metric: str, order: str, measure: str, language: str = "") -> str:
        """Return what a constant answer scores after the last hop (FP), as tables print it; – where not known.

        Without a language: the mean over all.
        """
        name = BY_NAME[metric].floor
        runs = [r for r in self.comparison.runs if order in (MEAN, r.order) and measure == "FP" and name in r.scores]
        # The test sentences of a key are the same in all runs.
        by_key = {k: run.scores[name][-1, j] for run in runs for j, k in enumerate(run.languages)}
        values = [float(value) for k, value in by_key.items() if language in ("", k)]
        return MEASURES["FP"].shown(sum(values) / len(values)) if values else "–"

    def value(self, strategy: str, metric: str, measure: str, order: str = MEAN, language: str = "") -> float:
        row = self._rows.get((strategy, order, metric, measure, language))
        return math.nan if row is None else float(row.value)

    def std(self, strategy: str, metric: str, measure: str) -> float:
        row = self._rows.get((strategy, MEAN, metric, measure, ""))
        return math.nan if row is None else float(row.std)

    def title(self, metric: str) -> str:
        return metric_title(metric, self.comparison.runs)

    def is_ranked(self, strategy: str) -> bool:
        """Say whether a row can be the best: it is no reference model and no control."""
        return is_ranked(self.comparison.strategies[strategy][0])

    def reference_note(self, shown: Iterable[str]) -> list[str]:
        """Say which rows are reference models, and which never saw the texts."""
        first = {strategy: self.comparison.strategies[strategy][0] for strategy in shown}
        hidden = [strategy for strategy, run in first.items() if is_control(run)]
        names = [strategy for strategy, run in first.items() if is_reference(run) and strategy not in hidden]
        notes = [f"reference models, never marked as best: {', '.join(names)}"] if names else []
        if hidden:
            notes.append(f"texts hidden, so what statements give away alone; never marked as best: {', '.join(hidden)}")
        return notes

    def _raised(self, cells: Iterable[Cell]) -> tuple[str, ...]:
        """Say what marks and bold mean, if there are any."""
        cells = list(cells)
        marks = (self.marks_meaning,) if any(cell.mark for cell in cells) else ()
        return (*marks, *((BOLD,) if any(cell.best for cell in cells) else ()))

    def behind(
        self, strategy: str, order: str = MEAN, metric: str = "", measure: str = "", language: str = ""
    ) -> tuple[str, ...]:
        """Return the ids of the runs behind a row; of those a cell's that enter it, if it is of one language."""
        return tuple(
            run.run_id
            for run in self._behind.get((strategy, order), ())
            if (not metric or metric in run.metrics) and not (language and leaves_out(run, measure, language))
        )

    def _header(self, metrics: Sequence[str]) -> list[str]:
        named = {metric: f"{short_name(metric)} " if len(metrics) > 1 else "" for metric in metrics}
        return [
            f"{named[metric]}{measure} {MEASURES[measure].arrow}" for metric in metrics for measure in self.measures
        ]

    def _has(self, strategy: str, order: str) -> bool:
        return any((strategy, order, metric, "FP", "") in self._rows for metric in self.comparison.metrics)

    def _column(
        self, strategies: Sequence[str], order: str, metric: str, measure: str, language: str, reasons: Reasons,
        marked: bool = False,
    ) -> list[Cell]:  # fmt: skip
        cells = [self._cell(strategy, order, metric, measure, language, reasons) for strategy in strategies]
        ranked = {strategy: cell for strategy, cell in zip(strategies, cells, strict=True) if self.is_ranked(strategy)}
        over = {frozenset(run.languages) for strategy in ranked for run in self.comparison.strategies[strategy]}
        # Means over other languages are of other things.
        if language or len(over) == 1:
            mark_best(ranked.values(), highest=MEASURES[measure].higher_is_better)
        for strategy, cell in zip(strategies, cells, strict=True):
            cell.mark = self.marks.get((strategy, metric, measure), "") if marked else ""
        return cells

    def _cell(self, strategy: str, order: str, metric: str, measure: str, language: str, reasons: Reasons) -> Cell:
        row = self._rows.get((strategy, order, metric, measure, language))
        if row is None:
            return Cell("–")
        if row.status.startswith("n/a"):
            return Cell(f"n/a {reasons.mark(row.status.removeprefix('n/a: '))}")
        shown = MEASURES[measure].shown
        text = shown(row.value) + (f" ± {shown(row.std)}" if row.std == row.std else "")
        return Cell(text, float(row.value), self.behind(strategy, order, metric, measure, language))

    def _runs(self, strategy: str, order: str) -> Cell:
        """Number of runs of a row, ``2 of 6`` where not all that others have are finished."""
        keys = [
            (strategy, order, metric, measure, "") for metric in self.comparison.metrics for measure in self.measures
        ]
        rows = [self._rows[key] for key in keys if key in self._rows]
        interim = [row.status.split(";")[0] for row in rows if row.status.startswith("interim")]
        count = max(row.n for row in rows)
        shown = interim[0].removeprefix("interim: ").removesuffix(" runs") if interim else str(count or "–")
        return Cell(shown, float(count), self.behind(strategy, order))

    def _unbalanced(self, order: str, metrics: Sequence[str]) -> list[str]:
        """Say where orders have unequal numbers of runs."""
        if not any(UNBALANCED in r.status for key, r in self._rows.items() if key[1] == order and key[2] in metrics):
            return []
        return [
            "orders have unequal numbers of runs: each mean is over the means of the orders, which count the same; "
            "± is over runs, weighted likewise"
        ]

    def _hop_0(self, metrics: Sequence[str], measures: Iterable[str]) -> list[str]:
        """Say what T0 is measured from where a fresh head's constant answer has its own floor."""
        known = any(self.floor(metric, MEAN, "FP") != "–" for metric in metrics)
        return [HOP_0] if known and "T0" in measures else []

    def _footer(self, metrics: Sequence[str], runs: Iterable[str]) -> list[str]:
        lines = [self.chosen] if self.chosen else []
        if any(" of " in count for count in runs):
            over = "the runs that its own strategy has" if self.unpaired else "those that all have"
            lines.append(f"interim: not all strategies have run all orders and seeds; each mean is over {over}")
        return [*lines, *self.definitions(metrics)]

    def definitions(self, metrics: Sequence[str]) -> list[str]:
        """Say how metrics were scored whose names do not say it."""
        lines = []
        for metric in (BY_NAME[metric] for metric in metrics):
            definition = self.scoring if metric.span_f1 else metric.definition
            if metric is KEY_SCORE:
                definition += f": {of_keys(self.comparison)}"
            lines += [f"{metric.short}: {definition}"] if definition else []
        return lines


def _best_of_row(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Explain bold type, if there is any."""
    return (BEST_OF_ROW,) if any(isinstance(cell, Cell) and cell.best for row in rows for cell in row) else ()


def _title_of_languages(metric: str, measure: str) -> str:
    return f"{headline(metric)} {measure} {MEASURES[measure].arrow} by language"


def of_keys(comparison: Comparison) -> str:
    """Say which metric is whose in the scores of keys of several tasks: ``class accuracy (a, b), entity F1 (c)``."""
    metric_of = {key: metric for run in comparison.runs for key, metric in run.metric_of.items()}
    keys: dict[str, list[str]] = {}
    for key in comparison.languages:
        if metric := metric_of.get(key):
            keys.setdefault(metric, []).append(key)
    return ", ".join(f"{BY_NAME[metric].title} ({', '.join(each)})" for metric, each in keys.items())


def _scoring(comparison: Comparison) -> str:
    """Say how F1 of spans was scored in the runs of a comparison."""
    ways = {
        "span_micro": "micro F1 over labelled spans",
        "tag_macro": "macro F1 over single tags (evaluate.slot_f1=tag_macro), not span F1",
    }
    used = {run.slot_f1 for run in comparison.runs}
    return " and ".join(ways.get(way, way) for way in sorted(used)) + (" (rows differ)" if len(used) > 1 else "")
