"""`write_report`: from run records to a folder of tables and figures, and to what a terminal shows.

<out>/index.html              everything on one page             summary.csv   all numbers in long form
<out>/summary.md              the same as Markdown               runs.csv      the runs behind them
<out>/few_shot.csv            few-shot scores, a row for each run and metric, where there are such runs
<out>/tables/*.{md,csv,tex}   each table, ready for a paper      figures/*.{png,pdf,svg}
"""

from __future__ import annotations

import datetime
import itertools
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xclrun
from xclrun.analysis.aggregate import Comparison, comparisons, summarise
from xclrun.analysis.fewshot import called, few_shot_scores, is_few_shot
from xclrun.analysis.fewshot import labels as labels_of
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import code, link, markdown, slug
from xclrun.report.costs import trials
from xclrun.report.drawing import Drawers, Drawing
from xclrun.report.fewshot import Behind, few_shot_sections
from xclrun.report.notes import comparison_notes, report_notes, unfinished
from xclrun.report.page import page, runs_table
from xclrun.report.sections import Options, Part, Shown, make_section, parts_of_runs
from xclrun.report.style import FORMATS
from xclrun.store.files import atomic_write

if TYPE_CHECKING:
    import pandas as pd

    from xclrun.analysis.base_scores import Predictions

PRECISION = "`summary.csv` has fractions in full precision, 95 % intervals, and further measures; `index.html` has all."

FEW_SHOT = "few_shot.csv"

