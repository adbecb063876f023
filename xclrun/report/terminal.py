"""The score matrix of a run as a terminal or a log shows it while it grows, row by row, in the width that there is.

With few languages a cell holds all metrics (``92.5|80.1``); with more, each metric has its own line; where even
that is too wide, each row names its languages and wraps. ``›`` stands before the score on the language just learned.
More languages than `MOST` have a block each, whose height is the score, and next to them their mean.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Literal

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xclrun.core.task import Metric

MARK = "›"
LEARNT = "reverse"
# Columns of what is at the end of a row: "shared", "12.3 s".
NOTE = 7
# Languages of which each has its number; more would take a screen for a few hops.
MOST = 24
BLOCKS = "▁▂▃▄▅▆▇█"
UNKNOWN = "·"
# Columns of the mean and of the score on the language just learned, next to blocks.
BESIDE = (5, 6)


def brief(seconds: float) -> str:
    """Return seconds in at most six letters: ``12.3 s``, ``65 s``, ``12 min``, ``2.1 h``."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 59.5 * 60 else f"{seconds / 3600:.1f} h"


def block(value: float) -> str:
    """Return a score in [0, 1] as a block, an eighth of a line for each eighth; ``·`` if there is none."""
    return UNKNOWN if math.isnan(value) else BLOCKS[min(7, int(8 * value))]


def score(value: float) -> str:
    """Return a score as percent in at most four letters: ``92.5``, ``100``."""
    return "100" if value >= 0.9995 else f"{100 * value:.1f}"


