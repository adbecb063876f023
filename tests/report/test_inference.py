"""Tests, intervals, budgets and figures over strategies: numbers and layout."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from functools import cache
from itertools import permutations, product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import ttost_paired

from xclrun.analysis import formulas
from xclrun.analysis.aggregate import comparisons, summarise
from xclrun.analysis.all_tests import MIXED
from xclrun.analysis.bootstrap import INTERVALS, Interval
from xclrun.analysis.finished import finished_run, tuning_trials
from xclrun.analysis.formulas import forgetting
from xclrun.analysis.power import Components
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.resampling import Estimate
from xclrun.analysis.significance import mixed_model
from xclrun.report.conclusions import conclusions
from xclrun.report.heatmaps import heatmaps
from xclrun.report.inference import MIXED_NOTE, Inference, p_text
from xclrun.report.latex import latex
from xclrun.report.part import Part, make_block
from xclrun.report.parts.budgets import budget_table, dominated, pareto_figure, pareto_front
from xclrun.report.parts.confusions import confusion_figure, confusions
from xclrun.report.parts.curves import score_matrices
from xclrun.report.parts.significance import bootstrap_table, exploratory
from xclrun.report.parts.trade_offs import distance_figure, memory_figure, one_hop_figure, trade_off_figure
from xclrun.report.power import powers
from xclrun.report.strategies import StrategySection
from xclrun.report.style import COLOURS, marker, save
from xclrun.report.summary import Summary
from xclrun.report.tables import Cell

from .study import LANGUAGES, ORDERS, drawn, inference_of, pairs_of, run, section_of, study, summary_of, table_html
from .test_figures import is_cut_off, texts


@cache
def records() -> tuple[RunRecord, ...]:
    return tuple(
        study(("naive", "er", "ewc_online", "lang_spec_trans", "lang_spec_ft", "multilingual"), ORDERS, (1, 2))
    )


@cache
def section() -> StrategySection:
    return section_of(records())


def made() -> tuple[Summary, Inference, References]:
    return section().summary, section().inference, section().shared.references


def test_the_table_of_pairs_holds_what_scipy_finds() -> None:
    summary, inference, _ = made()
    rows = pairs_of(inference, "intent_accuracy", "FP")
    finals = {
        label: [
            np.mean(
                [r.scores["intent_accuracy"][-1].mean() for r in summary.comparison.strategies[label] if r.order == o]
            )
            for o in ORDERS
        ]
        for label in ("naive", "er")
    }
    assert float(rows["naive", "er"]["Δ"]) == pytest.approx(
        100 * (np.mean(finals["naive"]) - np.mean(finals["er"])), abs=0.005
    )
    assert len(rows) == 6
    raw = stats.ttest_rel(finals["naive"], finals["er"]).pvalue
    assert isinstance(rows["naive", "er"]["paired t"], Cell)
    assert raw <= rows["naive", "er"]["paired t"].value <= 6 * raw  # Holm's


def test_tests_of_one_order_say_so_and_what_cannot_be_tested_is_na_with_its_reason() -> None:
    records = [run(name, "h2l", seed, LANGUAGES) for name in ("naive", "er", "agem") for seed in (1, 2, 3)]
    # agem is naive with five points more.
    same = {r.seed: r.scores["intent_accuracy"] for r in records if r.strategy == "naive"}
    records = [
        dataclasses.replace(r, scores=r.scores | {"intent_accuracy": same[r.seed] + 0.05})
        if r.strategy == "agem" else r
        for r in records
    ]  # fmt: skip
    inference = inference_of(records)
    for table in (inference.anovas(), inference.all_pairs()):
        assert any("replicates: 3 seeds of one order" in note and "only to h2l" in note for note in table.notes)
        assert table.notes[0] == "[1] needs two replicates or more"  # the paper's, over orders
    assert "paired t-test over seeds (of h2l only)" in inference.marks_meaning
    rows = pairs_of(inference, "intent_accuracy", "FP")
    assert rows["naive", "agem"]["paired t"] == "n/a [2]"
    assert table.notes[1] == "[2] all differences are equal"
    assert rows["naive", "er"]["paired t"] != "n/a [2]"


def by_order(label: str, metric: str, measure: Callable[[np.ndarray], float]) -> list[float]:
    """Means over seeds of one measure of each order, from the score matrices."""
    runs = [r for r in records() if r.strategy == label]
    return [float(np.mean([measure(r.scores[metric]) for r in runs if r.order == o])) for o in ORDERS]


def test_marks_are_paired_t_tests_against_the_baseline_with_holm_over_one_family() -> None:
    """Strategies × F and FP × metrics, by scipy and statsmodels; T and T0 have no marks."""
    _, inference, _ = made()
    measures = {"F": lambda R: float(forgetting(R)), "FP": lambda R: float(R[-1].mean())}
    keys = [
        (label, metric, name)
        for label in ("er", "ewc_online", "lang_spec_trans")
        for metric in ("intent_accuracy", "slot_f1")
        for name in measures
    ]
    raw = [
        stats.ttest_rel(*(by_order(name_of, metric, measures[name]) for name_of in (label, "naive"))).pvalue
        for label, metric, name in keys
    ]
    expected = dict(zip(keys, multipletests(raw, method="holm")[1], strict=True))
    assert {key: pair.p for key, pair in inference.primary.items()} == pytest.approx(expected, rel=1e-6)
    levels = {"***": 0.001, "**": 0.01, "*": 0.05}
    marks = {key: next((mark for mark, level in levels.items() if p < level), "") for key, p in expected.items()}
    assert inference.marks() == marks
    assert {"", "***"} <= set(marks.values())
    table = inference.comparisons()
    assert table is not None
    by_subject = {(row[2], row[0], row[1]): row for row in table.rows}
    row = by_subject["er", "intent", "FP"]
    differences = np.subtract(*(by_order(label, "intent_accuracy", measures["FP"]) for label in ("er", "naive")))
    interval = stats.t.interval(0.95, len(ORDERS) - 1, differences.mean(), stats.sem(differences))
    wide = stats.t.interval(1 - 0.05 / len(keys), len(ORDERS) - 1, differences.mean(), stats.sem(differences))
    ends = [f"[{100 * low:.2f}, {100 * high:.2f}]" for low, high in (interval, wide)]
    assert row[3:7] == (str(len(ORDERS)), f"{100 * differences.mean():.2f}", *ends)
    cells = dict(zip(table.header, row, strict=True))
    assert cells["p (Holm)"].value == pytest.approx(expected["er", "intent_accuracy", "FP"])
    assert [name for name in table.header if name.startswith("p")] == ["p (Holm)"]


def test_a_strategy_with_a_large_spread_gives_no_mark_and_hides_none() -> None:
    """Tukey's pooled error marks the noisy strategy, which differs by chance, and hides a steady difference."""
    rng = np.random.default_rng(0)
    orders, level = [f"order{k}" for k in range(6)], rng.normal(0.7, 0.02, 6)
    noisy = np.array([0.06, -0.08, 0.09, -0.1, 0.05, -0.02])
    # t = 2.45, the paired p is 0.058; the steady difference is a fifth of it.
    noisy += 2.45 * noisy.std(ddof=1) / math.sqrt(6) - noisy.mean()
    steady = 0.02 + rng.normal(0, 0.004, 6)
    finals = {"naive": level, "er": level + steady, "wild": level + noisy}
    runs = []
    for k, order in enumerate(orders):
        languages = tuple(LANGUAGES[(j + k) % 6] for j in range(6))
        for label, values in finals.items():
            R = np.full((7, 6), 0.5)
            R[-1] = values[k]
            runs.append(dataclasses.replace(
                run(label, order, 1, languages, metrics=("intent_accuracy",)), scores={"intent_accuracy": R}
            ))  # fmt: skip
    inference = inference_of(runs, primary=("FP",))
    marks = inference.marks()
    assert marks["wild", "intent_accuracy", "FP"] == ""
    assert marks["er", "intent_accuracy", "FP"] in ("**", "***")
    pooled = {pair.b: pair.p for pair in inference.tests["intent_accuracy", "FP"].blocked[1] if pair.a == "naive"}
    assert pooled["wild"] < 0.05
    assert pooled["er"] > 0.5


