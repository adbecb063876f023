"""The growing score matrix of a run on a terminal or in a log, fitted to the width.

With few languages, a cell holds all metrics (``92.5|80.1``). With more languages, each metric has a separate line. A
line that is too wide lists pairs of language and score, and wraps. With more than `MOST` languages, each score is a
block character whose height shows the score, and the mean follows. ``›`` marks the score on the language just learned.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xclrun.core.quantity import SHARE, Quantity
from xclrun.core.task import Metric

MARK = "›"
LEARNED = "reverse"
# Width of the note at the end of a row: "shared", "12.3 s".
NOTE = 7
# With more languages, scores are blocks: numbers would fill a screen in a few hops.
MOST = 24
BLOCKS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"
# Columns after blocks: the mean, and the score on the language just learned.
TOTALS = (5, 6)


def brief(seconds: float) -> str:
    """Format seconds in at most six characters: ``12.3 s``, ``65 s``, ``12 min``, ``2.1 h``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 59.5 * 60 else f"{seconds / 3600:.1f} h"


def block(value: float, most: float = 1.0) -> str:
    """Return a score between 0 and ``most`` as one of eight block characters; ``·`` for NaN."""
    return UNKNOWN if math.isnan(value) else BLOCKS[max(0, min(7, int(8 * value / most)))]


def score(value: float, quantity: Quantity = SHARE) -> str:
    """Format a score in four characters, if it fits: ``92.5`` and ``100`` for percent, ``1.02`` for bits."""
    if quantity.scale == 1:
        return f"{value:.2f}"
    return "100" if value >= 0.9995 else f"{100 * value:.1f}"


