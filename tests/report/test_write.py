from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.analysis.build import record
from tests.conftest import blank_figures, read_csv
from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.core.errors import UsageError
from xclrun.core.names import code
from xclrun.core.quantity import SHARE
from xclrun.report import write
from xclrun.report.caveats import comparison_caveats
from xclrun.report.part import Block, Part
from xclrun.report.report import Report, _wrapped
from xclrun.report.section import Options, Sources
from xclrun.report.tables import Table, frame_csv, mark_best, percent_cell
from xclrun.report.write import write_report

from .study import LANGUAGES, run, study

pytestmark = pytest.mark.usefixtures("undrawn")


@pytest.fixture(scope="module")
def records() -> list:
    return study(("naive", "er", "lang_spec_ft"), languages=("en", "de", "th"), seeds=(1,))


@pytest.fixture(scope="module")
def report(records: list, tmp_path_factory: pytest.TempPathFactory) -> Report:
    with blank_figures():
        return write_report(records, tmp_path_factory.mktemp("reports") / "demo", "demo", ["xclrun report demo"])


def test_files_written(report: Report) -> None:
    files = {str(path.relative_to(report.directory)) for path in report.directory.rglob("*") if path.is_file()}
    stems = {f"learning_curves_mini_tiny_{metric}" for metric in ("intent", "slots")}
    stems |= {f"training_curves_mini_tiny_{quantity}" for quantity in ("loss", "intent", "slots")}
    orders, metrics = ("h2l", "l2h"), ("intent", "slots")
    stems |= {f"matrices_mini_tiny_{order}_{metric}" for order in orders for metric in metrics}
    kinds = ("trade_offs", "distances", "one_hop", "p_values")
    stems |= {f"{kind}_mini_tiny_{metric}" for kind in kinds for metric in metrics}
    figures = {f"figures/{stem}.svg" for stem in stems}
    tables = {path for path in files if path.startswith("tables/")}
    assert files - tables == {"index.html", "summary.csv", "summary.md", "runs.csv"} | figures  # and nothing temporary
    names = {path.rsplit(".", 1)[0] for path in tables}
    assert tables == {f"{name}.{suffix}" for name in names for suffix in ("md", "csv", "tex")}
    assert {"tables/mini_tiny_intent_mean_over_orders_and_seeds", "tables/mini_tiny_budgets",
            "tables/mini_tiny_all_pairs_of_strategies", "tables/mini_tiny_intent_by_order"} <= names  # fmt: skip
    assert {str(path.relative_to(report.directory)) for path in report.figures} == figures


def test_the_csv_holds_the_summary_in_full_precision(report: Report, records: list) -> None:
    read = read_csv(report.summary_csv, keep_default_na=False, na_values={"value": [""]}, dtype={"language": str})
    expected = summarise(records)
    assert list(read.columns) == list(expected.columns)
    pd.testing.assert_series_equal(read["value"], expected["value"], check_exact=True)
    assert read["status"].tolist() == expected["status"].tolist()
    line = report.summary_csv.read_text().splitlines()[1]
    assert line.startswith("mini,tiny,naive,mean,intent_accuracy,F,,0.")
    assert line.endswith(",ok,intent,")
    missing = next(line for line in report.summary_csv.read_text().splitlines() if "instead of one" in line)
    reason = "n/a: needs a sequence of hops instead of one model per language"
    assert missing == f"mini,tiny,lang_spec_ft,mean,intent_accuracy,F,,,,,,0,{reason},intent,"


