"""Gradients of classes in reports: sides of the switches by hand, and what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.build import record
from xclrun.analysis.aggregate import comparisons
from xclrun.report.part import make_block
from xclrun.report.parts.class_gradients import class_gradients
from xclrun.report.section import Sources
from xclrun.report.strategies import ReportData, StrategySection

# hop, step, class, gradient
ROWS = [
    # As labels are sorted; the figure has keys in the order of training.
    (1, 1, "de:c", 0.3), (1, 1, "en:a", -0.2), (1, 1, "en:b", 0.1),
    (1, 2, "en:a", -0.4), (1, 2, "en:b", 0.1), (1, 2, "de:c", 0.1),
    (2, 1, "en:a", 0.5), (2, 1, "en:b", 0.1), (2, 1, "de:c", -0.6),
]  # fmt: skip


def section(rows: list[tuple[Any, ...]] = ROWS) -> StrategySection:
    frame = pd.DataFrame(rows, columns=["hop", "step", "class", "gradient"])
    runs = [record("naive", languages=("en", "de"), run_id="one")]
    (comparison,) = comparisons(runs)
    return StrategySection(
        comparison, ReportData(runs, sources=Sources(gradients=lambda: {"class_gradients": {"one": frame}}))
    )


def test_gradients_are_averaged_over_keys_being_learned_earlier_and_later() -> None:
    block = make_block(class_gradients, section())
    (table,) = block.tables
    by_side = {row[2]: (float(row[3]), row[4]) for row in table.rows}
    assert by_side == {
        "being learned": (pytest.approx((-0.2 + 0.1 - 0.4 + 0.1 - 0.6) / 5), "40.0"),
        "earlier": (pytest.approx(0.3), "100.0"),
        "later": (pytest.approx(0.2), "100.0"),
    }
    figure = next(plot for plot in block.plots if plot.name.startswith("class_gradients")).draw()
    assert figure is not None
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), [[-0.2, -0.4, 0.5], [0.1, 0.1, 0.1], [0.3, 0.1, -0.6]])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["en:a", "en:b", "de:c"]
    assert list(axes.lines[0].get_xdata()) == [2, 2]


def test_classes_that_name_no_key_have_a_figure_and_no_table() -> None:
    block = make_block(class_gradients, section([(h, s, c.partition(":")[2], g) for h, s, c, g in ROWS]))
    assert not block.tables
    assert block.plots


def test_runs_that_recorded_nothing_show_nothing() -> None:
    (comparison,) = comparisons([record("naive", languages=("en", "de"))])
    assert not make_block(class_gradients, StrategySection(comparison, ReportData(comparison.runs)))
