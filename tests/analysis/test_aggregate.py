from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from xclrun.analysis.aggregate import COLUMNS, comparisons, incomplete, summarise
from xclrun.analysis.measures import Absent, explain
from xclrun.analysis.replicates import crossed, given_references

from .build import M, R, alone, record

NAN = np.nan


def row(
    frame: pd.DataFrame,
    measure: str,
    order: str = "mean",
    strategy: str = "naive",
    language: str = "",
    metric: str = "intent_accuracy",
) -> Any:
    """The one row that fits."""
    expected = {"measure": measure, "order": order, "strategy": strategy, "language": language, "metric": metric}
    result = frame[np.logical_and.reduce([frame[name] == value for name, value in expected.items()])]
    assert len(result) == 1, (expected, len(result))
    return result.iloc[0]


def test_columns_and_types_are_stable() -> None:
    frame = summarise([record(scores=R)])
    assert tuple(frame.columns) == COLUMNS == (
        "dataset", "model", "strategy", "order", "metric", "measure", "language",
        "value", "std", "ci_low", "ci_high", "n", "status", "task", "ci_given",
    )  # fmt: skip
    assert [frame[name].dtype.kind for name in ("value", "std", "ci_low", "ci_high", "n")] == ["f", "f", "f", "f", "i"]
    assert list(summarise([]).columns) == list(COLUMNS)


def test_one_run_worked_by_hand() -> None:
    frame = summarise([record(scores=R, order="h2l"), alone(M, order="h2l")])
    for order in ("mean", "h2l"):
        result = row(frame, "F", order)
        assert (result["value"], result["n"], result["status"]) == (pytest.approx(0.075), 1, "ok")
        assert np.isnan([result["std"], result["ci_low"], result["ci_high"]]).all()
    per_language = {
        "F": (0.075, 0.05, "n/a: needs a hop after th"),
        "T": ("n/a: needs a hop before en", 0.05, 0.10),
        "T0": ("n/a: needs a hop before en", 0.40, 0.20),
        "FP": (0.75, 0.55, 0.85),
    }
    for measure, values in per_language.items():
        for language, value in zip(("en", "de", "th"), values, strict=True):
            result = row(frame, measure, "h2l", language=language)
            if isinstance(value, str):
                assert np.isnan(result["value"])
                assert (result["status"], result["n"]) == (value, 0)
            else:
                assert result["value"] == pytest.approx(value)
    assert not (frame["measure"].isin(["BWT", "I", "FP_std", "FP_min"]) & (frame["language"] != "")).any()


def test_mean_over_orders_and_seeds_with_its_spread() -> None:
    # final scores .6, .7 (h2l) and .8 (l2h): constant matrices, so FP is that constant
    runs = [
        record(order="h2l", seed=1, scores=np.full((4, 3), 0.6)),
        record(order="h2l", seed=2, scores=np.full((4, 3), 0.7)),
    ]
    runs += [record(order="l2h", languages=["th", "de", "en"], seed=1, scores=np.full((4, 3), 0.8))]
    frame = summarise(runs)
    mean = row(frame, "FP")
    # Within orders first: (.65 + .8) / 2, not the run-weighted .7; h2l's runs weigh a quarter each.
    assert (mean["value"], mean["n"]) == (pytest.approx(0.725), 3)
    assert mean["status"] == "unbalanced: orders have 2 and 1 runs and equal weights"
    assert mean["std"] == pytest.approx(np.sqrt((0.125**2 / 4 + 0.025**2 / 4 + 0.075**2 / 2) / (1 - 6 / 16)))
    # The interval is over orders: seeds of one are no further evidence about others.
    low, high = stats.t.interval(0.95, 1, loc=0.725, scale=0.15 / 2)
    assert (low, high) == pytest.approx((-0.228, 1.678), abs=1e-3)
    assert (mean["ci_low"], mean["ci_high"]) == (0, 1)  # the interval of a score has no values beyond 0 and 1
    h2l, l2h = row(frame, "FP", "h2l"), row(frame, "FP", "l2h")
    assert (h2l["value"], h2l["n"], h2l["std"]) == (pytest.approx(0.65), 2, pytest.approx(np.sqrt(0.005)))
    assert (l2h["value"], l2h["n"]) == (pytest.approx(0.8), 1)


