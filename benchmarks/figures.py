"""``python -m benchmarks.figures``: draw the first figure of a result page from a table of the page."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.report.style import GREY, SIDES, figure_of, plain, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGES = Path(__file__).parents[1] / "docs" / "results"


@dataclass(frozen=True)
class Dots:
    """A figure with a row of dots for each row of a table.

    Attributes:
        heading: heading above the table.
        columns: number of the table's column → name in the legend.
        limit: number of the column whose values are drawn as vertical bars; None: no limits.
        rows: pattern of the first cell of the rows to draw.
    """

    page: str
    heading: str
    columns: dict[int, str]
    axis: str
    limit: int | None = None
    rows: str = ""


FIGURES = (
    Dots(
        "performance",
        "Training overhead",
        {2: "tiny", 3: "12 layers × 384"},
        "time of xclrun / time of a plain loop",
        limit=1,
        rows="step$|same two passes|evaluation$",
    ),
    Dots("short", "Strategies", {2: "intents", 4: "slots"}, "final performance FP (%)"),
)


def table(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without its header."""
    below = page.split(f"\n## {heading}\n", 1)[1]
    lines = re.search(r"(?:^\|.*\n)+", below, re.MULTILINE)
    assert lines is not None, heading
    _, _, *rows = lines[0].splitlines()
    return [[cell.strip().replace("`", "").replace("*", "") for cell in row.strip("|").split("|")] for row in rows]


def number(cell: str) -> float | None:
    """Return the number at the beginning of a cell, or None."""
    match = re.match(r"-?\d+(?:\.\d+)?", cell)
    return None if match is None else float(match[0])


def draw(dots: Dots, rows: Sequence[Sequence[str]]) -> Figure:
    """Draw the table's ``rows``, with the first row at the top."""
    figure = figure_of(6.4, 0.8 + 0.21 * len(rows))
    axes = figure.subplots()
    at = range(len(rows), 0, -1)
    for (column, name), color, marker in zip(dots.columns.items(), SIDES, "os", strict=False):
        points = [(value, y) for row, y in zip(rows, at, strict=True) if (value := number(row[column])) is not None]
        axes.plot(*zip(*points, strict=True), marker, color=color, markersize=5, label=name)
    if dots.limit is not None:
        limits = [(value, y) for row, y in zip(rows, at, strict=True) if (value := number(row[dots.limit])) is not None]
        axes.plot(*zip(*limits, strict=True), "|", color=GREY, markersize=10, markeredgewidth=1.5, label="limit")
    plain(axes, dots.axis)
    axes.set_yticks(list(at), [row[0].partition(",")[0] for row in rows])
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=7)
    return figure


def main() -> int:
    for dots in FIGURES:
        rows = table((PAGES / f"{dots.page}.md").read_text(encoding="utf-8"), dots.heading)
        shown = [row for row in rows if re.search(dots.rows, row[0])]
        [path] = save(draw(dots, shown), PAGES / dots.page, dots.heading.lower().replace(" ", "_"))
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
