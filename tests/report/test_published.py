"""Published tables as an oracle of averages, and beside ours."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from xclrun.analysis.anova import anova, tukey
from xclrun.analysis.record import RunRecord
from xclrun.analysis.replicates import Replicates
from xclrun.report.published import beside_ours, ccl_tables, published_names
from xclrun.report.tables import Cell, percent

from .study import ORDERS, run, summary_of

SIX = {
    "order1": ("en", "de", "fr", "hi", "es", "th"),
    "order2": ("th", "es", "hi", "fr", "de", "en"),
    "order3": ("es", "hi", "en", "de", "th", "fr"),
    "order4": ("fr", "th", "de", "en", "hi", "es"),
    "order5": ("hi", "en", "es", "th", "fr", "de"),
    "order6": ("de", "fr", "th", "es", "en", "hi"),
}


def per_order() -> dict[tuple[str, str, str], list[float]]:
    """(model, metric, measure) → its values in the six orders, from Tables 10 to 12."""
    found = defaultdict(list)
    for table in ("10", "11", "12"):
        for row in ccl_tables()[table]:
            found[row.model, row.metric, row.measure].append(row.value)
    return found


def test_the_averages_of_the_per_order_tables_are_table_8_to_the_printed_digit() -> None:
    table_8 = {(r.model, r.metric, r.measure): r.value for r in ccl_tables()["8"]}
    averages = {key: float(np.mean(values)) for key, values in per_order().items()}
    assert len(table_8) == 96
    assert averages.keys() == table_8.keys()
    off = {key: abs(100 * averages[key] - 100 * value) for key, value in table_8.items()}
    # The paper averaged before it rounded: six means of printed numbers fall to the other side of a half.
    assert {key for key, by in off.items() if by > 0.005 + 1e-9} == {
        ("inc_joint", "slot_f1", "F"),
        ("inc_joint", "intent_accuracy", "T0"),
        ("lang_spec_task", "slot_f1", "T"),
        ("lang_spec_task", "intent_accuracy", "FP"),
        ("lang_spec_ada_t", "intent_accuracy", "T0"),
        ("ewc_online", "intent_accuracy", "FP"),
    }
    assert max(off.values()) < 0.01  # what rounding both the numbers and their mean can do at most


def matrix(fp: float, forgotten: float, languages: int = 6) -> np.ndarray:
    """A score matrix whose final performance and forgetting are as given: every language falls alike at the end."""
    scores = np.full((languages + 1, languages), fp + forgotten)
    scores[2:, :] = fp
    return scores


def test_our_mean_of_those_orders_prints_table_8s_final_performance() -> None:
    records = []
    for (model, metric, measure), values in per_order().items():
        if measure == "FP" and metric == "intent_accuracy" and model in ("naive", "er", "kd_logit", "kd_rep"):
            for (order, languages), value in zip(SIX.items(), values, strict=True):
                made = run(model, order, 42, languages, metrics=("intent_accuracy",))
                data = made.to_json() | {"scores": {"intent_accuracy": matrix(value, 0.01).tolist()}}
                records.append(RunRecord.from_json(data))
    summary = summary_of(records)
    (table,) = [t for t in beside_ours(summary, "8") if "intent" in t.title]
    at = table.header.index("FP")
    shown = {row[0]: (row[at], row[at + 1]) for row in table.rows}
    for model in ("naive", "er", "kd_logit", "kd_rep"):
        assert shown[model][0] == shown[model][1]
        assert isinstance(shown[model][1], Cell)
        assert len(shown[model][1].runs) == 6
    assert shown["ewc_online"][1] == "–"
    assert any(note.startswith("FP: Spearman's ρ = 1.00 over 4 rows") for note in table.notes)
    assert "not the paper's data and encoder: ranks may be compared, values may not" in table.notes


def test_the_tests_of_the_paper_run_on_the_published_orders() -> None:
    from scipy import stats

    models = ("naive", "er", "ewc_online", "lang_spec_trans", "inc_joint")
    data = Replicates(
        models, tuple((o, 42, None) for o in SIX), [per_order()[m, "intent_accuracy", "F"] for m in models]
    )
    assert anova(data).p == pytest.approx(stats.f_oneway(*data.values).pvalue)
    theirs = stats.tukey_hsd(*data.values).pvalue
    for pair in tukey(data, anova(data)):
        assert pair.p == pytest.approx(theirs[models.index(pair.a), models.index(pair.b)], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("table", sorted(ccl_tables(), key=int))
def test_every_table_is_set_beside_ours(table: str) -> None:
    records = [
        run(name, order, 1, SIX[order]) for name in ("naive", "er", "inc_joint") for order in ("order1", "order2")
    ]
    tables = beside_ours(summary_of(records), table)
    rows = ccl_tables()[table]
    published = [cell for made in tables for row in made.rows for k, cell in enumerate(row) if made.header[k] != "ours"]
    for row in rows:
        shown = percent(row.value) if row.unit == "percent" else None
        assert shown is None or shown in published


def test_runtimes_are_minutes_like_the_published_ones() -> None:
    records = [run("naive", order, 1, SIX[order]) for order in ("order1", "order2")]
    records = [replace(r, costs={"seconds": s, "parameters": 5.0}) for r, s in zip(records, (90.0, 150.0), strict=True)]
    tables = beside_ours(summary_of(records), "7")
    cells = {
        name: (row[k], row[k + 1])
        for table in tables
        for row in table.rows
        for k, name in enumerate(table.header)
        if row[0] == "naive" and name in ("runtime", "parameters")
    }
    assert cells["runtime"] == ("196.0", "2.0")
    assert cells["parameters"][1] == "5"


def test_what_the_paper_calls_a_run() -> None:
    def names(strategy: str, settings: dict, **fields: object) -> tuple[str, ...]:
        config = {"strategy": {"name": strategy} | settings} | fields
        return published_names(run(strategy, "h2l", 1, ORDERS["h2l"], config=config))

    assert names("lang_spec_enc", {"layers": [1, 2, 3]}) == ("lang_spec_enc_1_3",)
    assert names("er", {"memory": 750}) == ("er_750", "er")
    assert names("naive", {}, dataset={"max_train": 10}) == ("naive_balanced", "naive")
    assert names("naive", {}) == ("naive",)


def test_the_copied_facts_equal_the_source() -> None:
    shared = Path(__file__).parents[3] / "shared" / "reference" / "ccl_tables.csv"
    if not shared.is_file():
        pytest.skip("the published tables are not beside the project")
    with shared.open(encoding="utf-8") as file:
        theirs = [(r["table"], r["model"], r["language"], float(r["value"])) for r in csv.DictReader(file)]
    ours = [
        (r.table, r.model, r.language, r.value * (100 if r.unit == "percent" else 1))
        for rows in ccl_tables().values()
        for r in rows
    ]
    assert [t[:3] for t in sorted(theirs)] == [o[:3] for o in sorted(ours)]
    np.testing.assert_allclose([t[3] for t in sorted(theirs)], [o[3] for o in sorted(ours)], rtol=1e-12)