# How the names of figures begin; what an earlier report left under such a name is removed.
FIGURES = (
    "learning_curves_",
    "training_curves_",
    "heatmap_",
    "matrices_",
    "trade_offs_",
    "distances_",
    "one_hop_",
    "memory_",
    "p_values_",
    "critical_",
    "confusions_",
    "example_curves_",
    "selection_",
    "few_shot_",
)


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        name: of the report.
        directory: where it lies.
        frame: the long form, as `xclrun.analysis.aggregate.summarise` gives it.
        few_shot: the few-shot runs, as `xclrun.analysis.fewshot.few_shot_scores` gives them.
        sections: one for each dataset and model; few-shot runs have their own.
        records: all runs that were given, each once; only finished ones were used.
        notes: about the report as a whole.
        figures: paths of the figures, in the order of the report.
    """

    name: str
    directory: Path
    frame: pd.DataFrame
    few_shot: pd.DataFrame
    sections: list[Shown]
    records: list[RunRecord]
    notes: list[str]
    figures: list[Path]

    @property
    def index(self) -> Path:
        return self.directory / "index.html"

    @property
    def summary_csv(self) -> Path:
        return self.directory / "summary.csv"

    @property
    def numbers(self) -> list[Path]:
        """Files that hold all numbers; few-shot runs have one of their own."""
        few_shot = [] if self.few_shot.empty else [self.directory / FEW_SHOT]
        return [*([] if self.frame.empty else [self.summary_csv]), *few_shot]

    @property
    def summary_md(self) -> Path:
        return self.directory / "summary.md"

    def render(self, width: int = 100) -> str:
        """Return what a terminal shows: the mean over orders and seeds, each order, notes. No escape codes."""
        blocks = []
        for section in self.sections:
            blocks.append(f"{section.title}\n{'=' * len(section.title)}\n")
            blocks += [table.text(width) for table in section.terminal]
            blocks += [_wrapped(section.notes, width)] if section.notes else []
        blocks += [_wrapped(self.notes, width)] if self.notes else []
        blocks += dict.fromkeys(textwrap.fill(section.legend, width) for section in self.sections)
        return "\n".join(blocks)

    def to_json(self) -> dict[str, Any]:
        """Return the facts as plain data: the aggregates (fractions; null where not available), notes, paths."""
        rows = self.frame[self.frame["language"] == ""].drop(columns="language")
        return {
            "name": self.name,
            "directory": str(self.directory),
            "index": str(self.index),
            "summary_csv": str(self.summary_csv),
            "summary_md": str(self.summary_md),
            "figures": [str(path) for path in self.figures],
            "runs": dict(Counter(record.status for record in self.records)),
            "rows": _plain(rows),
            **({} if self.few_shot.empty else {"few_shot": _plain(self.few_shot)}),
            "notes": [*(note for section in self.sections for note in section.notes), *self.notes],
        }


def write_report(
    records: Sequence[RunRecord],
    out: Path,
    name: str,
    commands: Sequence[str] = (),
    predictions: Callable[[], Mapping[str, Predictions]] | None = None,
    pool: Sequence[RunRecord] | None = None,
    options: Options | None = None,
    behind: Behind | None = None,
    started: Mapping[str, str] | None = None,
) -> Report:
    """Write the tables and figures of ``records`` to the folder ``out``.

    Every file is written whole or not at all; files of an earlier report of the same name are replaced.

    Args:
        records: of any status; only finished runs enter a number.
        out: the report's own folder, made if needed.
        name: title of the report.
        commands: what was typed to make it, and its runs, for the reader.
        predictions: reads run id → its predictions, for the bootstrap and the confusions; None: there are none. It is
            asked when what can be drawn without them is being drawn.
        pool: all runs that are known, to count tuning trials; None: ``records``.
        options: how it is made.
        behind: predictions and words of few-shot runs.
        started: run id → the command that made it, to tell how to make what is missing.

    Raises:
        UsageError: no run has finished, there is no such baseline, or ``out`` cannot be written.
        RunError: the disk is full.
    """
    # Of records of one run a finished one is kept.
    unique = list({record.run_id: record for record in sorted(records, key=lambda r: r.status == "finished")}.values())
    if not any(record.status == "finished" for record in unique):
        raise UsageError(
            f"no finished runs{unfinished(unique)}; make some first, for example: xclrun strategy=naive,er -m"
        )
    options = options or Options()
    # Few-shot runs have no order and no measures of forgetting: they have sections of their own.
    others = [record for record in unique if not is_few_shot(record)]
    found = comparisons(others)
    if options.baseline is not None:
        _check_baseline(options.baseline, found, unique)
    curves = [parts_of_runs(comparison) for comparison in found]
    with Drawers(out / "figures") as drawers:
        drawers.begin(_figures(part for parts in curves for part in parts))
        predicted = predictions() if predictions is not None else {}
        frame, references, few_shot = summarise(others, options.unpaired), References(others), few_shot_scores(unique)
        tried = trials(records if pool is None else pool)
        sections: list[Shown] = [
            make_section(c, frame, references, predicted, tried, options, comparison_notes(c, started), parts)
            for c, parts in zip(found, curves, strict=True)
        ]
        sections += few_shot_sections(unique, behind, options)
        made = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        figures, drawings = _draw(sections, drawers)
    report = Report(name, out, frame, few_shot, sections, unique, report_notes(unique), figures)
    _write_tables(sections, out / "tables")
    atomic_write(report.summary_csv, frame.to_csv(index=False, lineterminator="\n"))
    if few_shot.empty:
        (out / FEW_SHOT).unlink(missing_ok=True)
    else:
        atomic_write(out / FEW_SHOT, few_shot.to_csv(index=False, lineterminator="\n"))
    atomic_write(out / "runs.csv", runs_table(unique).csv())
    atomic_write(report.summary_md, _markdown(report, commands, made))
    atomic_write(report.index, page(name, made, commands, sections, drawings, unique, report.notes))
    return report


def _check_baseline(label: str, found: Sequence[Comparison], records: Sequence[RunRecord]) -> None:
    few_shot = labels_of(r for r in records if is_few_shot(r) and r.status == "finished").values()
    labels = list(dict.fromkeys([*(name for comparison in found for name in comparison.strategies), *sorted(few_shot)]))
    if label not in labels and called(label) not in labels:
        told = did_you_mean(label, labels) if labels else "there are no strategies to compare"
        raise UsageError(f"--baseline {label}: no strategy of this report is called so; {told}")


def _figures(parts: Iterable[Part]) -> list[Drawing]:
    return [figure for part in parts for figure in part.figures]


def _draw(sections: Sequence[Shown], drawers: Drawers) -> tuple[list[Path], dict[str, str]]:
    """Draw all figures that are not being drawn yet; return all paths, and name → SVG for the page."""
    every = _figures(part for section in sections for part in section.parts)
    saved = drawers.finish(every)
    paths = [path for name, _ in every for path in saved[name]]
    drawings = {name: saved[name][-1].read_text(encoding="utf-8") for name, _ in every if saved[name]}
    for path in drawers.folder.glob("*"):
        if path not in paths and path.name.startswith(FIGURES) and path.suffix[1:] in FORMATS:
            path.unlink(missing_ok=True)
    return paths, drawings


def _write_tables(sections: Sequence[Shown], folder: Path) -> None:
    """Write each table as Markdown, CSV and LaTeX, and remove those of an earlier report."""
    kept: set[Path] = set()
    for section in sections:
        where = slug(section.where)
        for table in (table for part in section.parts for table in part.tables):
            name = f"{where}_{table.slug}"
            # Two tables whose names come out the same both stay.
            same = (f"{name}-{k}" if k > 1 else name for k in itertools.count(1))
            name = next(one for one in same if folder / f"{one}.md" not in kept)
            for suffix, content in (
                ("md", table.markdown()),
                ("csv", table.csv()),
                ("tex", table.latex(section.title, name)),
            ):
                path = folder / f"{name}.{suffix}"
                atomic_write(path, content)
                kept.add(path)
    for path in folder.glob("*"):
        if path not in kept and path.suffix in (".md", ".csv", ".tex"):
            path.unlink(missing_ok=True)


def _plain(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Return rows as JSON can hold them; NaN becomes None."""
    return rows.astype(object).where(rows.notna(), None).to_dict(orient="records")


