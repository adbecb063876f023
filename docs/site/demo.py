"""Update what the pages quote from the demo: make demo, then .venv/bin/python docs/site/demo.py.

A place lies between the lines ``<!-- demo: xclrun ARGUMENTS -->`` and ``<!-- end -->``. It gets the output of the
command, without the report's paths, in a fenced block. The picture of the README and the outputs of the notebook are
updated too. Texts outside these places are not changed, so read them afterwards.
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

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
PAGES = (CHECKOUT / "README.md", DOCS / "tutorial.md")
PLACE = re.compile(r"(<!-- demo: xclrun (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
# Figure of the report that is the README's picture.
FIGURE, PICTURE = "matrix_mini_tiny_order1_intent.png", DOCS / "images" / "demo.png"
WIDTH, COLORS = 1100, 128


def printed(arguments: str, outputs: Path) -> str:
    """Return the output of a command in a terminal of 80 columns, without the lines about a report's files."""
    command = [sys.executable, "-m", "xclrun", *shlex.split(arguments), "--outputs", str(outputs)]
    done = subprocess.run(command, env=os.environ | {"COLUMNS": "80"}, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout.partition("\nOpen ")[0].strip("\n")


def fill(page: Path, outputs: Path) -> None:
    """Fill the places of a page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(
        PLACE.sub(lambda place: f"{place[1]}```text\n{printed(place[2], outputs)}\n```\n{place[3]}", text),
        encoding="utf-8",
    )


def draw(outputs: Path) -> None:
    """Write the README's picture: a figure of the report, small and with few colors."""
    from PIL import Image

    printed("report demo --formats png", outputs)
    with Image.open(outputs / "reports" / "demo" / "figures" / FIGURE) as figure:
        size = WIDTH, round(figure.height * WIDTH / figure.width)
        figure.convert("RGB").resize(size, Image.Resampling.LANCZOS).quantize(COLORS).save(PICTURE, optimize=True)


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
