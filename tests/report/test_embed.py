"""Tables, figures and numbers of a report in a page that was written by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import blank_figures, read_csv
from xclrun.core.errors import UsageError
from xclrun.report.embed import embed
from xclrun.report.report import Report
from xclrun.report.write import write_report

from .few_shot import study as few_shot_study
from .study import study

pytestmark = pytest.mark.usefixtures("undrawn")

TABLE = "tables/mini_tiny_intent_mean_over_orders_and_seeds.md"
FIGURE = "figures/trade_offs_mini_tiny_intent.svg"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    with blank_figures():
        records = study(("naive", "er"), languages=("en", "de"), seeds=(1,))
        return write_report(records, tmp_path_factory.mktemp("reports") / "demo", "demo")


def place(file: str, content: str = "", report: str = "demo") -> str:
    return f"<!-- report: {report}/{file} -->\n{content}<!-- end -->\n"


def test_places_of_a_page_get_what_they_name_and_the_rest_stays(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "found.md"
    other = place("tables/any.md", "of another report\n", "earlier")
    first, last = place(TABLE, "outdated\n"), place("summary.csv")
    page.write_text(f"# Found\n\n{first}By hand.\n{place(FIGURE)}{other}{last}The end.\n")
    assert embed(page, report) == 3
    text = page.read_text()
    table = (report.directory / TABLE).read_text().split("\n", 1)[1].strip()
    assert f"\n**Intent, mean over orders and seeds**\n\n{table}\n\n<!-- end -->\nBy hand.\n" in text
    assert "outdated" not in text
    assert other in text
    assert text.startswith("# Found\n")
    assert text.endswith("The end.\n")
    assert "](found/trade_offs_mini_tiny_intent.svg)\n" in text
    copy = tmp_path / "found" / "trade_offs_mini_tiny_intent.svg"
    assert copy.read_bytes() == (report.directory / FIGURE).read_bytes()
    assert "Numbers: [demo.csv](found/demo.csv).\n" in text
    numbers, whole = read_csv(tmp_path / "found" / "demo.csv"), report.frame
    aggregates = whole[whole["language"] == ""]
    assert numbers["value"].tolist() == pytest.approx(aggregates["value"].tolist(), nan_ok=True)
    assert 0 < len(numbers) < len(whole)
    assert embed(page, report) == 3
    assert page.read_text() == text


def test_figures_of_one_name_of_two_reports_are_two(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "found.md"
    earlier = place(FIGURE, "![Trade](found/trade_offs_mini_tiny_intent.svg)\n", "earlier")
    page.write_text(f"{earlier}{place(FIGURE)}")
    (tmp_path / "found").mkdir()
    drawn = tmp_path / "found" / "trade_offs_mini_tiny_intent.svg"
    drawn.write_text("of the other report")
    assert embed(page, report) == 1
    assert drawn.read_text() == "of the other report"
    copy = tmp_path / "found" / "demo-trade_offs_mini_tiny_intent.svg"
    assert copy.read_bytes() == (report.directory / FIGURE).read_bytes()
    assert page.read_text().startswith(earlier)
    assert "](found/demo-trade_offs_mini_tiny_intent.svg)\n" in page.read_text()


def test_what_is_still_to_come_has_a_place_that_says_so(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "found.md"
    opens = f"<!-- report: demo/{TABLE} once there is one -->\n"
    later = "<!-- report: demo/tables/later.md once there is one -->\n"
    page.write_text(f"{opens}<!-- end -->\n{later}old\n<!-- end -->\n")
    assert embed(page, report) == 2
    text = page.read_text()
    assert f"{opens}\n**Intent, mean over orders and seeds**\n" in text
    assert f"{later}\n_Not yet: too few runs have finished._\n\n<!-- end -->\n" in text
    assert embed(page, report) == 2
    assert page.read_text() == text


def test_matrices_of_runs_without_predictions_are_scores_with_all_digits(report: Report, tmp_path: Path) -> None:
    page = tmp_path / "found.md"
    page.write_text(place("matrices.csv"))
    embed(page, report)
    assert "[demo-matrices.csv](found/demo-matrices.csv)" in page.read_text()
    rows = read_csv(tmp_path / "found" / "demo-matrices.csv")
    assert len(rows) == 4 * 2 * 3  # runs, metrics, hops with that before training
    for record in report.records:
        for metric, scores in record.scores.items():
            matrix = rows[(rows["run_id"] == record.run_id) & (rows["metric"] == metric)].sort_values("hop")
            assert (matrix[[*record.languages]].to_numpy() == scores).all()


def test_few_shot_runs_have_scores_and_matrices_and_no_measures(tmp_path: Path) -> None:
    runs = few_shot_study(("hi",), (1,), buckets=2, seeds=(1,))
    report = write_report(runs, tmp_path / "reports" / "demo", "demo")
    page = tmp_path / "found.md"
    page.write_text(place("few_shot.csv") + place("matrices.csv"))
    assert embed(page, report) == 2
    scores = read_csv(tmp_path / "found" / "demo.csv").set_index("run_id")
    rows = read_csv(tmp_path / "found" / "demo-matrices.csv").set_index(["run_id", "hop"])
    assert len(rows) == len(runs) * 3
    for run in runs:
        assert rows.loc[run.run_id][["en", "hi"]].to_numpy().tolist() == run.scores["token_accuracy"].tolist()
        assert scores.loc[run.run_id, ["zero_shot", "score"]].tolist() == rows.loc[run.run_id]["hi"].tolist()[1:]
    page.write_text(place("summary.csv"))
    with pytest.raises(UsageError, match=r"has no file 'summary\.csv'"):
        embed(page, report)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("no place\n", "no place for the report 'demo'; add the two lines <!-- report: demo/summary.csv --> and"),
        (place(TABLE, report="earlier"), "no place for the report 'demo' (only for 'earlier'); add"),
        (f"<!-- report: demo/{TABLE} -->\n", "line 1: no <!-- end --> closes this place"),
        (f"<!-- report: demo/{TABLE} -->\n{place(TABLE)}", "line 1: no <!-- end --> closes this place"),
        (
            f"\n{place('tables/mini_tiny_intent_mean_over_order.md')}",
            "line 2: the report 'demo' has no file 'tables/mini_tiny_intent_mean_over_order.md'; did you mean "
            f"'{TABLE}'?",
        ),
    ],
)
def test_a_page_that_cannot_be_filled_stays_as_it_is(
    report: Report, tmp_path: Path, content: str, message: str
) -> None:
    page = tmp_path / "found.md"
    page.write_text(content)
    with pytest.raises(UsageError) as refused:
        embed(page, report)
    assert str(refused.value).startswith(f"--into {page}: {message}")
    assert page.read_text() == content
    assert list(tmp_path.iterdir()) == [page]


def test_a_page_that_is_not_there_is_told_of(report: Report, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found\.md: cannot be read \(No such file or directory\)"):
        embed(tmp_path / "found.md", report)