def finals_of(values: dict[str, dict[int, float]], metric: str = "intent_accuracy") -> list[RunRecord]:
    """Return runs with these final scores: strategy → number of an order → score; NaN: not measured."""
    runs = []
    for label, by_order in values.items():
        for k, value in by_order.items():
            R = np.full((7, 6), 0.5)
            R[-1] = value
            languages = tuple(LANGUAGES[(j * (1 if k < 6 else 5) + k) % 6] for j in range(6))
            runs.append(dataclasses.replace(run(label, f"order{k}", 1, languages, metrics=(metric,)),
                                            scores={metric: R}))  # fmt: skip
    return runs


STEADY = {
    "naive": dict(enumerate([0.71, 0.72, 0.70, 0.73, 0.69, 0.72])),
    "er": dict(enumerate([0.74, 0.75, 0.72, 0.77, 0.71, 0.75])),
}


def test_an_incomplete_strategy_removes_no_evidence_about_the_others() -> None:
    few = {"agem": {0: 0.70, 1: 0.73}, "merge": {4: 0.9}}
    alone, both = (inference_of(finals_of(each), primary=("FP",)) for each in (STEADY, STEADY | few))
    key = ("er", "intent_accuracy", "FP")
    raw = stats.ttest_rel(*(list(STEADY[label].values()) for label in ("er", "naive"))).pvalue
    assert (both.unadjusted[key].p, both.unadjusted[key].n) == (pytest.approx(raw), 6)
    assert alone.primary[key].p == pytest.approx(raw)
    # The family has three comparisons, of which one cannot be computed.
    assert both.primary[key].p == pytest.approx(3 * raw)
    table = both.comparisons()
    rows = {row[2]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert {label: row["n"] for label, row in rows.items()} == {"er": "6", "agem": "2", "merge": "1"}
    assert rows["merge"]["p (Holm)"] == "n/a [1]"
    assert table.notes[0] == "[1] needs two replicates or more"
    agem = stats.ttest_rel([0.70, 0.73], [0.71, 0.72]).pvalue
    assert both.unadjusted["agem", "intent_accuracy", "FP"].p == pytest.approx(agem)
    # Two replicates have no d_z.
    assert (rows["agem"]["d_z"], rows["er"]["d_z"] == "–") == ("–", False)
    # Tests of all strategies need common replicates.
    assert both.tests["intent_accuracy", "FP"].data.strategies == ("naive", "er")
    assert any("agem, merge" in note for note in both.all_pairs().notes)


def test_a_comparison_that_cannot_be_computed_keeps_its_row_with_the_true_reason() -> None:
    apart = finals_of(STEADY | {"agem": {6: 0.7, 7: 0.8}})
    unmeasured = [dataclasses.replace(r, scores={"slot_f1": r.scores["intent_accuracy"]}) for r in finals_of(
        {"gem": dict(STEADY["er"])})]  # fmt: skip
    tied = finals_of({"twin": dict(STEADY["naive"])})
    inference = inference_of([*apart, *unmeasured, *tied], primary=("FP",))
    reasons = {label: pair.reason for (label, metric, _), pair in inference.primary.items() if metric[0] == "i"}
    assert reasons == {
        "er": "", "agem": "agem and naive have no combination of order, seed and bucket in common",
        "gem": "gem has no runs with this metric", "twin": "all differences are equal",
    }  # fmt: skip
    # Four strategies and two formulas.
    assert len(inference.family) == 8
    assert "over 8 comparisons" in inference.comparisons().notes[-1]
    raw = inference.unadjusted["er", "intent_accuracy", "FP"].p
    assert inference.primary["er", "intent_accuracy", "FP"].p == pytest.approx(8 * raw)


def test_other_orders_and_merges_do_not_hide_what_the_baseline_shares_with_a_strategy() -> None:
    many = {"agem": dict(enumerate([0.71, 0.72, 0.70, 0.73, 0.69, 0.72]))}
    two = {"naive": {6: 0.7, 7: 0.8}, "er": {6: 0.75, 7: 0.81}}
    expected = pytest.approx(stats.ttest_rel([0.75, 0.81], [0.7, 0.8]).pvalue)
    runs = finals_of(many | two)
    merges = [dataclasses.replace(r, merged_from="x") if r.strategy == "er" else r for r in runs]
    for records in (runs, merges):
        pair = inference_of(records, primary=("FP",)).unadjusted["er", "intent_accuracy", "FP"]
        assert (pair.n, pair.p, pair.reason) == (2, expected, "")


def test_each_comparison_names_its_own_replicates() -> None:
    """A strategy in one order is tested over its seeds: the texts speak of seeds, and of this order only."""
    orders = ["h2l", "l2h", "order3", "order4"]
    runs = study(("naive", "er"), orders, (1, 2, 3)) + study(("agem",), orders[:1], (1, 2, 3))
    inference = inference_of(runs, primary=("FP",))
    assert {key[0]: pair.n for key, pair in inference.primary.items()} == {"er": 4, "agem": 3}
    agem, er = inference.each_scope()
    assert er.startswith("er: replicates: 4 orders (")
    assert agem.startswith("agem: replicates: 3 seeds of one order: the tests apply only to h2l")
    assert inference.method.startswith("paired t-test over seeds (of h2l only) or orders with")
    assert [text.rpartition("; ")[2] for text in conclusions(inference)[:2]] == ["3 seeds of one order.", "4 orders."]


def test_differences_that_are_not_significant_have_intervals_that_agree_with_their_p_values() -> None:
    near = {k: value + d / 1000 for (k, value), d in zip(STEADY["naive"].items(), (1, -2, 1, 0, 2, -1), strict=True)}
    inference = inference_of(finals_of(STEADY | {"agem": near}), primary=("FP",))
    pair = inference.primary["agem", "intent_accuracy", "FP"]
    low, high = stats.t.interval(1 - 0.05 / 2, 5, pair.difference, stats.sem(pair.differences))
    found = next(text for text in conclusions(inference) if ": agem has" in text)
    ends = f"[{100 * low:.2f}, {100 * high:.2f}]".replace("-", "−")
    assert f"not significant, p {p_text(pair.p, sign=True)}, {ends}" in found


def test_equivalence_is_the_larger_of_two_one_sided_tests_with_holm_over_the_family() -> None:
    near = {"agem": {k: STEADY["naive"][k] + d / 1000 for k, d in enumerate((1, -2, 1, 0, 2, -1))}}
    inference = inference_of(finals_of(STEADY | near), primary=("FP",), margin=0.01)
    raw = {
        label: ttost_paired(np.array(list(values.values())), np.array(list(STEADY["naive"].values())), -0.01, 0.01)[0]
        for label, values in (STEADY | near).items() if label != "naive"
    }  # fmt: skip
    holm = dict(zip(raw, multipletests(list(raw.values()), method="holm")[1], strict=True))
    assert {label: p for (label, *_), p in inference.equivalent.items()} == pytest.approx(holm)
    assert holm["agem"] < 0.01 < 0.5 < holm["er"]
    assert inference.comparisons().header[-1] == "p (TOST)"
    equivalent = [text for text in conclusions(inference) if "equivalent within 1.00 points" in text]
    assert [": agem has" in text for text in equivalent] == [True]
    without = inference_of(finals_of(STEADY | near), primary=("FP",))
    assert "equivalent" not in " ".join(conclusions(without))


def test_a_marked_difference_with_much_skew_stands_next_to_the_sign_flip_test() -> None:
    naive = dict.fromkeys(range(8), 0.5)
    gains = (0.02, 0.021, 0.022, 0.0205, 0.0215, 0.021, 0.0195, 0.06)
    skewed = {"er": {k: 0.5 + gain for k, gain in enumerate(gains)}, "agem": {k: 0.52 + k / 1000 for k in naive}}
    inference = inference_of(finals_of({"naive": naive} | skewed), primary=("FP",))
    assert set(inference.marks().values()) <= {"**", "***"}
    signs = np.array(list(product((1, -1), repeat=8))) @ np.array(gains)
    exact = np.mean(np.abs(signs) >= sum(gains) - 1e-12)
    (note,) = (note for note in inference.comparisons().notes if "sign-flip" in note)
    skew = stats.skew(gains, bias=False)
    assert skew > 1.5
    assert note.endswith(f"correction: intent FP er (skew {skew:.1f}): p = {exact:.3f}")


def test_the_caveat_describes_the_test_of_each_measure() -> None:
    caveat = conclusions(transfer_study((1, 2), ("T", "FP")))[-1]
    assert re.search(r"intent T: replicates: 4 orders .*share reference models", caveat)
    assert re.search(
        r"intent FP: replicates: 4 orders \(8 runs per strategy, averaged within each replicate\);", caveat
    )


def transfer_study(seeds: tuple[int, ...], primary: tuple[str, ...] = ("T",)) -> Inference:
    """Test two strategies with separate reference models, which orders of one seed share."""
    rng = np.random.default_rng(7)
    runs = []
    for seed in seeds:
        for expansion in (None, "adapters"):
            extra = {} if expansion is None else {"expansion": {"name": expansion, "pretrained": None}}
            M = 0.7 + rng.normal(0, 0.02, 6) + rng.normal(0, 0.03)
            alone = np.full((7, 6), 0.1)
            alone[range(1, 7), range(6)] = M
            reference = f"lang_spec_ft+{expansion}" if expansion else "lang_spec_ft"
            runs.append(dataclasses.replace(
                run(reference, "h2l", seed, LANGUAGES, settings=extra, metrics=("intent_accuracy",)),
                stream="independent", scores={"intent_accuracy": alone},
            ))  # fmt: skip
            for order, languages in ORDERS.items():
                R = 0.5 + rng.normal(0, 0.01, (7, 6))
                name = f"naive+{expansion}" if expansion else "naive"
                runs.append(dataclasses.replace(
                    run(name, order, seed, languages, settings=extra, metrics=("intent_accuracy",)),
                    scores={"intent_accuracy": R},
                ))  # fmt: skip
    return inference_of(runs, primary=primary)


def test_transfer_with_one_seed_is_labelled_and_has_no_marks() -> None:
    inference = transfer_study((1,), ("T", "T0", "FP"))
    label = "conditional on the reference models of one seed"
    for name in ("T", "T0"):
        tests = inference.tests["intent_accuracy", name]
        assert label in tests.scope
        (pair,) = tests.against(inference.baseline).values()
        assert (math.isnan(pair.p), pair.reason) == (True, label)
    assert label not in inference.tests["intent_accuracy", "FP"].scope
    assert {name: mark for (_, _, name), mark in inference.marks().items() if name != "FP"} == {"T": "", "T0": ""}
    assert " over 3 comparisons (" in inference.marks_meaning


def test_transfer_with_several_seeds_takes_seeds_as_crossed_with_orders() -> None:
    inference = transfer_study((1, 2, 3))
    tests = inference.tests["intent_accuracy", "T"]
    assert not tests.condition
    (pair,) = tests.against(inference.baseline).values()
    d = np.subtract(*tests.data.values[::-1])
    table = np.array([[d[tests.data.blocks.index((o, s, None))] for s in (1, 2, 3)] for o in ORDERS])
    long = pd.DataFrame([(o, s, table[o, s]) for o in range(4) for s in range(3)], columns=["o", "s", "d"])
    squares = sm.stats.anova_lm(smf.ols("d ~ C(o) + C(s)", long).fit())["mean_sq"]
    of_order, of_seed, rest = squares["C(o)"], squares["C(s)"], squares["Residual"]
    assert of_seed > of_order + rest  # the reference models' noise
    variance = (of_order + of_seed - rest) / 12
    df = (of_order + of_seed - rest) ** 2 / (of_order**2 / 3 + of_seed**2 / 2 + rest**2 / 6)
    df = max(df, 2)
    variance = max(variance, of_order / 12, of_seed / 12)
    assert pair.p == pytest.approx(2 * stats.t.sf(abs(table.mean()) / math.sqrt(variance), df))
    assert (pair.low, pair.high) == pytest.approx(stats.t.interval(0.95, df, table.mean(), math.sqrt(variance)))
    # Averaging the seeds of each order first would ignore that noise.
    assert pair.p > 2 * stats.ttest_1samp(table.mean(axis=1), 0).pvalue


def test_the_mixed_model_needs_four_orders_and_shows_its_own_estimate() -> None:
    runs = study(("naive", "er"), ORDERS, (1, 2, 3))
    few = [r for r in runs if r.order in ("h2l", "l2h", "order3")]
    assert MIXED not in inference_of(few).all_pairs().header
    # Unequal numbers of seeds: the model weighs orders differently.
    runs = [r for r in runs if r.seed == 1 or r.order == "h2l"]
    inference = inference_of(runs)
    table = inference.all_pairs()
    cell = pairs_of(inference, "intent_accuracy", "F")["naive", "er"][MIXED]
    (pair,) = mixed_model(inference.tests["intent_accuracy", "F"].data)
    assert cell == f"{100 * pair.difference:.2f}, p {p_text(pair.p, sign=True)}"
    assert MIXED_NOTE in table.notes


def test_marks_compare_with_one_named_baseline() -> None:
    summary, default, _ = made()
    assert default.baseline == "naive"
    other = inference_of(records(), baseline="er")
    # The same pair has the same p-value from either side; the baseline has no mark.
    p_values = (other.unadjusted["naive", "intent_accuracy", "F"].p, default.unadjusted["er", "intent_accuracy", "F"].p)
    assert p_values[0] == pytest.approx(p_values[1])
    assert other.marks()["naive", "intent_accuracy", "F"] == default.marks()["er", "intent_accuracy", "F"] != ""
    assert not any(label == "er" for label, _, _ in other.marks())
    assert other.marks_meaning.startswith("* ** ***: different from the baseline, er, at p < 0.05")
    # What was not tested has no marks, and no footnote about any.
    alone = inference_of(records(), baseline="lang_spec_ft")
    assert alone.marks() == {}
    assert alone.baseline_notes()[0].startswith("no significance marks: the baseline, lang_spec_ft, ")
    table = Summary(summarise(records()), summary.comparison, alone.marks(), marks_meaning=alone.marks_meaning).main(
        ["intent_accuracy"]
    )
    assert table.raised == ("bold: best of the column",)
    without = [r for r in records() if r.strategy != "naive"]
    assert inference_of(without).baseline == "er"  # rather than a reference, which come last


def test_marks_and_bold_are_explained_where_they_are_shown() -> None:
    summary, inference, _ = made()
    table = summary.main(["intent_accuracy"])
    assert table.raised == (inference.marks_meaning, "bold: best of the column")
    by_order = summary.main(["intent_accuracy"], "h2l")
    assert by_order.raised == ("bold: best of the column",)  # no test is of one order
    assert "*" not in table.text()
    assert "bold" not in table.text()
    assert r"\*\*\* |" in table.markdown()
    assert all(part in table_html(table) for part in ("<sup>***</sup>", inference.marks_meaning[:40]))
    assert r"\tnote{***}" in latex(table)
    assert r"\item[*, **, ***] different from the baseline, naive," in latex(table)
    assert r"\item[1] needs a sequence of hops instead of one model per language" in latex(table)
    assert r"n/a\tnote{1}" in latex(table)
    (best,) = (row[-1] for row in table.rows if row[-1].best)
    assert best == max((row[-1] for row in table.rows if summary.is_ranked(row[0])), key=lambda cell: cell.value)
    assert "\\textbf{" + best.replace("±", "$\\pm$") + "}" in latex(table)


def test_reference_models_are_ruled_off_and_never_the_best() -> None:
    summary, _, _ = made()
    table = summary.main(["intent_accuracy"])
    assert [row[0] for row in table.rows[table.ruled[0] :]] == ["lang_spec_ft", "multilingual"]
    finals = {row[0]: row[-1] for row in table.rows}
    assert finals["multilingual"].value > max(finals[k].value for k in ("naive", "er", "ewc_online"))
    assert not finals["multilingual"].best
    assert "reference models (not ranked): lang_spec_ft, multilingual" in table.notes
    assert table_html(table).count("<tr class=ruled>") == 1
    lines = table.text().splitlines()
    at = next(k for k, line in enumerate(lines) if line.startswith("lang_spec_ft"))
    assert set(lines[at - 1]) == {"─"}
    assert latex(table).split("\\midrule")[2].strip().startswith("lang")
    assert summary.languages("intent_accuracy", "FP").ruled == table.ruled
    assert budget_table(summary.comparison, {}).ruled == table.ruled
    assert summary.orders("intent_accuracy").ruled == (6, 12, 18)


def test_few_replicates_are_told_and_one_is_no_test() -> None:
    _, inference, _ = made()
    table = inference.anovas()
    replicates = "replicates: 4 orders (8 runs per strategy, averaged within each replicate)"
    assert table.notes[0] == f"intent F, intent FP, slots F, slots FP: {replicates}; 4 strategies"
    assert any("T0, slots T, slots T0: " in note and "orders with the same seed share" in note for note in table.notes)
    assert any("Wilcoxon with 4 pairs" in note or "a paired t-test has 80 % power" in note for note in table.notes)
    single = study(("naive", "er"), ("h2l",), (1,))
    alone = inference_of(single)
    assert (alone.tests, alone.marks(), alone.anovas(), alone.all_pairs()) == ({}, {}, None, None)


def test_what_is_not_said_of_all_tests_names_those_that_it_is_said_of() -> None:
    records = study(("naive", "er", "gdumb"), ("h2l", "l2h"), (1,))
    records = [dataclasses.replace(r, stream="growing") if r.strategy == "gdumb" else r for r in records]
    notes = inference_of(records).anovas().notes  # type: ignore[union-attr]
    scopes = [note for note in notes if "replicates: 2 orders" in note]
    assert scopes == [
        "intent F, slots F: replicates: 2 orders; 2 strategies",
        "intent T0, slots T0: replicates: 2 orders; tests conditional on the reference models of one seed; "
        "2 strategies",
        "intent FP, slots FP: replicates: 2 orders; 3 strategies",
    ]
    assert [note for note in notes if "Wilcoxon" in note] == [
        "Wilcoxon's test with 2 pairs cannot reach p = 0.05: its smallest p is 0.5"
    ]


def test_intervals_show_the_value_its_bias_and_the_interval_or_why_there_is_none() -> None:
    class Resamples:
        size = None
        with_texts: ClassVar[tuple[str, ...]] = ()
        tested: ClassVar = {"en": 100, "de": 29}

        def estimate(self, label: str, name: str, kind: str | None, order: str | None = None) -> Estimate | None:
            if label not in ("naive", "er") or name == "T":
                return None
            if order is not None:
                return Estimate(0.2, 0.0, Interval(0.1, 0.3))
            reason = "BCa needs resamples that differ" if label == "er" else ""
            ends = (np.nan, np.nan) if reason else (0.11, 0.145)
            return Estimate(0.12, -0.0042 if name == "F" else 0.0042, Interval(*ends, reason))

    summary = made()[0]
    resampled: Any = {"intent_accuracy": Resamples()}
    table = bootstrap_table(inference_of(records(), resampled, "bca"), summary)
    # T, which none has, is left out.
    assert table.header == ("strategy", "F", "T0", "FP")
    assert table.rows == (
        ("naive", "12.00 (bias -0.42) [11.00, 14.50]", *["12.00 (bias +0.42) [11.00, 14.50]"] * 2),
        ("er", "12.00 (bias -0.42) n/a [1]", *["12.00 (bias +0.42) n/a [1]"] * 2),
    )
    assert table.rows[0][1].value == 0.12
    assert table.notes[0] == "[1] BCa needs resamples that differ"
    assert "value: computed from the data; bias: mean over 600 resamples" in table.notes[1]
    assert "95 % BCa interval" in table.notes[2]
    assert "(de 29): their intervals are too narrow" in table.notes[3]
    assert not any("texts are resampled" in note for note in table.notes)
    # The paper's intervals are means over orders; each order has a row.
    table = bootstrap_table(inference_of(records(), resampled, "paper"), summary)
    orders = [run.order for run in summary.comparison.strategies["naive"]]
    assert len(set(orders)) > 1
    assert [row[0] for row in table.rows[: 1 + len(set(orders))]] == [
        "naive",
        *(f"naive, {o}" for o in dict.fromkeys(orders)),
    ]
    assert table.rows[1][1:] == ("20.00 (bias +0.00) [10.00, 30.00]",) * 3
    assert INTERVALS["paper"] in table.notes
    # By default the kind is the measure's own.
    table = bootstrap_table(inference_of(records(), resampled), summary)
    assert [row[0] for row in table.rows[:2]] == ["naive", "er"]
    Resamples.with_texts = ("questions", "pairs")
    resampled = {metric: Resamples() for metric in ("answer_f1", "exact_match")}
    notes = bootstrap_table(inference_of(records(), resampled, "bca"), summary).notes
    for unit in Resamples.with_texts:
        assert notes.count(f"{unit}: texts are resampled, each with all its {unit}") == 1


def test_p_values_as_text() -> None:
    assert [p_text(p) for p in (float("nan"), 0.0001, 0.0312, 1.0)] == ["–", "< 0.001", "0.031", "1.000"]


@pytest.mark.full
def test_figures_are_whole_and_say_what_they_show() -> None:
    summary, _, references = made()
    figures = {
        "trade": trade_off_figure(summary, "intent_accuracy"),
        "distance": distance_figure(summary, "slot_f1"),
        "hop": one_hop_figure(summary, references, "intent_accuracy"),
        "p": drawn(section(), exploratory, "p_values_mini_tiny_intent"),
        "critical": drawn(section(), exploratory, "critical_mini_tiny_slots"),
        "matrices": heatmaps(
            {k: v[:2] for k, v in summary.comparison.strategies.items()}, "intent_accuracy", "two runs"
        ),
    }
    for name, figure in figures.items():
        assert figure is not None, name
        assert not is_cut_off(figure), name
        assert "naive" in " ".join(texts(figure)), name
    assert "mini, tiny: slot F1 (%); mean ranks over orders, 1 is best; CD: critical difference at 0.05" in " ".join(
        " ".join(texts(figures["critical"])).split()
    )


def test_fewer_than_five_runs_are_points_and_equal_ones_lie_side_by_side() -> None:
    def drawn_of(seeds: tuple[int, ...]) -> tuple[int, list[Any]]:
        # Seeds differ by nothing, so all runs of an order have equal values.
        runs = [run("naive", order, 1, ORDERS[order]) for order in ("h2l", "l2h")]
        runs = [dataclasses.replace(record, seed=s, run_id=f"{record.run_id}-{s}") for record in runs for s in seeds]
        summary = summary_of(runs)
        axes = one_hop_figure(summary, References(runs), "intent_accuracy").axes[0]
        return len(axes.patches), [line for line in axes.lines if line.get_marker() == "."]

    boxes, points = drawn_of((1, 2))
    assert boxes == 0
    # One-hop and multi-hop; of each, four runs with two values.
    assert [len(line.get_ydata()) for line in points] == [4, 4]
    for line in points:
        assert len(set(np.round(line.get_ydata(), 9))) == 2
        assert len(set(map(tuple, np.round(line.get_xydata(), 3)))) == 4
    assert drawn_of((1, 2, 3))[0] == 2


def test_strategies_with_identical_scores_are_both_visible(tmp_path: Path) -> None:
    runs = [run("naive", order, 1, ORDERS[order]) for order in ("h2l", "l2h")]
    config = runs[0].config | {"strategy": {"name": "agem"}}
    runs += [
        dataclasses.replace(record, strategy="agem", run_id=f"agem-{record.run_id}", config=config) for record in runs
    ]
    runs += [run("er", order, 1, ORDERS[order]) for order in ("h2l", "l2h")]
    figure = trade_off_figure(summary_of(runs), "intent_accuracy")
    save(figure, tmp_path, "trade_offs")
    naive, agem, er = (line for line in figure.axes[0].lines if line.get_marker() != "None")
    np.testing.assert_array_equal(naive.get_xydata(), agem.get_xydata())
    assert naive.get_markersize() >= agem.get_markersize() + 3
    assert er.get_markersize() == agem.get_markersize()


def test_gains_by_distance_have_their_spread_and_number_of_runs() -> None:
    summary = made()[0]
    figure = distance_figure(summary, "slot_f1")
    gains = [
        100 * formulas.generalisation_by_distance(r.scores["slot_f1"]) for r in summary.comparison.strategies["er"]
    ]
    k = list(summary.comparison.strategies).index("er")
    [line] = [line for line in figure.axes[1].lines if line.get_marker() == marker(k)]
    np.testing.assert_allclose(line.get_ydata(), np.mean(gains, axis=0))
    bars = np.array(figure.axes[1].collections[k].get_segments())
    np.testing.assert_allclose((bars[:, 1, 1] - bars[:, 0, 1]) / 2, np.std(gains, axis=0, ddof=1))
    assert f"n = {len(gains)} runs" in " ".join(" ".join(texts(figure)).split())
    alone = distance_figure(summary_of([run("naive", "h2l", 1, LANGUAGES)]), "slot_f1")
    assert not alone.axes[0].collections


@pytest.mark.full
def test_the_critical_difference_is_drawn_in_full_and_explained_unless_no_ranks_can_differ_so_much() -> None:
    """With two orders it is longer than the axis of ranks."""
    few = section_of(study(("naive", "er", "ewc_online", "lang_spec_trans"), ("h2l", "l2h"), (1,)))
    (plot,) = (plot for plot in make_block(exploratory, few).plots if plot.name == "critical_mini_tiny_intent")
    assert all(tests.ranks.critical > 3 for tests in few.inference.of_metric("intent_accuracy").values())
    assert plot.draw() is None
    figure = drawn(section(), exploratory, "critical_mini_tiny_intent")
    assert not is_cut_off(figure)
    for axes, tests in zip(figure.axes, section().inference.of_metric("intent_accuracy").values(), strict=True):
        [bar] = [line for line in axes.lines if line.get_marker() == "|"]
        assert np.ptp(bar.get_xdata()) == pytest.approx(tests.ranks.critical)
        assert max(bar.get_xdata()) < axes.get_xlim()[1]
    assert "which is not significant" in " ".join(texts(figure))


def test_replay_by_memory_needs_two_sizes() -> None:
    few = [run("er", "h2l", seed, LANGUAGES, settings={"memory": m}) for m in (750, 6000) for seed in (1, 2)]
    few += [run("naive", "h2l", seed, LANGUAGES) for seed in (1, 2)]
    figure = memory_figure(summary_of(few), "intent_accuracy")
    assert figure.axes[3].lines[0].get_xdata().tolist() == [750, 6000]
    assert memory_figure(made()[0], "intent_accuracy") is None
    # Two settings with memories of the same sizes are two lines.
    few += [run("er", "h2l", 1, LANGUAGES, settings={"memory": m, "every_k": 9}) for m in (750, 6000)]
    both = summary_of(few)
    figure = memory_figure(both, "intent_accuracy")
    drawn = {line.get_label(): line.get_ydata()[0] for line in figure.axes[3].lines}
    assert set(drawn) == {"er(every_k=9)", "er(every_k=unset)", "naive"}
    assert drawn["er(every_k=9)"] == 100 * both.value("er(every_k=9, memory=750)", "intent_accuracy", "FP")


def test_confusions_are_shares_of_the_gold_class() -> None:
    summary, _, _ = made()
    figure = confusion_figure(summary, {"naive": np.array([[3, 1], [0, 0]])}, ["set_alarm", "call"])
    np.testing.assert_allclose(figure.axes[0].images[0].get_array(), [[75, 25], [0, 0]])
    many = np.eye(60, dtype=int) * np.arange(60)
    large = confusion_figure(summary, {"naive": many, "er": many}, [f"intent_{k}" for k in range(60)])
    assert not is_cut_off(large)
    assert "the 24 most frequent of 60" in " ".join(texts(large))


def test_the_page_says_how_many_strategies_and_orders_are_drawn() -> None:
    class Predicted:
        labels = ("set_alarm", "call")

        @property
        def sentences(self) -> None:
            raise ValueError("these parts need no sentences")

        def confusion(self, hop: int) -> np.ndarray:
            return np.eye(2, dtype=int)

    predicted: Any = Predicted()
    names = ("naive", "er", "agem", "ewc", "ewc_online", "kd_logit", "kd_rep", "lang_spec_trans")
    records = [run(name, f"order{k}", 1, ("en", "th")) for name in names for k in range(1, 9)]
    predictions = {record.run_id: predicted for record in records}
    of_six = {record.run_id: predicted for record in records if record.strategy in names[:6]}

    def text(part: Part, predictions: dict[str, Any]) -> str:
        return " ".join(make_block(part, section_of(records, predictions=lambda: predictions)).paragraphs)

    assert "6 of 8 strategies" in text(confusions, predictions)
    assert "of 8 strategies" not in text(confusions, of_six)
    assert text(score_matrices, {}).endswith("Matrices of the first 6 of 8 orders.")


def test_unequal_budgets_are_marked() -> None:
    base = {"parameters": 1e6, "trained": 1e6, "memory": 0.0, "updates": 100.0, "examples": 1600.0, "tokens": 9e4}
    runs = [
        dataclasses.replace(record, costs=base | ({"updates": 150.0} if record.strategy == "er" else {"seconds": 60.0}))
        for record in study(("naive", "er"), ("h2l",), (1,))
    ]
    (comparison,) = comparisons(runs)
    table = budget_table(
        comparison, tuning_trials(map(finished_run, [*runs, run("er", "h2l", 9, LANGUAGES, settings={"memory": 5})]))
    )
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert rows["er"]["steps"] == "150 ≠"
    assert rows["naive"]["steps"] == "100"
    assert rows["er"]["examples"] == "1,600"
    assert rows["er"]["time (min)"] == "–"
    assert rows["naive"]["time (min)"] == "1.0"
    assert (rows["naive"]["trials"], rows["er"]["trials"]) == ("1", "2 ≠")
    merges = [
        run("merge", "h2l", 1, LANGUAGES, settings=given)
        for given in ({"method": "mean"}, {"method": "ties", "density": 0.1}, {"method": "ties", "density": 0.2})
    ]
    assert {key[2]: count for key, count in tuning_trials(map(finished_run, merges)).items()} == {
        "merge(mean)": 1,
        "merge(ties)": 2,
    }


def test_the_pareto_figure_draws_final_performance_by_cost() -> None:
    """Merged models cost what training their sources cost; the front is over ranked strategies alone."""
    names = {"naive": 10.0, "er": 30.0, "agem": 40.0, "merge": 0.0, "multilingual": 5.0, "lang_spec_ft": 12.0}
    runs = []
    for record in study(tuple(names), ("h2l",), (1,)):
        costs = {
            "parameters": 1e6,
            "memory": 4e3 if record.strategy == "er" else 0.0,
            "seconds": 60 * names[record.strategy],
        }
        source = next((r.run_id for r in runs if r.strategy == "naive"), "") if record.strategy == "merge" else ""
        runs.append(dataclasses.replace(record, costs=costs, merged_from=source))
    (comparison,) = comparisons(runs)
    summary = Summary(summarise(comparison.runs), comparison)
    figure = pareto_figure(summary, "intent_accuracy")
    assert figure is not None
    drawn = [{line.get_gid().split(":")[1]: line for line in axes.lines if line.get_gid()} for axes in figure.axes]
    assert {label: line.get_xdata()[0] for label, line in drawn[2].items()} == names | {"merge": 10.0}
    assert drawn[0]["er"].get_xdata()[0] == 4
    for label, line in drawn[1].items():
        assert line.get_ydata()[0] == pytest.approx(100 * summary.value(label, "intent_accuracy", "FP"))
    front = [line for line in figure.axes[2].lines if not line.get_gid()]
    ranked = [(line.get_xdata()[0], line.get_ydata()[0]) for k, line in drawn[2].items() if summary.is_ranked(k)]
    assert len(ranked) == 4
    assert list(map(tuple, front[0].get_xydata())) == pareto_front(ranked)
    # Without its source in the report, the time of a merge is unknown.
    alone = [run for run in runs if run.strategy != "naive"]
    (comparison,) = comparisons(alone)
    figure = pareto_figure(Summary(summarise(comparison.runs), comparison), "intent_accuracy")
    assert figure is None, "four strategies have all costs"


def test_the_pareto_front_leaves_out_what_costs_more_and_scores_no_higher() -> None:
    points = [(1.0, 50.0), (2.0, 50.0), (2.0, 60.0), (3.0, 55.0), (4.0, 70.0), (4.0, 65.0), (0.0, 40.0)]
    assert pareto_front(points) == [(0.0, 40.0), (1.0, 50.0), (2.0, 60.0), (4.0, 70.0)]


def test_what_another_strategy_beats_in_one_respect_and_equals_in_all_others_is_dominated() -> None:
    costs = {"cheap": (1.0, 2.0, -50.0), "good": (3.0, 2.0, -80.0), "same": (1.0, 2.0, -50.0)}
    worse = {"dearer": (1.0, 2.5, -50.0), "weaker": (3.0, 2.0, -79.0), "both": (4.0, 4.0, -10.0)}
    assert dominated(costs | worse) == set(worse)


def test_with_more_strategies_than_colours_only_undominated_ones_are_named() -> None:
    """The grey points keep their tooltips, and references are always named."""
    names = ["naive", "er", "multilingual", *(f"x{k}" for k in range(len(COLOURS)))]
    runs = []
    for record in study(tuple(names), ("h2l",), (1,)):
        cost = 1.0 if record.strategy == "er" else 2.0
        runs.append(dataclasses.replace(record, costs={"parameters": cost, "memory": cost, "seconds": cost}))
    (comparison,) = comparisons(runs)
    summary = Summary(summarise(comparison.runs), comparison)
    figure = pareto_figure(summary, "intent_accuracy")
    assert figure is not None
    named = {text.get_text() for legend in figure.legends for text in legend.get_texts()}
    best = max(names, key=lambda name: (summary.is_ranked(name), summary.value(name, "intent_accuracy", "FP")))
    assert named == {"er", best, "multilingual"}
    points = [*figure.axes[0].lines, *figure.axes[0].collections]
    assert {point.get_gid().split(":")[1] for point in points if point.get_gid()} == set(names)


def with_keys(records: Sequence[RunRecord], first: bool) -> list[RunRecord]:
    """Store keys of the trained hops: hop 1 is shared by strategies unless ``first``."""
    return [
        dataclasses.replace(
            r,
            trained=tuple(
                f"{r.strategy if first or n > 1 else ''} {r.seed} {r.languages[:n]}"
                for n in range(1, len(r.languages) + 1)
            ),
        )
        for r in records
    ]


def test_orders_that_share_trained_hops_of_a_compared_strategy_count_once() -> None:
    """All six orders of three languages: three clusters if the first hop differs between the strategies."""
    paths = list(permutations(("de", "en", "th")))
    runs = [run(name, "-".join(path), 1, path) for name in ("naive", "er") for path in paths]
    apart = inference_of(with_keys(runs, first=False))
    together = inference_of(with_keys(runs, first=True))
    unknown = inference_of(runs)
    key = ("er", "intent_accuracy", "FP")
    finals = {
        name: [float(r.scores["intent_accuracy"][-1].mean()) for r in runs if r.strategy == name]
        for name in ("naive", "er")
    }
    difference = np.subtract(finals["er"], finals["naive"])
    # Permutations are sorted, so the orders of a cluster follow each other.
    clusters = difference.reshape(3, 2).mean(axis=1)
    assert together.unadjusted[key].p == pytest.approx(stats.ttest_1samp(clusters, 0).pvalue)
    for inference in (apart, unknown):
        assert inference.unadjusted[key].p == pytest.approx(stats.ttest_1samp(difference, 0).pvalue)
    assert "paired t-test over clusters of orders" in together.method
    tests = together.tests["intent_accuracy", "FP"]
    assert tests.mean("er") == pytest.approx(np.mean(finals["er"]))
    table = together.comparisons()
    assert table is not None
    assert any("3 clusters of orders" in note and "6 orders form 3 clusters" in note for note in table.notes)
    assert any("share trained hops of these two strategies" in note for note in table.notes)
    assert not any("cluster" in note for note in (apart.comparisons() or table).notes)


def test_orders_that_all_share_trained_hops_are_one_replicate() -> None:
    """As merges of models that were trained on each language separately."""
    runs = []
    for name, path, seed in product(("naive", "merge"), list(permutations(("de", "en", "th")))[:4], (1, 2, 3)):
        record = run(name, "-".join(path), seed, path)
        scores = record.scores["intent_accuracy"] - (0.02 * seed**2 if name == "merge" else 0)
        trained = tuple(f"{key} {seed}" if name == "merge" else f"{path} {seed} {key}" for key in path)
        runs.append(dataclasses.replace(record, scores={"intent_accuracy": scores.clip(0)}, trained=trained))

    def by_seed(name: str) -> list[float]:
        chosen = [[r for r in runs if (r.strategy, r.seed) == (name, seed)] for seed in (1, 2, 3)]
        return [float(np.mean([r.scores["intent_accuracy"][-1] for r in of])) for of in chosen]

    key = ("merge", "intent_accuracy", "FP")
    one = inference_of([r for r in runs if r.seed == 1])
    assert one.unadjusted[key].reason.startswith("all orders share trained hops")
    several = inference_of(runs)
    assert several.unadjusted[key].p == pytest.approx(stats.ttest_rel(by_seed("merge"), by_seed("naive")).pvalue)
    table = several.comparisons()
    assert table is not None
    assert any("3 seeds" in note and "of one cluster of orders" in note for note in table.notes)


def test_the_keys_of_a_plan_say_which_orders_share_hops(make_run: Any) -> None:
    """Naive and er train the first hop together; low-rank updates of a language are trained apart."""
    paths = ("[en,de,es]", "[en,es,de]", "[de,en,es]")

    def clusters(*strategies: str) -> int:
        plans = [[make_run(name, f"order={path}") for path in paths] for name in strategies]
        hops = tuple(tuple(frozenset(stage.train for stage in plan.stages[1:]) for plan in of) for of in plans)
        return len(Replicates(strategies, tuple((p, 1, None) for p in paths), np.zeros((2, 3)), hops=hops).clusters)

    assert clusters("strategy=naive", "strategy=er") == 3
    assert clusters("strategy=naive", "strategy=lang_spec_lora_f") == 2


def test_variance_components_of_primary_differences_need_two_seeds() -> None:
    runs = [r for r in records() if r.strategy in ("naive", "er")]
    inference = inference_of(runs)
    table = inference.variances()
    assert table is not None
    rows = {row[:3]: row for row in table.rows}
    finals = {(r.strategy, r.order, r.seed): float(r.scores["intent_accuracy"][-1].mean()) for r in runs}
    differences = [[finals["er", o, s] - finals["naive", o, s] for s in (1, 2)] for o in sorted(ORDERS)]
    expected = Components.of(differences)
    row = rows["intent", "FP", "er"]
    assert row[3:5] == (str(len(ORDERS)), "2")
    assert [cell.value for cell in row[5:]] == pytest.approx(  # type: ignore[attr-defined]
        [v**0.5 for v in (expected.order, expected.seed, expected.residual)]
    )
    assert inference_of([r for r in runs if r.seed == 1]).variances() is None


def test_a_pilot_says_how_many_orders_an_effect_needs() -> None:
    runs = [r for r in records() if r.strategy in ("naive", "er")]
    (power,) = powers(runs, 0.01)
    facts = power.to_json()
    assert (facts["baseline"], facts["comparisons"], len(facts["rows"])) == ("naive", 4, 4)
    for row in power.rows:
        assert row.components is not None
        assert row.orders == {n: row.components.orders_for(0.01, n, 4) for n in (1, 2, 3, 5)}
    assert "4 comparisons" in power.render()
    # The study's own comparisons; T has another test.
    (chosen,) = powers(runs, 0.01, {"baseline": "er", "primary": ["FP", "T"]})
    assert (chosen.baseline, {row.measure for row in chosen.rows if row.orders}) == ("er", {"FP"})
    # Nor does a pilot predict anything if its differences do not vary.
    same = [dataclasses.replace(r, run_id=f"{r.run_id}-er", strategy="er") for r in runs if r.strategy == "naive"]
    (power,) = powers([*(r for r in runs if r.strategy == "naive"), *same], 0.01)
    assert [row.orders for row in power.rows] == [{}] * 4
    # One seed says nothing about others, one order nothing at all.
    (power,) = powers([r for r in runs if r.seed == 1], 0.01)
    assert {tuple(row.orders) for row in power.rows} == {(1,)}
    one = powers([r for r in runs if (r.order, r.seed) == ("h2l", 1)], 0.01)
    assert not any(row.components for power in one for row in power.rows)


def test_a_strategy_without_a_finished_run_counts_in_the_family() -> None:
    records = study(("naive", "er", "kd_logit", "lang_spec_ft"), ("h2l", "l2h", "order3", "order4"), (1,))
    failed = [
        dataclasses.replace(r, status="failed", scores={}) if r.strategy in ("kd_logit", "lang_spec_ft") else r
        for r in records
    ]
    # A further, unfinished run of er has the settings of the finished runs, so it adds no strategy.
    er = next(r for r in records if r.strategy == "er")
    failed.append(dataclasses.replace(er, status="running", scores={}, run_id="again"))
    section = section_of(failed)
    (all_finished, family) = (section_of(records).inference, section.inference)
    assert family.primary.keys() == all_finished.primary.keys()
    assert len(family.family) == 8
    for key, pair in family.primary.items():
        if key[0] == "kd_logit":
            assert np.isnan(pair.p)
            assert "no finished run" in pair.reason
    tested = {key: pair.p for key, pair in family.unadjusted.items() if not np.isnan(pair.p)}
    smallest = min(tested, key=lambda key: tested[key])
    assert family.primary[smallest].p == pytest.approx(8 * tested[smallest])
    assert any(text.startswith("Intent accuracy: kd_logit was not compared with naive") for text in section.conclusions)
