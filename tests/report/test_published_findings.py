"""The paper's findings hold in its tables, and are tested in ours."""

from __future__ import annotations

import math
import statistics
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from xclrun.analysis.bootstrap import paired_p_value
from xclrun.report.part import make_block
from xclrun.report.parts import PARTS
from xclrun.report.published import ccl_tables
from xclrun.report.published.findings import CLAIMS, Finding, findings
from xclrun.report.published.ranking import over_orders

from .study import LANGUAGES, run, section_of
from .test_published import SIX
from .test_published_ranking import SIX_STRATEGIES, printed, records


@pytest.mark.parametrize("metric", ["intent_accuracy", "slot_f1"])
def test_every_finding_is_one_of_the_papers_own_means(metric: str) -> None:
    table_8 = {(row.model, row.metric, row.measure): row.value for row in ccl_tables()["8"]}
    for claim in CLAIMS:
        assert table_8[claim.more, metric, claim.measure] > table_8[claim.less, metric, claim.measure], claim.text
    assert table_8["naive", "slot_f1", "F"] > table_8["naive", "intent_accuracy", "F"]
    assert printed("order2")["naive", metric, "F"] > printed("order1")["naive", metric, "F"]
    assert len({claim.text for claim in CLAIMS}) == len(CLAIMS)


def test_a_finding_is_the_difference_over_the_same_orders_with_its_own_p_value() -> None:
    """Each pair has its own variance: with Tukey's pooled error findings contradicted “What was found”."""
    section = section_of(records(tuple(SIX)))
    inference = section.inference
    by_difference = {(finding.difference, finding.metric): finding for finding in findings(section.summary, inference)}
    finding = by_difference["F naive − er", "intent_accuracy"]
    theirs = [
        printed_of["naive", "intent_accuracy", "F"] - printed_of["er", "intent_accuracy", "F"]
        for printed_of in map(printed, SIX)
    ]
    assert finding.published == pytest.approx(sum(theirs) / 6)
    ours = [section.summary.value(name, "intent_accuracy", "F") for name in ("naive", "er")]
    assert finding.ours == pytest.approx(ours[0] - ours[1])
    raw = {}
    for difference, metric in by_difference:
        if ", " in difference:
            continue
        measure, more, _, less = difference.split()
        data = inference.tests[metric, measure].averaged if (metric, measure) in inference.tests else None
        if data is not None and measure in ("F", "FP") and {more, less} <= {*data.strategies}:
            rows = (data.values[data.strategies.index(name)] for name in (more, less))
            raw[difference, metric] = float(ttest_rel(*rows).pvalue)
    # One seed: T and T0 of different orders share its reference models, so they are not tested.
    transfers = [
        printed_of
        for key, printed_of in by_difference.items()
        if key[0].startswith(("T ", "T0 ")) and not math.isnan(printed_of.ours)
    ]
    assert {printed_of.verdict for printed_of in transfers} <= {
        "same direction, untested",
        "opposite direction, untested",
    }
    assert transfers
    tested = [key for key, printed_of in by_difference.items() if not math.isnan(printed_of.p)]
    assert tested == list(raw)
    expected = multipletests(list(raw.values()), method="holm")[1]
    assert [by_difference[key].p for key in tested] == pytest.approx(expected.tolist())
    assert finding.verdict == "holds"
    # What can be detected, from statsmodels' power of a t-test and the spread of the differences of this pair.
    data = inference.tests["intent_accuracy", "F"].averaged
    first, second = (data.values[data.strategies.index(name)] for name in ("naive", "er"))
    effect = TTestPower().solve_power(nobs=6, alpha=0.05, power=0.8)
    assert finding.detectable == pytest.approx(effect * statistics.stdev(first - second), rel=1e-5)
    assert all(math.isnan(of.detectable) == math.isnan(of.p) for of in by_difference.values())
    assert by_difference["FP lang_spec_ft − naive", "slot_f1"].verdict == "same direction, untested"
    assert by_difference["FP multilingual − naive", "slot_f1"].verdict == "not run"


