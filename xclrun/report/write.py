"""Write a report: tables, figures and a web page.

<out>/index.html              everything on one page             summary.csv   all numbers in long form
<out>/summary.md              the same as Markdown               runs.csv      all runs
<out>/few_shot.csv            few-shot scores, a row for each run and metric, if there are few-shot runs
<out>/tables/*.{md,csv,tex}   each table, ready for a paper      figures/*.svg     and .pdf and .png on request
"""

from __future__ import annotations

import datetime
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

from xclrun.analysis.aggregate import Comparison, comparisons
from xclrun.analysis.fewshot.scores import called, few_shot_scores, is_few_shot
from xclrun.analysis.fewshot.scores import labels as labels_of
from xclrun.analysis.record import RunRecord
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.names import code, link, markdown, slug
from xclrun.core.version import VERSION
from xclrun.report import parts as parts
from xclrun.report.caveats import report_caveats, unfinished
from xclrun.report.codelength import codelength_sections
from xclrun.report.fewshot import few_shot_sections
from xclrun.report.latex import latex
from xclrun.report.page import definitions, other_units, page, runs_table, templates
from xclrun.report.part import Block, Plot
from xclrun.report.report import FEW_SHOT, Report
from xclrun.report.section import Options, Section, Sources
from xclrun.report.strategies import ReportData, StrategySection
from xclrun.report.style import FURTHER, more_formats
from xclrun.report.tables import frame_csv
from xclrun.report.workers import PlotWorkers
from xclrun.store.files import atomic_write


def write_report(
    records: Sequence[RunRecord],
    out: Path,
    name: str,
    commands: Sequence[str] = (),
    options: Options | None = None,
    sources: Sources | None = None,
) -> Report:
    """Write tables and figures of ``records`` to the directory ``out``; they replace the files of an earlier report.

    Args:
        records: runs of any status; only finished runs are evaluated.
        name: title of the report.
        commands: command lines of the report and its runs.

    Raises:
        UsageError: no run has finished, the baseline is unknown, or ``out`` cannot be written.
        RunError: the disk is full.
    """
    # A finished record of a run replaces unfinished ones.
    unique = list({record.run_id: record for record in sorted(records, key=lambda r: r.status == "finished")}.values())
    if not any(record.finished for record in unique):
        states = unfinished(unique, sources.excluded if sources else None)
        raise UsageError(f"no finished runs{states}; run an experiment first, for example: xclrun strategy=naive,er -m")
    options, sources = options or Options(), sources or Sources()
    # Few-shot runs have no order and no measures of forgetting: they have separate sections.
    in_sequence = [record for record in unique if not is_few_shot(record)]
    compared = comparisons(in_sequence)
    _check_baseline(options.baseline, compared, unique)
    data = ReportData(in_sequence, options, sources if sources.pool is not None else replace(sources, pool=records))
    sections: list[Section] = [StrategySection(comparison, data) for comparison in compared]
    with PlotWorkers(out / "figures", options.formats) as workers:
        workers.begin(_plots(block for section in sections for block in section.make(runs_alone=True)))
        sections += [*few_shot_sections(unique, sources.few_shot, options), *codelength_sections(unique)]
        every = _plots(block for section in sections for block in section.blocks)
        saved = workers.finish(every)
    figures = [path for plot in every for path in saved[plot.name]]
    drawings = {name: paths[0].read_text(encoding="utf-8") for name, paths in saved.items() if paths}
    date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    few_shot, excluded = few_shot_scores(unique), sources.excluded
    caveats = [*options.departures, *report_caveats(unique, excluded, sources.mirrored)]
    report = Report(name, out, data.frame, few_shot, sections, unique, caveats, figures, options.choice, excluded)
    _write_tables(sections, out / "tables")
    atomic_write(report.summary_csv, frame_csv(data.frame))
    if few_shot.empty:
        (out / FEW_SHOT).unlink(missing_ok=True)
    else:
        atomic_write(out / FEW_SHOT, frame_csv(few_shot))
    atomic_write(out / "runs.csv", runs_table(unique, excluded).csv())
    atomic_write(report.summary_md, _markdown(report, commands, date, options))
    _remove_earlier(report)
    atomic_write(report.index, page(report, date, commands, drawings, options.formats, options.of_paper))
    return report


def _plots(blocks: Iterable[Block]) -> list[Plot]:
    return [plot for block in blocks for plot in block.plots]


def _remove_earlier(report: Report) -> None:
    """Remove the figures that an earlier report of this name had, but this one lacks."""
    if not report.index.is_file():
        return
    names = re.findall(r'href="figures/([^"/]+)"', report.index.read_text(encoding="utf-8"))
    earlier = {report.directory / "figures" / Path(unquote(name)).name for name in names}
    for path in earlier.difference(report.figures):
        if path.suffix[1:] in ("svg", *FURTHER):
            path.unlink(missing_ok=True)


def _check_baseline(label: str | None, compared: Sequence[Comparison], records: Sequence[RunRecord]) -> None:
    few_shot = labels_of(r for r in records if is_few_shot(r) and r.status == "finished").values()
    labels = [*dict.fromkeys([*(name for c in compared for name in c.strategies), *sorted(few_shot)])]
    if label is not None and label not in labels and called(label) not in labels:
        hint = did_you_mean(label, labels) if labels else "there are no strategies to compare"
        raise UsageError(f"--baseline: unknown strategy '{label}'; {hint}")


def _write_tables(sections: Sequence[Section], folder: Path) -> None:
    """Write each table as Markdown, CSV and LaTeX, and remove tables that only an earlier report had."""
    written: set[Path] = set()
    for section in sections:
        for table in (table for block in section.blocks for table in block.tables):
            name = f"{slug(section.where)}_{table.slug}"
            numbered = (f"{name}-{k}" if k > 1 else name for k in itertools.count(1))
            name = next(candidate for candidate in numbered if folder / f"{candidate}.md" not in written)
            contents = {"md": table.markdown(), "csv": table.csv(), "tex": latex(table, section.title, name)}
            for suffix, content in contents.items():
                path = folder / f"{name}.{suffix}"
                atomic_write(path, content)
                written.add(path)
    for path in folder.glob("*"):
        if path not in written and path.suffix in (".md", ".csv", ".tex"):
            path.unlink(missing_ok=True)


def _markdown(report: Report, commands: Sequence[str], date: str, options: Options) -> str:
    figures: dict[str, list[Path]] = {}
    for path in report.figures:
        figures.setdefault(path.stem, []).append(path)
    return templates().get_template("summary.md").render(
        report=report, commands=commands, date=date, version=VERSION, figures=figures,
        finished=sum(record.status == "finished" for record in report.records),
        runs=runs_table(report.records, report.excluded),
        defined=definitions(report.sections), other_units=other_units(r for r in report.records if r.finished),
        code=code, link=link, markdown=markdown, more=more_formats(options.formats),
    )  # fmt: skip
