"""The page: whole, self-contained, and every number leads to its runs."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.conftest import blank_figures, some
from xclrun.analysis.record import RunRecord
from xclrun.command.report import _of_paper
from xclrun.report.page import _drawn
from xclrun.report.part import Plot
from xclrun.report.svg import TIP
from xclrun.report.tables import Table
from xclrun.report.write import write_report

from .study import run, table_html

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Reader(HTMLParser):
    """Checks that elements are closed in order, and gathers what the tests ask for."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


ONE = {"metrics": ("intent_accuracy",), "curve": ()}


def small(strategies: tuple[str, ...], seeds: tuple[int, ...]) -> list[RunRecord]:
    """Runs of one metric without training curves, whose figures are quickly drawn."""
    orders = {"h2l": ("en", "de", "th"), "l2h": ("th", "de", "en")}
    return [
        run(name, order, seed, keys, **ONE) for name in strategies for order, keys in orders.items() for seed in seeds
    ]


ALARM = "hit=1"
HOSTILE = (
    f"<img src=x onerror={ALARM}>",
    f"'\"><script>{ALARM}</script>",
    f"a (b) [c](javascript:{ALARM}) `$\\frac$",
    f"<!--<script>{ALARM}//</svg>",
    "100%20 #1?x=&lt;&amp;",
)


