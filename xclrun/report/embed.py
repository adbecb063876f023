"""Embed tables, figures and numbers of reports in a hand-written Markdown page.

Two comments enclose each place in the page. The first comment names a file of a report as ``NAME/FILE``::

    <!-- report: ll_pud/tables/pud_words_tiny_budgets.md -->
    <!-- end -->

The lines between the comments are replaced by the text of a table, or by a link to a copied file: a figure,
``summary.csv`` (aggregates), ``few_shot.csv``, or ``matrices.csv`` (the score matrices of all runs; each cell is a
fraction of counts, for example ``812/1000``). Copies are in a directory named after the page. If several reports have
the same figure, its copy is prefixed with the report's name. Places for other reports do not change.
``<!-- report: NAME/FILE once there is one -->`` allows a missing file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xclrun.analysis.matrices import counted
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.files import read_text
from xclrun.core.names import link
from xclrun.report.report import FEW_SHOT, Report
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import frame_csv
from xclrun.scores.base_scores import Predictions
from xclrun.store.files import atomic_write

# Runs → (run ID → predictions).
Reader = Callable[[Sequence[RunRecord]], Mapping[str, Predictions]]

OPENS = re.compile(r"<!-- report: ([^/\s]+)/(\S+)( once there is one)? -->")
CLOSES = "<!-- end -->"
# Content of a place whose file does not exist yet.
NOT_YET = ("", "_Not yet: too few runs have finished._", "")


@dataclass(frozen=True)
class Place:
    """A place for a report's file; ``line`` and ``end`` are the line indices of its opening and closing comment."""

    report: str
    file: str
    line: int
    end: int
    later: bool = False  # the file may not exist yet


def places(page: Path, name: str) -> list[Place]:
    """Return all places of a page, and check that at least one is for the report ``name``.

    Raises:
        UsageError: the page is unreadable, a place is not closed, or no place is for the report.
    """
    try:
        lines = read_text(page).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--into {page}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    places: list[Place] = []
    for i, line in enumerate(lines):
        if (opened := OPENS.fullmatch(line.strip())) is None:
            continue
        after = (j for j in range(i + 1, len(lines)) if lines[j].strip() == CLOSES or OPENS.fullmatch(lines[j].strip()))
        end = next(after, None)
        if end is None or lines[end].strip() != CLOSES:
            raise UsageError(f"--into {page}: line {i + 1}: no {CLOSES} closes this place; add it")
        places.append(Place(opened[1], opened[2], i, end, opened[3] is not None))
    if all(place.report != name for place in places):
        reports = ", ".join(f"'{report}'" for report in sorted({place.report for place in places}))
        raise UsageError(
            f"--into {page}: no place for the report '{name}'{f' (only for {reports})' if reports else ''}; add the "
            f"two lines <!-- report: {name}/summary.csv --> and {CLOSES}"
        )
    return places


def embed(page: Path, report: Report, predictions: Reader | None = None) -> int:
    """Fill the places of a report in a Markdown page, and return their number.

    Args:
        predictions: function that loads predictions, to write counts to ``matrices.csv``; None: write scores instead.

    Raises:
        UsageError: as in `places`, or the report lacks a file that the page names.
    """
    all_places = places(page, report.name)
    filled = [place for place in all_places if place.report == report.name]
    tables = sorted(path.name for path in (report.directory / "tables").glob("*.md"))
    numbers = [*(path.name for path in report.numbers), "matrices.csv"]
    files = [*(f"tables/{name}" for name in tables), *(f"figures/{path.name}" for path in report.figures), *numbers]
    for place in filled:
        if place.file not in files and not place.later:
            raise UsageError(
                f"--into {page}: line {place.line + 1}: the report '{report.name}' has no file '{place.file}'; "
                f"{did_you_mean(place.file, files)}"
            )
    ambiguous = {place.file for place in all_places if place.report != report.name}
    lines = read_text(page).splitlines()
    # Fill the last place first, so that the line numbers of earlier places stay valid.
    for place in reversed(filled):
        content: Sequence[str] = NOT_YET
        if place.file in files:
            content = _content(place.file, report, page.parent / page.stem, place.file in ambiguous, predictions)
        lines[place.line + 1 : place.end] = content
    atomic_write(page, "\n".join(lines) + "\n")
    return len(filled)


def _content(file: str, report: Report, folder: Path, ambiguous: bool, predictions: Reader | None) -> Sequence[str]:
    """Return the lines of a place, and copy its file to ``folder``."""
    path = report.directory / file
    if file.startswith("tables/"):
        heading, *rest = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
        return ["", f"**{heading.lstrip('# ')}**", *rest, ""]
    if file.startswith("figures/"):
        plots = (plot for section in report.sections for block in section.blocks for plot in block.plots)
        caption = {plot.name: plot.caption for plot in plots}[path.stem]
        name = f"{report.name}-{path.name}" if ambiguous else path.name
        atomic_write(folder / name, path.read_bytes())
        return ["", f"![{caption}]({link(folder.name, name)})", ""]
    if file == "matrices.csv":
        runs = [run for s in report.sections if isinstance(s, StrategySection) for run in s.comparison.runs]
        runs += [run for run in report.records if run.run_id in set(report.few_shot["run_id"])]
        label, tail = "Score matrices of all runs (each cell is a fraction of counts, such as 812/1000)", "-matrices"
        frame = counted(runs, {} if predictions is None else predictions(runs))
    elif file == FEW_SHOT:
        label, tail, frame = "Scores of all few-shot runs", "" if report.frame.empty else "-few-shot", report.few_shot
    else:
        label, tail, frame = "Numbers", "", report.frame[report.frame["language"] == ""]
    name = f"{report.name}{tail}.csv"
    atomic_write(folder / name, frame_csv(frame))
    return [f"{label}: [{name}]({link(folder.name, name)})."]
