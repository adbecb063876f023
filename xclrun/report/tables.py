"""Tables for people, from the long form of `xclrun.analysis.aggregate.summarise`: Markdown, and text for a terminal.

Values are percent with two decimals, as mean ± standard deviation over runs; what is not available is ``n/a`` with a
numbered reason under the table.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xclrun.analysis.aggregate import MEAN, UNBALANCED, Comparison, compared
from xclrun.analysis.measures import headlines, leaves_out
from xclrun.analysis.reference import is_reference
from xclrun.core.names import escape, markdown
from xclrun.core.task import BY_NAME, Scored, short_name

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable

# The measures of the tables and which way is better; the others are in summary.csv.
SHOWN = {one.name: one.arrow for one in headlines()}

BOLD = "bold: best of the column"

DEFINITIONS = {one.name: one.definition for one in headlines()}


# On a terminal: columns between two of a table, and how narrow a column of names can be folded at the most.
GAP = 2
NAMES = 18
# Characters of the name of a table's files.
LONGEST = 80


class Cell(str):
    """The text of a cell, and what a page shows beside it.

    Attributes:
        value: what columns are sorted by; NaN sorts last.
        runs: ids of the runs behind it.
        best: of its column; bold where there is type.
        mark: raised beside the text, such as a significance mark.
        shade: from 0 to 1, of a heat map's cell; None: not shaded.
    """

    value: float
    runs: tuple[str, ...]
    best: bool
    mark: str
    shade: float | None

    def __new__(
        cls,
        text: str,
        value: float = math.nan,
        runs: tuple[str, ...] = (),
        best: bool = False,
        mark: str = "",
        shade: float | None = None,
    ) -> Cell:
        cell = super().__new__(cls, text)
        cell.value, cell.runs, cell.best, cell.mark, cell.shade = value, runs, best, mark, shade
        return cell


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text, notes that belong under it, and how many columns are set to the left.

    Cells may be `Cell`; a plain string is a cell with nothing beside it.

    Attributes:
        raised: notes about what type alone shows, marks and bold: for LaTeX and the page.
        ruled: rows, from 0, that a rule parts from the one above.
    """

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...] = ()
    left: int = 1
    raised: tuple[str, ...] = ()
    ruled: tuple[int, ...] = ()

    @property
    def slug(self) -> str:
        """Name of the table's files; where it had to be cut, a short hash tells it from others that begin like it."""
        plain = re.sub(r"[↑↓]|:.* → .*", "", self.title)
        name = re.sub(r"[^\w.+=-]+", "_", plain).strip("_").lower()
        return name if len(name) <= LONGEST else f"{name[: LONGEST - 7]}-{_short_hash(self.title)}"

    def csv(self) -> str:
        """Return the table as comma-separated values, as shown: for spreadsheets."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.header)
        writer.writerows(self.rows)
        return out.getvalue()

    def latex(self, where: str = "", label: str = "") -> str:
        """Return the table for LaTeX, to stand in a ``table``: a caption, best in bold, marks raised, notes below.

        ``where`` is told in the caption: dataset and model.
        """
        caption = f"{self.title} ({where})" if where else self.title
        columns = "l" * self.left + "r" * (len(self.header) - self.left)
        lines = ["% \\begin{table} \\input{this file} \\end{table}; needs the packages booktabs and threeparttable"]
        lines += [
            "\\begin{threeparttable}",
            f"\\caption{{{_tex(caption)}}}",
            f"\\label{{tab:{_label(label or self.slug)}}}",
        ]
        lines += ["\\begin{tabular}{" + columns + "}", "\\toprule"]
        lines += [" & ".join(map(_tex, self.header)) + " \\\\", "\\midrule"]
        for k, row in enumerate(self.rows):
            lines += ["\\midrule"] if k in self.ruled else []
            lines.append(" & ".join(map(_tex_cell, row)) + " \\\\")
        lines += ["\\bottomrule", "\\end{tabular}"]
        if notes := [*self.notes, *self.raised]:
            lines += ["\\begin{tablenotes}\\footnotesize", *map(_tex_note, notes), "\\end{tablenotes}"]
        return "\n".join([*lines, "\\end{threeparttable}"]) + "\n"

    def html(self, runs: Mapping[tuple[str, ...], int]) -> str:
        """Return the table for the page; ``runs`` numbers the sets of runs behind cells."""
        head = "".join(
            f'<th scope="col"{"" if k < self.left else " class=n"} tabindex="0">{escape(name)}</th>'
            for k, name in enumerate(self.header)
        )
        body = "\n".join(
            f"<tr{' class=ruled' if i in self.ruled else ''}>"
            + "".join(_html_cell(cell, k < self.left, runs) for k, cell in enumerate(row))
            + "</tr>"
            for i, row in enumerate(self.rows)
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in (*self.notes, *self.raised))
        return (
            f'<figure class="table" id="t-{self.slug}"><figcaption>{escape(self.title)}</figcaption>'
            f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>'
            + (f"<ul class=notes>{notes}</ul>" if notes else "")
            + "</figure>"
        )

    def markdown(self, level: int = 3) -> str:
        """Return the table as Markdown under a heading of ``level``."""
        lines = [f"{'#' * level} {markdown(self.title)}", "", _line(self.header)]
        lines.append(_line([":--" if k < self.left else "--:" for k in range(len(self.header))]))
        lines += [_line(row) for row in self.rows]
        lines += ["", *(f"- {markdown(note)}" for note in self.notes)] if self.notes else []
        return "\n".join(lines) + "\n"

    def text(self, width: int = 100) -> str:
        """Return the table as aligned text, at most ``width`` columns wide, without escape codes.

        Names fold where they are long; where the numbers do not fit side by side they go on in a table below.
        """
        from rich.console import Console
        from rich.text import Text

        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False)
        grids = [part for block in self._blocks(width) for part in ("", self._grid(block))][1:]
        console.print(Text(self.title), *grids, *map(Text, self.notes), sep="\n")
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def _blocks(self, width: int) -> list[list[int]]:
        """Return the columns of numbers that fit side by side, in as few blocks as possible."""
        from rich.cells import cell_len

        wide = [max(map(cell_len, column)) + GAP for column in zip(self.header, *self.rows, strict=True)]
        room = width - sum(min(wide[k], NAMES) for k in range(self.left))
        blocks: list[list[int]] = [[]]
        for k in range(self.left, len(wide)):
            if blocks[-1] and sum(wide[j] for j in blocks[-1]) + wide[k] - GAP > room:
                blocks.append([])
            blocks[-1].append(k)
        return blocks

    def _grid(self, numbers: Sequence[int]) -> RichTable:
        from rich.box import Box
        from rich.table import Table as RichTable
        from rich.text import Text

        # Rules under the header and between sections.
        box = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")
        grid = RichTable(box=box, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        shown = [*range(self.left), *numbers]
        for k in shown:
            left = k < self.left
            grid.add_column(
                Text(self.header[k]), justify="left" if left else "right", no_wrap=not left, overflow="fold"
            )
        for i, row in enumerate(self.rows):
            grid.add_row(*(Text(row[k]) for k in shown), end_section=i + 1 in self.ruled)
        return grid


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


def mark_best(cells: Iterable[Cell], highest: bool = True) -> None:
    """Mark the best of the cells that are compared, where there are several; as printed: what looks equal is equal."""
    known = [cell for cell in cells if not math.isnan(cell.value)]
    best = (max if highest else min)((cell.value for cell in known), default=math.nan)
    for cell in known if len(known) > 1 else ():
        cell.best = percent(cell.value) == percent(best)


def ruled(comparison: Comparison, shown: Iterable[str]) -> tuple[int, ...]:
    """Return the row at which the reference models begin, below a rule; none where there is nothing above them."""
    first = next((k for k, label in enumerate(shown) if is_reference(comparison.strategies[label][0])), 0)
    return (first,) if first else ()


class Summary:
    """One comparison's part of the long form, looked up by row.

    Args:
        frame: as `xclrun.analysis.aggregate.summarise` gives it.
        comparison: the part.
        marks: (strategy, metric, measure) → mark of its difference from the baseline.
        unpaired: as given to `summarise`.
        told: what marks mean.
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        comparison: Comparison,
        marks: Mapping[tuple[str, str, str], str] | None = None,
        unpaired: bool = False,
        told: str = "",
    ) -> None:
        self.comparison, self.marks, self.unpaired, self.told = comparison, marks or {}, unpaired, told
        own = frame[(frame["dataset"] == comparison.dataset) & (frame["model"] == comparison.model)]
        self._rows = {(r.strategy, r.order, r.metric, r.measure, r.language): r for r in own.itertuples(index=False)}
        self._behind = {
            (label, order): runs
            for order in (MEAN, *comparison.orders)
            for label, (runs, _) in compared(comparison, order, unpaired).items()
        }
        self.scoring = _scoring(comparison)

    def main(self, metrics: Sequence[str], order: str = MEAN, title: str = "Mean over orders and seeds") -> Table:
        """Return the table of one order, or of the mean over orders: a row per strategy, F T T0 FP of each metric."""
        notes = Notes()
        shown = [strategy for strategy in self.comparison.strategies if self._has(strategy, order)]
        columns = [
            self._column(shown, order, metric, measure, "", notes, marked=order == MEAN)
            for metric in metrics
            for measure in SHOWN
        ]
        rows = [
            (strategy, self._runs(strategy, order), *(column[k] for column in columns))
            for k, strategy in enumerate(shown)
        ]
        header = ("strategy", "runs", *self._header(metrics))
        footer = [*self._unbalanced(order, metrics), *self._footer(metrics, [row[1] for row in rows])]
        notes_below = (*notes.lines(), *self.references_told(shown), *footer)
        cells = [cell for column in columns for cell in column]
        return Table(title, header, tuple(rows), notes_below, raised=self._raised(cells), ruled=self.ruled(shown))

    def orders(self, metric: str) -> Table:
        """Return all orders in one table: a row per order and strategy, F T T0 FP of one metric."""
        notes = Notes()
        rows = []
        for order in self.comparison.orders:
            for strategy in self.comparison.strategies:
                if self._has(strategy, order):
                    cells = [self._cell(strategy, order, metric, measure, "", notes) for measure in SHOWN]
                    rows.append((order, strategy, self._runs(strategy, order), *cells))
        header = ("order", "strategy", "runs", *self._header([metric]))
        footer = self._footer([metric], [row[2] for row in rows])
        footer = [*self.references_told(row[1] for row in rows), *footer]
        starts = tuple(k for k in range(1, len(rows)) if rows[k][0] != rows[k - 1][0])
        title = f"{short_name(metric).capitalize()}, by order"
        return Table(title, header, tuple(rows), (*notes.lines(), *footer), left=2, ruled=starts)

    def languages(self, metric: str, measure: str) -> Table:
        """Return one measure of one metric by language, over orders and seeds."""
        notes = Notes()
        languages = self.comparison.languages
        shown = [
            strategy
            for strategy in self.comparison.strategies
            if any((strategy, MEAN, metric, measure, language) in self._rows for language in languages)
        ]
        columns = [self._column(shown, MEAN, metric, measure, language, notes) for language in languages]
        rows = [(strategy, *(column[k] for column in columns)) for k, strategy in enumerate(shown)]
        title = f"{short_name(metric).capitalize()} {measure} {SHOWN[measure]} by language"
        footer = [*self.references_told(shown), *self._unbalanced(MEAN, [metric])]
        footer += self._footer([metric], [self._runs(strategy, MEAN) for strategy in shown])
        raised = self._raised([cell for column in columns for cell in column])
        header, lines = ("strategy", *languages), (*notes.lines(), *footer)
        return Table(title, header, tuple(rows), lines, raised=raised, ruled=self.ruled(shown))

    def value(self, strategy: str, metric: str, measure: str, order: str = MEAN, language: str = "") -> float:
        """Return a mean as a fraction; NaN where there is none."""
        row = self._rows.get((strategy, order, metric, measure, language))
        return math.nan if row is None else float(row.value)

    def std(self, strategy: str, metric: str, measure: str) -> float:
        """Return the standard deviation of a mean over orders and seeds; NaN where there is none."""
        row = self._rows.get((strategy, MEAN, metric, measure, ""))
        return math.nan if row is None else float(row.std)

    def status(self, strategy: str, metric: str, measure: str) -> str:
        """Return why a mean over orders and seeds is not available; empty where it is."""
        row = self._rows.get((strategy, MEAN, metric, measure, ""))
        status = "not scored" if row is None else str(row.status)
        return status.removeprefix("n/a: ") if row is None or status.startswith("n/a") else ""

    def is_reference(self, strategy: str) -> bool:
        """Whether a row is of a reference model: ruled off from the others, and never the best of them."""
        return is_reference(self.comparison.strategies[strategy][0])

    def ruled(self, shown: Sequence[str]) -> tuple[int, ...]:
        """Return the row at which the reference models begin, below a rule; none where there is nothing above them."""
        return ruled(self.comparison, shown)

    def references_told(self, shown: Iterable[str]) -> list[str]:
        """Say which rows are reference models."""
        found = dict.fromkeys(strategy for strategy in shown if self.is_reference(strategy))
        return [f"reference models, never marked as best: {', '.join(found)}"] if found else []

    def _raised(self, cells: Iterable[Cell]) -> tuple[str, ...]:
        """Say what marks and bold mean, where there are any."""
        cells = list(cells)
        marks = (self.told,) if any(cell.mark for cell in cells) else ()
        return (*marks, *((BOLD,) if any(cell.best for cell in cells) else ()))

    def behind(
        self, strategy: str, order: str = MEAN, metric: str = "", measure: str = "", language: str = ""
    ) -> tuple[str, ...]:
        """Return the ids of the runs behind a row; of those a cell's that enter it, where it is of one language."""
        return tuple(
            run.run_id
            for run in self._behind.get((strategy, order), ())
            if (not metric or metric in run.metrics) and not (language and leaves_out(run, measure, language))
        )

    def _header(self, metrics: Sequence[str]) -> list[str]:
        """Name the columns; the metric only where there are several."""
        named = {metric: f"{short_name(metric)} " if len(metrics) > 1 else "" for metric in metrics}
        return [f"{named[metric]}{measure} {arrow}" for metric in metrics for measure, arrow in SHOWN.items()]

    def _has(self, strategy: str, order: str) -> bool:
        return any((strategy, order, metric, "FP", "") in self._rows for metric in self.comparison.metrics)

    def _column(
        self, strategies: Sequence[str], order: str, metric: str, measure: str, language: str, notes: Notes,
        marked: bool = False,
    ) -> list[Cell]:  # fmt: skip
        """Return the cells of a column, the best one marked so: the strategies of one table alone are compared."""
        cells = [self._cell(strategy, order, metric, measure, language, notes) for strategy in strategies]
        compared = [cell for strategy, cell in zip(strategies, cells, strict=True) if not self.is_reference(strategy)]
        mark_best(compared, highest=SHOWN[measure] == "↑")
        for strategy, cell in zip(strategies, cells, strict=True):
            cell.mark = self.marks.get((strategy, metric, measure), "") if marked else ""
        return cells

    def _cell(self, strategy: str, order: str, metric: str, measure: str, language: str, notes: Notes) -> Cell:
        row = self._rows.get((strategy, order, metric, measure, language))
        if row is None:
            return Cell("–")
        if row.status.startswith("n/a"):
            return Cell(f"n/a {notes.mark(row.status.removeprefix('n/a: '))}")
        text = percent(row.value) + (f" ± {percent(row.std)}" if row.std == row.std else "")
        return Cell(text, float(row.value), self.behind(strategy, order, metric, measure, language))

    def _runs(self, strategy: str, order: str) -> Cell:
        """Number of runs of a row, ``2 of 6`` where not all that others have are finished."""
        keys = [(strategy, order, metric, measure, "") for metric in self.comparison.metrics for measure in SHOWN]
        rows = [self._rows[key] for key in keys if key in self._rows]
        interim = [row.status.split(";")[0] for row in rows if row.status.startswith("interim")]
        count = max(row.n for row in rows)
        told = interim[0].removeprefix("interim: ").removesuffix(" runs") if interim else str(count or "–")
        return Cell(told, float(count), self.behind(strategy, order))

    def _unbalanced(self, order: str, metrics: Sequence[str]) -> list[str]:
        """Say where orders have unequal numbers of runs."""
        if not any(UNBALANCED in r.status for key, r in self._rows.items() if key[1] == order and key[2] in metrics):
            return []
        return [
            "orders have unequal numbers of runs: each mean is over the means of the orders, which count the same; "
            "± is over runs, weighted likewise"
        ]

    def _footer(self, metrics: Sequence[str], runs: Iterable[str]) -> list[str]:
        lines = []
        if any(" of " in count for count in runs):
            over = "the runs that its own strategy has" if self.unpaired else "those that all have"
            lines.append(f"interim: not all strategies have run all orders and seeds; each mean is over {over}")
        for metric in (BY_NAME[metric] for metric in metrics):
            definition = self.scoring if metric.of is Scored.spans else metric.definition
            lines += [f"{metric.short}: {definition}"] if definition else []
        return lines


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def percent(value: float) -> str:
    """Return a fraction as percent with two decimals; no ``-0.00``."""
    return f"{round(100 * value, 2) + 0.0:.2f}"


