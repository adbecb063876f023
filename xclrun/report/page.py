"""`index.html`: one self-contained page with everything: tables that sort, figures that tell, runs behind cells."""

from __future__ import annotations

import html
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from importlib import resources

import xclrun
from xclrun.analysis.record import RunRecord
from xclrun.core.names import escape, link, slug
from xclrun.report.sections import Part, Shown
from xclrun.report.style import TITLE
from xclrun.report.tables import Cell, Table

CAPTIONS = {
    "trade_offs": "Final performance, transfer and zero-shot transfer against negative forgetting",
    "distances": "Zero-shot gain by distance",
    "one_hop": "One-hop against multi-hop",
    "memory": "Replay by size of its memory",
    "p_values": "p-values of all pairs",
    "critical": "Critical differences of mean ranks",
    "learning_curves": "Score by hop and language",
    "matrices": "Score matrices",
    "training_curves": "Training curves",
    "confusions": "Confusion matrices",
    "example_curves": "Learning curves over sentences seen",
    "selection": "Checkpoint selection",
    "few_shot_histograms": "Scores over buckets and over seeds",
    "few_shot_jaccard": "Words that buckets have in common",
    "few_shot_improved": "Improved predictions by presence in the bucket",
    "few_shot_confusions": "Confusion matrices, zero-shot and few-shot",
    "few_shot_gains": "Gains against what languages share with the source",
    "few_shot_curves": "Learning curves of target adapting",
}


def page(
    name: str,
    made: str,
    commands: Sequence[str],
    sections: Sequence[Shown],
    figures: Mapping[str, str],
    records: Sequence[RunRecord],
    notes: Sequence[str],
) -> str:
    """Return the page.

    Args:
        name: of the report.
        made: when, for people.
        commands: what was typed to make it, and the runs.
        sections: what is said.
        figures: file name → SVG; a figure that is not there is left out.
        records: all runs, of any status.
        notes: about the report as a whole.
    """
    runs = runs_table(records)
    tables = [table for section in sections for part in section.parts for table in part.tables] + [runs]
    behind = _numbered(tables)
    finished = [record for record in records if record.status == "finished"]
    defined = {name: text for section in sections for name, text in section.definitions.items()}
    definitions = "".join(f"<dt>{escape(name)}</dt><dd>{_inline(text)}</dd>" for name, text in defined.items())
    body = [
        f"<header><h1>{escape(name)}</h1>",
        f"<p class=meta>{len(finished)} finished runs · made {escape(made)} by xclrun {xclrun.__version__}</p>",
        f"<dl class=definitions>{definitions}</dl>",
        "<p class=legend>Scores are percent, differences of scores are points; mean ± sample standard deviation over "
        "runs; ↑ higher is better, ↓ lower is better; <b>bold</b>: best of its column. Click a column's name to sort, "
        "a number to see the runs behind it; rest the pointer on a figure's marks.</p></header>",
        _navigation(sections),
        *(_section(k, section, figures, behind) for k, section in enumerate(sections)),
        "<h2 id=runs>Runs, environment and commands</h2>",
        _notes(notes),
        "".join(f"<p><code>{escape(command)}</code></p>" for command in commands),
        _environment(finished),
        f"<details open><summary>{len(records)} runs</summary>{_anchored(runs.html(behind))}</details>",
        '<aside id="runs-behind" aria-live=polite><button type=button aria-label=close>×</button>'
        "<b></b><ul></ul></aside>",
        f'<script type="application/json" id="runs-data">{_json([list(ids) for ids in behind])}</script>',
        f"<script>{_asset('page.js')}</script>",
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(name)} · xclrun</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def runs_table(records: Iterable[RunRecord]) -> Table:
    """Return all runs, finished or not, and what they are."""
    header = (
        "run",
        "dataset",
        "model",
        "strategy",
        "order",
        "seed",
        "K",
        "bucket",
        "code",
        "algorithms",
        "data",
        "status",
    )
    rows = []
    for r in sorted(
        records, key=lambda r: (r.dataset, r.model, r.strategy, r.order, r.seed, r.shots or 0, r.bucket or 0, r.run_id)
    ):
        k, bucket = ("–" if value is None else value for value in (r.shots, r.bucket))
        what = (r.run_id, r.dataset, r.model, r.strategy, r.order, r.seed, k, bucket)
        rows.append(tuple(map(str, (*what, r.code_version, r.algorithms, r.data_fingerprint[:12], r.status))))
    return Table("Runs", header, tuple(rows), left=len(header))


