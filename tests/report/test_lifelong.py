"""Lifelong learning in reports: statements by hand, LL's numbers, and t-tests against scipy."""

from __future__ import annotations

import dataclasses
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_rel

from tests.analysis.build import record
from xclrun.analysis.measures import measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import is_control
from xclrun.report.part import make_block
from xclrun.report.parts import checkpoints, inside_hops, lifelong
from xclrun.report.published import ll
from xclrun.report.summary import HOP_0
from xclrun.report.tables import Table

from .study import drawn, section_of
from .study import rows_of as rows
from .test_statement_tables import KEYS, statements

METRIC = "statement_accuracy"


def curve(rng: np.random.Generator, keys: tuple[str, ...], hops: int, shift: float) -> tuple[dict[str, Any], ...]:
    names = (METRIC, "true_f1", "true_rate", "false_rate")
    return tuple(
        {"hop": hop, "step": seen, "examples": seen, "own": seen,
         "test": {k: {name: float(rng.uniform(0.3, 0.6) + shift) for name in names} for k in keys}}
        for hop in range(1, hops + 1) for seen in (500, 1000)
    )  # fmt: skip


def online(strategy: str, seed: int, keys: tuple[str, ...] = KEYS, shift: float = 0.0, **fields: Any) -> RunRecord:
    """A run with points on test alone."""
    rng = np.random.default_rng([seed, len(strategy)])
    points = curve(rng, keys, len(keys), shift)
    ends = [p["test"] for p in points if p["own"] == 1000]
    scores = {
        name: np.array([[0.2] * len(keys), *([end[k][name] for k in keys] for end in ends)])
        for name in (METRIC, "true_f1", "true_rate", "false_rate")
    }
    scores["constant_accuracy"] = np.full_like(scores[METRIC], 0.75)
    return record(strategy, seed=seed, scores=scores, languages=keys, points=points, **fields)


def test_statements_by_key_are_the_means_over_runs() -> None:
    table = lifelong.statement_table(section_of([statements(seed=1), statements(seed=2, gain=0.02)]).summary)
    assert table is not None
    assert table.header == ("strategy", "key", "accuracy", "constant", "F1", "TPR", "TNR", "balanced", "choice")
    by_key = rows(table)
    # After the last hop 0.2 above the floor of 0.75, once 0.22.
    assert by_key["naive", "pos"]["accuracy"] == "96.00"
    assert by_key["naive", "pos"]["constant"] == "75.00"
    assert by_key["naive", "pos"]["TPR"] == "86.00"
    assert by_key["naive", "topics"]["choice"] == "–"
    # Not the mean over the keys that have it.
    assert by_key["naive", "mean"]["choice"] == "–"
    assert by_key["naive", "mean"]["accuracy"] == "83.50"
    assert lifelong.statement_table(section_of([record()]).summary) is None


@pytest.mark.full
def test_measures_are_distributed_over_many_orders() -> None:
    """As LL's study of the 120 orders of five tasks: extremes, median and histograms, one value for each order."""
    keys = ll.STREAMS["standard"]
    runs = [
        dataclasses.replace(online("naive", k, order), seed=1, order="-".join(order), run_id=f"naive{k}")
        for k, order in enumerate(permutations(keys))
    ]
    runs.append(record("lang_spec_ft", seed=1, languages=keys, order="-".join(keys), stream="independent",
                       scores={METRIC: np.full((6, 5), 0.6)}, run_id="alone"))  # fmt: skip
    section = section_of(runs)
    block = make_block(lifelong.over_orders, section)
    by_measure = rows(block.tables[0])
    assert {key[1]: key[2] for key in by_measure} == {"AULTC": "120", "F_m": "120", "I_m": "120", "A_m": "120"}
    final = {run.order: run.scores[METRIC][-1].mean() for run in runs[:-1]}
    lowest = by_measure["naive", "A_m", "120"]
    assert lowest["lowest"] == f"{100 * min(final.values()):.2f}"
    assert lowest["median"] == f"{100 * np.median(list(final.values())):.2f}"
    assert block.tables[0].rows[3][4] == min(final, key=final.__getitem__)
    published = {key[1]: row["published"] for key, row in by_measure.items()}
    assert published == {"AULTC": "lowest 58.72", "F_m": "highest 16.77", "I_m": "highest 6.07", "A_m": "lowest 62.94"}
    assert any("encoder bert → tiny" in note for note in block.tables[0].notes)
    panels = block.plots[0].draw().axes
    assert [sum(patch.get_height() for patch in axes.patches) for axes in panels] == [120] * 4
    assert not make_block(lifelong.over_orders, section_of(runs[:5]))


