"""Tables, figures and numbers of a report in a Markdown page of one's own, which says where each belongs.

A page that tells what was found is written by hand, but its tables and figures are those of reports. Each has a place
in the page, between two comments, the first of which names a file of a report as ``NAME/FILE``::

    <!-- report: ll_pud/tables/pud_words_tiny_budgets.md -->
    <!-- end -->

What stood between them is replaced: a table by its text, a figure by a link to a copy of it, ``summary.csv`` by a link
to a copy of its aggregates, ``matrices.csv`` by one to the score matrices of all runs as counts. Copies lie in a folder
beside the page that is called as the page is, so that both can be kept together. Places of other reports stay as they
are: a page can show several, and a figure of which two reports have one has the report's name before its own. A page
of a study that is not complete asks for what is still to come with
``<!-- report: NAME/FILE once there is one -->``: until then its place says so. Few-shot runs have matrices as others
do, and ``few_shot.csv`` is a link to a copy of their scores.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from xclrun.analysis.base_scores import Predictions
from xclrun.analysis.matrices import counted
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import link
from xclrun.report.strategies import StrategySection
from xclrun.report.tables import frame_csv
from xclrun.report.write import FEW_SHOT, Report
from xclrun.store.files import atomic_write

# Reads run id → predictions of some runs.
Reader = Callable[[Sequence[RunRecord]], Mapping[str, Predictions]]

OPENS = re.compile(r"<!-- report: ([^/\s]+)/(\S+)( once there is one)? -->")
CLOSES = "<!-- end -->"
# What stands in a place whose table or figure is still to come.
NOT_YET = ("", "_Not yet: too few runs have finished._", "")


@dataclass(frozen=True)
class Place:
    """Where something of a report belongs.

    Attributes:
        report: its name.
        file: of the report's folder.
        line: of the opening comment, from 0.
        end: of the closing one.
        later: the report need not have it yet.
    """

    report: str
    file: str
    line: int
    end: int
    later: bool = False


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
    """Put what a page asks for into its places; return how many there are.

    Args:
        page: a Markdown file.
        report: what there is to put there.
        predictions: reads those of runs, for matrices as counts; None: there are none.

    Raises:
        UsageError: as `places`; or the report has no such file.
    """
    there = places(page, report.name)
    wanted = [place for place in there if place.report == report.name]
    shown = _shown(report, predictions, {place.file for place in there if place.report != report.name})
    for place in wanted:
        if place.file not in shown and not place.later:
            raise UsageError(
                f"--into {page}: line {place.line + 1}: the report {report.name} has no {place.file}; "
                f"{did_you_mean(place.file, shown)}"
            )
    lines = page.read_text(encoding="utf-8").splitlines()
    # From the last on, so that the lines before it stay where they are.
    for place in reversed(wanted):
        make = shown.get(place.file)
        lines[place.line + 1 : place.end] = NOT_YET if make is None else make(page.parent / page.stem)
    atomic_write(page, "\n".join(lines) + "\n")
    return len(wanted)


def _shown(
    report: Report, predictions: Reader | None, others: Collection[str]
) -> dict[str, Callable[[Path], Sequence[str]]]:
    """Return file → what makes the lines of its place, given the folder of copies.

    Args:
        report, predictions: as of `embed`.
        others: files of other reports that the page shows.
    """

    def table(path: Path) -> Callable[[Path], Sequence[str]]:
        def text(folder: Path) -> Sequence[str]:
            heading, *rest = path.read_text(encoding="utf-8").rstrip("\n").split("\n")
            return ["", f"**{heading.lstrip('# ')}**", *rest, ""]

        return text

    def figure(path: Path, caption: str) -> Callable[[Path], Sequence[str]]:
        def copied(folder: Path) -> Sequence[str]:
            # Two studies of one dataset have figures of the same names.
            name = f"{report.name}-{path.name}" if f"figures/{path.name}" in others else path.name
            atomic_write(folder / name, path.read_bytes())
            return ["", f"![{caption}]({link(folder.name, name)})", ""]

        return copied

    def numbers(folder: Path) -> Sequence[str]:
        name = f"{report.name}.csv"
        aggregates = report.frame[report.frame["language"] == ""]
        atomic_write(folder / name, frame_csv(aggregates))
        return [f"Numbers: [{name}]({link(folder.name, name)})."]

    def few_shot(folder: Path) -> Sequence[str]:
        name = f"{report.name}.csv" if report.frame.empty else f"{report.name}-few-shot.csv"
        atomic_write(folder / name, frame_csv(report.few_shot))
        return [f"Scores of all few-shot runs: [{name}]({link(folder.name, name)})."]

    def matrices(folder: Path) -> Sequence[str]:
        name = f"{report.name}-matrices.csv"
        of = [one.comparison.runs for one in report.sections if isinstance(one, StrategySection)]
        of.append([run for run in report.records if run.run_id in set(report.few_shot["run_id"])])
        runs = [run for them in of for run in them]
        found = counted(runs, {} if predictions is None else predictions(runs))
        atomic_write(folder / name, frame_csv(found))
        return [f"Score matrices of all runs, as counts: [{name}]({link(folder.name, name)})."]

    captions = {
        plot.name: plot.caption for section in report.sections for block in section.blocks for plot in block.plots
    }
    found = {f"tables/{path.name}": table(path) for path in sorted((report.directory / "tables").glob("*.md"))}
    found |= {f"figures/{path.name}": figure(path, captions[path.stem]) for path in report.figures}
    found["matrices.csv"] = matrices
    found |= {} if report.frame.empty else {report.summary_csv.name: numbers}
    return found if report.few_shot.empty else {**found, FEW_SHOT: few_shot}