class MatrixRows:
    """Formats the rows of one run.

    Args:
        names: possible texts of the column ``key``.
        width: columns of the terminal.
        styled: use escape codes.
    """

    def __init__(
        self, languages: Sequence[str], metrics: Sequence[Metric], names: Sequence[str], width: int, styled: bool
    ) -> None:
        self.languages, self.metrics, self.width, self.styled = list(languages), list(metrics), max(width, 40), styled
        self.lead = min(max(map(cell_len, ("key", *names))), 16)
        names_and_blanks = [1 + cell_len(language) for language in self.languages]
        # Width of each language's column; empty if the columns do not fit.
        self.cells = [max(5 * len(self.metrics), width) for width in names_and_blanks]
        self.blocks = False
        # A row has one line for all metrics, one for each metric, or as many as needed.
        self.stacked = len(self.metrics) > 1 and sum(self.cells) > self._room
        if self.stacked:
            self.lead = max(self.lead, *(len(metric.short) for metric in self.metrics))
            self.cells = [max(5, width) for width in names_and_blanks]
        if sum(self.cells) > self._room:
            self.cells = []
            self.blocks = len(self.languages) > MOST
        elif sum(self.cells) + len(self.cells) <= self._room:
            # Leave a blank before the mark.
            self.cells = [width + 1 for width in self.cells]

    @property
    def _room(self) -> int:
        return self.width - 4 - self.lead - NOTE

    @property
    def _item(self) -> int:
        """Width of a language with its score: two blanks, the name, a blank, and a score with its mark."""
        return min(max(map(cell_len, self.languages)) + 8, self._room)

    @property
    def legend(self) -> str:
        metrics = ("; " if self.stacked else "|").join(
            f"{metric.short}: {metric.title}" if self.stacked else metric.title for metric in self.metrics
        )
        units = " and ".join(dict.fromkeys(metric.unit for metric in self.metrics))
        if not self.blocks:
            return f"test: {metrics}, in {units}; {MARK} the language just learned"
        ends = "0 to 100 %" if units == "%" else "0 to the highest"
        return (
            f"test: {metrics}; one column per language, {BLOCKS[0]} to {BLOCKS[-1]}: {ends}; after them, in {units}: "
            f"mean over languages, {MARK} score on the language just learned. Columns: {' '.join(self.languages)}"
        )

    def head(self) -> str:
        if self.blocks:
            tens = "".join(f"{k:>10}" for k in range(10, len(self.languages) + 1, 10))
            above = self._of_blocks("hop", "key", [Text(tens[: self._across])], (Text("mean"), Text("new")), "")
            return "\n".join([self._wrapped(self.legend), *above])
        if self.cells:
            line = self._line("hop", "key", [Text(name) for name in self.languages], self.cells, "")
        else:
            line = self._line("hop", "key", [Text("scores")], [self._item], "")
        return f"{self._wrapped(self.legend)}\n{line}"

    def row(self, hop: int, key: str, scores: Mapping[str, Mapping[str, float]], learned: str | None, note: str) -> str:
        """Return one row, of one or more lines.

        Args:
            key: text of the column ``key``.
            scores: language → metric → score.
            learned: the language just learned, if any.
            note: text at the end.
        """
        groups = [[metric] for metric in self.metrics] if self.stacked else [self.metrics]
        lines = []
        for k, group in enumerate(groups):
            lead = (str(hop), key, note) if k == 0 else ("", "", "")
            if self.blocks:
                lines += self._row_of_blocks(lead, group[0], scores, learned)
                continue
            cells = [self._cell(scores[language], group, language == learned) for language in self.languages]
            # The lines of further metrics show their names below the key.
            name = key if k == 0 else group[0].short
            if self.cells:
                lines.append(self._line(lead[0], name, cells, self.cells, lead[2]))
            else:
                lines += self._items(lead[0], name, cells, lead[2])
        return "\n".join(lines)

    def _cell(self, scores: Mapping[str, float], metrics: Sequence[Metric], learned: bool) -> Text:
        text = "|".join(score(scores[metric.name], metric.quantity) for metric in metrics if metric.name in scores)
        return Text().append(f"{MARK}{text}", LEARNED) if learned else Text(text)

    def _items(self, hop: str, key: str, cells: Sequence[Text], note: str) -> list[str]:
        """Lay out scores with the names of their languages, as many in a line as fit."""
        named = []
        for language, cell in zip(self.languages, cells, strict=True):
            cell.align("right", 6)
            named.append(Text(set_cell_size(f"  {language}", self._item - 6)) + cell)
        across = self._room // self._item
        blocks = [named[k : k + across] for k in range(0, len(named), across)]
        below = [self._line("", "", block, [self._item] * len(block), "") for block in blocks[1:]]
        return [self._line(hop, key, blocks[0], [self._item] * len(blocks[0]), note), *below]

    @property
    def _across(self) -> int:
        return self._room - 1 - sum(TOTALS)

    def _row_of_blocks(
        self, lead: tuple[str, str, str], metric: Metric, scores: Mapping[str, Mapping[str, float]], learned: str | None
    ) -> list[str]:
        """Lay out the scores of one metric as blocks; the first line ends with the mean."""
        values = {language: scores[language].get(metric.name, math.nan) for language in self.languages}
        numbers, kind = [value for value in values.values() if not math.isnan(value)], metric.quantity
        # Scores without an upper bound are drawn relative to the highest one.
        most = max(numbers, default=0.0) or 1.0
        most = kind.bounds[1] if math.isfinite(kind.bounds[1]) else most
        blocks = [Text(block(value, most), LEARNED if name == learned else "") for name, value in values.items()]
        lines = [Text.assemble(*blocks[k : k + self._across]) for k in range(0, len(blocks), self._across)]
        mean = Text(score(sum(numbers) / len(numbers), kind) if numbers else "")
        last = values.get(learned, math.nan) if learned else math.nan
        marked = Text("" if math.isnan(last) else f"{MARK}{score(last, kind)}")
        hop, name, note = lead
        return self._of_blocks(hop, name or metric.short, lines, (mean, marked), note)

    def _of_blocks(self, hop: str, name: str, lines: Sequence[Text], totals: tuple[Text, Text], note: str) -> list[str]:
        widths = [min(self._across, len(self.languages)), *TOTALS]
        first = self._grid(hop, f" {name} ", [lines[0], *totals], widths, note, self.lead + 2, "left")
        return [first, *(self._grid("", "", [line], widths[:1], "", self.lead + 2, "left") for line in lines[1:])]

    def _line(self, hop: str, key: str, cells: Sequence[Text], widths: Sequence[int], note: str) -> str:
        return self._grid(hop, f" {key}", cells, widths, note, self.lead + 1, "right")

    def _grid(
        self, hop: str, name: str, cells: Sequence[Text], widths: Sequence[int], note: str, lead: int,
        first: Literal["left", "right"],
    ) -> str:  # fmt: skip
        """Return a line of cells with these widths; ``first`` is the alignment of the first cell."""
        grid = Table.grid(padding=0)
        grid.add_column(width=3, justify="right", no_wrap=True)
        grid.add_column(width=lead, no_wrap=True, overflow="ellipsis")
        for k, width in enumerate(widths):
            grid.add_column(width=width, justify="right" if k else first, no_wrap=True, overflow="fold")
        grid.add_column(width=NOTE, no_wrap=True, justify="right")
        grid.add_row(Text(hop), Text(name), *cells, Text(note))
        out = io.StringIO()
        console = Console(
            file=out, width=self.width, force_terminal=self.styled, color_system="standard" if self.styled else None,
            legacy_windows=False, highlight=False,
        )  # fmt: skip
        console.print(grid)
        return out.getvalue().rstrip()

    def _wrapped(self, text: str) -> str:
        return textwrap.fill(text, self.width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)