def test_names_that_spreadsheets_would_run_begin_with_an_apostrophe(tmp_path: Path) -> None:
    """Directory names of languages occur in headers, rows and long form."""
    evil = "=cmd|' /C calc'!A0"
    records = [
        replace(r, languages=tuple(evil if key == "de" else key for key in r.languages), curve=())
        for r in study(("naive", "er", "lang_spec_ft"), languages=("en", "de", "th"), seeds=(1, 2))
    ]
    with blank_figures():
        report = write_report(records, tmp_path / "demo", "demo", ["xclrun report demo"])
    cells = {
        path.name: [cell for row in csv.reader(path.read_text(encoding="utf-8").splitlines()) for cell in row]
        for path in [report.summary_csv, *report.directory.glob("tables/*.csv")]
    }
    assert sum(f"'{evil}" in text_cells for text_cells in cells.values()) > 1
    assert not [cell for text_cells in cells.values() for cell in text_cells if cell.startswith("=")]
    # Numbers are what they were, below 0 too: of the long form, and of tables with deviations and intervals.
    every = [cell for text_cells in cells.values() for cell in text_cells]
    assert any(cell.startswith("-") for cell in every)
    assert {cell for cell in every if cell.startswith("'")} == {f"'{evil}"}
    read = read_csv(report.summary_csv, keep_default_na=False, na_values={"value": [""]})
    pd.testing.assert_series_equal(read["value"], summarise(records)["value"], check_exact=True)


@pytest.mark.parametrize(
    "name",
    [
        "=1",
        "+a",
        "-a",
        "@a",
        "-1+1",
        "-2+3+cmd|' /C calc'!A0",
        "-1 (=A1)",
        "-1, p = cmd|' /C calc'!A0",
        "-",
        f"-1{' ' * 5000}x",
    ],
)  # fmt: skip
def test_a_name_is_not_taken_for_a_number(name: str) -> None:
    frame = pd.DataFrame({"a": [name], name: ["1"]})
    for text in (Table("t", ("a", name), ((name, "1"),)).csv(), frame_csv(frame)):
        assert list(csv.reader(text.splitlines())) == [["a", f"'{name}"], [f"'{name}", "1"]]


@pytest.mark.parametrize(
    "text",
    [
        "-0.12",
        "+1.50",
        "-2.10 ± 0.40",
        "-2.07 [-3.1, 1.2]",
        "-1",
        "-12 %",
        "-1,000",
        "-1e-05",
        "-0.42 (bias -0.10) [-1.00, 0.10]",
        "-0.42 (bias +0.10) n/a [1]",
        "-1.20, p = 0.012",
        "",
        "–",
        "a=b",
        "n/a [1]",
    ],
)
def test_a_number_stays_as_it_is(text: str) -> None:
    assert next(csv.reader([Table("t", (text, "x"), ()).csv()])) == [text, "x"]


def test_the_page_for_people(report: Report) -> None:
    page = report.summary_md.read_text(encoding="utf-8")
    assert page.startswith("# demo\n\n6 finished runs · created 2")
    for part in (
        "Command: `xclrun report demo`",
        "**F ↓** forgetting",
        "## mini · tiny",
        "### Mean over orders and seeds",
        "### Intent, by order",
        "\n- l2h: th → de → en\n",
        "### Intent FP ↑ by language",
        "For figures as PDF and PNG, repeat the command with `--formats pdf,png`.",
        "[svg](figures/matrices_mini_tiny_h2l_intent.svg)",
        "![learning_curves_mini_tiny_intent](figures/learning_curves_mini_tiny_intent.svg)",
        "| naive-h2l-1 | mini | tiny | naive | h2l | 1 | – | – | 0.1.0+gabc123 | 1 | 0f1e2d3c4b5a | finished |",
    ):
        assert part in page, part
    for link in {part.split(")")[0] for part in page.split("](")[1:]}:
        assert (report.directory / link).is_file(), link


def test_formats_are_saved_where_asked_and_those_of_an_earlier_report_go(tmp_path: Path) -> None:
    def figures(*formats: str) -> tuple[set[str], str, str]:
        write_report(small(), tmp_path, "demo", options=Options(formats=formats))
        files = {path.suffix for path in (tmp_path / "figures").iterdir()}
        return files, (tmp_path / "index.html").read_text(), (tmp_path / "summary.md").read_text()

    files, page, summary = figures("pdf")
    assert files == {".svg", ".pdf"}
    assert '_intent.svg">svg</a> · <a href="figures/' in page
    assert "For figures as PNG," in page
    assert "<code>--formats pdf,png</code>." in page
    assert "_intent.pdf)" in summary
    files, page, summary = figures("png", "pdf")
    assert files == {".svg", ".png", ".pdf"}
    assert "--formats" not in page + summary
    files, page, _ = figures()
    assert files == {".svg"}
    assert "with <code>--formats pdf,png</code>" in page