def _numbered(tables: Iterable[Table]) -> dict[tuple[str, ...], int]:
    """Number the sets of runs behind cells."""
    found: dict[tuple[str, ...], int] = {}
    for table in tables:
        for row in table.rows:
            for cell in row:
                if isinstance(cell, Cell) and cell.runs:
                    found.setdefault(cell.runs, len(found))
    return found


def _navigation(sections: Sequence[Shown]) -> str:
    links = []
    for k, section in enumerate(sections):
        links.append(f'<a href="#s{k}"><b>{escape(section.title)}</b></a>')
        links += [f'<a href="#s{k}-{i}">{escape(part.title)}</a>' for i, part in enumerate(section.parts)]
    return f'<nav aria-label="parts">{"".join(links)}<a href="#runs">Runs</a></nav>'


def _section(k: int, section: Shown, figures: Mapping[str, str], behind: Mapping[tuple[str, ...], int]) -> str:
    parts = [_part(f"s{k}-{i}", part, figures, behind) for i, part in enumerate(section.parts)]
    found = "".join(f"<p>{escape(text)}</p>" for text in section.findings)
    opening = f'<div class="found"><h3>What was found</h3>{found}</div>' if found else ""
    head = f'<h2 id="s{k}">{escape(section.title)}</h2>'
    return "\n".join([head, opening, _notes(section.notes), *parts])


def _part(anchor: str, part: Part, figures: Mapping[str, str], behind: Mapping[tuple[str, ...], int]) -> str:
    drawn = [_plot(name, figures[name]) for name, _ in part.figures if name in figures]
    if not drawn and not part.tables:
        return ""
    inside = [f"<p>{escape(part.text)}</p>" if part.text else "", *drawn, *(t.html(behind) for t in part.tables)]
    content, title = "\n".join(inside), escape(part.title)
    if part.folded:
        return f'<details id="{anchor}"><summary>{title}</summary>\n{content}\n</details>'
    return f'<h3 id="{anchor}">{title}</h3>\n{content}'


def _plot(name: str, svg: str) -> str:
    """Return a figure under its caption: its kind, its own title (which the page does not draw again), its files."""
    kind = next((k for k in CAPTIONS if name.startswith(k)), "")
    caption, drawing = CAPTIONS.get(kind, name), svg[svg.index("<svg") :]
    titled = re.search(rf'<svg[^>]*? {TITLE}="([^"]*)"', drawing)
    title = html.unescape(titled[1]) if titled else ""
    width = re.search(r'<svg[^>]*?width="([\d.]+)pt"', drawing)
    wide = f' style="--wide:{float(width[1]) * 1.2:.0f}px"' if width else ""
    files = " · ".join(
        f'<a href="{link("figures", f"{slug(name)}.{suffix}")}">{suffix}</a>' for suffix in ("png", "pdf", "svg")
    )
    label = f'<svg role="img" aria-label="{escape(": ".join(filter(None, (caption, title))))}"'
    return (
        f'<figure class="plot"{wide}><figcaption>{escape(caption)} <span>{escape(title)}</span> '
        f'<small>({files})</small></figcaption><div class="drawn">{drawing.replace("<svg", label, 1)}</div></figure>'
    )


def _environment(finished: Sequence[RunRecord]) -> str:
    """Tell on what the runs were made: each fact with how many runs it holds for."""
    facts: dict[str, Counter[str]] = {}
    for record in finished:
        told = {k: v for k, v in record.environment.items() if k != "started"} | {"code": record.code_version}
        for key, value in told.items():
            facts.setdefault(key, Counter())[str(value)] += 1
    rows = "".join(
        f"<dt>{escape(key)}</dt><dd>{escape(', '.join(_counted(values)))}</dd>" for key, values in facts.items()
    )
    return f"<dl class=definitions>{rows}</dl>"


def _counted(values: Counter[str]) -> list[str]:
    return [value if len(values) == 1 else f"{value} ({n} runs)" for value, n in sorted(values.items())]


def _notes(notes: Sequence[str]) -> str:
    return f"<ul class=notes>{''.join(f'<li>{escape(note)}</li>' for note in notes)}</ul>" if notes else ""


def _anchored(table: str) -> str:
    """Let links reach the row of a run."""
    return re.sub(r"<tr><th scope=row>([\w.+-]+)<", r'<tr id="run-\1"><th scope=row>\1<', table)


def _inline(text: str) -> str:
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def _json(content: object) -> str:
    # No "<" at all: "</script" would end the element, "<!--" would begin a comment in it.
    return json.dumps(content).replace("<", "\\u003c")


def _asset(name: str) -> str:
    return resources.files("xclrun.report").joinpath(name).read_text(encoding="utf-8")
