"""Gradient overlap in reports: shares by hand, within hops and at switches, what is drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.analysis.build import record
from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.overlap import overlap, smoothed
from xclrun.report.part import make_block
from xclrun.report.parts.overlap import gradient_overlap
from xclrun.report.section import Sources
from xclrun.report.strategies import ReportData, StrategySection


def rows(*counts: tuple[int, int, str, int, int | None, int | None]) -> pd.DataFrame:
    return pd.DataFrame(counts, columns=["hop", "step", "part", "nonzero", "both", "either"])


COUNTS = rows(
    (1, 1, "embeddings", 10, None, None), (1, 1, "rest", 100, None, None),
    (1, 2, "embeddings", 8, 6, 12), (1, 2, "rest", 100, 100, 100),
    # The next hop shares few subwords.
    (2, 1, "embeddings", 9, 1, 16), (2, 1, "rest", 90, 90, 100),
    (2, 2, "embeddings", 9, 9, 9), (2, 2, "rest", 0, 0, 90),
    (2, 3, "embeddings", 3, 3, 12), (2, 3, "rest", 0, 0, 0),
)  # fmt: skip


def test_shares_within_hops_and_at_switches_by_hand() -> None:
    for counts in (COUNTS, COUNTS.sample(frac=1, random_state=1), COUNTS.convert_dtypes()):
        overlaps = overlap(counts, "embeddings")
        np.testing.assert_array_equal(overlaps.share, [np.nan, 0.5, 1 / 16, 1, 0.25])
        assert overlaps.first.tolist() == [False, False, True, False, False]
        assert overlaps.within() == pytest.approx((0.5 + 1 + 0.25) / 3)
        assert overlaps.at_switches() == 1 / 16
        rest = overlap(counts, "rest")
        # Of two steps without a gradient none is shared.
        np.testing.assert_array_equal(rest.share, [np.nan, 1, 0.9, 0, 0])
        np.testing.assert_array_equal(rest.nonzero, [100, 100, 90, 0, 0])


def test_smoothing_is_a_mean_over_what_is_there() -> None:
    values = np.array([np.nan, 1.0, 3.0, np.nan, 5.0])
    np.testing.assert_allclose(smoothed(values, 3), [1, 2, 2, 4, 5])
    np.testing.assert_allclose(smoothed(values, 1), values)
    np.testing.assert_allclose(smoothed(values, 0), values)


def section(**counts: Any) -> StrategySection:
    runs = [record(name, seed=seed, languages=("en", "de"), run_id=f"{name}{seed}") for name in ("naive", "er")
            for seed in (1, 2)]  # fmt: skip
    (comparison,) = comparisons(runs)
    return StrategySection(comparison, ReportData(runs, sources=Sources(gradients=lambda: {"overlap": counts})))


def test_the_report_tells_and_draws_what_runs_counted() -> None:
    doubled = COUNTS.assign(both=COUNTS["both"] / 2)
    block = make_block(gradient_overlap, section(naive1=COUNTS, naive2=doubled))
    by_part = {row[2]: row for row in block.tables[0].rows}
    assert set(by_part) == {"embeddings", "rest"}
    # Mean of both runs: 7.8 of each; (19 / 4 + 19 / 8) / 2; shares once and by half.
    assert by_part["embeddings"] == ("en-de", "naive", "embeddings", "2", "8", "4", "43.75", "4.69")
    figure = block.plots[0].draw()
    assert figure is not None
    line, switch = figure.axes[0].get_lines()
    np.testing.assert_allclose(line.get_ydata(), 75 * overlap(COUNTS, "embeddings").share)
    assert list(switch.get_xdata()) == [2.5, 2.5]


def test_without_counts_there_is_nothing() -> None:
    assert not make_block(gradient_overlap, section())