def test_equal_samples_have_no_interval() -> None:
    """Two equal seeds, or orders that have equal means, say nothing of how others vary: no interval of width 0."""
    seeds = [record(order="h2l", seed=seed, scores=np.full((4, 3), 0.066)) for seed in (1, 2)]
    turned = {"order": "l2h", "languages": ["th", "de", "en"]}
    # Means of the orders: 0.3 and, but for rounding, 0.3.
    orders = [record(order="h2l", seed=seed, scores=np.full((4, 3), 0.3)) for seed in (1, 2)]
    orders += [record(**turned, seed=seed, scores=np.full((4, 3), v)) for seed, v in ((1, 0.1 + 0.1), (2, 0.4))]
    for runs, value, std in ((seeds, 0.066, 0.0), (orders, 0.3, np.sqrt(0.02 / 3))):
        result = row(summarise(runs), "FP")
        assert (result["value"], result["n"], result["status"]) == (pytest.approx(value), len(runs), "ok")
        assert result["std"] == pytest.approx(std)
        assert np.isnan([result["ci_low"], result["ci_high"]]).all()


def test_balanced_means_are_those_over_runs() -> None:
    finals = {("h2l", 1): 0.61, ("h2l", 2): 0.72, ("l2h", 1): 0.83, ("l2h", 2): 0.8}
    runs = [
        record(order=order, seed=seed, languages=ORDERS[order], scores=np.full((4, 3), final))
        for (order, seed), final in finals.items()
    ]
    result = row(summarise(runs), "FP")
    assert (result["value"], result["n"], result["status"]) == (pytest.approx(np.mean(list(finals.values()))), 4, "ok")
    assert result["std"] == pytest.approx(np.std(list(finals.values()), ddof=1))
    # A third seed of one order alone does not make that order count more; where er lacks runs, both facts are told.
    more = [record(order="h2l", seed=3, scores=np.full((4, 3), 0.665)), *runs]
    assert row(summarise(more), "FP")["value"] == pytest.approx(np.mean(list(finals.values())))
    others = [record("er", order, seed, languages=ORDERS[order]) for order, seed in list(finals)[:3]]
    interim = "interim: 3 of 4 runs; unbalanced: orders have 2 and 1 runs and equal weights"
    assert row(summarise([*runs, *others]), "FP")["status"] == interim


def test_a_language_is_averaged_over_the_orders_in_which_it_is_defined() -> None:
    # F^th: last in the first order; in the second F[2,1] = .4 − .2, F[3,1] = .4 − .2
    last = record(order="h2l", languages=["en", "de", "th"], scores=R)
    first = record(
        order="l2h", languages=["th", "de", "en"], scores=[[0, 0, 0], [0.4, 0, 0], [0.2, 0.5, 0], [0.2, 0.5, 0.5]]
    )
    result = row(summarise([last, first]), "F", language="th")
    assert (result["value"], result["n"], result["status"]) == (pytest.approx(0.2), 1, "ok")


def test_missing_reference_runs_make_transfer_na_and_are_named() -> None:
    runs = [record(seed=seed, scores=R) for seed in (1, 2, 3)]
    frame = summarise([*runs, alone(M, seed=1), alone([0.8], ["de"], seed=2)])
    result = row(frame, "T")
    assert np.isnan(result["value"])  # not the mean of seed 1 alone
    assert result["status"] == "n/a: needs lang_spec_ft of seed 2 (th); needs lang_spec_ft of seed 3 (de, th)"
    assert (
        row(frame, "I")["status"]
        == "n/a: needs lang_spec_ft of seed 2 (en, th); needs lang_spec_ft of seed 3 (de, en, th)"
    )
    assert row(frame, "T", language="de")["status"] == "n/a: needs lang_spec_ft of seed 3 (de)"
    assert row(frame, "F")["status"] == "ok"


def test_missing_seeds_are_put_together() -> None:
    frame = summarise([record(seed=seed, order=order, scores=R) for seed in (1, 2) for order in ("h2l", "x")])
    assert row(frame, "T")["status"] == "n/a: needs lang_spec_ft of seeds 1, 2 (de, th)"
    assert explain([Absent("needs hop 0"), Absent("needs hop 0")]) == "needs hop 0"


