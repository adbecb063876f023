from __future__ import annotations

import csv
import io
import re
from dataclasses import replace

import numpy as np
import pytest
from markdown_it import MarkdownIt

from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.core.quantity import SHARE
from xclrun.report.caveats import comparison_caveats
from xclrun.report.summary import RUNS, Summary
from xclrun.report.tables import Cell, Table

from .study import LANGUAGES, run, section_of, study
from .study import rows_of as cells
from .study import summary_of as summary


def test_the_main_table_shows_percent_as_mean_and_std() -> None:
    records = study()
    frame = summarise(records)
    table = summary(records).main(["intent_accuracy", "slot_f1"])
    assert table.header == (
        "strategy", "runs", "intent F ↓", "intent T ↑", "intent T0 ↑", "intent FP ↑",
        "slots F ↓", "slots T ↑", "slots T0 ↑", "slots FP ↑",
    )  # fmt: skip
    row = frame.query(
        "strategy == 'er' and order == 'mean' and metric == 'slot_f1' and measure == 'T0' and language == ''"
    )
    cell = cells(table)["er",]["slots T0 ↑"]
    assert cell == f"{100 * row['value'].item():.2f} ± {100 * row['std'].item():.2f}"
    assert cells(table)["naive",]["runs"] == "4"


def test_what_is_not_available_has_a_numbered_reason_under_the_table() -> None:
    table = summary(study(("naive", "lang_spec_ft", "multilingual"), seeds=(1,))).main(["intent_accuracy"])
    rows = cells(table)
    assert rows["lang_spec_ft",]["F ↓"] == "n/a [1]"
    assert rows["multilingual",]["T ↑"] == "n/a [2]"
    assert table.notes[:2] == (
        "[1] needs a sequence of hops instead of one model per language",
        "[2] needs a sequence of hops",
    )
    assert re.fullmatch(r"-?\d\.\d\d ± \d\.\d\d", rows["naive",]["T ↑"])
    alone = summary(study(("naive",), seeds=(1, 2))).main(["intent_accuracy"])
    assert cells(alone)["naive",]["T ↑"] == "n/a [1]"
    assert alone.notes == ("[1] needs lang_spec_ft of seeds 1, 2 (de, en, es, fr, hi, th)",)


def test_interim_rows_say_how_many_runs_they_have() -> None:
    records = study(("naive", "er"))[:-1]
    table = summary(records).main(["intent_accuracy"])
    assert [cells(table)[name,]["runs"] for name in ("naive", "er")] == ["3 of 4", "3 of 4"]
    interim = "interim: not all strategies have finished all orders and seeds; each mean is over "
    for by in (table, summary(records).languages("intent_accuracy", "F"), summary(records).orders("intent_accuracy")):
        assert f"{interim}the runs that all strategies have finished" in by.notes
        assert (RUNS in by.notes) == ("runs" in by.header)
    (comparison,) = comparisons(records)
    every = Summary(summarise(records, unpaired=True), comparison, unpaired=True)
    for by in (
        every.main(["intent_accuracy"]),
        every.languages("intent_accuracy", "F"),
        every.orders("intent_accuracy"),
    ):
        assert f"{interim}all runs of its strategy" in by.notes
    for by in (table, summary(records).languages("intent_accuracy", "FP")):
        assert any(note.startswith("orders have unequal numbers of runs") for note in by.notes)
    whole = summary(study())
    for by in (
        whole.main(["intent_accuracy"]),
        whole.languages("intent_accuracy", "FP"),
        summary(records).main(["intent_accuracy"], "h2l"),
    ):
        assert not any(note.startswith("orders have unequal") for note in by.notes)
    assert RUNS not in whole.main(["intent_accuracy"]).notes
    assert not any(note.startswith("interim") for note in whole.main(["intent_accuracy"]).notes)