def test_rates_over_time_are_means_over_keys_and_seeds() -> None:
    runs = [online("naive", 1), online("naive", 2), online("er", 1), online("er", 2)]
    figure = drawn(section_of(runs), lifelong.statements, "rates")
    assert [axes.get_ylabel() for axes in figure.axes] == ["F1 of true", "true-positive rate", "true-negative rate"]
    line = next(line for line in figure.axes[1].get_lines() if len(line.get_xdata()) == 5)
    rates = [[p["test"][k]["true_rate"] for k in KEYS] for run in runs[:2] for p in run.points]
    np.testing.assert_allclose(line.get_xdata(), [0, 500, 1000, 1500, 2000])
    expected = np.array(rates).reshape(2, 4, 2).mean(axis=(0, 2))
    np.testing.assert_allclose(line.get_ydata(), [20, *(100 * expected)])


def test_learning_curves_shade_aultc_and_name_what_is_learnt() -> None:
    runs = [online("naive", seed) for seed in (1, 2)]
    figure = drawn(section_of(runs), inside_hops.inside_hops, "example_curves")
    axes = figure.axes[0]
    assert len(axes.collections) == 1
    assert [text.get_text() for text in axes.texts] == list(KEYS)
    assert [text.get_position()[0] for text in axes.texts] == [500, 1500]


def test_t_tests_over_seeds_are_scipy_s_and_holm_s_by_hand() -> None:
    seeds = (1, 2, 3, 4, 42)
    runs = [online(name, seed, shift=shift) for name, shift in (("naive", 0), ("replay", 0.05), ("mbpa", 0.2))
            for seed in seeds]  # fmt: skip
    section = section_of(runs)
    (table,) = make_block(lifelong.seeds, section).tables
    by_pair = rows(table)
    nothing = np.full(2, np.nan)
    for name in ("AULTC", "F_m_curve", "F_m", "FP"):
        values = {
            strategy: [100 * measure(r, METRIC, nothing)[name, ""] for r in runs if r.strategy == strategy]  # type: ignore[operator]
            for strategy in ("naive", "replay", "mbpa")
        }
        pairs = [("naive", "replay"), ("naive", "mbpa"), ("replay", "mbpa")]
        pairs = [pair if ("pos-topics", name, *pair) in by_pair else pair[::-1] for pair in pairs]
        raw = {pair: ttest_rel(values[pair[0]], values[pair[1]]).pvalue for pair in pairs}
        previous = 0.0
        for rank, pair in enumerate(sorted(raw, key=raw.__getitem__)):
            cells = by_pair[("pos-topics", name, *pair)]
            assert cells["seeds"] == "5"
            assert cells["A − B"] == f"{np.mean(np.subtract(values[pair[0]], values[pair[1]])):+.2f}"
            previous = max(previous, min(1.0, (3 - rank) * raw[pair]))
            texts = list(table.rows[[row[:4] for row in table.rows].index(("pos-topics", name, *pair))][-2:])
            assert texts[0].value == pytest.approx(raw[pair])  # type: ignore[attr-defined]
            assert texts[1].value == pytest.approx(previous)  # type: ignore[attr-defined]
    # A seed that one strategy lacks is in the tests of the other pairs.
    fewer = make_block(lifelong.seeds, section_of([r for r in runs if (r.strategy, r.seed) != ("mbpa", 42)])).tables[0]
    assert {frozenset(row[2:4]): row[4] for row in fewer.rows} == {
        frozenset(pair): "5" if "mbpa" not in pair else "4" for pair in pairs
    }
    # A seed without a value removes itself, not the pair.
    unscored = [
        dataclasses.replace(r, scores={METRIC: np.full_like(r.scores[METRIC], np.nan)})
        if (r.strategy, r.seed) == ("mbpa", 42) else r
        for r in runs
    ]  # fmt: skip
    without = make_block(lifelong.seeds, section_of(unscored)).tables[0]
    assert {row[4] for row in without.rows if row[1] == "FP" and "mbpa" in row[2:4]} == {"4"}
    assert fewer.notes[0].startswith("two-tailed paired t-test over the seeds that both strategies have")
    assert "I" not in {row[1] for row in table.rows}
    assert not make_block(lifelong.seeds, section_of([dataclasses.replace(run, points=()) for run in runs]))