@pytest.mark.parametrize(
    ("hole", "measure", "status"),
    [
        ((0, slice(None)), "T0", "n/a: needs hop 0"),
        ((0, 1), "T0", "n/a: needs hop 0 (de)"),
        ((3, slice(None)), "FP", "n/a: needs hop 3"),
        ((3, 1), "FP_min", "n/a: needs hop 3 (de)"),
        ((slice(2, 4), 0), "F", "n/a: needs hop 2 (en), hop 3 (en)"),
        ((2, 1), "BWT", "n/a: needs hop 2 (de)"),
        ((2, 1), "T", "n/a: needs hop 2"),
        ((0, slice(None)), "F", "ok"),
        ((3, 2), "F", "ok"),
    ],
)
def test_unmeasured_cells_are_named(hole: Any, measure: str, status: str) -> None:
    holed = R.copy()
    holed[hole] = NAN
    assert row(summarise([record(scores=holed), alone(M)]), measure)["status"] == status


def test_training_without_a_sequence_has_a_final_performance_only() -> None:
    joint = record("multilingual", scores=[[0.1] * 3, [0.7, 0.8, 0.9]], stream="joint")
    frame = summarise([alone([0.7, 0.8, 0.9]), joint])
    reasons = {
        "lang_spec_ft": "needs a sequence of hops instead of one model per language",
        "multilingual": "needs a sequence of hops",
    }
    for strategy, reason in reasons.items():
        result = row(frame, "FP", strategy=strategy)
        assert (result["value"], result["n"], result["status"]) == (pytest.approx(0.8), 1, "ok")
        assert row(frame, "FP_min", strategy=strategy)["value"] == 0.7
        assert row(frame, "FP", strategy=strategy, language="th")["value"] == 0.9
        for measure in ("F", "T", "T0", "BWT", "I"):
            assert row(frame, measure, strategy=strategy)["status"] == f"n/a: {reason}"
    unfinished = summarise([record("multilingual", scores=[[0.1] * 3, [0.7, NAN, 0.6]], stream="joint")])
    assert row(unfinished, "FP", strategy="multilingual")["status"] == "n/a: needs the final scores of de"


@pytest.mark.parametrize(("strategy", "stream"), [("lang_spec_ft", "independent"), ("multilingual", "joint")])
def test_strategies_without_an_order_count_once_for_each_seed(strategy: str, stream: str) -> None:
    runs = [
        record(strategy, order, seed, languages=languages, stream=stream)
        for order, languages in (("h2l", ("en", "de", "th")), ("l2h", ("th", "de", "en")))
        for seed in (1, 2)
    ]
    frame = summarise(runs)
    assert row(frame, "FP", strategy=strategy)["n"] == 2
    assert row(frame, "FP", "l2h", strategy=strategy)["n"] == 2


def test_one_order_under_two_names_counts_once_in_the_mean() -> None:
    frame = summarise([record(order="h2l", scores=R), record(order="order1", scores=R)])
    assert [row(frame, "FP", order)["n"] for order in ("mean", "h2l", "order1")] == [1, 1, 1]


def test_duplicates_of_a_run_and_unfinished_runs_do_not_count() -> None:
    high = np.full((4, 3), 0.9)
    runs = [record(scores=R, run_id="a"), record(scores=R, run_id="a")]
    runs += [record(seed=2, scores=high, status="running"), record(seed=3, scores=high, status="failed")]
    result = row(summarise(runs), "FP")
    assert (result["n"], result["value"], result["status"]) == (1, pytest.approx(2.15 / 3), "ok")