def test_slots_and_low_to_high_resource_are_compared_within_naive_fine_tuning() -> None:
    # A run in another order, which no other strategy has, enters no mean.
    section = section_of([*records(), run("naive", "mine", 1, (*LANGUAGES[1:], LANGUAGES[0]))])
    by_difference = {
        (finding.difference, finding.metric): finding for finding in findings(section.summary, section.inference)
    }
    value = section.summary.value
    whole = by_difference["F naive, slots − intent", "slots, intent"]
    assert whole.ours == pytest.approx(value("naive", "slot_f1", "F") - value("naive", "intent_accuracy", "F"))
    both = {(row.model, row.metric, row.measure): row.value for row in over_orders(["order1", "order2"])}
    assert whole.published == pytest.approx(both["naive", "slot_f1", "F"] - both["naive", "intent_accuracy", "F"])
    orders = by_difference["F naive, order2 − order1", "slot_f1"]
    assert orders.ours == pytest.approx(
        value("naive", "slot_f1", "F", "order2") - value("naive", "slot_f1", "F", "order1")
    )
    key = ("naive", "slot_f1", "F")
    assert orders.published == pytest.approx(printed("order2")[key] - printed("order1")[key])
    one_order = section_of(records(orders=("order1",)))
    differences = {finding.difference for finding in findings(one_order.summary, one_order.inference)}
    assert "F naive, slots − intent" in differences
    assert "F naive, order2 − order1" not in differences


def test_resampled_sentences_give_a_p_value_of_their_own() -> None:
    section, rng = section_of(records(orders=("order1",))), np.random.default_rng(0)
    drawn = {name: rng.normal(level, 0.01, 300) for name, level in (("naive", 0.06), ("er", 0.03))}
    bootstrap: Any = SimpleNamespace(
        difference=lambda a, b, measure: drawn[a] - drawn[b] if measure == "F" and {a, b} <= drawn.keys() else None
    )
    inference: Any = SimpleNamespace(tests={}, resampled={"intent_accuracy": bootstrap})
    by_difference = {(finding.difference, finding.metric): finding for finding in findings(section.summary, inference)}
    finding = by_difference["F naive − er", "intent_accuracy"]
    assert finding.p_sentences == paired_p_value(drawn["naive"] - drawn["er"])
    assert math.isnan(finding.p)
    assert math.isnan(by_difference["FP er − naive", "intent_accuracy"].p_sentences)
    assert math.isnan(by_difference["F naive − er", "slot_f1"].p_sentences)


@pytest.mark.parametrize(
    ("ours", "p", "verdict"),
    [
        (0.02, 0.049, "holds"),
        (0.02, 0.05, "same direction, not significant"),
        (0.02, math.nan, "same direction, untested"),
        (-0.02, 0.049, "does not hold"),
        (-0.02, 0.05, "opposite direction, not significant"),
        (-0.02, math.nan, "opposite direction, untested"),
        (0.0, math.nan, "no difference"),
        (math.nan, math.nan, "not run"),
    ],
)
def test_what_is_said_of_a_finding(ours: float, p: float, verdict: str) -> None:
    assert Finding("…", "slot_f1", "F a − b", 0.01, ours, p).verdict == verdict


def test_a_report_tells_every_finding() -> None:
    section = section_of(records())
    _, table, *_ = make_block(PARTS["published_ranking"], section).tables
    claims = findings(section.summary, section.inference)
    assert len(table.rows) == 2 * len(CLAIMS) + 3 == len(claims)
    assert [row[-1] for row in table.rows] == [finding.verdict for finding in claims]
    (row,) = (row for row in table.rows if row[1:3] == ("intent", "F naive − er"))
    assert row[3] == "+1.99"  # of 1.52 − 0.71 and 5.52 − 2.35
    (whole,) = (row for row in table.rows if row[1] == "slots, intent")
    assert whole[2] == "F naive, slots − intent"


@pytest.mark.parametrize(
    ("orders", "seeds", "over"),
    [(tuple(SIX), (1,), "orders"), (("order1",), (1, 2, 3), "seeds of one order")],
)
def test_a_report_says_what_its_p_values_are_over(orders: tuple[str, ...], seeds: tuple[int, ...], over: str) -> None:
    runs = [run(name, order, seed, SIX[order]) for name in SIX_STRATEGIES for order in orders for seed in seeds]
    _, table, *_ = make_block(PARTS["published_ranking"], section_of(runs)).tables
    (row,) = (row for row in table.rows if row[1:3] == ("intent", "F naive − er"))
    assert (row[5] != "–", row[-1]) == (True, "holds")
    assert any(note.startswith(f"p: paired t-test over {over},") for note in table.notes)


def test_nothing_is_claimed_of_other_orders() -> None:
    section = section_of([run("naive", "mine", 1, (*LANGUAGES[1:], LANGUAGES[0]))])
    assert findings(section.summary, section.inference) == []
    assert SIX["order1"] == LANGUAGES
