"""Tables for people, from the long form of `xclrun.analysis.aggregate.summarise`: Markdown, and text for a terminal.

Values are percent with two decimals, as mean ± standard deviation over runs; what is not available is ``n/a`` with a
numbered reason under the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xclrun.analysis.aggregate import MEAN, Comparison

if TYPE_CHECKING:
    import pandas as pd

# The measures of the tables and which way is better; the others are in summary.csv.
SHOWN = {"F": "↓", "T": "↑", "T0": "↑", "FP": "↑"}

DEFINITIONS = {
    "F": "forgetting: how far a language's score falls from its best after any earlier hop, mean over hops (CCL eq. 1)",
    "T": "transfer: score right after learning a language, minus that of `lang_spec_ft` (same data, model, trainer and "
    "seed), which learns it alone",
    "T0": "zero-shot transfer: score on a language before it is learnt minus the score before any fine-tuning (hop 0)",
    "FP": "final performance: mean score over all languages after the last hop",
}


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text, notes that belong under it, and how many columns are set to the left."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: int = 1

    def markdown(self, level: int = 3) -> str:
        """Return the table as Markdown under a heading of ``level``."""
        lines = [f"{'#' * level} {self.title}", "", _line(self.header)]
        lines.append(_line([":--" if k < self.left else "--:" for k in range(len(self.header))]))
        lines += [_line(row) for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def text(self, width: int = 100) -> str:
        """Return the table as aligned text, at most ``width`` columns wide, without escape codes."""
        import io

        from rich import box
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text

        grid = RichTable(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for k, name in enumerate(self.header):
            left = k < self.left
            grid.add_column(Text(name), justify="left" if left else "right", no_wrap=not left, overflow="fold")
        for row in self.rows:
            grid.add_row(*map(Text, row))
        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False)
        console.print(Text(self.title), grid, *(Text(note) for note in self.notes), sep="\n")
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


@dataclass
class Notes:
    """Numbers the reasons of a table in the order in which they come."""

    reasons: list[str] = field(default_factory=list)

    def mark(self, reason: str) -> str:
        """Return the mark of a reason: the same for the same one."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"[{self.reasons.index(reason) + 1}]"

    def lines(self) -> list[str]:
        return [f"[{k}] {reason}" for k, reason in enumerate(self.reasons, start=1)]


class Summary:
    """One comparison's part of the long form, looked up by row."""

    def __init__(self, frame: pd.DataFrame, comparison: Comparison) -> None:
        self.comparison = comparison
        own = frame[(frame["dataset"] == comparison.dataset) & (frame["model"] == comparison.model)]
        self._rows = {(r.strategy, r.order, r.task, r.measure, r.language): r for r in own.itertuples(index=False)}
        self.scoring = _scoring(comparison)

    def main(self, tasks: Sequence[str], order: str = MEAN, title: str = "Mean over orders and seeds") -> Table:
        """Return the table of one order, or of the mean over orders: a row per strategy, F T T0 FP of each task."""
        notes = Notes()
        rows = []
        for strategy in self.comparison.strategies:
            if self._has(strategy, order):
                cells = [self._cell(strategy, order, task, measure, "", notes) for task in tasks for measure in SHOWN]
                rows.append((strategy, self._runs(strategy, order), *cells))
        header = ("strategy", "runs", *self._header(tasks))
        return Table(title, header, tuple(rows), (*notes.lines(), *self._footer(tasks, [row[1] for row in rows])))

    def orders(self, task: str) -> Table:
        """Return all orders in one table: a row per order and strategy, F T T0 FP of one task."""
        notes = Notes()
        rows = []
        for order in self.comparison.orders:
            for strategy in self.comparison.strategies:
                if self._has(strategy, order):
                    cells = [self._cell(strategy, order, task, measure, "", notes) for measure in SHOWN]
                    rows.append((order, strategy, self._runs(strategy, order), *cells))
        header = ("order", "strategy", "runs", *self._header([task]))
        footer = self._footer([task], [row[2] for row in rows])
        return Table(f"{task.capitalize()}, by order", header, tuple(rows), (*notes.lines(), *footer), left=2)

    def languages(self, task: str, measure: str) -> Table:
        """Return one measure of one task by language, over orders and seeds."""
        notes = Notes()
        languages = self.comparison.languages
        rows = [
            (strategy, *(self._cell(strategy, MEAN, task, measure, language, notes) for language in languages))
            for strategy in self.comparison.strategies
            if any((strategy, MEAN, task, measure, language) in self._rows for language in languages)
        ]
        title = f"{task.capitalize()} {measure} {SHOWN[measure]} by language"
        return Table(title, ("strategy", *languages), tuple(rows), (*notes.lines(), *self._footer([task])))

    def _header(self, tasks: Sequence[str]) -> list[str]:
        """Name the columns; the task only where there are several."""
        named = {task: f"{task} " if len(tasks) > 1 else "" for task in tasks}
        return [f"{named[task]}{measure} {arrow}" for task in tasks for measure, arrow in SHOWN.items()]

    def _has(self, strategy: str, order: str) -> bool:
        return any((strategy, order, task, "FP", "") in self._rows for task in self.comparison.tasks)

    def _cell(self, strategy: str, order: str, task: str, measure: str, language: str, notes: Notes) -> str:
        row = self._rows.get((strategy, order, task, measure, language))
        if row is None:
            return "–"
        if row.status.startswith("n/a"):
            return f"n/a {notes.mark(row.status.removeprefix('n/a: '))}"
        return percent(row.value) + (f" ± {percent(row.std)}" if row.std == row.std else "")

    def _runs(self, strategy: str, order: str) -> str:
        """Number of runs of a row, ``2 of 6`` where the strategy lacks some that others have."""
        keys = [(strategy, order, task, measure, "") for task in self.comparison.tasks for measure in SHOWN]
        rows = [self._rows[key] for key in keys if key in self._rows]
        interim = [row.status for row in rows if row.status.startswith("interim")]
        if interim:
            return interim[0].removeprefix("interim: ").removesuffix(" runs")
        return str(max(row.n for row in rows) or "–")

    def _footer(self, tasks: Sequence[str], runs: Iterable[str] = ()) -> list[str]:
        lines = []
        if any(" of " in count for count in runs):
            lines.append("interim: strategies have not all run the same orders and seeds; compare rows with equal runs")
        if "slots" in tasks:
            lines.append(f"slots: {self.scoring}")
        return lines


def percent(value: float) -> str:
    """Return a fraction as percent with two decimals; no ``-0.00``."""
    return f"{round(100 * value, 2) + 0.0:.2f}"


def _scoring(comparison: Comparison) -> str:
    """Say how slot F1 was scored in the runs of a comparison."""
    ways = {
        "span_micro": "micro F1 over labelled spans",
        "tag_macro": "macro F1 over single tags (evaluate.slot_f1=tag_macro), not span F1",
    }
    used = {str(run.config.get("evaluate", {}).get("slot_f1", "span_micro")) for run in comparison.runs}
    return " and ".join(ways.get(way, way) for way in sorted(used)) + (" (rows differ)" if len(used) > 1 else "")


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