def test_interim_results_say_so() -> None:
    runs = [
        record(order=order, seed=seed, languages=languages) for order, languages in ORDERS.items() for seed in (1, 2, 3)
    ]
    runs += [record("er", "h2l", seed) for seed in (1, 2)]
    runs += [alone([0.5] * 3, order="h2l", seed=1)]
    frame = summarise(runs)
    for strategy in ("naive", "er"):  # both over the two that both have finished
        assert row(frame, "FP", strategy=strategy)["status"] == "interim: 2 of 6 runs"
        assert row(frame, "FP", "h2l", strategy=strategy)["status"] == "interim: 2 of 3 runs"
    assert row(frame, "FP")["n"] == 2
    assert row(frame, "FP", strategy="er")["value"] == 0.5  # still given
    assert row(frame, "FP", "l2h")["status"] == "ok"  # where naive is alone, it is compared with nothing
    # What others are measured by is never what they wait for, nor interim itself.
    result = row(frame, "FP", strategy="lang_spec_ft")
    assert (result["n"], result["status"]) == (1, "ok")
    assert row(frame, "T")["status"] == "n/a: needs lang_spec_ft of seed 2 (de, th)"  # rather than interim
    assert not ((frame["strategy"] == "er") & (frame["order"] == "l2h")).any()

    own = summarise(runs, unpaired=True)
    assert (row(own, "FP")["n"], row(own, "FP")["status"]) == (6, "ok")
    assert row(own, "FP", strategy="er")["status"] == "interim: 2 of 6 runs"


def test_an_interim_mean_is_over_what_all_have_finished() -> None:
    good, bad = np.full((4, 3), 0.9), np.full((4, 3), 0.1)
    runs = [record(seed=1, scores=good), record(seed=2, scores=bad), record("er", seed=1, scores=good)]
    frame = summarise(runs)
    assert row(frame, "FP")["value"] == row(frame, "FP", strategy="er")["value"] == pytest.approx(0.9)
    assert row(summarise(runs, unpaired=True), "FP")["value"] == pytest.approx(0.5)


def test_references_are_averaged_over_the_seeds_of_the_sequences() -> None:
    """A reference of a seed that no sequence has, or that they do not share in one order, says nothing about them."""
    runs = [record(seed=1), record(seed=2), record("er", seed=1), record("er", seed=2, languages=("th", "de", "en"))]
    runs += [alone([value] * 3, order="h2l", seed=seed) for seed, value in ((1, 0.9), (2, 0.5), (3, 0.1))]
    joint = [[0.1] * 3]
    runs += [record("multilingual", seed=s, scores=[*joint, [v] * 3], stream="joint") for s, v in ((1, 0.8), (2, 0.2))]
    frame = summarise(runs)
    for strategy, value in (("lang_spec_ft", 0.9), ("multilingual", 0.8)):
        result = row(frame, "FP", strategy=strategy)
        assert (result["value"], result["n"]) == (pytest.approx(value), 1)


def test_strategies_with_nothing_in_common_have_means_over_their_own_runs() -> None:
    runs = [record(seed=1, scores=np.full((4, 3), 0.9)), record("er", seed=2, scores=np.full((4, 3), 0.5))]
    runs.append(record("agem", languages=("fr", "es", "it"), scores=np.full((4, 3), 0.7)))
    frame = summarise(runs)
    results = {name: row(frame, "FP", strategy=name) for name in ("naive", "er", "agem")}
    assert {name: result["value"] for name, result in results.items()} == pytest.approx(
        {"naive": 0.9, "er": 0.5, "agem": 0.7}
    )
    assert {result["status"] for result in results.values()} == {"interim: 1 of 3 runs"}
    assert incomplete(comparisons(runs)[0]) == {"naive", "er", "agem"}


def test_strategies_with_few_runs_and_merges_remove_no_runs_from_the_means_of_the_others() -> None:
    seeds = range(1, 7)
    runs = [record(name, seed=k, scores=np.full((4, 3), k / 10)) for name in ("naive", "er") for k in seeds]
    runs += [record("agem", seed=k, scores=np.full((4, 3), 0.8)) for k in (5, 6)]
    merges = [
        dataclasses.replace(record("merge", seed=k, run_id=f"merge{k}"), merged_from=f"naive{k}") for k in range(1, 6)
    ]
    joint = [record("multilingual", seed=k, scores=[[0.1] * 3, [k / 10] * 3], stream="joint") for k in seeds]
    frame = summarise([*runs, *merges, *joint])
    results = {k: row(frame, "FP", strategy=k) for k in ("naive", "er", "agem", "merge", "multilingual")}
    assert {k: (result["n"], result["status"]) for k, result in results.items()} == {
        "naive": (6, "ok"), "er": (6, "ok"), "multilingual": (6, "ok"),
        "agem": (2, "interim: 2 of 6 runs"), "merge": (5, "interim: 5 of 6 runs"),
    }  # fmt: skip
    assert results["naive"]["value"] == pytest.approx(0.35)
    assert incomplete(comparisons([*runs, *merges, *joint])[0]) == {"agem", "merge"}