def _scoring(comparison: Comparison) -> str:
    """Say how F1 of spans was scored in the runs of a comparison."""
    ways = {
        "span_micro": "micro F1 over labelled spans",
        "tag_macro": "macro F1 over single tags (evaluate.slot_f1=tag_macro), not span F1",
    }
    used = {str(run.config.get("evaluate", {}).get("slot_f1", "span_micro")) for run in comparison.runs}
    return " and ".join(ways.get(way, way) for way in sorted(used)) + (" (rows differ)" if len(used) > 1 else "")


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(markdown(cell) for cell in cells) + " |"


_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "–": "--", "−": "$-$", "→": r"$\rightarrow$", "≥": r"$\geq$", "Δ": r"$\Delta$", "ρ": r"$\rho$", "η": r"$\eta$",
        "²": "$^2$", "≤": r"$\leq$", "·": r"$\cdot$", "<": "$<$", ">": "$>$", "≠": r"$\neq$", "∞": r"$\infty$",
        "×": r"$\times$", "√": r"$\surd$", "∩": r"$\cap$", "∪": r"$\cup$", "…": r"\ldots{}", "‰": r"\textperthousand{}",
        "α": r"$\alpha$", "β": r"$\beta$", "′": "$'$", "“": "``", "”": "''", "—": "---",
        # After a row's end a bare one would begin an option.
        "[": "{[}"}  # fmt: skip


