"""`write_report`: from run records to a folder of tables and figures, and to what a terminal shows."""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xclrun
from xclrun.analysis.aggregate import Comparison, comparisons, summarise
from xclrun.analysis.record import RunRecord
from xclrun.errors import UsageError
from xclrun.report.curves import learning_curves, training_curves
from xclrun.report.figures import heatmap
from xclrun.report.notes import comparison_notes, report_notes, unfinished
from xclrun.report.style import FORMATS, save
from xclrun.report.tables import DEFINITIONS, SHOWN, Summary, Table
from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

PRECISION = "`summary.csv` has fractions in full precision, 95 % intervals, and further measures."

# Runs that get a heat map of their own: the first of each strategy and order come first.
HEATMAPS = 40

# How the names of figures begin; what an earlier report left under such a name is removed.
FIGURES = ("learning_curves_", "training_curves_", "heatmap_")


@dataclass(frozen=True)
class Section:
    """What a report says about one dataset and model."""

    summary: Summary
    notes: list[str]

    @property
    def comparison(self) -> Comparison:
        return self.summary.comparison

    @property
    def title(self) -> str:
        return f"{self.comparison.dataset} · {self.comparison.model}"


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        name: of the report.
        directory: where it lies.
        frame: the long form, as `xclrun.analysis.aggregate.summarise` gives it.
        sections: one for each dataset and model.
        records: all runs that were given, each once; only finished ones were used.
        notes: about the report as a whole.
        figures: paths of the figures, in the order of the report.
    """

    name: str
    directory: Path
    frame: pd.DataFrame
    sections: list[Section]
    records: list[RunRecord]
    notes: list[str]
    figures: list[Path]

    @property
    def summary_csv(self) -> Path:
        return self.directory / "summary.csv"

    @property
    def summary_md(self) -> Path:
        return self.directory / "summary.md"

    def render(self, width: int = 100) -> str:
        """Return what a terminal shows: the mean over orders and seeds, each order, notes. No escape codes."""
        blocks = []
        for section in self.sections:
            blocks.append(f"{section.title}\n{'=' * len(section.title)}\n")
            blocks += [table.text(width) for table in _terminal_tables(section.summary)]
            blocks += [_wrapped(section.notes, width)] if section.notes else []
        blocks += [_wrapped(self.notes, width)] if self.notes else []
        legend = " ".join(f"{measure} {arrow}" for measure, arrow in SHOWN.items())
        blocks.append(f"{legend} (the arrow: what is better) · percent, mean ± standard deviation over runs")
        return "\n".join(blocks)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data: the aggregates (fractions; null where not available), notes, paths."""
        rows = self.frame[self.frame["language"] == ""].drop(columns="language")
        return {
            "name": self.name,
            "directory": str(self.directory),
            "summary_csv": str(self.summary_csv),
            "summary_md": str(self.summary_md),
            "figures": [str(path) for path in self.figures],
            "runs": dict(Counter(record.status for record in self.records)),
            "rows": rows.astype(object).where(rows.notna(), None).to_dict(orient="records"),
            "notes": [*(note for section in self.sections for note in section.notes), *self.notes],
        }


def write_report(records: Sequence[RunRecord], out: Path, name: str, command: str = "") -> Report:
    """Write the tables and figures of ``records`` to the folder ``out``: summary.csv, summary.md, figures/.

    Every file is written whole or not at all; files of an earlier report of the same name are replaced.

    Args:
        records: of any status; only finished runs enter a number.
        out: the report's own folder, made if needed.
        name: title of the report.
        command: what was typed to make it, for the reader.

    Raises:
        UsageError: no run has finished, or ``out`` cannot be written.
        RunError: the disk is full.
    """
    # Of records of one run a finished one is kept.
    unique = list({record.run_id: record for record in sorted(records, key=lambda r: r.status == "finished")}.values())
    if not any(record.status == "finished" for record in unique):
        raise UsageError(
            f"no finished runs{unfinished(unique)}; make some first, for example: xclrun strategy=naive,er -m"
        )
    frame = summarise(unique)
    sections = [Section(Summary(frame, c), comparison_notes(c)) for c in comparisons(unique)]
    folder = out / "figures"
    figures = [path for name_, figure in _figures(sections) for path in save(figure, folder, name_)]
    report = Report(name, out, frame, sections, unique, report_notes(unique, HEATMAPS), figures)
    atomic_write(report.summary_csv, frame.to_csv(index=False, lineterminator="\n"))
    atomic_write(report.summary_md, _markdown(report, command))
    for path in folder.glob("*"):
        if path not in figures and path.name.startswith(FIGURES) and path.suffix[1:] in FORMATS:
            path.unlink(missing_ok=True)
    return report


