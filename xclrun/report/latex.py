"""Tables for LaTeX with booktabs; the output is plain ASCII."""

from __future__ import annotations

import re

from xclrun.report.tables import Cell, Table

_TEX = {"&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}", "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}", "\\": r"\textbackslash{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$",
        "–": "--", "−": "$-$", "→": r"$\rightarrow$", "≥": r"$\geq$", "Δ": r"$\Delta$", "ρ": r"$\rho$", "η": r"$\eta$",
        "²": "$^2$", "≤": r"$\leq$", "·": r"$\cdot$", "<": "$<$", ">": "$>$", "≠": r"$\neq$", "∞": r"$\infty$",
        "×": r"$\times$", "√": r"$\surd$", "∩": r"$\cap$", "∪": r"$\cup$", "…": r"\ldots{}", "‰": r"\textperthousand{}",
        "α": r"$\alpha$", "β": r"$\beta$", "′": "$'$", "“": "``", "”": "''", "—": "---",
        # After the end of a row, LaTeX would read a bare bracket as an option.
        "[": "{[}"}  # fmt: skip


def latex(table: Table, where: str = "", label: str = "") -> str:
    """Return a table for LaTeX, captioned with its title and ``where``, with notes below."""
    caption = f"{table.title} ({where})" if where else table.title
    columns = "l" * table.left + "r" * (len(table.header) - table.left)
    identifier = re.sub(r"[^a-z0-9]+", "-", label or table.slug).strip("-")
    lines = [
        "% \\begin{table} \\input{this file} \\end{table}; needs the packages booktabs and threeparttable",
        "\\begin{threeparttable}",
        f"\\caption{{{_tex(caption)}}}",
        f"\\label{{tab:{identifier}}}",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        " & ".join(map(_tex, table.header)) + " \\\\",
        "\\midrule",
    ]
    for k, row in enumerate(table.rows):
        lines += ["\\midrule"] if k in table.ruled else []
        lines.append(" & ".join(map(_tex_cell, row)) + " \\\\")
    lines += ["\\bottomrule", "\\end{tabular}"]
    if notes := [*table.notes, *table.raised]:
        lines += ["\\begin{tablenotes}\\footnotesize", *map(_tex_note, notes), "\\end{tablenotes}"]
    return "\n".join([*lines, "\\end{threeparttable}"]) + "\n"


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