def hostile() -> list[RunRecord]:
    """Runs in which everything that a person names is an attempt to run a script, or breaks a link."""
    dataset, model, order, language, strategy = HOSTILE
    return [
        run(name, order, seed, ("en", language), run_id=f"{k}{seed}", dataset=dataset, model=model, **ONE)
        for k, name in enumerate(("naive", strategy))
        for seed in (1, 2)
    ]


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of them."""
    out = tmp_path_factory.mktemp("attacked")
    with blank_figures(drawn=True):
        write_report(hostile(), out, f"</title>{HOSTILE[1]}", [f"xclrun {name}" for name in HOSTILE])
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    records = small(("naive", "er", "lang_spec_ft"), (1, 2))
    records.append(run("er", "h2l", 9, ("en", "de", "th"), status="failed"))
    out = tmp_path_factory.mktemp("page") / "<b> & co"
    with blank_figures(drawn=True):
        write_report(records, out, "<b> & co", ["xclrun report '<b> & co'", "xclrun sweep=mine -m"])
    return out


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "index.html").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_all_sections_are_in_the_main_landmark(page: str) -> None:
    """Screen readers jump to it."""
    before, main, after = re.split(r"</?main>", page)
    assert "<h2" in main
    assert "<h2" not in before + after


def test_nothing_is_loaded_from_elsewhere(read: Reader) -> None:
    for tag, attributes in some(read.tags):
        assert tag not in ("link", "img", "iframe")
        assert "src" not in attributes
        target = attributes.get("href") or attributes.get("xlink:href") or "#"
        assert target.startswith(("#", "figures/", "data:image/png;")), target


def test_links_lead_somewhere(read: Reader, folder: Path) -> None:
    ids = {attributes["id"] for _, attributes in read.tags if "id" in attributes}
    for tag, attributes in some(read.tags):
        if tag == "a":
            target = attributes["href"] or ""
            assert (folder / target).is_file() if target.startswith("figures/") else target[1:] in ids, target


def test_every_number_of_the_main_table_has_its_runs(page: str, read: Reader) -> None:
    runs = json.loads(re.search(r'id="runs-data">(.*?)</script>', page)[1])  # type: ignore[index]
    table = page[page.index('id="t-intent_mean_over_orders_and_seeds"') :]
    row = re.search(r"<tr><th scope=row>er</th>(.*?)</tr>", table)[1]  # type: ignore[index]
    cells = re.findall(r"<td class=n data-v=([-\d.e]+) data-r=(\d+)", row)
    assert len(cells) == 5  # how many, F, T, T0 and FP
    assert {tuple(sorted(runs[int(k)])) for _, k in cells} == {("er-h2l-1", "er-h2l-2", "er-l2h-1", "er-l2h-2")}
    anchors = {a["id"] for _, a in read.tags if (a.get("id") or "").startswith("run-")}
    assert {f"run-{run_id}" for ids in runs for run_id in ids} <= anchors
    assert "run-er-h2l-9" in anchors  # listed, though it counts nowhere
    assert not any("er-h2l-9" in ids for ids in runs)


def test_text_is_escaped_and_commands_are_told(page: str) -> None:
    assert "<h1>&lt;b&gt; &amp; co</h1>" in page
    assert "<code>xclrun sweep=mine -m</code>" in page
    assert "<b> & co" not in page


def test_code_in_notes_is_set_as_code_and_the_rest_is_escaped(tmp_path: Path, undrawn: None) -> None:
    note = "score of `lang_spec_ft`, p < 0.05, `<img>`"
    item = "<li>score of <code>lang_spec_ft</code>, p &lt; 0.05, <code>&lt;img&gt;</code></li>"
    assert table_html(Table("T", ("a",), (("b",),), (note,), raised=(note,))).count(item) == 2
    # Equal strategies have a note in the section.
    naive = small(("naive",), (1,))
    write_report([*naive, *(replace(r, strategy="er", run_id=f"er-{r.run_id}") for r in naive)], tmp_path, "equal")
    assert "(<code>xclrun plan</code> warns" in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_names_that_attack_the_page_stay_text_and_their_figures_can_be_opened(attacked: Path) -> None:
    reader = Reader()
    reader.feed((attacked / "index.html").read_text(encoding="utf-8"))
    assert reader.open == []
    assert [tag for tag, _ in reader.tags].count("script") == 2  # the page's own: data and code
    assert not {tag for tag, _ in reader.tags} & {"img", "iframe", "object", "embed", "base", "form"}
    links = []
    for tag, attributes in reader.tags:
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
        if tag == "a":
            target = attributes["href"] or ""
            assert target.startswith(("#", "figures/")), target
            links += [target] if target.startswith("figures/") else []
    assert len(links) == len(set(links)) == 5  # figures
    for target in links:
        assert (attacked / unquote(target)).is_file(), target
    markdown = (attacked / "summary.md").read_text(encoding="utf-8")
    prose = re.sub(r"`[^`\n]*`", "", markdown)  # commands
    assert "<img" not in prose.split("## Figures")[0].split("\n", 2)[2]
    for target in re.findall(r"\]\((figures/[^)]*)\)", markdown):
        assert (attacked / unquote(target)).is_file(), target


def test_figures_tell_their_values_and_definitions_are_there(page: str) -> None:
    assert re.search(r"<title>er: −F -?[\d.]+, FP [\d.]+</title>", page)
    assert re.search(r"<title>th: [\d.]+ before its hop, [\d.]+ after it, [\d.]+ at the end</title>", page)
    assert "<title>er: mean of 2 runs</title>" in page
    assert f'"{TIP}' not in page
    for part in ("forgetting: best score", "excluded (1 failed)", "Scores are in percent", "@media print", "Budgets"):
        assert part in page
    assert page.count('<svg role="img" aria-label=') == 7


def test_captions_stand_above_figures_and_say_what_they_show(page: str, read: Reader) -> None:
    figures = re.findall(r'<figure class="plot".*?</figure>', page, re.DOTALL)
    assert len(figures) == page.count('<svg role="img"') > 0
    captions = []
    for figure in figures:
        assert figure.index("<figcaption>") < figure.index("<svg")
        caption = re.search(r"<figcaption>(.*?) <small>", figure)
        assert caption
        captions.append(re.sub("<[^>]*>", "", caption[1]))
        assert re.search(r'<g class="data-title">', figure)  # told above: not shown twice
    assert len(set(captions)) == len(captions)
    assert "Score matrices mini, tiny: h2l, mean over seeds (intent)" in captions


def test_the_page_opens_with_what_was_found_and_has_one_table_of_all_pairs(page: str) -> None:
    conclusions = page.index('<div class="found">')
    assert page.index("<h2") < conclusions < page.index("<figure")
    found = page[conclusions : page.index("</ul>", conclusions)]
    assert re.search(r"er forgets [\d.]+ points less than naive \([\d.]+ → [\d.]+; not significant, p = ", found)
    assert page.count('id="t-primary_comparisons_with_the_baseline"') == 1
    assert page.count("<li class=caveat>Caveat: replicates: 2 orders") == 1
    assert page.count('id="t-all_pairs_of_strategies"') == 1
    assert "pairs of strategies</figcaption>" not in page.replace("All pairs of strategies</figcaption>", "")


def test_only_the_primary_comparisons_are_open_and_they_have_one_p_value_each(page: str) -> None:
    folded = page[page.index('<details id="s0-exploratory">') :]
    folded = folded[: folded.index("</details>")]
    for table in ("t-do_strategies_differ", "t-all_pairs_of_strategies"):
        assert f'id="{table}"' in folded
    open_part = re.sub(r"<details.*?</details>", "", page, flags=re.DOTALL)
    heads = re.findall(r"<thead>.*?</thead>", open_part)
    assert [re.findall(r">(p\b[^<]*)<", head) for head in heads if ">p " in head] == [["p (Holm)"]]
    assert open_part.index("What was found") < open_part.index("Intent, mean over") < open_part.index("<svg")


@pytest.mark.parametrize("sweep", ["ccl_table8", "ll", "mine", "demo", "llama_grid", ""])
def test_captions_name_a_paper_s_figures_only_in_its_sweeps(sweep: str) -> None:
    plot = Plot("a", "Trade-offs", lambda: None, paper="CCL Fig. 4")
    caption = _drawn(plot, "<svg></svg>", ("svg",), _of_paper(sweep))["caption"]
    assert caption == ("Trade-offs (CCL Fig. 4)" if sweep in ("ccl_table8", "ll") else "Trade-offs")


@pytest.mark.full
def test_headings_skip_no_level_and_what_scrolls_can_be_focused(read: Reader) -> None:
    levels = [int(tag[1]) for tag, _ in read.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    drawn = [attributes for tag, attributes in read.tags if attributes.get("class") == "drawn"]
    assert len(drawn) == 7
    assert {attributes.get("tabindex") for attributes in drawn} == {"0"}


def test_texts_have_enough_contrast_in_light_and_dark_pages(page: str) -> None:
    """By WCAG 2.1: a ratio of at least 4.5."""

    def luminance(colour: str) -> float:
        digits = colour.lstrip("#")
        digits = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        parts = [int(digits[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = (
        dict(re.findall(r"--(\w+): (#\w+)", block)) for block in re.findall(r":root \{(.*?)\}", page, re.S)[:2]
    )
    for colours in (light, dark):
        for text in ("ink", "soft", "accent"):
            for ground in ("paper", "row", "found"):
                lower, upper = sorted(luminance(colours[name]) for name in (text, ground))
                assert (upper + 0.05) / (lower + 0.05) >= 4.5, (text, ground)


def test_the_page_is_the_same_for_the_same_records(tmp_path: Path, undrawn: None) -> None:
    """Figures too: `test_saved_figures_are_the_same_bytes_for_the_same_figure`."""

    def made(out: Path) -> str:
        write_report(small(("naive",), (1,)), out, "same")
        page, dates = re.subn(r"[\d-]{10} [\d:]{5} UTC", "", (out / "index.html").read_text(encoding="utf-8"))
        assert dates == 1  # Only the time of writing may differ: the two pages may be of different minutes.
        return page

    assert made(tmp_path / "a") == made(tmp_path / "b")
