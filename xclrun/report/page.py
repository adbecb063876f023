"""Render `index.html`: one self-contained page with sortable tables, figures, and the runs behind each cell.

``templates/page.html`` escapes every value that this module does not mark as safe.
"""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from xclrun.analysis.record import RunRecord
from xclrun.core.names import link, slug
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME
from xclrun.core.version import VERSION
from xclrun.report.part import Plot
from xclrun.report.report import Report
from xclrun.report.section import Section
from xclrun.report.style import TITLE, more_formats
from xclrun.report.tables import Cell, Table

if TYPE_CHECKING:
    from jinja2 import Environment


def page(
    report: Report,
    date: str,
    commands: Sequence[str],
    drawings: Mapping[str, str],
    formats: Sequence[str],
    of_paper: bool = False,
) -> str:
    """Return the page as HTML.

    Args:
        commands: command lines of the report and its runs.
        drawings: name of a figure → SVG; figures without a drawing are skipped.
        formats: formats of the figures in addition to SVG.
        of_paper: captions name the figures of the paper that the report redraws.
    """
    runs, sections = runs_table(report.records, report.excluded), report.sections
    tables = [table for section in sections for block in section.blocks for table in block.tables]
    # Give each set of runs an index, so that a set used by several cells is stored only once.
    behind = dict.fromkeys(
        cell.runs for table in tables for row in table.rows for cell in row if isinstance(cell, Cell) and cell.runs
    )
    run_sets = {ids: k for k, ids in enumerate(behind)}
    drawn = {
        plot.name: _drawn(plot, drawings[plot.name], ("svg", *formats), of_paper)
        for section in sections for block in section.blocks for plot in block.plots if plot.name in drawings
    }  # fmt: skip
    blocks = [
        [block for block in section.blocks if block.tables or any(plot.name in drawn for plot in block.plots)]
        for section in sections
    ]
    finished = [record for record in report.records if record.status == "finished"]
    return templates().get_template("page.html").render(
        name=report.name, date=date, version=VERSION, commands=commands, finished=finished,
        defined=definitions(sections), sections=list(zip(sections, blocks, strict=True)), drawn=drawn,
        report_caveats=report.caveats, environment=_environment(finished), runs=runs, run_sets=run_sets,
        run_sets_json=_json([list(ids) for ids in run_sets]), css=_asset("page.css"), js=_asset("page.js"),
        more=more_formats(formats), other_units=other_units(finished),
    )  # fmt: skip


def definitions(sections: Iterable[Section]) -> dict[str, str]:
    return {name: text for section in sections for name, text in section.definitions.items()}


def other_units(records: Iterable[RunRecord]) -> str:
    """Name the units of metrics that are not in percent, and metrics of which lower is better; empty without any."""
    metrics = dict.fromkeys(BY_NAME[metric] for record in records for metric in record.metrics)
    others = [metric for metric in metrics if metric.quantity.scale != SHARE.scale]
    units = "".join(f"; {metric.title} and their differences in {metric.unit}" for metric in others)
    negated = " and ".join(metric.title for metric in metrics if not metric.higher_is_better)
    return f"{units}; F, T and T0 of {negated} are those of −score, because lower is better" if negated else units


def runs_table(records: Iterable[RunRecord], excluded: Mapping[str, tuple[str, str]] | None = None) -> Table:
    """Return a table with a row for each run, finished or not. The row of an unreadable run has only ID and state."""
    states = {run: state for run, (state, _) in (excluded or {}).items()}
    header = ("run", "dataset", "model", "strategy", "order", "seed", "K", "bucket", "code", "algorithms", "data",
              "status")  # fmt: skip
    rows = []
    for r in sorted(
        records, key=lambda r: (r.dataset, r.model, r.strategy, r.order, r.seed, r.shots or 0, r.bucket or 0, r.run_id)
    ):
        k, bucket = ("–" if value is None else value for value in (r.shots, r.bucket))
        settings = (r.run_id, r.dataset, r.model, r.strategy, r.order, r.seed, k, bucket)
        status = states.pop(r.run_id, r.status)
        rows.append(tuple(map(str, (*settings, r.code_version, r.algorithms, r.data_fingerprint[:12], status))))
    rows += [(run, *["–"] * (len(header) - 2), state) for run, state in sorted(states.items())]
    return Table("Runs", header, tuple(rows), left=len(header))


def _drawn(plot: Plot, svg: str, suffixes: Sequence[str], of_paper: bool) -> dict[str, Any]:
    """Return the values of the template's macro ``plot``; title and width are read from the SVG."""
    from markupsafe import Markup

    drawing = svg[svg.index("<svg") :]
    titled = re.search(rf'<svg[^>]*? {TITLE}="([^"]*)"', drawing)
    title = html.unescape(titled[1]) if titled else ""
    width = re.search(r'<svg[^>]*?width="([\d.]+)pt"', drawing)
    label = Markup('<svg role="img" aria-label="{}"').format(": ".join(filter(None, (plot.caption, title))))
    return {
        "caption": f"{plot.caption} ({plot.paper})" if of_paper and plot.paper else plot.caption,
        "title": title,
        "width": f"{float(width[1]) * 1.2:.0f}" if width else "",
        "files": {suffix: link("figures", f"{slug(plot.name)}.{suffix}") for suffix in suffixes},
        "svg": Markup(drawing.replace("<svg", label, 1)),
    }


def _environment(finished: Sequence[RunRecord]) -> dict[str, str]:
    """Return the environment of the runs: name → value. If runs differ, list all values with their numbers of runs."""
    facts: dict[str, Counter[str]] = {}
    for record in finished:
        values = {k: v for k, v in record.environment.items() if k != "started"} | {"code": record.code_version}
        for key, value in values.items():
            facts.setdefault(key, Counter())[str(value)] += 1
    return {
        key: ", ".join(value if len(counts) == 1 else f"{value} ({n} runs)" for value, n in sorted(counts.items()))
        for key, counts in facts.items()
    }


@cache
def templates() -> Environment:
    """Return the Jinja environment of ``templates/``; values are escaped for HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("xclrun.report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["cell"] = lambda text: text if isinstance(text, Cell) else Cell(text)
    environment.filters["inline_code"] = _inline_code
    return environment


def _inline_code(text: str) -> str:
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _json(content: object) -> str:
    from markupsafe import Markup

    # Escape every "<": "</script" would end the element, "<!--" would begin a comment in it.
    return Markup(json.dumps(content).replace("<", "\\u003c"))


def _asset(name: str) -> str:
    from markupsafe import Markup

    loader = templates().loader
    assert loader is not None
    return Markup(loader.get_source(templates(), name)[0])