ORDERS = {"h2l": ("en", "de", "th"), "l2h": ("th", "de", "en")}


def test_orders_are_compared_by_their_languages_not_their_names() -> None:
    frame = summarise([record(order="h2l"), record("er", "order1")])
    assert set(frame[frame["value"].notna()]["status"]) == {"ok"}


def test_different_settings_are_never_averaged() -> None:
    small = record("er", run_id="a", scores=np.full((4, 3), 0.6), config={"strategy": {"memory": 750}})
    large = record("er", run_id="b", scores=np.full((4, 3), 0.8), config={"strategy": {"memory": 6000}})
    frame = summarise([large, small])
    assert row(frame, "FP", strategy="er(memory=750)")["value"] == pytest.approx(0.6)
    assert row(frame, "FP", strategy="er(memory=6000)")["value"] == pytest.approx(0.8)
    assert list(frame["strategy"].unique()) == ["er(memory=750)", "er(memory=6000)"]


def test_tasks_datasets_and_models_stay_apart() -> None:
    both = {"intent_accuracy": R, "slot_f1": R / 2}
    frame = summarise(
        [record(scores=both), record(scores=R, dataset="mtop", run_id="b"), record(scores=R, model="mbert", run_id="c")]
    )
    assert list(frame[["dataset", "model", "metric"]].drop_duplicates().itertuples(index=False, name=None)) == [
        ("mini", "mbert", "intent_accuracy"),
        ("mini", "tiny", "intent_accuracy"),
        ("mini", "tiny", "slot_f1"),
        ("mtop", "tiny", "intent_accuracy"),
    ]
    assert row(frame[frame["model"] == "tiny"], "F", metric="slot_f1")["value"] == pytest.approx(0.0375)


def test_rows_do_not_depend_on_the_order_of_the_records() -> None:
    runs = [record(name, order, seed, languages=languages, scores=R * (0.9 + seed / 100))
            for name in ("er", "naive", "agem") for order, languages in ORDERS.items() for seed in (1, 2)]  # fmt: skip
    runs += [alone(M, seed=seed) for seed in (1, 2)]
    frame = summarise(runs)
    pd.testing.assert_frame_equal(summarise(runs[::-1]), frame)
    assert list(frame["strategy"].unique()) == ["naive", "agem", "er", "lang_spec_ft"]
    assert list(frame["order"].unique()) == ["mean", "h2l", "l2h", "en-de-th"]  # as they first appear
    assert comparisons(runs)[0].orders == ["en-de-th", "h2l", "l2h"]


@pytest.mark.full
def test_a_thousand_runs_are_summarised() -> None:
    rng = np.random.default_rng(0)
    languages = ("en", "de", "fr", "hi", "es", "th")
    settings = {"trainer": {f"k{k}": k for k in range(30)}, "model": {f"k{k}": k for k in range(20)}}
    runs = [
        record(name, f"order{order}", seed, languages=np.roll(languages, order).tolist(), config=settings,
               scores={"intent_accuracy": rng.random((7, 6)), "slot_f1": rng.random((7, 6))})
        for name in (f"s{k}" for k in range(9)) for order in range(6) for seed in range(17)
    ]  # fmt: skip
    runs += [alone(rng.random(6), languages, seed, config=settings) for seed in range(100)]
    frame = summarise(runs)
    assert len(runs) > 1000
    assert row(frame, "T", strategy="s3")["n"] == 102