def test_published_numbers_stand_beside_the_same_stream_alone() -> None:
    standard = ll.STREAMS["standard"]
    runs = [online("naive", seed, standard) for seed in (1, 2)]
    (table,) = make_block(lifelong.ll_table, section_of(runs)).tables
    assert table.header == ("strategy", "AULTC", "ours", "F_m", "ours", "I_m", "ours", "A_m", "ours")
    by_method = {row[0]: row[1:] for row in table.rows}
    nothing = np.full(5, np.nan)
    assert by_method["naive"][::2] == ("60.95 ± 1.64", "12.78 ± 3.30", "1.52 ± 1.70", "68.26 ± 3.87")
    for at, name in ((1, "AULTC"), (3, "F_m_curve"), (7, "FP")):
        ours = np.mean([measure(run, METRIC, nothing)[name, ""] for run in runs])  # type: ignore[arg-type]
        assert by_method["naive"][at] == f"{100 * ours:.2f}"
    assert by_method["naive"][5] == "–"  # no runs that learn each key alone
    assert by_method["single_task"][::2] == ("–", "–", "–", "80.64 ± 1.37")
    assert set(by_method["mbpa_pp"][1::2]) == {"–"}
    turned = [online("naive", 1, standard[::-1])]
    assert not make_block(lifelong.ll_table, section_of(turned))


def shown_and_hidden(keys: tuple[str, ...]) -> list[RunRecord]:
    """Two strategies and their controls, which read no text: these score lower, and forget nothing."""
    runs = []
    for strategy, gain in (("naive", 0.1), ("replay", 0.2)):
        for seed in (1, 2, 3):
            for context in ("hidden", "shown"):
                statements = {"kind": "topic", "context": context}
                config = {"dataset": {"statements": statements}}
                sizes = {"train": dict.fromkeys(keys, 2000)}
                run = online(strategy, seed, keys, gain, config=config, run_id=f"{strategy}-{context}-{seed}")
                run = dataclasses.replace(run, sizes=sizes)
                if context == "hidden":
                    scores = {**run.scores, METRIC: np.full_like(run.scores[METRIC], 0.3)}
                    run = dataclasses.replace(run, scores=scores)
                runs.append(run)
    return runs


