"""Tables for people: a title, rows of text and notes, as CSV, as Markdown and as text for a terminal.

The page's form is in ``templates/table.html``, LaTeX's in `xclrun.report.latex`.
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

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table as RichTable


BOLD = "bold: best of the column"


# On a terminal: columns between two of a table, and how narrow a column of names can be folded at the most.
GAP = 2
NAMES = 18
# Characters of the name of a table's files.
LONGEST = 80
# How a text begins that spreadsheets read as a formula.
_FORMULA = ("=", "+", "-", "@")
# Numbers, separated by blanks, brackets or signs that stand in no formula. The two have no character in common, so that
# matching takes linear time.
_NUMBER = r"[+-]?\d[\d.,]*(?:e[+-]?\d+)?"
_SEPARATORS = r"[^\w.,+\-=@|!'\"&;:/\\^<>]"
_NUMBERS = re.compile(rf"{_NUMBER}(?:{_SEPARATORS}+{_NUMBER})*{_SEPARATORS}*")


class Cell(str):
    """The text of a cell, and what a page shows beside it.

    Attributes:
        value: what columns are sorted by; NaN sorts last.
        runs: ids of the runs behind it.
        best: of its column; bold where there is type.
        mark: raised beside the text, such as a significance mark.
    """

    value: float
    runs: tuple[str, ...]
    best: bool
    mark: str

    def __new__(
        cls,
        text: str,
        value: float = math.nan,
        runs: tuple[str, ...] = (),
        best: bool = False,
        mark: str = "",
    ) -> Cell:
        cell = super().__new__(cls, text)
        cell.value, cell.runs, cell.best, cell.mark = value, runs, best, mark
        return cell


def spreadsheet(text: Any) -> Any:
    """Return a cell's text as a spreadsheet shows it: a name that would be read as a formula begins with an apostrophe.

    Names come from data files. Numbers stay as they are, with or without an interval, deviation or mark.

    >>> spreadsheet("=1+1"), spreadsheet("-0.12 [-0.3, 0.1]"), spreadsheet(-0.12)
    ("'=1+1", '-0.12 [-0.3, 0.1]', -0.12)
    """
    if not isinstance(text, str) or text[:1] not in _FORMULA or _NUMBERS.fullmatch(text):
        return text
    return f"'{text}"


def frame_csv(frame: pd.DataFrame) -> str:
    """Return a frame as comma-separated values, its texts as `spreadsheet` has them."""
    texts = frame.select_dtypes(exclude="number")
    safe = frame.assign(**{str(name): texts[name].map(spreadsheet) for name in texts}).rename(columns=spreadsheet)
    return str(safe.to_csv(index=False, lineterminator="\n"))


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text, notes that belong under it, and how many columns are set to the left.

    Cells may be `Cell`; a plain string is a cell with nothing beside it.

    Attributes:
        raised: notes on marks and bold, for the formats that have them: the page, LaTeX and Markdown.
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
        """Return the table as comma-separated values for spreadsheets: without marks and bold."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerows([*map(spreadsheet, row)] for row in (self.header, *self.rows))
        return out.getvalue()

    def markdown(self, level: int = 3) -> str:
        """Return the table as Markdown under a heading of ``level``."""
        lines = [f"{'#' * level} {markdown(self.title)}", "", _line(map(_escaped, self.header))]
        lines.append(_line([":--" if k < self.left else "--:" for k in range(len(self.header))]))
        lines += [_line(map(_markdown_cell, row)) for row in self.rows]
        notes = [_escaped(note) for note in (*self.notes, *self.raised)]
        lines += ["", *(f"- {note}" for note in notes)] if notes else []
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
class Reasons:
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
    """Mark the best of the cells that are compared, where they differ; as printed: what looks equal is equal."""
    known = [cell for cell in cells if not math.isnan(cell.value)]
    best = (max if highest else min)((cell.value for cell in known), default=math.nan)
    for cell in known if len({percent(cell.value) for cell in known}) > 1 else ():
        cell.best = percent(cell.value) == percent(best)


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:6]


def percent(value: float) -> str:
    """Return a fraction as percent with two decimals; no ``-0.00``."""
    return f"{round(100 * value, 2) + 0.0:.2f}"


def percent_cell(value: float, runs: Sequence[str] = ()) -> Cell:
    """Return the cell of a fraction; ``–`` for NaN."""
    return Cell("–") if math.isnan(value) else Cell(percent(value), float(value), tuple(runs))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: str) -> str:
    text = _escaped(cell)
    if isinstance(cell, Cell):
        text = f"**{text}**" if cell.best else text
        text += f" {_escaped(cell.mark)}" if cell.mark else ""
    return text


def _escaped(text: str) -> str:
    """Escape text for Markdown, asterisks too."""
    return markdown(text).replace("*", r"\*")