def test_what_a_terminal_shows(report: Report) -> None:
    for width in (100, 80):
        text = report.render(width)
        assert max(map(len, text.splitlines())) <= width
    parts = (
        "mini · tiny",
        "- Intent accuracy: er ",
        "Intent, mean over orders and seeds",
        "[1] needs a sequence of hops instead of one model per language",
        "Slots, mean over orders and seeds",
    )
    places = [text.index(part) for part in parts]
    assert places == sorted(places)  # in the order of the page
    assert ", by order" not in text
    assert "\x1b" not in text


def test_facts_as_json(report: Report) -> None:
    facts = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert facts["runs"] == {"finished": 6}
    assert facts["summary_csv"] == str(report.summary_csv)
    rows = {(r["strategy"], r["order"], r["metric"], r["measure"]): r for r in facts["rows"]}
    frame = summarise(study(("naive", "er", "lang_spec_ft"), languages=("en", "de", "th"), seeds=(1,)))
    expected = frame.query(
        "strategy == 'er' and order == 'mean' and metric == 'intent_accuracy' and measure == 'F' and language == ''"
    )
    assert rows["er", "mean", "intent_accuracy", "F"]["value"] == expected["value"].item()
    assert rows["lang_spec_ft", "mean", "intent_accuracy", "T"]["value"] is None
    assert (
        rows["lang_spec_ft", "mean", "intent_accuracy", "T"]["status"]
        == "n/a: needs a sequence of hops instead of one model per language"
    )


@pytest.mark.parametrize("statuses", [(), ("running",), ("failed", "running", "running")])
def test_nothing_finished_is_a_usage_error_and_writes_nothing(statuses: tuple[str, ...], tmp_path: Path) -> None:
    unfinished = [run("naive", "h2l", seed, LANGUAGES, status=status) for seed, status in enumerate(statuses)]
    with pytest.raises(UsageError, match="no finished runs") as error:
        write_report(unfinished, tmp_path / "demo", "demo")
    assert ("1 failed, 2 running" in str(error.value)) == (len(statuses) == 3)
    killed = Sources(excluded={r.run_id: ("lost", "its process died") for r in unfinished[1:2]})
    with pytest.raises(UsageError, match="no finished runs") as error:
        write_report(unfinished, tmp_path / "demo", "demo", sources=killed)
    assert ("1 failed, 1 lost, 1 running" in str(error.value)) == (len(statuses) == 3)
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError):
        write_report(small(), tmp_path / "file", "demo")


def test_a_second_report_replaces_the_first(tmp_path: Path) -> None:
    write_report(small("naive"), tmp_path, "demo")
    (tmp_path / "figures" / "my_notes.png").write_bytes(b"")
    (tmp_path / "figures" / "matrices_paper.tex").write_text("")
    second = write_report(small("er"), tmp_path, "demo")
    remaining = {path.name for path in (tmp_path / "figures").iterdir()}
    assert remaining == {path.name for path in second.figures} | {"my_notes.png", "matrices_paper.tex"}
    assert "naive" not in (tmp_path / "summary.csv").read_text()