def test_what_reads_no_text_is_a_control_and_no_strategy() -> None:
    # The key has no effect without statements.
    assert not is_control(record(config={"dataset": {"statements": {"kind": None, "context": "hidden"}}}))
    section = section_of(shown_and_hidden(KEYS))
    assert section.inference.baseline == "naive(context=shown)"
    *sentences, _ = section.conclusions
    assert all("replay(context=shown)" in text for text in sentences)
    assert "hidden" not in " ".join(sentences)
    (table,) = section.summary.means()
    assert [row[0] for row in table.rows[:2]] == ["naive(context=shown)", "replay(context=shown)"]
    assert table.ruled == (2, 4)
    assert not any(getattr(cell, "best", False) for row in table.rows[2:] for cell in row)
    hidden = "naive(context=hidden), replay(context=hidden)"
    assert any("without texts" in note and note.endswith(f"(not ranked): {hidden}") for note in table.notes)
    # Nor are they LL's: no test over seeds, no row of its Table 1.
    (tests,) = make_block(lifelong.seeds, section).tables
    assert {row[2:4] for row in tests.rows} == {("naive(context=shown)", "replay(context=shown)")}
    (published,) = make_block(lifelong.ll_table, section_of(shown_and_hidden(ll.STREAMS["standard"]))).tables
    assert any("training examples per key 10,000 → 2,000;" in note for note in published.notes)
    rows = {row[0]: row for row in published.rows}
    assert "naive: naive(context=shown)" in rows
    assert not any("hidden" in name for name in rows)
    runs = [run for run in shown_and_hidden(ll.STREAMS["standard"]) if run.run_id.startswith("naive-shown")]
    ours = np.mean([run.scores[METRIC][-1].mean() for run in runs])
    assert rows["naive: naive(context=shown)"][-1] == f"{100 * ours:.2f}"


def test_every_table_of_scores_of_statements_prints_what_a_constant_answer_scores() -> None:
    standard = ll.STREAMS["standard"]
    runs = [online("naive", 1, standard)]
    runs = [dataclasses.replace(r, points=tuple({**p, "dev": p["test"]} for p in r.points)) for r in runs]
    summary = section_of(runs).summary
    rules = checkpoints.rules_table(summary, METRIC)
    assert rules is not None
    assert rules.rows[-1] == ("constant answer", "", *["75.00"] * 6, "–")
    assert rules.ruled[-1] == len(rules.rows) - 1
    chosen = inside_hops.checkpoint_table(summary, inside_hops.selected_checkpoints(summary, METRIC), METRIC)
    assert chosen is not None
    assert [row[1] for row in chosen.rows if row[0] == "constant answer"] == [*standard, "mean"]
    assert {row[2:4] for row in chosen.rows if row[0] == "constant answer"} == {("75.00", "75.00")}
    (published,) = make_block(lifelong.ll_table, section_of(runs)).tables
    assert published.rows[-1] == ("constant answer", *["–"] * 7, "75.00")
    # T0 begins at one of the two constant answers, which the seed chooses: 25 or 75 %.
    for table in (*summary.means(), summary.orders(METRIC), summary.languages(METRIC, "T0")):
        assert HOP_0 in table.notes
    assert HOP_0 not in summary.languages(METRIC, "FP").notes
    other = section_of([record()]).summary
    assert HOP_0 not in other.means()[0].notes
    assert other.floors("intent_accuracy") == []


def test_tables_say_whose_curves_are_of_the_unadapted_model() -> None:
    standard = ll.STREAMS["standard"]
    settings = {"neighbours": 25, "adapt_steps": 10, "replay_write": 0.1}

    def tables(**more: Any) -> list[Table]:
        run_config = {"strategy": {"name": "mbpa", **settings, **more}}
        section = section_of([*(online("naive", k, standard) for k in (1, 2)),
                              *(online("mbpa", k, standard, 0.1, config=run_config) for k in (1, 2))])  # fmt: skip
        parts = (inside_hops.inside_hops, lifelong.ll_table, lifelong.seeds, checkpoints.checkpoints)
        return [make_block(entry, section).tables[0] for entry in parts]

    begin = "mbpa: at points inside hops (AULTC, curves, F_m_curve, I_m_curve), the model is not adapted"
    for table in tables(adapt_points=False):
        assert any(note.startswith(begin) for note in table.notes), table.title
    for more in ({"adapt_points": True}, {"adapt_points": False, "neighbours": 0}):
        assert not any("as it was trained" in note for table in tables(**more) for note in table.notes)
