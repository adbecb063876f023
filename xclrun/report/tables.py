"""Tables for readers, as CSV, Markdown and plain text.

``templates/table.html`` renders HTML, `xclrun.report.latex` renders LaTeX.
"""

from __future__ import annotations

import csv
import hashlib
import io
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from xclrun.core.names import markdown
from xclrun.core.quantity import SHARE, Quantity

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable


BOLD = "bold: best of the column"
BEST_OF_ROW = "bold: best of the row"

# On a terminal: spaces between columns, and the minimum width of a wrapped column of names.
GAP = 2
NAMES = 18
# Maximum number of characters of a file name.
LONGEST = 80
# Spreadsheets read texts that begin with these characters as formulas.
_FORMULA = ("=", "+", "-", "@")
# Numbers that are separated by spaces, brackets or characters that no formula contains. The two patterns share no
# character, so matching takes linear time.
_NUMBER = r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?"
_SEPARATORS = r"[^\w.,+\-=@|!'\"&;:/\\^<>]"
# Words that tables print next to numbers: no formula has a word after a number and a space or comma.
_WORDS = re.compile(r"\bbias\b|\bp [<=] |\bn/a\b")
_NUMBERS = re.compile(rf"{_NUMBER}(?:{_SEPARATORS}+{_NUMBER})*{_SEPARATORS}*")


class Cell(str):
    """The text of a cell and its attributes.

    Attributes:
        value: sort key; NaN sorts last.
        runs: IDs of the runs whose scores the cell summarizes.
        best: the best cell of its column or row.
        mark: superscript, such as a significance mark.
    """

    value: float
    runs: tuple[str, ...]
    best: bool
    mark: str

    def __new__(
        cls, text: str, value: float = math.nan, runs: tuple[str, ...] = (), best: bool = False, mark: str = ""
    ) -> Cell:
        cell = super().__new__(cls, text)
        cell.value, cell.runs, cell.best, cell.mark = value, runs, best, mark
        return cell