def test_an_incomplete_strategy_stands_below_a_rule_next_to_the_baseline_over_the_same_runs() -> None:
    records = study(("naive", "er", "agem"))
    few = [run for run in records if run.strategy != "agem" or (run.order, run.seed) == ("h2l", 1)]
    table = section_of(few).summary.main(["intent_accuracy"])
    names = [row[0] for row in table.rows]
    assert names == ["naive", "er", "agem", "naive (runs of agem)"]
    assert table.ruled == (2,)
    both = cells(table)
    assert [both[name,]["runs"] for name in names] == ["4", "4", "1 of 4", "1"]
    (same,) = (run for run in records if (run.strategy, run.order, run.seed) == ("naive", "h2l", 1))
    final = same.scores["intent_accuracy"][-1].mean()
    assert both["naive (runs of agem)",]["FP ↑"] == f"{100 * final:.2f}"
    assert not any(cell.best for cell in table.rows[2] if isinstance(cell, Cell))
    assert any("agem" in note and "over the runs of its strategy" in note for note in table.notes)
    without = summary([run for run in records if run.strategy != "agem"]).main(["intent_accuracy"])
    assert [row[:4] for row in table.rows[:2]] == [row[:4] for row in without.rows]


def test_strategies_without_common_runs_are_shown_and_not_ranked() -> None:
    records = [*study(("naive",), orders=("h2l",), seeds=(1,)), *study(("er",), orders=("l2h",), seeds=(1,))]
    table = summary(records).main(["intent_accuracy"])
    assert [(row[0], row[1]) for row in table.rows] == [("naive", "1 of 2"), ("er", "1 of 2")]
    assert not any(isinstance(cell, Cell) and cell.best for row in table.rows for cell in row)
    assert (table.ruled, any("no order, seed and bucket in common" in note for note in table.notes)) == ((), True)
    assert not any("have finished" in note for note in table.notes if "each mean" in note)


def test_runs_that_lack_a_metric_are_not_counted_for_it() -> None:
    records = study(("naive", "er"))
    records[0] = replace(records[0], scores={"intent_accuracy": records[0].scores["intent_accuracy"]})
    whole = summary(records)
    counts = [
        [cells(whole.main(list(metrics)))[name,]["runs"] for name in ("naive", "er")]
        for metrics in (("intent_accuracy",), ("slot_f1",), ("intent_accuracy", "slot_f1"))
    ]
    assert counts == [["4", "4"], ["3", "4"], ["3 to 4", "4"]]


def test_only_runs_that_enter_a_mean_count_as_versions_of_it() -> None:
    records = study(("naive",))
    again = replace(records[0], run_id="zz", code_version="0.2.0")
    (comparison,) = comparisons([*records, again])
    assert not any("versions of the code" in note for note in comparison_caveats(comparison))
    (comparison,) = comparisons([*records[1:], again])
    assert any("3 of 0.1.0+gabc123, 1 of 0.2.0" in note for note in comparison_caveats(comparison))


def test_the_table_of_orders_has_a_row_for_each_that_was_run() -> None:
    records = [*study(("naive",), seeds=(1,)), run("er", "l2h", 1, LANGUAGES[::-1])]
    table = summary(records).orders("intent_accuracy")
    assert [row[:2] for row in table.rows] == [("h2l", "naive"), ("l2h", "naive"), ("l2h", "er")]


def test_one_run_has_no_spread() -> None:
    table = summary([run("naive", "h2l", 1, LANGUAGES)]).main(["intent_accuracy"])
    assert re.fullmatch(r"\d+\.\d\d", cells(table)["naive",]["F ↓"])


def test_languages_of_a_measure() -> None:
    records = study(("naive", "multilingual"), ("h2l",), (1,))
    tables = summary(records)
    final = tables.languages("intent_accuracy", "FP")
    assert final.header == ("strategy", *LANGUAGES)
    value = records[0].scores["intent_accuracy"][6, 5]
    assert cells(final)["naive",]["th"] == f"{100 * value:.2f}"
    forgotten = tables.languages("intent_accuracy", "F")
    assert list(cells(forgotten)) == [("naive",)]
    assert cells(forgotten)["naive",]["th"] == "n/a [1]"
    assert forgotten.notes[0] == "[1] needs a hop after th"


def test_behind_a_cell_of_one_language_are_the_runs_that_enter_it() -> None:
    records = [*study(("naive", "lang_spec_ft"), ("h2l", "l2h"), (1,)),
               run("naive", "h2l", 2, LANGUAGES, metrics=("slot_f1",))]  # fmt: skip
    tables = summary(records)

    def behind(measure: str, language: str) -> set[str]:
        table = tables.languages("intent_accuracy", measure)
        return set(table.rows[0][table.header.index(language)].runs)  # type: ignore[attr-defined]

    # English is the first of h2l and the last of l2h.
    assert behind("FP", "en") == {"naive-h2l-1", "naive-l2h-1"}
    assert behind("F", "en") == behind("T", "th") == behind("T0", "th") == {"naive-h2l-1"}
    assert behind("T", "en") == behind("T0", "en") == behind("F", "th") == {"naive-l2h-1"}