def test_unfinished_runs_and_other_versions_are_told(tmp_path: Path) -> None:
    records = [
        *small("naive"),
        *small("naive", status="running"),
        run("er", "en-th", 1, ("en", "th"), status="failed", metrics=("intent_accuracy",)),
    ]
    records += [run("naive", "en-th", 2, ("en", "th"), code_version="0.2.0", metrics=("intent_accuracy",))]
    report = write_report(records, tmp_path, "demo")
    assert report.caveats == [
        "excluded (1 failed): er-en-th-1",
        "the runs come from 2 versions of the code: 0.1.0+gabc123, 0.2.0",
    ]
    assert "- excluded (1 failed)" in report.render()
    assert "## Notes\n\n- excluded (1 failed): er-en-th-1\n" in report.summary_md.read_text()
    assert sorted(record.status for record in report.records) == ["failed", "finished", "finished"]


def test_missing_runs_and_unequal_settings_are_told(tmp_path: Path) -> None:
    fields = {"metrics": ("intent_accuracy",), "curve": ()}
    records = [run("naive", "en-th", seed, ("en", "th"), **fields) for seed in (1, 2)]
    lr = {"strategy": {"name": "er"}, "trainer": {"lr": 0.01}}
    records += [run("er", "en-th", 1, ("en", "th"), config=lr, **fields)]
    (section,) = write_report(records, tmp_path, "demo").sections
    assert section.caveats == [
        "missing: er has no finished run for en-th seed 2",
        "T needs reference runs: xclrun dataset=mini model=tiny strategy=lang_spec_ft 'order=[en,th]' seed=1,2 -m "
        "(with the same dataset, model and trainer settings)",
        "strategies differ in trainer.lr (0.001: naive; 0.01: er)",
        "intent has no bootstrap intervals: no predictions of naive-en-th-1",
    ]


def test_a_command_in_a_note_can_be_copied_from_a_terminal() -> None:
    command = f"xclrun {'key=value ' * 12}-m"
    lines = _wrapped([f"T needs reference runs: {command}", "a note " * 20], 60).splitlines()
    assert lines[:2] == ["- T needs reference runs:", f"    {command}"]
    assert max(map(len, lines[2:])) <= 60


def test_a_baseline_must_be_there_and_what_unpaired_does_not_reach_is_told(tmp_path: Path) -> None:
    records = [*small("naive"), *small("er")]
    with pytest.raises(UsageError, match="--baseline: unknown strategy 'nave'; did you mean 'naive'"):
        write_report(records, tmp_path / "x", "demo", options=Options(baseline="nave"))
    assert not (tmp_path / "x").exists()
    (section,) = write_report(records, tmp_path, "demo", options=Options(unpaired=True, baseline="er")).sections
    assert any(note.startswith("--unpaired: means are over all runs of each") for note in section.caveats)
    budgets = next(block for block in section.blocks if block.title == "Budgets").tables[0]
    assert budgets.notes[-1].startswith("≠: differs from er by more than 1 %")


def test_missing_reference_runs_are_made_by_the_sweeps_own_command() -> None:
    runs = [run("naive", order, seed, keys) for order, keys in (("en-th", ("en", "th")), ("th-en", ("th", "en")))
            for seed in (1, 2)]  # fmt: skip
    adapters = {"name": "lang_spec_ada_t", "reduction": 2, "pretrained": None}
    runs.append(run("er", "l2h", 1, ("en", "th"), settings={"expansion": adapters}))
    (comparison,) = comparisons(runs)
    command = "xclrun sweep=demo trainer.epochs=3 strategy.memory=5 order=[en,th],[th,en] seed=1,2 sweep_name=x -m"
    notes = [note for note in comparison_caveats(comparison, {r.run_id: command for r in runs}) if "T needs" in note]
    common = (
        "T needs reference runs: xclrun sweep=demo trainer.epochs=3 sweep_name=demo-references strategy=lang_spec_ft"
    )
    assert notes == [
        f"{common} 'order=[en,th]' seed=1,2 -m",
        f"{common} strategy.expansion=lang_spec_ada_t strategy.expansion.reduction=2 order=l2h seed=1 -m",
    ]


