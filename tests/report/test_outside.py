"""A browser runs the page of a report, and LaTeX typesets its tables; skipped without them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from xclrun.report.write import write_report

from .study import study
from .test_page import attacked as attacked
from .test_page import small

pytestmark = pytest.mark.full

# What a reader does with the page; the answer is left in its title as JSON.
PROBE = """
const answer = {};
const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
const value = (cell) => cell.dataset.v ?? cell.textContent;
const column = (table, k) => [...table.tBodies[0].rows].map((row) => value(row.cells[k]));
answer.tables = [...document.querySelectorAll("table")].filter((t) => t.tHead).map((table) => {
  const before = column(table, 0).length, heads = [...table.tHead.rows[0].cells];
  const sorted = heads.map((head, k) => {
    head.click();
    const up = column(table, k), told = head.getAttribute("aria-sort");
    press(head, "Enter");
    return { up, down: column(table, k), told: [told, head.getAttribute("aria-sort")] };
  });
  return { before, sorted, marked: heads.filter((head) => head.hasAttribute("aria-sort")).length };
});
const box = document.getElementById("runs-behind"), cell = document.querySelector("td[data-r]");
cell.click();
answer.opened = getComputedStyle(box).display;
answer.behind = [...box.querySelectorAll("li a")].map((a) => [a.textContent, document.querySelector(a.hash) !== null]);
answer.focusable = [...document.querySelectorAll("[data-r], thead th")].every((one) => one.tabIndex === 0);
press(document.body, "Escape");
answer.closed = getComputedStyle(box).display;
press(cell, "Enter");
answer.reopened = getComputedStyle(box).display;
box.querySelector("button").click();
answer.closedAgain = getComputedStyle(box).display;
document.querySelectorAll("details").forEach((d) => { d.open = true; });
// Rest the pointer on every mark that has something to tell: it, or a mark over it, must be what the pointer finds.
const places = (mark) => {
  const shape = mark.querySelector(":is(path, use, rect, image):not(defs *)") ?? mark;
  if (shape.getTotalLength && getComputedStyle(shape).fill === "none") {
    const at = (share) => shape.getPointAtLength(shape.getTotalLength() * share).matrixTransform(shape.getScreenCTM());
    const near = Array.from({ length: 12 }, (_, k) => at(0.5 - 0.004 * k));  // some are gaps between dashes
    return near.map(({ x, y }) => [x, y]);
  }
  const { left, top, width, height } = shape.getBoundingClientRect();
  return [[left + width / 2, top + height / 2]];
};
answer.figures = [...document.querySelectorAll("figure.plot svg")].map((svg) => {
  const told = [...svg.querySelectorAll("title")].map((title) => title.parentNode).filter((mark) => mark !== svg);
  const missed = told.filter((mark) => {
    mark.scrollIntoView({ block: "center", inline: "center", behavior: "instant" });
    const hits = places(mark).map(([x, y]) => document.elementFromPoint(x, y));
    return !hits.some((hit) => hit !== null && svg.contains(hit) && hit.closest("g:has(> title)") !== null);
  });
  const name = svg.closest("figure").querySelector("figcaption").firstChild.textContent.trim();
  const shrunk = svg.getBoundingClientRect().width / parseFloat(getComputedStyle(svg).getPropertyValue("--wide"));
  return { name, shrunk, marks: told.length, missed: missed.map((mark) => mark.querySelector("title").textContent) };
});
const root = document.scrollingElement, wide = () => [root.scrollWidth, root.clientWidth];
answer.width = wide();
// No window of a headless browser is narrower than 500 pixels: a phone's 400 are 500 of a larger size.
document.documentElement.style.zoom = 1.25;
answer.narrow = wide();
document.documentElement.style.zoom = 1;
document.body.replaceChildren(document.createTextNode("ANSWER" + JSON.stringify(answer) + "ANSWER"));
"""

# Whether anything ran, or could.
WATCH = """
setTimeout(() => {
  const every = [...document.querySelectorAll("*")];
  document.querySelectorAll("details").forEach((d) => { d.open = true; });
  document.querySelectorAll("td[data-r]").forEach((cell) => cell.click());
  const answer = {
    hit: globalThis.hit ?? null,
    scripts: document.scripts.length,
    handlers: every.filter((one) => [...one.attributes].some(({ name }) => name.startsWith("on"))).length,
    links: [...document.links].map((one) => one.getAttribute("href")).filter((to) => !/^(#|figures\\/)/.test(to)),
  };
  document.body.replaceChildren(document.createTextNode("ANSWER" + JSON.stringify(answer) + "ANSWER"));
}, 200);
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("outside")
    write_report(small(("naive", "er", "lang_spec_ft"), (1, 2, 3)), out, "outside", ["xclrun report"])
    return out


def probed(page: Path, profile: Path, width: int, probe: str = PROBE) -> dict[str, Any]:
    """Open the page in a browser's window of so many pixels, act on it, and return what was seen."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium here")
    acted = page.with_name(f"probe-{width}.html")
    text = page.read_text(encoding="utf-8").replace("</body>", f"<script>{probe}</script></body>")
    acted.write_text(text, encoding="utf-8")
    output = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", f"--user-data-dir={profile}", f"--window-size={width},900",
         "--virtual-time-budget=5000", "--dump-dom", acted.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    answer = re.search(r"ANSWER(.*)ANSWER", output.stdout, re.DOTALL)
    assert answer, output.stdout[-500:] + output.stderr[-500:]
    result: dict[str, Any] = json.loads(answer[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    return result


def rank(value: str) -> tuple[int, float]:
    """Sort numbers and bounds of p-values first, then words, then missing values."""
    if value.startswith(("–", "n/a")):
        return 2, 0.0
    try:
        return 0, float(value.removeprefix("< "))
    except ValueError:
        return 1, 0.0


@pytest.mark.parametrize("width", [1400, 500])
def test_a_browser_runs_the_page(written: Path, tmp_path: Path, width: int) -> None:
    seen = probed(written / "index.html", tmp_path / "profile", width)
    assert len(seen["tables"]) > 5
    for table in seen["tables"]:
        assert table["marked"] == 1
        for one in table["sorted"]:
            assert one["told"] == ["ascending", "descending"]
            assert len(one["up"]) == table["before"]
            assert sorted(one["up"]) == sorted(one["down"])
            up, down = ([rank(value) for value in one[side]] for side in ("up", "down"))
            assert up == sorted(up), one["up"]
            kinds = [kind for kind, _ in down]
            assert kinds == sorted(kinds), one["down"]
            numbers = [number for kind, number in down if kind == 0]
            assert numbers == sorted(numbers, reverse=True)
    assert (seen["opened"], seen["closed"], seen["reopened"], seen["closedAgain"]) == ("block", "none", "block", "none")
    assert seen["behind"]
    assert all(found for _, found in seen["behind"])
    assert seen["focusable"]
    marks = {figure["name"]: figure["marks"] for figure in seen["figures"]}
    # What these two say is written in them.
    assert {name for name, count in marks.items() if count == 0} == {"p-values of all pairs"}
    for figure in seen["figures"]:
        assert figure["missed"] == [], figure
        # Words of 7 points can be read in drawings that are not much smaller than they were made.
        assert 0.79 < figure["shrunk"] < 1.51, figure
    # Wide tables and figures scroll, the page does not.
    assert seen["width"][0] <= seen["width"][1]
    assert seen["narrow"][0] <= seen["narrow"][1]


def test_a_browser_runs_nothing_that_a_name_holds(attacked: Path, tmp_path: Path) -> None:
    seen = probed(attacked / "index.html", tmp_path / "profile", 1000, WATCH)
    assert seen == {"hit": None, "scripts": 3, "handlers": 0, "links": []}  # the page's two, and the watch


def test_latex_sets_every_table(tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("no LaTeX here")
    report = tmp_path / "report"
    records = study(("naive", "er", "lang_spec_trans", "lang_spec_ft"), ("h2l", "l2h", "order3"), (1, 2, 3))
    write_report(records, report, "outside & co", ["xclrun report"])
    tables = sorted(report.rglob("*.tex"))
    assert len(tables) > 3
    kinds = {table: re.search(r"table\*|table|column", table.read_text(encoding="utf-8"))[0] for table in tables}  # type: ignore[index]
    assert {"table*", "column"} <= set(kinds.values())
    inputs = "\n".join(
        f"\\onecolumn\\input{{{table}}}\\twocolumn" if kind == "column"
        else f"\\begin{{{kind}}}\\input{{{table}}}\\end{{{kind}}}\\clearpage"
        for table, kind in kinds.items()
    )  # fmt: skip
    preamble = "\\documentclass[twocolumn]{article}\\usepackage{booktabs,threeparttable,longtable}"
    preamble += "\\setlength{\\textwidth}{455pt}\\begin{document}"  # of the ACL's style
    (tmp_path / "all.tex").write_text(f"{preamble}\n{inputs}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=120)
    assert done.returncode == 0, done.stdout[-1500:]
    assert (tmp_path / "all.pdf").stat().st_size > 1000
    log = " ".join(done.stdout.split())
    assert "Overfull \\hbox" not in log
    assert "too large for page" not in log