@pytest.mark.parametrize(
    ("settings", "note"),
    [
        ({"slot_f1": "span_micro"}, "slots: micro F1 over labeled spans"),
        ({"slot_f1": "tag_macro"}, "slots: macro F1 over single tags (evaluate.slot_f1=tag_macro), not span F1"),
    ],
)
def test_tables_with_slots_say_how_they_were_scored(settings: dict[str, str], note: str) -> None:
    config = {"strategy": {"name": "naive"}, "evaluate": settings}
    tables = summary([run("naive", "h2l", 1, LANGUAGES, config=config)])
    for table in (
        tables.main(["intent_accuracy", "slot_f1"]),
        tables.orders("slot_f1"),
        tables.languages("slot_f1", "F"),
    ):
        assert table.notes[-1] == note
    assert note not in tables.main(["intent_accuracy"]).notes


def test_text_fits_the_width_and_loses_no_number() -> None:
    records = study(("naive", "er", "lang_spec_ft", "lang_spec_trans"))
    settings = {"memory": 6000, "every_k": 100, "interleave": "replace"}
    records += [run("er", order, 1, keys, settings=settings) for order, keys in (("h2l", LANGUAGES), ("x" * 30, "ab"))]
    summary_of_runs = summary(records)
    tables = [
        summary_of_runs.main(["slot_f1"]),
        summary_of_runs.orders("slot_f1"),
        summary_of_runs.main(["intent_accuracy", "slot_f1"]),
        summary_of_runs.languages("intent_accuracy", "FP"),
    ]
    for width in (100, 80, 60):
        for table in tables:
            text = table.text(width)
            assert max(map(len, text.splitlines())) <= width
            assert "\x1b" not in text
            assert "…" not in text
            for row in table.rows:
                for cell in row[table.left :]:
                    assert re.search(rf"(^|  ){re.escape(cell)}(  |$)", text, re.MULTILINE), (cell, width)
    # What a usual study prints stays in one piece at 80 columns.
    plain = summary(study(("naive", "er", "lang_spec_trans")))
    for table in (plain.main(["slot_f1"]), plain.orders("slot_f1")):
        assert table.text(80).count("strategy") == 1


def test_text_shows_every_cell() -> None:
    table = Table("Title", ("name", "x [%]"), (("a[b]", "1"), ("c", "n/a [1]")), ("[1] why",))
    lines = table.text().splitlines()
    assert lines[0] == "Title"
    assert [line.split() for line in lines[1:] if "─" not in line] == [
        ["name", "x", "[%]"],
        ["a[b]", "1"],
        ["c", "n/a", "[1]"],
        ["[1]", "why"],
    ]


def test_markdown() -> None:
    table = Table("Title", ("name", "n"), (("a|b", "1"),), ("note",))
    assert table.markdown(2) == "## Title\n\n| name | n |\n| :-- | --: |\n| a\\|b | 1 |\n\n- note\n"


def test_markdown_has_bold_and_marks_and_says_what_they_mean_and_csv_has_values_alone() -> None:
    cells = (Cell("91.00 ± 0.10", 0.91, best=True, mark="**"), Cell("90.00", 0.9, mark="*"), Cell("a*b*c"))
    table = Table("Title", ("name", "x", "y", "z"), (("er", *cells),), ("note",), raised=("* **: marks", "bold: best"))
    html = MarkdownIt("commonmark").enable("table").render(table.markdown())
    assert "<strong>91.00 ± 0.10</strong> **</td>" in html
    assert "90.00 *</td>" in html
    assert html.count("<strong>") == 1
    for note in ("* **: marks", "bold: best", "note"):
        assert f"<li>{note}</li>" in html
    assert list(csv.reader(io.StringIO(table.csv())))[1] == ["er", "91.00 ± 0.10", "90.00", "a*b*c"]


@pytest.mark.parametrize(("value", "text"), [(0.91057, "91.06"), (-0.00001, "0.00"), (-0.1, "-10.00"), (1.0, "100.00")])
def test_percent(value: float, text: str) -> None:
    assert SHARE.shown(value) == SHARE.shown(np.float64(value)) == text