def test_commands_that_differ_in_strategies_and_seeds_need_one_command_for_their_references() -> None:
    runs = [run(name, "en-th", seed, ("en", "th")) for name, seed in (("naive", 1), ("er", 2))]
    commands = {runs[0].run_id: "xclrun model=tiny strategy=naive order=[en,th] seed=1",
            runs[1].run_id: "xclrun model=tiny strategy=er strategy.every_k=5 order=[en,th] seed=2 -m"}  # fmt: skip
    notes = [note for note in comparison_caveats(comparisons(runs)[0], commands) if "T needs" in note]
    assert notes == ["T needs reference runs: xclrun model=tiny strategy=lang_spec_ft 'order=[en,th]' seed=1,2 -m"]


def test_the_first_language_of_an_order_needs_no_reference_run() -> None:
    naive = run("naive", "en-de-th", 1, ("en", "de", "th"))
    enough, too_few = (run("lang_spec_ft", "-".join(keys), 1, keys) for keys in (("de", "th"), ("en", "th")))
    notes = [comparison_caveats(comparisons([naive, other])[0], {}) for other in (enough, too_few)]
    assert [any(note.startswith("T needs") for note in keys) for keys in notes] == [False, True]


def test_strategies_with_the_same_scores_throughout_are_named() -> None:
    def told(*strategies: tuple[str, float], stream: str = "sequence") -> list[str]:
        runs = []
        for name, last in strategies:
            for order in (("en", "th"), ("th", "en")):
                scores = np.full((2 if stream == "joint" else 3, 2), 0.25)
                scores[-1, -1] = last
                runs.append(record(name, languages=order, scores=scores, stream=stream))
        notes = comparison_caveats(comparisons(runs)[0])
        return [note.partition(":")[0] for note in notes if "identical" in note]

    assert told(("naive", 0.5), ("er", 0.5), ("ewc", 0.6)) == ["naive and er have identical scores after every hop"]
    assert told(("naive", 0.5), ("er", 0.5000001)) == []
    assert told(("multilingual", 0.5), ("other", 0.5), stream="joint") == []


def test_of_cells_that_look_alike_none_is_the_best() -> None:
    def best(*values: float) -> list[bool]:
        cells = [percent_cell(value) for value in values]
        mark_best(cells, SHARE)
        return [cell.best for cell in cells]

    assert best(0.5, 0.5, 0.4) == [True, True, False]
    assert best(0.5, 0.500001) == [False, False] == best(0.5, math.nan)


def test_no_table_overwrites_another(tmp_path: Path) -> None:
    def block(title: str) -> Block:
        return Block(Part("x", object, 1, "x", list), "x", tables=[Table(title, ("a",), ((title,),))])

    long = "Ä very long title " * 9
    sections = [
        SimpleNamespace(
            where="w",
            title="mini · tiny",
            blocks=[block(long + "one"), block(long + "other"), block("A b"), block("a B")],
        )
    ]
    write._write_tables(sections, tmp_path)  # type: ignore[arg-type]
    rows = sorted(path.read_text(encoding="utf-8").splitlines()[1] for path in tmp_path.glob("*.csv"))
    assert rows == ["A b", "a B", long + "one", long + "other"]
    assert len(list(tmp_path.iterdir())) == 12
    assert "\\caption{A b (mini $\\cdot$ tiny)}\n\\label{tab:w-a-b}" in (tmp_path / "w_a_b.tex").read_text()


def test_importing_the_report_costs_little() -> None:
    code = (
        "import sys, xclrun.report; "
        "print(sorted({'torch', 'mlflow', 'statsmodels', 'matplotlib', 'pandas', 'scipy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def small(strategy: str = "naive", **fields: object) -> list:
    """One small run whose report is quickly drawn."""
    return [run(strategy, "en-th", 1, ("en", "th"), **({"metrics": ("intent_accuracy",), "curve": ()} | fields))]


@pytest.mark.parametrize(("text", "span"), [("a", "`a`"), ("a`<b>", "``a`<b>``"), ("``a`", "``` ``a` ```")])
def test_a_command_with_backticks_stays_one_code_span(text: str, span: str) -> None:
    assert code(text) == span
