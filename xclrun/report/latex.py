"""Tables for LaTeX with booktabs; the output is plain ASCII."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from xclrun.report.tables import Cell, Table

_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "–": "--", "−": "$-$", "→": r"$\rightarrow$", "≥": r"$\geq$", "Δ": r"$\Delta$", "ρ": r"$\rho$", "η": r"$\eta$",
        "²": "$^2$", "≤": r"$\leq$", "·": r"$\cdot$", "<": "$<$", ">": "$>$", "≠": r"$\neq$", "∞": r"$\infty$",
        "×": r"$\times$", "√": r"$\surd$", "∩": r"$\cap$", "∪": r"$\cup$", "…": r"\ldots{}", "‰": r"\textperthousand{}",
        "α": r"$\alpha$", "β": r"$\beta$", "′": "$'$", "“": "``", "”": "''", "—": "---",
        # After the end of a row, LaTeX would read a bare bracket as an option.
        "[": "{[}"}  # fmt: skip


# Widths in points: `\textwidth` of a two-column page (ACL's style; 469 in the class article) and one of its columns,
# less a margin for estimates.
PAGE, COLUMN = 445.0, 212.0
SEPARATION = 6.0  # points between columns
TALL = 45  # with more rows in all its grids, a table breaks across pages
SIZE = "\\footnotesize\\setlength{\\tabcolsep}{3pt}"
# Estimated widths of characters in points, in Computer Modern of 8 points (footnotesize); see `_width`.
_NARROW, _WIDE = set(" fijlrst.,:;|'!()[]/I-"), set("mwMW%")


def latex(table: Table, where: str = "", label: str = "") -> str:
    """Return a table for LaTeX, captioned with its title and ``where``, with notes below.

    It fits the width of a two-column page: columns that do not fit continue in a second grid below, with the columns of
    names repeated. A table that is higher than a page is a `longtable`, for a page with one column.
    """
    caption = _tex(f"{table.title} ({where})" if where else table.title)
    identifier = re.sub(r"[^a-z0-9]+", "-", label or table.slug).strip("-")
    widths = [_column_width(table, k) for k in range(len(table.header))]
    blocks = _blocks(widths, table.left)
    captioned = [f"\\caption{{{caption}}}", f"\\label{{tab:{identifier}}}"]
    notes = [*table.notes, *table.raised]
    if len(table.rows) * len(blocks) > TALL:
        lines = ["% \\input this file where the page has one column; needs the packages booktabs and longtable"]
        lines += ["\\begingroup", SIZE, "\\providecommand{\\tnote}[1]{\\textsuperscript{#1}}"]
        for k, (columns, room) in enumerate(blocks):
            head = [_row([table.header[c] for c in columns], columns, room), "\\midrule"]
            first = [f"{''.join(captioned)} \\\\"] if k == 0 else []
            lines += [f"\\begin{{longtable}}{{{_specification(table, columns, room)}}}", *first, "\\toprule", *head]
            lines += ["\\endfirsthead", "\\toprule", *head, "\\endhead", "\\bottomrule", "\\endfoot"]
            lines += [*_body(table, columns, room), "\\end{longtable}"]
        lines += [rf"\noindent {_tex(note)}\par" for note in notes]
        return "\n".join([*lines, "\\endgroup"]) + "\n"
    fits = len(blocks) == 1 and sum(widths) + SEPARATION * len(widths) <= COLUMN
    star = "" if fits else "*"
    lines = [
        f"% \\begin{{table{star}}} \\input{{this file}} \\end{{table{star}}}; needs booktabs and threeparttable",
        "\\begin{threeparttable}",
        f"{SIZE}\\renewcommand{{\\TPTminimum}}{{\\linewidth}}\\centering",
        *captioned,
    ]
    for k, (columns, room) in enumerate(blocks):
        lines += ["", "\\medskip"] if k else []
        lines += [f"\\begin{{tabular}}{{{_specification(table, columns, room)}}}", "\\toprule"]
        lines += [_row([table.header[c] for c in columns], columns, room), "\\midrule", *_body(table, columns, room)]
        lines += ["\\bottomrule", "\\end{tabular}"]
    if notes:
        lines += ["\\begin{tablenotes}\\footnotesize\\raggedright", *map(_tex_note, notes), "\\end{tablenotes}"]
    return "\n".join([*lines, "\\end{threeparttable}"]) + "\n"


def _column_width(table: Table, column: int) -> float:
    return max(_width(row[column]) for row in (table.header, *table.rows))


def _width(text: str) -> float:
    """Return the estimated width of a cell in points; estimates are rather too large."""
    points = sum(
        3.4 if c in _NARROW else 7.8 if c in _WIDE or not c.isascii() else 6.5 if c.isupper() else 4.8 for c in text
    )
    is_bold, mark = (text.best, len(text.mark)) if isinstance(text, Cell) else (False, 0)
    return (1.15 if is_bold else 1.0) * points + 3.5 * mark


def _blocks(widths: Sequence[float], left: int) -> list[tuple[list[int], dict[int, float]]]:
    """Distribute the columns over as few grids as possible, each of which fits the page.

    Returns:
        For each grid its columns, and column → width of the columns whose cells are wrapped.
    """
    names, wrapped = list(range(left)), dict[int, float]()
    room = PAGE / 2 - SEPARATION * left
    while sum(wrapped.get(k, widths[k]) for k in names) > room and len(wrapped) < left:
        # Wrap the widest column of names.
        widest = max((k for k in names if k not in wrapped), key=lambda k: widths[k])
        rest = sum(wrapped.get(k, widths[k]) for k in names if k != widest)
        wrapped[widest] = max(room - rest, room / left)
    rest = PAGE - sum(wrapped.get(k, widths[k]) + SEPARATION for k in names)
    blocks: list[list[int]] = [[]]
    used = 0.0
    for k in range(left, len(widths)):
        if widths[k] + SEPARATION > rest:
            wrapped[k] = rest - SEPARATION
        width = wrapped.get(k, widths[k]) + SEPARATION
        if blocks[-1] and used + width > rest:
            blocks.append([])
            used = 0.0
        blocks[-1].append(k)
        used += width
    return [([*names, *block], wrapped) for block in blocks]


def _specification(table: Table, columns: Sequence[int], wrapped: Mapping[int, float]) -> str:
    return "".join(f"p{{{wrapped[k]:.0f}pt}}" if k in wrapped else "l" if k < table.left else "r" for k in columns)


def _row(cells: Sequence[str], columns: Sequence[int], wrapped: Mapping[int, float]) -> str:
    texts = (
        f"{{\\raggedright {_breakable(cell)}\\par}}" if k in wrapped else _tex_cell(cell)
        for k, cell in zip(columns, cells, strict=True)
    )
    return " & ".join(texts) + " \\\\"


def _body(table: Table, columns: Sequence[int], wrapped: Mapping[int, float]) -> Iterator[str]:
    for k, row in enumerate(table.rows):
        if k in table.ruled:
            yield "\\midrule"
        yield _row([row[c] for c in columns], columns, wrapped)


def _breakable(cell: str) -> str:
    """Return a cell that breaks after punctuation too, as names of settings have few spaces."""
    return re.sub(r"(\\_|[=,(:;/.+])(?=\w)", r"\1\\allowbreak{}", _tex_cell(cell))


def _tex(text: str) -> str:
    # Every second piece was between backticks, so it is code.
    pieces = [
        re.sub(r"(?<![\w.])-(?=\d)", "$-$", "".join(_TEX.get(character, character) for character in piece))
        for piece in re.split(r"`([^`]+)`", text)
    ]
    return "".join(rf"\texttt{{{piece}}}" if k % 2 else piece for k, piece in enumerate(pieces))


def _tex_cell(cell: str) -> str:
    reason = re.fullmatch(r"(.*) \[(\d+)\]", cell)
    text = rf"{_tex(reason[1])}\tnote{{{reason[2]}}}" if reason else _tex(cell)
    if isinstance(cell, Cell):
        text = rf"\textbf{{{text}}}" if cell.best else text
        text += rf"\tnote{{{cell.mark}}}" if cell.mark else ""
    return text


def _tex_note(note: str) -> str:
    """Return a note as a LaTeX item. A footnote mark or significance marks at its beginning become the item's label."""
    marked = re.fullmatch(r"(?:\[(\d+)\]|(\*[* ]*):) (.*)", note, re.DOTALL)
    if marked is None:
        return rf"\item {_tex(note)}"
    return rf"\item[{marked[1] or marked[2].replace(' ', ', ')}] {_tex(marked[3])}"
