"""Tables and figures of evaluation inside hops: what is drawn is what the tables say."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import numpy as np
import pytest

from xclrun.analysis.points import aultc
from xclrun.analysis.record import RunRecord
from xclrun.core.quantity import SHARE
from xclrun.report.parts import inside_hops
from xclrun.report.summary import Summary
from xclrun.report.tables import Table

from .study import LANGUAGES, run, study, summary_of
from .test_figures import is_cut_off, texts


def points(record: RunRecord, every: int = 500, total: int = 1800) -> tuple[dict[str, Any], ...]:
    """Make scores between the rows of the matrix, with independent noise for dev and test."""
    rng, recorded = np.random.default_rng(list(record.run_id.encode())), []
    for hop in range(1, record.hops + 1):
        for seen in (*range(every, total, every), total):
            share, point = seen / total, {"hop": hop, "step": seen // 16, "examples": seen, "own": seen}
            for split in ("dev", "test"):
                point[split] = {
                    language: {
                        metric: float(
                            np.clip((1 - share) * R[hop - 1, j] + share * R[hop, j] + rng.normal(0, 0.02), 0, 1)
                        )
                        for metric, R in record.scores.items()
                    }
                    for j, language in enumerate(record.languages)
                }
            recorded.append(point)
    return tuple(recorded)


def with_points(records: list[RunRecord]) -> list[RunRecord]:
    return [dataclasses.replace(record, points=points(record)) for record in records]


@cache
def summary() -> Summary:
    records = with_points(study(("naive", "er", "lang_spec_trans"), ("h2l", "l2h"), (1, 2)))
    return summary_of(records)


def column(table: Table, name: str) -> dict[tuple[str, ...], str]:
    return {row[: table.left]: row[table.header.index(name)] for row in table.rows}


def test_the_measures_of_lifelong_learning_are_means_over_runs() -> None:
    table = inside_hops.efficiency_table(summary(), "slot_f1")
    columns = column(table, "AULTC ↑"), column(table, "FP ↑")
    for label, runs in summary().comparison.strategies.items():
        for column_shown, values in zip(
            columns,
            ([aultc(r, "slot_f1") for r in runs], [r.scores["slot_f1"][-1].mean() for r in runs]),
            strict=True,
        ):
            assert column_shown[(label,)] == f"{SHARE.shown(np.mean(values))} ± {SHARE.shown(np.std(values, ddof=1))}"
    assert table.header == ("strategy", "runs", "AULTC ↑", "F_m_curve ↓", "F_m ↓", "I ↓", "I_m_curve ↓", "FP ↑")
    assert [row[2].best for row in table.rows].count(True) == 1
    best = max(table.rows, key=lambda row: row[2].value)
    assert best[2].best
    assert any(note.startswith("AULTC: area under the learning curve") for note in table.notes)


def test_without_points_there_is_nothing_and_with_some_the_others_say_so() -> None:
    plain = study(("naive", "er"), ("h2l",), (1,))
    none = summary_of(plain)
    assert inside_hops.example_curve_figure(none, "intent_accuracy") is None
    assert (
        inside_hops.selection_figure(none, inside_hops.selected_checkpoints(none, "intent_accuracy"), "intent_accuracy")
        is None
    )
    mixed = [*with_points([plain[0]]), plain[1]]
    table = inside_hops.efficiency_table(summary_of(mixed), "intent_accuracy")
    assert column(table, "AULTC ↑")["er",] == "n/a [1]"
    assert "needs evaluation inside hops" in table.notes[0]


def test_curves_show_means_over_seeds_and_tell_the_area() -> None:
    figure = inside_hops.example_curve_figure(summary(), "slot_f1")
    assert not is_cut_off(figure)
    h2l = figure.axes[0]
    lines = {line.get_gid().split(":")[1].split(",")[0]: line for line in h2l.lines if line.get_gid()}
    assert list(lines) == ["naive", "er", "lang_spec_trans"]
    for label, line in lines.items():
        runs = [r for r in summary().comparison.strategies[label] if r.order == "h2l"]
        x, y = line.get_data()
        assert (x[0], x[-1]) == (0, 1800 * len(LANGUAGES))
        np.testing.assert_allclose(y[0], 100 * np.mean([r.scores["slot_f1"][0].mean() for r in runs]))
        last = [np.mean([s["slot_f1"] for s in r.points[-1]["test"].values()]) for r in runs]
        np.testing.assert_allclose(y[-1], 100 * np.mean(last))
        area = 100 * np.mean([aultc(r, "slot_f1") for r in runs])
        assert f"AULTC {area:.2f}" in line.get_gid()
    dotted = [line.get_xdata()[0] for line in h2l.lines if line.get_linestyle() == ":"]
    np.testing.assert_array_equal(dotted, 1800 * np.arange(1, 6))


def test_the_figure_of_selection_shows_what_its_table_says() -> None:
    selected = inside_hops.selected_checkpoints(summary(), "intent_accuracy")
    table, figure = (
        inside_hops.checkpoint_table(summary(), selected, "intent_accuracy"),
        inside_hops.selection_figure(summary(), selected, "intent_accuracy"),
    )
    assert not is_cut_off(figure)
    assert len(table.rows) == 3 * (len(LANGUAGES) + 1)
    assert table.rows[0][2].runs == tuple(r.run_id for r in summary().comparison.strategies["naive"])
    scores, agreement = figure.axes
    drawn = {
        "selected": scores.lines, "oracle": scores.lines,
        "agreement: source dev": agreement.lines, "agreement: own dev": agreement.lines,
    }  # fmt: skip
    labels = {"selected": "selected:", "oracle": "oracle:", "agreement: source dev": "dev of the hop",
            "agreement: own dev": "dev of the language"}  # fmt: skip
    for name, lines in drawn.items():
        (line,) = (candidate for candidate in lines if str(candidate.get_label()).startswith(labels[name]))
        cells = [column(table, name)[label, "mean"] for label in selected]
        assert [f"{value:.2f}" for value in line.get_ydata()] == cells
    assert "bars: spread over seeds" in " ".join(texts(figure))


def test_one_seed_has_no_spread() -> None:
    records = with_points([run("naive", "h2l", 1, LANGUAGES)])
    summary_of_seed = summary_of(records)
    table = inside_hops.checkpoint_table(
        summary_of_seed, inside_hops.selected_checkpoints(summary_of_seed, "intent_accuracy"), "intent_accuracy"
    )
    assert table is not None
    assert set(column(table, "spread of selected").values()) == {"–"}
    assert float(column(table, "oracle − selected")["naive", "mean"]) == pytest.approx(
        float(column(table, "oracle")["naive", "mean"]) - float(column(table, "selected")["naive", "mean"]), abs=0.02
    )