def _terminal_tables(summary: Summary) -> list[Table]:
    tasks = summary.comparison.tasks
    mean = [summary.main([task], title=f"{task.capitalize()}, mean over orders and seeds") for task in tasks]
    return mean + [summary.orders(task) for task in tasks]


def _figures(sections: Sequence[Section]) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure), made when it is asked for: hundreds of open figures would fill the memory."""
    for comparison in (section.comparison for section in sections):
        where = f"{comparison.dataset}_{comparison.model}"
        for task in comparison.tasks:
            yield from _numbered(f"learning_curves_{where}_{task}", learning_curves(comparison, task))
        for what in ("loss", *comparison.tasks):
            yield from _numbered(f"training_curves_{where}_{what}", training_curves(comparison, what))
    for record in _for_heatmaps(sections):
        for task in record.tasks:
            yield f"heatmap_{record.run_id}_{task}", heatmap(record, task)


def _numbered(name: str, pages: Iterable[Figure]) -> Iterator[tuple[str, Figure]]:
    """Yield (name, first page), (name_2, second page), …"""
    for k, page in enumerate(pages, start=1):
        yield name if k == 1 else f"{name}_{k}", page


def _for_heatmaps(sections: Sequence[Section]) -> list[RunRecord]:
    """Return the runs that get a heat map: of too many, the first of each strategy and order before the second."""
    turns: list[tuple[int, RunRecord]] = []
    for section in sections:
        for runs in section.comparison.strategies.values():
            seen: Counter[str] = Counter()
            for run in runs:
                turns.append((seen[run.order], run))
                seen[run.order] += 1
    return [run for _, run in sorted(turns, key=lambda turn: turn[0])[:HEATMAPS]]


def _markdown(report: Report, command: str) -> str:
    finished = [record for record in report.records if record.status == "finished"]
    made = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"# {report.name}", "", f"{len(finished)} finished runs · made {made} by xclrun {xclrun.__version__}"]
    lines += ["", f"Command: `{command}`"] if command else []
    lines += ["", "Values are percent, mean ± sample standard deviation over runs.", PRECISION, ""]
    lines += [f"- **{measure} {arrow}** {DEFINITIONS[measure]}" for measure, arrow in SHOWN.items()]
    lines += ["", "↑ higher is better, ↓ lower is better.", ""]
    for section in report.sections:
        lines += [f"## {section.title}", "", *(table.markdown() for table in _markdown_tables(section.summary))]
        if section.notes:
            lines += ["### What is missing, what differs", "", *(f"- {note}" for note in section.notes), ""]
    lines += ["## Figures", "", *_figure_lines(report), ""]
    if report.notes:
        lines += ["## Notes", "", *(f"- {note}" for note in report.notes), ""]
    lines += [_runs_table(report).markdown(level=2)]
    return "\n".join(lines)


def _markdown_tables(summary: Summary) -> list[Table]:
    comparison = summary.comparison
    tables = [summary.main(comparison.tasks)]
    for order in comparison.orders:
        languages = {run.languages for run in comparison.runs if run.order == order}
        arrows = " or ".join(sorted(" → ".join(them) for them in languages))
        tables.append(summary.main(comparison.tasks, order, f"Order {order}: {arrows}"))
    for task in comparison.tasks:
        tables += [table for table in (summary.languages(task, m) for m in ("FP", "F", "T", "T0")) if table.rows]
    return tables


def _figure_lines(report: Report) -> list[str]:
    """Link every figure in each of its formats; show the learning curves."""
    found: dict[str, list[Path]] = {}
    for path in report.figures:
        found.setdefault(path.stem, []).append(path)
    lines = []
    for stem, paths in found.items():
        links = [f"[{path.suffix[1:]}](figures/{path.name})" for path in paths]
        lines.append(f"- {stem}: {', '.join(links)}")
    shown = [
        f"![{stem}](figures/{paths[0].name})" for stem, paths in found.items() if stem.startswith("learning_curves")
    ]
    return [*lines, "", *shown]


def _runs_table(report: Report) -> Table:
    header = ("run", "dataset", "model", "strategy", "order", "seed", "bucket", "code", "algorithms", "data", "status")
    rows = []
    for r in sorted(report.records, key=lambda r: (r.dataset, r.model, r.strategy, r.order, r.seed, r.run_id)):
        what = (r.run_id, r.dataset, r.model, r.strategy, r.order, r.seed, "–" if r.bucket is None else r.bucket)
        rows.append(tuple(map(str, (*what, r.code_version, r.algorithms, r.data_fingerprint[:12], r.status))))
    return Table("Runs", header, tuple(rows), left=len(header))


def _wrapped(notes: Sequence[str], width: int) -> str:
    import textwrap

    return "\n".join(textwrap.fill(note, width, initial_indent="- ", subsequent_indent="  ") for note in notes) + "\n"