def _tex(text: str) -> str:
    return re.sub(r"(?<![\w.])-(?=\d)", "$-$", "".join(_TEX.get(character, character) for character in text))


def _tex_cell(cell: str) -> str:
    reason = re.fullmatch(r"(.*) \[(\d+)\]", cell)
    text = rf"{_tex(reason[1])}\tnote{{{reason[2]}}}" if reason else _tex(cell)
    if isinstance(cell, Cell):
        text = rf"\textbf{{{text}}}" if cell.best else text
        text += rf"\tnote{{{cell.mark}}}" if cell.mark else ""
    return text


def _tex_note(note: str) -> str:
    """Return a note as an item, after the mark that it explains where there is one."""
    marked = re.fullmatch(r"(?:\[(\d+)\]|(\*[* ]*):) (.*)", note, re.DOTALL)
    if marked is None:
        return rf"\item {_tex(note)}"
    return rf"\item[{marked[1] or marked[2].replace(' ', ', ')}] {_tex(marked[3])}"


def _label(slug: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", slug).strip("-")


def _html_cell(cell: str, left: bool, runs: Mapping[tuple[str, ...], int]) -> str:
    rich = cell if isinstance(cell, Cell) else Cell(cell)
    text = escape(cell)
    text = f"<b>{text}</b>" if rich.best else text
    text += f"<sup>{rich.mark}</sup>" if rich.mark else ""
    attributes = "" if left else " class=n"
    if not math.isnan(rich.value):
        attributes += f" data-v={rich.value:.9g}"
    if rich.runs in runs:
        attributes += f" data-r={runs[rich.runs]} tabindex=0"
    if rich.shade is not None:
        attributes += f' style="background:{_shade(rich.shade)};color:{"#fff" if rich.shade < 0.55 else "#000"}"'
    tag = "th scope=row" if left else "td"
    return f"<{tag}{attributes}>{text}</{tag[:2]}>"


# Viridis at six points: dark is low. Colour-blind safe, and prints in grey as it should.
_VIRIDIS = ((68, 1, 84), (65, 68, 135), (42, 120, 142), (34, 168, 132), (122, 209, 81), (253, 231, 37))


def _shade(value: float) -> str:
    place = min(max(value, 0.0), 1.0) * (len(_VIRIDIS) - 1)
    k = min(int(place), len(_VIRIDIS) - 2)
    mixed = (round(a + (b - a) * (place - k)) for a, b in zip(_VIRIDIS[k], _VIRIDIS[k + 1], strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)