def spreadsheet(text: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would evaluate as a formula; numbers do not change.

    A number followed by further numbers and `_WORDS` is no formula.

    >>> spreadsheet("=1+1"), spreadsheet("-0.12 [-0.3, 0.1]"), spreadsheet(-0.12)
    ("'=1+1", '-0.12 [-0.3, 0.1]', -0.12)
    """
    if not isinstance(text, str) or text[:1] not in _FORMULA or _NUMBERS.fullmatch(_WORDS.sub(" ", text)):
        return text
    return f"'{text}"


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a frame as CSV, without texts that a spreadsheet would evaluate (see `spreadsheet`)."""
    texts = frame.select_dtypes(exclude="number")
    safe = frame.assign(**{str(name): texts[name].map(spreadsheet) for name in texts}).rename(columns=spreadsheet)
    return str(safe.to_csv(index=False, lineterminator="\n"))


@dataclass(frozen=True)
class Table:
    """A title, a header, rows and notes.

    Attributes:
        left: number of left-aligned columns.
        raised: notes on superscripts and bold type. CSV and the terminal, which have neither, omit these notes.
        ruled: indices of the rows that have a horizontal line above them.
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
        """File name of the table; a shortened name ends with a hash."""
        plain = re.sub(r"[↑↓]|:.* → .*", "", self.title)
        name = re.sub(r"[^\w.+=-]+", "_", plain).strip("_").lower()
        short_hash = hashlib.sha256(self.title.encode()).hexdigest()[:6]
        return name if len(name) <= LONGEST else f"{name[: LONGEST - 7]}-{short_hash}"

    def csv(self) -> str:
        """Return the table as CSV for spreadsheets, without superscripts and bold type."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([*map(spreadsheet, row)] for row in (self.header, *self.rows))
        return out.getvalue()

    def markdown(self, level: int = 3) -> str:
        """Return the table as Markdown under a heading of ``level``."""
        alignment = [":--" if k < self.left else "--:" for k in range(len(self.header))]
        rows = [map(_escaped, self.header), alignment, *(map(_markdown_cell, row) for row in self.rows)]
        lines = [f"{'#' * level} {markdown(self.title)}", "", *(f"| {' | '.join(cells)} |" for cells in rows)]
        notes = [_escaped(note) for note in (*self.notes, *self.raised)]
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
        return "\n".join(lines) + "\n"

    def text(self, width: int = 100) -> str:
        """Return plain text of at most ``width`` columns; columns that do not fit continue in a second grid."""
        from rich.console import Console
        from rich.text import Text

        out = io.StringIO()
        console = Console(file=out, width=width, color_system=None, force_terminal=False, legacy_windows=False)
        grids = [part for block in self._blocks(width) for part in ("", self._grid(block))][1:]
        console.print(Text(self.title), *grids, *map(Text, self.notes), sep="\n")
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"

    def _blocks(self, width: int) -> list[list[int]]:
        """Distribute the columns of numbers over as few grids as possible; each grid fits the width."""
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

        box = Box("    \n    \n ── \n    \n ── \n    \n    \n    \n")
        grid = RichTable(box=box, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        columns = [*range(self.left), *numbers]
        for k in columns:
            is_label = k < self.left
            grid.add_column(
                Text(self.header[k]), justify="left" if is_label else "right", no_wrap=not is_label, overflow="fold"
            )
        for i, row in enumerate(self.rows):
            grid.add_row(*(Text(row[k]) for k in columns), end_section=i + 1 in self.ruled)
        return grid


@dataclass
class Reasons:
    """Numbered footnotes with the reasons of missing values."""

    reasons: list[str] = field(default_factory=list)

    def mark(self, reason: str) -> str:
        """Return the footnote mark of a reason; equal reasons share one mark."""
        if reason not in self.reasons:
            self.reasons.append(reason)
        return f"[{self.reasons.index(reason) + 1}]"

    def lines(self) -> list[str]:
        return [f"[{k}] {reason}" for k, reason in enumerate(self.reasons, start=1)]


def mark_best(cells: Iterable[Cell], quantity: Quantity) -> None:
    """Mark the best cells, unless all cells print the same number."""
    numbers = [cell for cell in cells if not math.isnan(cell.value)]
    best = quantity.best((cell.value for cell in numbers), default=math.nan)
    for cell in numbers if len({quantity.shown(cell.value) for cell in numbers}) > 1 else ():
        cell.best = quantity.shown(cell.value) == quantity.shown(best)


def group_starts(rows: Sequence[Sequence[str]]) -> tuple[int, ...]:
    """Return the rows at which the first column changes (for `Table.ruled`)."""
    return tuple(k for k in range(1, len(rows)) if rows[k][0] != rows[k - 1][0])


def number_cell(value: float | None, scale: float = 1, digits: int = 2, runs: Sequence[str] = ()) -> Cell:
    """Return the cell of ``scale * value``; ``–`` for None and NaN."""
    if value is None or value != value:
        return Cell("–")
    return Cell(f"{round(scale * value, digits) + 0.0:.{digits}f}", float(value), tuple(runs))


def quantity_cell(value: float | None, quantity: Quantity, runs: Sequence[str] = ()) -> Cell:
    """Return the cell of a value; ``–`` for None and NaN."""
    return number_cell(value, quantity.scale, quantity.decimals, runs)


def percent_cell(value: float | None, runs: Sequence[str] = ()) -> Cell:
    """Return the cell of a share of a whole, in percent; ``–`` for None and NaN."""
    return quantity_cell(value, SHARE, runs)


def _markdown_cell(cell: str) -> str:
    text = _escaped(cell)
    if isinstance(cell, Cell):
        text = f"**{text}**" if cell.best else text
        text += f" {_escaped(cell.mark)}" if cell.mark else ""
    return text


def _escaped(text: str) -> str:
    return markdown(text).replace("*", r"\*")