def test_analysis_needs_no_torch_and_imports_fast() -> None:
    code = (
        "import sys; import xclrun.analysis.aggregate, xclrun.scores.base_scores; "
        "print(sorted({'torch', 'mlflow', 'statsmodels', 'pandas', 'scipy', 'matplotlib'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def transfers(seeds: tuple[int, ...], noise: float = 0.1) -> tuple[pd.DataFrame, np.ndarray]:
    """Runs of three orders whose reference models differ by seed; and T of each order and seed."""
    rng = np.random.default_rng(3)
    orders = {"o1": ["en", "de", "th"], "o2": ["de", "th", "en"], "o3": ["th", "en", "de"]}
    made, table = [], np.zeros((len(orders), len(seeds)))
    for k, seed in enumerate(seeds):
        level = 0.5 + noise * rng.normal()
        made.append(alone(np.full(3, level), order="o1", seed=seed))
        for i, (order, languages) in enumerate(orders.items()):
            score = 0.7 + 0.01 * rng.normal()
            made.append(record(order=order, languages=languages, seed=seed, scores=np.full((4, 3), score)))
            table[i, k] = score - level
    return summarise(made), table


def test_intervals_of_transfer_hold_for_the_reference_models_of_one_seed() -> None:
    frame, table = transfers((1,))
    assert row(frame, "T")["ci_given"] == "conditional on the reference models of one seed"
    assert row(frame, "FP")["ci_given"] == ""
    assert (row(frame, "T")["ci_low"], row(frame, "T")["ci_high"]) == pytest.approx(
        stats.t.interval(0.95, 2, table.mean(), stats.sem(table[:, 0]))
    )


def test_intervals_of_transfer_take_seeds_as_crossed_with_orders() -> None:
    frame, table = transfers((1, 2, 3))
    result = row(frame, "T")
    a, b = table.shape
    residuals = table - table.mean(axis=0) - table.mean(axis=1)[:, None] + table.mean()
    order, seed = b * table.mean(axis=1).var(ddof=1), a * table.mean(axis=0).var(ddof=1)
    residual = (residuals**2).sum() / 4
    variance = max(order + seed - residual, order, seed) / (a * b)
    df = max((order + seed - residual) ** 2 / (order**2 / 2 + seed**2 / 2 + residual**2 / 4), 2)
    assert (result["ci_low"], result["ci_high"]) == pytest.approx(
        stats.t.interval(0.95, df, table.mean(), np.sqrt(variance))
    )
    assert result["ci_given"] == ""
    # Orders as samples would give an interval of a tenth of that width: they share the noise of M.
    assert result["ci_high"] - result["ci_low"] > 8 * stats.sem(table.mean(axis=1))


def test_a_crossed_interval_of_no_width_is_left_out() -> None:
    """Orders and seeds have equal means, though single runs differ."""
    cells = {(("de", "en"), 1): 0.1, (("de", "en"), 2): 0.2, (("en", "de"), 1): 0.2, (("en", "de"), 2): 0.1}
    result = row(summarise([
        record(scores=np.array([[0, 0], [0.5, gain], [0.5, 0.5]]), languages=path, seed=seed)
        for (path, seed), gain in cells.items()
    ]), "T0")  # fmt: skip
    assert result["value"] == pytest.approx(0.15)
    assert np.isnan([result["ci_low"], result["ci_high"]]).all()


def test_seeds_that_not_all_orders_have_give_no_crossed_design() -> None:
    blocks = [("a", 1, None), ("a", 2, None), ("b", 1, None), ("b", 2, None)]
    np.testing.assert_array_equal(crossed(blocks), [[0, 1], [2, 3]])
    assert given_references(blocks) == ""
    assert crossed(blocks[:3]) is None
    assert given_references(blocks[:3]) == "conditional on the reference models (orders differ in their seeds)"
    assert given_references([blocks[0], blocks[2]]) == "conditional on the reference models of one seed"
    assert given_references(blocks[:2]) == ""  # seeds of one order each have their own


def test_the_interval_of_a_score_ends_at_100() -> None:
    runs = [record(order="h2l", scores=np.full((4, 3), 0.999))]
    runs += [record(order="l2h", languages=["th", "de", "en"], scores=np.full((4, 3), 0.96))]
    result = row(summarise(runs), "FP")
    assert result["ci_low"] > 0
    assert result["ci_high"] == 1