def _markdown(report: Report, commands: Sequence[str], made: str) -> str:
    finished = [record for record in report.records if record.status == "finished"]
    lines = [f"# {report.name}", "", f"{len(finished)} finished runs · made {made} by xclrun {xclrun.__version__}"]
    lines += [line for command in commands for line in ("", f"Command: {code(command)}")]
    if not report.frame.empty:
        lines += ["", "Values are percent, mean ± sample standard deviation over runs.", PRECISION]
    if not report.few_shot.empty:
        lines += ["", f"Few-shot values are percent, over what their tables say; `{FEW_SHOT}` has every score."]
    lines.append("")
    defined = {name: text for section in report.sections for name, text in section.definitions.items()}
    lines += [f"- **{name}** {text}" for name, text in defined.items()]
    lines += ["", "↑ higher is better, ↓ lower is better.", ""]
    for section in report.sections:
        lines += [f"## {markdown(section.title)}", ""]
        lines += [line for text in section.findings for line in (markdown(text), "")]
        lines += [*(table.markdown() for table in section.lead)]
        lines += [table.markdown() for part in section.parts for table in part.tables]
        if section.notes:
            lines += ["### What is missing, what differs", "", *(f"- {markdown(note)}" for note in section.notes), ""]
    lines += ["## Figures", "", *_figure_lines(report), ""]
    if report.notes:
        lines += ["## Notes", "", *(f"- {markdown(note)}" for note in report.notes), ""]
    lines += [runs_table(report.records).markdown(level=2)]
    return "\n".join(lines)


def _figure_lines(report: Report) -> list[str]:
    """Link every figure in each of its formats; show the learning curves."""
    found: dict[str, list[Path]] = {}
    for path in report.figures:
        found.setdefault(path.stem, []).append(path)
    lines = []
    for stem, paths in found.items():
        links = [f"[{path.suffix[1:]}]({link('figures', path.name)})" for path in paths]
        lines.append(f"- {stem}: {', '.join(links)}")
    shown = [
        f"![{stem}]({link('figures', paths[0].name)})"
        for stem, paths in found.items()
        if stem.startswith("learning_curves")
    ]
    return [*lines, "", *shown]


def _wrapped(notes: Sequence[str], width: int) -> str:
    """Return notes as a list that fits the width; a command that one ends with has a line of its own, to be copied."""
    lines = []
    for note in notes:
        told, command, rest = note.partition(": xclrun ")
        lines.append(textwrap.fill(told + command[:1], width, initial_indent="- ", subsequent_indent="  "))
        lines += [f"    xclrun {rest}"] if command else []
    return "\n".join(lines) + "\n"
