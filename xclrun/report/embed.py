"""Embed the tables, figures and numbers of reports in a hand-written Markdown page, which says where each belongs.

Each has a place in the page, between two comments, the first of which names a file of a report as ``NAME/FILE``::

    <!-- report: ll_pud/tables/pud_words_tiny_budgets.md -->
    <!-- end -->

What is between them is replaced: a table by its text, a figure by a link to a copy, ``summary.csv`` by a link to a copy
of its aggregates, ``few_shot.csv`` by a link to a copy of the few-shot scores, ``matrices.csv`` by a link to the score
matrices of all runs as counts. Copies are in a folder next to the page and named as it. Places of other reports stay
unchanged; where two reports have figures of the same name, a copy's name begins with the report's. With
``<!-- report: NAME/FILE once there is one -->`` a place may wait for runs that are still to come.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from xclrun.analysis.base_scores import Predictions
from xclrun.analysis.matrices import counted
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import link
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import frame_csv
from xclrun.report.write import FEW_SHOT, Report
from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd

# Reads run id → predictions of some runs.
Reader = Callable[[Sequence[RunRecord]], Mapping[str, Predictions]]

OPENS = re.compile(r"<!-- report: ([^/\s]+)/(\S+)( once there is one)? -->")
CLOSES = "<!-- end -->"
# What is in a place whose table or figure is still to come.
NOT_YET = ("", "_Not yet: too few runs have finished._", "")


@dataclass(frozen=True)
class Place:
    """Where a file of a report belongs: from the opening comment (``line``, from 0) to the closing one (``end``)."""

    report: str
    file: str
    line: int
    end: int
    later: bool = False  # the report need not have it yet


def places(page: Path, name: str) -> list[Place]:
    """Return the places of a page, in their order, of which there are some for the report ``name``.

    Raises:
        UsageError: the page cannot be read, a place has no end, or there is none for this report.
    """
    try:
        lines = page.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--into {page}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    found: list[Place] = []
    for i, line in enumerate(lines):
        if (opened := OPENS.fullmatch(line.strip())) is None:
            continue
        after = (j for j in range(i + 1, len(lines)) if lines[j].strip() == CLOSES or OPENS.fullmatch(lines[j].strip()))
        end = next(after, None)
        if end is None or lines[end].strip() != CLOSES:
            raise UsageError(f"--into {page}: line {i + 1} opens a place that no {CLOSES} ends")
        found.append(Place(opened[1], opened[2], i, end, opened[3] is not None))
    if all(place.report != name for place in found):
        others = f"; it has some for {', '.join(sorted({p.report for p in found}))}" if found else ""
        raise UsageError(
            f"--into {page}: has no place for the report {name}{others}; "
            f"one is two lines: <!-- report: {name}/summary.csv --> and {CLOSES}"
        )
    return found


def embed(page: Path, report: Report, predictions: Reader | None = None) -> int:
    """Fill the places of a Markdown page that are of a report; return how many there are.

    Args:
        predictions: reads those of runs, for matrices as counts; None: there are none.

    Raises:
        UsageError: as `places`; or the report has no such file.
    """
    every = places(page, report.name)
    mine = [place for place in every if place.report == report.name]
    shown = _shown(report, predictions, {place.file for place in every if place.report != report.name})
    for place in mine:
        if place.file not in shown and not place.later:
            raise UsageError(
                f"--into {page}: line {place.line + 1}: the report {report.name} has no {place.file}; "
                f"{did_you_mean(place.file, shown)}"
            )
    lines = page.read_text(encoding="utf-8").splitlines()
    # From the last on, so that the lines before it stay if they are.
    for place in reversed(mine):
        make = shown.get(place.file)
        lines[place.line + 1 : place.end] = NOT_YET if make is None else make(page.parent / page.stem)
    atomic_write(page, "\n".join(lines) + "\n")
    return len(mine)


def _shown(
    report: Report, predictions: Reader | None, others: Collection[str]
) -> dict[str, Callable[[Path], Sequence[str]]]:
    """Return file → what makes the lines of its place, given the folder of copies.

    Args:
        others: files of other reports that the page shows.
    """

    def table(path: Path) -> Callable[[Path], Sequence[str]]:
        def text(folder: Path) -> Sequence[str]:
            heading, *rest = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
            return ["", f"**{heading.lstrip('# ')}**", *rest, ""]

        return text

    def figure(path: Path, caption: str) -> Callable[[Path], Sequence[str]]:
        def copied(folder: Path) -> Sequence[str]:
            name = f"{report.name}-{path.name}" if f"figures/{path.name}" in others else path.name
            atomic_write(folder / name, path.read_bytes())
            return ["", f"![{caption}]({link(folder.name, name)})", ""]

        return copied

    def csv(what: str, tail: str, frame: Callable[[], pd.DataFrame]) -> Callable[[Path], Sequence[str]]:
        def copied(folder: Path) -> Sequence[str]:
            name = f"{report.name}{tail}.csv"
            atomic_write(folder / name, frame_csv(frame()))
            return [f"{what}: [{name}]({link(folder.name, name)})."]

        return copied

    def matrices() -> pd.DataFrame:
        runs = [run for one in report.sections if isinstance(one, StrategySection) for run in one.comparison.runs]
        runs += [run for run in report.records if run.run_id in set(report.few_shot["run_id"])]
        return counted(runs, {} if predictions is None else predictions(runs))

    captions = {
        plot.name: plot.caption for section in report.sections for block in section.blocks for plot in block.plots
    }
    made = {f"tables/{path.name}": table(path) for path in sorted((report.directory / "tables").glob("*.md"))}
    made |= {f"figures/{path.name}": figure(path, captions[path.stem]) for path in report.figures}
    made["matrices.csv"] = csv("Score matrices of all runs, as counts", "-matrices", matrices)
    if not (frame := report.frame).empty:
        made[report.summary_csv.name] = csv("Numbers", "", lambda: frame[frame["language"] == ""])
    if not report.few_shot.empty:
        tail = "" if frame.empty else "-few-shot"
        made[FEW_SHOT] = csv("Scores of all few-shot runs", tail, lambda: report.few_shot)
    return made
