"""docs/results: the tables of a page hold the numbers beside it, and its findings those of its tables."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from xclrun.analysis.measures import MEASURES
from xclrun.report.tables import percent

RESULTS = Path(__file__).parents[1] / "docs" / "results"
OPENS = r"^<!-- report: ([^/\s]+)/(\S+)(?: once there is one)? -->\n"
PLACE = re.compile(OPENS + r"(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)
PAGES = {page: page.read_text(encoding="utf-8") for page in sorted(RESULTS.glob("*.md"))}
# Pages that have numbers beside them, and pages that say what was found apart from how it was made.
NUMBERED = [page for page, text in PAGES.items() if "/summary.csv -->\n" in text]
FOUND = [page for page, text in PAGES.items() if "\n## Findings\n" in text]
NUMBER = re.compile(r"(?<![\w.])[-+−]?\d+\.\d+(?![\w.])")


def rows(text: str) -> list[dict[str, str]]:
    """Return the rows of a Markdown table, column → cell."""
    lines = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines() if line[:1] == "|"]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def compared(page: Path) -> int:
    """Check each table of measures against the numbers beside the page; return how many cells were."""
    count = 0
    for report, file, content in PLACE.findall(page.read_text(encoding="utf-8")):
        table = rows(content) if file.startswith("tables/") else []
        columns = {name: name[:-2] for name in table[0] if name.endswith((" ↑", " ↓"))} if table else {}
        if not columns or "strategy" not in table[0] or "order" in table[0]:
            continue
        path = page.with_suffix("") / f"{report}.csv"
        numbers = pd.read_csv(path, keep_default_na=False, na_values={"value": [""], "std": [""]})
        means = numbers[numbers["order"] == "mean"]
        shown = {(row["strategy"], name): row[column] for row in table for column, name in columns.items()}
        known: dict[str, dict[tuple[str, str], str]] = {}
        for row in means.itertuples():
            of = MEASURES[row.measure].shown
            text = (
                "n/a" if row.value != row.value else of(row.value) + ("" if row.std != row.std else f" ± {of(row.std)}")
            )
            known.setdefault(row.metric, {})[row.strategy, row.measure] = text
        told = {key: cell.split(" [")[0] for key, cell in shown.items() if key[0] != "constant answer"}
        assert any(told == {key: of.get(key) for key in told} for of in known.values()), f"{page.name}: {file}"
        count += len(told)
    return count


@pytest.mark.parametrize("page", NUMBERED, ids=lambda page: page.stem)
def test_tables_hold_the_numbers_beside_the_page(page: Path) -> None:
    assert compared(page)


@pytest.mark.parametrize("page", FOUND, ids=lambda page: page.stem)
def test_numbers_of_findings_stand_in_tables(page: Path) -> None:
    text = PAGES[page]
    tables = {number.lstrip("+") for *_, content in PLACE.findall(text) for number in NUMBER.findall(content)}
    findings = PLACE.sub("", text).split("\n## Findings\n")[1]
    numbers = NUMBER.findall(findings)
    assert numbers
    assert [number for number in numbers if number.lstrip("+") not in tables] == []


def test_a_number_that_was_changed_is_seen(tmp_path: Path) -> None:
    """Of the check itself: one digit of a table, or of the numbers beside it, is noticed."""
    header = "| strategy | F ↓ | FP ↑ |\n| :-- | --: | --: |\n"
    place = "<!-- report: few/tables/x.md -->\n{}<!-- end -->\n"
    page, numbers = tmp_path / "page.md", tmp_path / "page" / "few.csv"
    numbers.parent.mkdir()
    frame = pd.DataFrame(
        [("naive", "mean", "m", "F", 0.125, 0.01, ""), ("naive", "mean", "m", "FP", 0.5, float("nan"), "")],
        columns=["strategy", "order", "metric", "measure", "value", "std", "status"],
    )
    frame.to_csv(numbers, index=False)
    page.write_text(place.format(header + f"| naive | {percent(0.125)} ± 1.00 | 50.00 |\n"), encoding="utf-8")
    assert compared(page) == 2
    page.write_text(page.read_text(encoding="utf-8").replace("50.00", "50.01"), encoding="utf-8")
    with pytest.raises(AssertionError, match=r"page\.md: tables/x\.md"):
        compared(page)
