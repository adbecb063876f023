"""Update what the pages quote from the demo: make demo, then .venv/bin/python docs/site/demo.py.

A place lies between the lines ``<!-- demo: xclrun ARGUMENTS; FROM … TO -->`` and ``<!-- end -->``. It gets the lines of
the command's output from the first one that begins with FROM to the one before TO, in a fenced block. The picture of
the README and the outputs of the notebook are updated too. Texts outside these places do not change: read them then.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import xclrun

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
PAGES = (CHECKOUT / "README.md", DOCS / "tutorial.md")
PLACE = re.compile(r"(<!-- demo: xclrun ([^\n]*?); ([^\n]*?) … ([^\n]*?) -->\n).*?(<!-- end -->)", re.DOTALL)
# Figure of the report that is the README's picture.
FIGURE, PICTURE = "matrices_mini_tiny_order1_intent.png", DOCS / "images" / "demo.png"
WIDTH, COLORS = 1100, 128


def printed(arguments: str, outputs: Path) -> str:
    """Return the output of a command in a terminal of 80 columns."""
    command = [sys.executable, "-m", "xclrun", *shlex.split(arguments), "--outputs", str(outputs)]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(command, cwd=CHECKOUT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


def fill(page: Path, outputs: Path) -> None:
    """Fill the places of a page; raise a ValueError if an output lacks the lines of a place."""

    def filled(place: re.Match[str]) -> str:
        before, arguments, first, last, end = place.groups()
        text = "\n" + printed(arguments, outputs)
        start = text.index(f"\n{first}") + 1
        lines = text[start : text.index(f"\n{last}", start)].strip("\n")
        return f"{before}```text\n{lines}\n```\n{end}"

    text = page.read_text(encoding="utf-8")
    page.write_text(PLACE.sub(filled, text), encoding="utf-8")


def draw(outputs: Path) -> None:
    """Write the README's picture: a figure of the report, small and with few colors, and the strategies as metadata."""
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    labels = PngInfo()
    labels.add_text("labels", " ".join(xclrun.load(str(outputs)).sweep("demo").runs()["strategy"].unique()))
    printed("report demo --from-runs --formats png", outputs)
    with Image.open(outputs / "reports" / "demo" / "figures" / FIGURE) as figure:
        size = WIDTH, round(figure.height * WIDTH / figure.width)
        figure.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(COLORS).save(
            PICTURE, optimize=True, pnginfo=labels
        )


def shown(value: Any) -> dict[str, list[str]]:
    """Return a value as a notebook shows it: type → lines."""
    data = {"text/plain": repr(value)}
    if hasattr(value, "_repr_html_"):
        data["text/html"] = value._repr_html_()
    return {kind: text.splitlines(keepends=True) for kind, text in data.items()}


def execute(notebook: Path) -> None:
    """Run the code cells of a notebook in its folder, and store their outputs."""
    content, names, number = json.loads(notebook.read_text(encoding="utf-8")), dict[str, Any](), 0
    os.chdir(notebook.parent)
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            *statements, last = ast.parse("".join(cell["source"])).body
            assert isinstance(last, ast.Expr)
            exec(compile(ast.Module(statements, []), notebook.name, "exec"), names)
            value = eval(compile(ast.Expression(last.value), notebook.name, "eval"), names)
            output = {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown(value)}
            cell |= {"execution_count": number, "outputs": [output]}
    notebook.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main(outputs: Path) -> None:
    for page in PAGES:
        fill(page, outputs)
    draw(outputs)
    execute(DOCS / "notebook.ipynb")


if __name__ == "__main__":
    main(CHECKOUT / "outputs" / "demo")
