"""Selection rules by hand, and ED's tables by brute force and next to its published numbers."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

from tests.analysis.build import record
from xclrun.analysis.points import RULES, by_rule, exact, final_by_rule
from xclrun.analysis.record import RunRecord
from xclrun.report.part import make_block
from xclrun.report.parts import checkpoints
from xclrun.report.published import ed
from xclrun.report.tables import Table

from .study import section_of
from .study import summary_of as summary

KEYS = ("en", "de", "th")
METRIC = "class_accuracy"


def point(hop: int, seen: int, dev: Any, test: Any, languages: tuple[str, ...] = KEYS) -> dict[str, Any]:
    fields: dict[str, Any] = {"hop": hop, "step": seen, "examples": seen, "own": seen}
    for split, values in (("dev", dev), ("test", test)):
        if values is not None:
            fields[split] = {k: {METRIC: float(v)} for k, v in zip(languages, values, strict=True)}
    return fields


# Three hops of two points; each rule chooses otherwise.
POINTS = (
    point(1, 10, (0.9, 0.1, 0.1), (0.80, 0.1, 0.11)), point(1, 20, (0.8, 0.2, 0.3), (0.81, 0.2, 0.21)),
    point(2, 10, (0.7, 0.4, 0.2), (0.70, 0.4, 0.30)), point(2, 20, (0.5, 0.5, 0.4), (0.60, 0.5, 0.31)),
    point(3, 10, (0.6, 0.5, 0.5), (0.61, 0.51, 0.50)), point(3, 20, (0.3, 0.7, 0.7), (0.41, 0.61, 0.70)),
    point(3, 30, (0.2, 0.1, 0.8), (0.21, 0.11, 0.81)),
)  # fmt: skip
WANTED = {
    "current_dev": [(0.80, 0.1, 0.11), (0.60, 0.5, 0.31), (0.21, 0.11, 0.81)],
    "source_dev": [(0.80, 0.1, 0.11), (0.70, 0.4, 0.30), (0.61, 0.51, 0.50)],
    # Means of dev: en; en and de .55 .50; all .533 .567 .367.
    "mean_seen_dev": [(0.80, 0.1, 0.11), (0.70, 0.4, 0.30), (0.41, 0.61, 0.70)],
    "oracle": [(0.80, 0.2, 0.21), (0.70, 0.5, 0.31), (0.61, 0.61, 0.81)],
    "last": [(0.81, 0.2, 0.21), (0.60, 0.5, 0.31), (0.21, 0.11, 0.81)],
}


def sequence(**fields: Any) -> RunRecord:
    scores = {METRIC: np.full((4, 3), 0.5)}
    return record(scores=scores, languages=KEYS, **{"points": POINTS, **fields})


@pytest.mark.parametrize("name", RULES)
def test_each_rule_by_hand(name: str) -> None:
    np.testing.assert_array_equal(by_rule(sequence(), METRIC, RULES[name]), WANTED[name])
    np.testing.assert_array_equal(final_by_rule(sequence(), METRIC, RULES[name]), WANTED[name][-1])


def test_only_a_checkpoint_that_no_hop_goes_on_from_is_exact() -> None:
    assert [exact(sequence(), hop) for hop in (1, 2, 3)] == [False, False, True]
    alone = sequence(strategy="lang_spec_ft", stream="independent")
    assert [exact(alone, hop) for hop in (1, 2, 3)] == [True] * 3
    # Each language after its own hop.
    np.testing.assert_array_equal(final_by_rule(alone, METRIC, RULES["last"]), (0.81, 0.5, 0.81))


def test_the_table_of_rules_says_what_is_exact() -> None:
    table = checkpoints.rules_table(summary([sequence()]), METRIC)
    assert table.header == ("strategy", "rule", *KEYS, "mean", "earlier hops")
    assert [row[1] for row in table.rows] == list(RULES)
    rows = {row[1]: row for row in table.rows}
    assert rows["mean_seen_dev"][2:6] == ("41.00", "61.00", "70.00", "57.33")
    assert rows["oracle"][6] == f"{100 * np.mean(WANTED['oracle'][:2]):.2f}"
    assert checkpoints.EXACT in table.notes


def test_earlier_hops_are_means_within_orders_first() -> None:
    better = tuple(point(p["hop"], p["own"], [0.5] * 3, [0.9] * 3) if p["hop"] < 3 else p for p in POINTS)
    turned = sequence(points=better, order="turned", run_id="turned")
    turned = dataclasses.replace(turned, languages=("de", "en", "th"))
    often = [sequence(seed=seed, run_id=f"naive-{seed}") for seed in (1, 2, 3)]
    table = checkpoints.rules_table(summary([*often, turned]), METRIC)
    by_rule = {row[1]: row for row in table.rows}
    assert by_rule["last"][6] == f"{100 * (np.mean(WANTED['last'][:2]) + 0.9) / 2:.2f}"


def test_points_on_test_alone_leave_the_rule_that_needs_no_dev() -> None:
    bare = tuple({k: v for k, v in point.items() if k != "dev"} for point in POINTS)
    table = checkpoints.rules_table(summary([sequence(points=bare)]), METRIC)
    assert [row[1] for row in table.rows] == ["last"]
    assert checkpoints.rules_table(summary([sequence(points=())]), METRIC) is None


# Zero-shot runs, as ED's.

LANGUAGES = ("en", "de", "es", "ja")


def wandering(seed: int, dataset: str = "mldoc", model: str = "mbert", points: int = 12) -> RunRecord:
    rng = np.random.default_rng(seed)
    hop_points = tuple(
        point(1, 10 * k, rng.integers(60, 100, 4) / 100, rng.integers(400, 1000, 4) / 1000, LANGUAGES)
        for k in range(1, points + 1)
    )
    scores = {METRIC: np.full((2, 4), 0.5)}
    return record(
        "zero_shot", seed=seed, scores=scores, languages=LANGUAGES, stream="zero_shot", points=hop_points,
        dataset=dataset, model=model,
    )  # fmt: skip


RUNS = [wandering(seed) for seed in (1, 2, 3)]


def arrays(run: RunRecord) -> tuple[np.ndarray, np.ndarray]:
    dev, test = (np.array([[p[s][k][METRIC] for k in LANGUAGES] for p in run.points]) for s in ("dev", "test"))
    return dev, test


def numbers(table: Table, name: str) -> list[str]:
    return next(list(row[1:]) for row in table.rows if row[0] == name)


def test_the_spread_over_runs_by_brute_force() -> None:
    chosen = []
    for run in RUNS:
        dev, test = arrays(run)
        best = max(range(len(dev)), key=lambda k: (dev[k, 0], -k))
        chosen.append([dev[best, 0], *test[best, 1:]])
    table = checkpoints.range_table(RUNS, METRIC, "x")
    assert table.header == ("", "en dev", "de", "es", "ja")
    columns = list(zip(*chosen, strict=True))
    for name, statistic in (("max", max), ("min", min), ("range", lambda values: max(values) - min(values))):
        assert numbers(table, name) == [f"{100 * statistic(values):.2f}" for values in columns]
    # What the paper has for the same languages, below each of our rows.
    assert [row[0] for row in table.rows] == ["max", "published", "min", "published", "range", "published"]
    assert table.rows[1][1:] == ("97.70", "87.60", "82.30", "67.70")
    assert table.rows[5][1:] == ("0.90", "5.90", "4.60", "7.10")


def test_one_run_has_no_spread_and_orders_of_the_same_targets_are_one_run() -> None:
    table = checkpoints.range_table(RUNS[:1], METRIC, "x")
    assert numbers(table, "range") == ["–"] * 4
    assert "1 run: seed 1" in table.notes[0]
    turned = [
        dataclasses.replace(run, languages=("en", "ja", "es", "de"), order="other", run_id=f"{run.run_id}-turned")
        for run in RUNS[:2]
    ]
    section = section_of([*RUNS, *turned])
    (runs,) = checkpoints.zero_shot_runs(section.summary, METRIC).values()
    assert [run.run_id for run in runs] == [run.run_id for run in RUNS]


def test_directional_agreement_by_a_double_loop() -> None:
    expected: dict[str, list[float]] = {"dev of en": [], "dev of the language itself": []}
    for j in range(4):
        shares: dict[str, list[float]] = {name: [] for name in expected}
        for run in RUNS:
            dev, test = arrays(run)
            for name, column in (("dev of en", 0), ("dev of the language itself", j)):
                agreed = []
                for a, b in itertools.combinations(range(len(dev)), 2):
                    if abs(test[a, j] - test[b, j]) > 0.00499:
                        product = (dev[b, column] - dev[a, column]) * (test[b, j] - test[a, j])
                        agreed.append(0.5 if abs(product) < 1e-12 else float(product > 0))
                shares[name].append(float(np.mean(agreed)))
        for name in expected:
            expected[name].append(float(np.mean(shares[name])))
    table = checkpoints.agreement_table(RUNS, METRIC, "x")
    for name, values in expected.items():
        assert numbers(table, name) == [f"{100 * value:.2f}" for value in values]
    assert table.rows[1] == ("published", "84.00", "57.00", "59.00", "42.00")
    assert table.rows[3] == ("published", "–", "97.00", "92.00", "98.00")


def test_oracle_and_source_dev_as_maximum_and_as_mean() -> None:
    table = checkpoints.oracle_table(RUNS, METRIC, "x")
    finals = []
    for run in RUNS:
        dev, test = arrays(run)
        finals.append([test[int(np.argmax(dev[:, j])), j] for j in range(4)])
    assert numbers(table, "oracle, maximum") == [f"{100 * max(c):.2f}" for c in zip(*finals, strict=True)]
    assert numbers(table, "oracle, mean") == [f"{100 * np.mean(c):.2f}" for c in zip(*finals, strict=True)]
    names = [row[0] for row in table.rows]
    assert table.rows[names.index("oracle, maximum") + 1] == ("published", "–", "89.70", "84.40", "75.50")
    assert table.rows[names.index("current_dev, maximum") + 1] == ("published", "–", "87.60", "82.30", "67.70")
    assert names.count("published") == 2
    assert names.index("last, mean") > 0
    assert not any(name.startswith(("source_dev", "mean_seen_dev")) for name in names)


def test_published_numbers_stand_beside_runs_from_english_on_the_same_data_alone() -> None:
    small = checkpoints.range_table([wandering(seed, model="tiny") for seed in (1, 2)], METRIC, "x")
    assert any("encoder mbert → tiny;" in note for note in small.notes)
    for runs in ([wandering(1, "mtop")], [dataclasses.replace(RUNS[0], languages=("de", "en", "es", "ja"))]):
        assert [row[0] for row in checkpoints.range_table(runs, METRIC, "x").rows] == ["max", "min", "range"]


def test_the_section_of_zero_shot_runs_has_ed_s_tables_and_figure() -> None:
    block = make_block(checkpoints.zero_shot, section_of(RUNS))
    assert [table.title.partition(": ")[2] for table in block.tables] == [
        "spread over runs (ED Table 2)", "directional agreement of dev with test (ED Table 3)",
        "oracle and other rules (ED Table 5)",
    ]  # fmt: skip
    figure = block.plots[0].draw()
    lines = figure.axes[0].get_lines()
    dev, test = arrays(RUNS[0])
    np.testing.assert_allclose(lines[0].get_ydata(), 100 * dev[:, 0])
    np.testing.assert_allclose(lines[3].get_ydata(), 100 * test[:, 3])
    assert not make_block(checkpoints.zero_shot, section_of([sequence()]))


def test_a_terminal_shows_what_zero_shot_runs_are_about_and_no_measure_that_they_cannot_have() -> None:
    section = section_of(RUNS)
    means, *of_ed = section.terminal
    assert means.header == ("strategy", "runs", "FP ↑")
    assert [table.title[-12:] for table in of_ed] == ["(ED Table 2)", "(ED Table 3)", "(ED Table 5)"]
    assert list(section.definitions) == ["FP ↑"]
    assert "n/a" not in "".join(table.text(80) for table in section.terminal)
    # Beside runs that have them, measures stay.
    assert section_of([*RUNS, sequence(dataset="mldoc", model="mbert")]).terminal[0].header[2:] == (
        "F ↓", "T ↑", "T0 ↑", "FP ↑",
    )  # fmt: skip


def test_a_terminal_shows_the_means_of_orders_once_and_each_order_on_the_page_only() -> None:
    section = section_of([sequence(order=order) for order in ("order1", "order2")])
    assert [table.title for table in section.terminal] == [table.title for table in section.summary.means()]
    [page] = [block for block in section.blocks if block.title == "By order"]
    assert "order2" in "".join(table.text(80) for table in page.tables)


# The published tables.


def test_english_dev_is_the_maximum_over_runs_in_table_5_too() -> None:
    for dataset in ("mldoc", "xnli"):
        second, fifth = (ed.ed_tables()[table, dataset] for table in ("2", "5"))
        rows = {k: v for (row, k, _), v in fifth.items() if row == "best_en_dev"}
        assert rows == {k: v for (row, k, _), v in second.items() if row == "max_over_runs" and k != "en"}
        for (row, language, measure), value in second.items():
            if row == "range":
                ends = (second[name, language, measure] for name in ("max_over_runs", "min_over_runs"))
                # Differences of numbers that were rounded before, or after.
                assert value == pytest.approx(next(ends) - next(ends), abs=0.0011)