class MatrixRows:
    """Lays out the rows of one run.

    Args:
        languages: the columns.
        metrics: what each cell holds.
        names: possible texts of the column ``key``.
        width: columns of the terminal.
        styled: with escape codes.
    """

    def __init__(
        self, languages: Sequence[str], metrics: Sequence[Metric], names: Sequence[str], width: int, styled: bool
    ) -> None:
        self.languages, self.metrics, self.width, self.styled = list(languages), list(metrics), max(width, 40), styled
        self.lead = min(max(map(cell_len, ("key", *names))), 16)
        longest = max(map(cell_len, self.languages))
        self.cell = max(5 * len(self.metrics), 1 + longest)
        self.blocks = False
        # Lines of a row: one for all metrics, one for each, or as many as it takes.
        self.stacked = self.cell * len(self.languages) > self._room
        if self.stacked:
            self.lead = max(self.lead, *(len(metric.short) for metric in self.metrics))
            self.cell = max(5, 1 + longest)
        if self.cell * len(self.languages) > self._room:
            self.cell = 0
            self.blocks = len(self.languages) > MOST
        elif (self.cell + 1) * len(self.languages) <= self._room:
            # A blank before the mark.
            self.cell += 1

    @property
    def _room(self) -> int:
        return self.width - 4 - self.lead - NOTE

    @property
    def legend(self) -> str:
        """What the numbers are; the mark is explained where it can come."""
        metrics = ("; " if self.stacked else "|").join(
            f"{metric.short}: {metric.title}" if self.stacked else metric.title for metric in self.metrics
        )
        if not self.blocks:
            return f"test: {metrics}, in %; {MARK} the language just learned"
        return (
            f"test: {metrics}; a column for each language, {BLOCKS[0]} to {BLOCKS[-1]}: 0 to 100 %; beside them, in %, "
            f"the mean of all and {MARK} the language just learned. Columns: {' '.join(self.languages)}"
        )

    def head(self) -> str:
        if self.blocks:
            tens = "".join(f"{k:>10}" for k in range(10, len(self.languages) + 1, 10))
            above = self._of_blocks("hop", "key", [Text(tens[: self._across])], (Text("mean"), Text("own")), "")
            return "\n".join([self._wrapped(self.legend), *above])
        names = [Text(name) for name in self.languages] if self.cell else []
        return f"{self._wrapped(self.legend)}\n{self._line('hop', 'key', names, '')}"

    def row(self, hop: int, learnt: str, scores: Mapping[str, Mapping[str, float]], own: str | None, note: str) -> str:
        """Return one row, of one or more lines.

        Args:
            learned: text of the column ``key``.
            scores: language → metric → value in [0, 1].
            own: the language just learned, if any.
            note: text at the end.
        """
        groups = [[metric] for metric in self.metrics] if self.stacked else [self.metrics]
        lines = []
        for k, group in enumerate(groups):
            lead = (str(hop), learnt, note) if k == 0 else ("", "", "")
            if self.blocks:
                lines += self._row_of_blocks(lead, group[0], scores, own)
                continue
            cells = [self._cell(scores[language], group, language == own) for language in self.languages]
            if self.cell:
                # Under what was learned there is room for the metric's name.
                lines.append(self._line(lead[0], lead[1] if k == 0 else group[0].short, cells, lead[2]))
            else:
                named = [Text(f"{name} ") + cell for name, cell in zip(self.languages, cells, strict=True)]
                lines += self._items(lead[0], lead[1] if k == 0 else group[0].short, named, lead[2])
        return "\n".join(lines)

    def _cell(self, scores: Mapping[str, float], metrics: Sequence[Metric], own: bool) -> Text:
        text = "|".join(score(scores[metric.name]) for metric in metrics if metric.name in scores)
        return Text().append(f"{MARK}{text}", LEARNT) if own else Text(text)

    def _items(self, hop: str, learnt: str, named: Sequence[Text], note: str) -> list[str]:
        """Lay out scores that name their languages, as many in a line as there is room for."""
        wide = max(text.cell_len for text in named) + 2
        across = max(1, self._room // wide)
        blocks = [named[k : k + across] for k in range(0, len(named), across)]
        below = [self._line("", "", block, "", wide) for block in blocks[1:]]
        return [self._line(hop, learnt, blocks[0], note, wide), *below]

    @property
    def _across(self) -> int:
        return self._room - 1 - sum(BESIDE)

    def _row_of_blocks(
        self, lead: tuple[str, str, str], metric: Metric, scores: Mapping[str, Mapping[str, float]], own: str | None
    ) -> list[str]:
        """Lay out the scores of one metric as blocks, in as many lines as it takes; next to the first, the mean."""
        values = {language: scores[language].get(metric.name, math.nan) for language in self.languages}
        blocks = [Text(block(value), LEARNT if name == own else "") for name, value in values.items()]
        lines = [Text.assemble(*blocks[k : k + self._across]) for k in range(0, len(blocks), self._across)]
        known = [value for value in values.values() if not math.isnan(value)]
        mean = Text(score(sum(known) / len(known)) if known else "")
        of_own = values.get(own, math.nan) if own else math.nan
        learnt = Text("" if math.isnan(of_own) else f"{MARK}{score(of_own)}")
        hop, name, note = lead
        return self._of_blocks(hop, name or metric.short, lines, (mean, learnt), note)

    def _of_blocks(self, hop: str, name: str, lines: Sequence[Text], beside: tuple[Text, Text], note: str) -> list[str]:
        """Return lines of blocks; what is next to them is in the first."""
        widths = [min(self._across, len(self.languages)), *BESIDE]
        first = self._grid(hop, f" {name} ", [lines[0], *beside], widths, note, self.lead + 2, "left")
        return [first, *(self._grid("", "", [line], widths[:1], "", self.lead + 2, "left") for line in lines[1:])]

    def _line(self, hop: str, learnt: str, cells: Sequence[Text], note: str, wide: int = 0) -> str:
        widths = [wide or self.cell] * len(cells)
        return self._grid(hop, f" {learnt}", cells, widths, note, self.lead + 1, "right")

    def _grid(
        self, hop: str, name: str, cells: Sequence[Text], widths: Sequence[int], note: str, lead: int,
        first: Literal["left", "right"],
    ) -> str:  # fmt: skip
        """Return a line of cells with these widths, the first of which is aligned as ``first`` says."""
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
