"""Small versions of `benchmarks.statistics`: that what docs/statistics.md says of intervals and tests is so."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks import statistics
from benchmarks.statistics import DOCUMENT, LIMIT, TESTS, Setting, coverage, null, rejected, rejection
from xclrun.analysis.anova import blocked_anova, tukey
from xclrun.analysis.bootstrap import DEFAULTS, INTERVALS
from xclrun.analysis.significance import paired_t, wilcoxon
from xclrun.report import inference


def test_the_percentile_interval_of_forgetting_misses_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resamples smaller than the test set, of models that err on sentences of their own: all 8 studies."""
    monkeypatch.setattr(statistics, "COMMON", 0.0)
    of = Setting(6, 6, 0.95, "little")
    found = coverage(of, sentences=800, size=100, studies=8, kinds=("centred", "percentile", "basic"), resamples=100)
    assert found["F"]["excludes percentile"] == 1
    assert found["F"]["percentile"] < 0.5 < found["F"]["basic"]
    assert found["F"]["bias"] > found["F"]["error"] > 0  # resamples are more noisy than the value
    assert found["F"]["excludes basic"] > 0
    for name in ("F", "T", "T0", "FP"):
        assert found[name]["excludes centred"] == 0
    assert [found[name]["excludes percentile"] for name in ("T", "T0", "FP")] == [0, 0, 0]


def documented(name: str) -> list[dict[str, str]]:
    """Return the rows of a table of docs/statistics.md."""
    text = DOCUMENT.read_text(encoding="utf-8").partition(f"<!-- {name} -->\n")[2].partition("<!-- end")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return [dict(zip(lines[0], line, strict=True)) for line in lines[2:]]


def test_default_intervals_are_those_that_the_documented_simulation_chooses() -> None:
    rows = documented("intervals")
    assert {row["measure"]: row["interval"].strip("`") for row in rows if row["default"]} == DEFAULTS
    for measure, chosen in DEFAULTS.items():
        own = {row["interval"].strip("`"): row for row in rows if row["measure"] == measure}
        assert own.keys() == INTERVALS.keys()
        allowed = {kind: float(row["lowest coverage"]) for kind, row in own.items() if row["excludes"] == "never"}
        assert allowed[chosen] == max(allowed.values())


def test_all_settings_are_documented() -> None:
    rows = [row for row in documented("coverage") if row["forgetting"] != "none"]
    columns = ("forgetting", "languages", "orders", "scores near", "test set")
    assert {tuple(row[name] for name in columns) for row in rows} == set(
        itertools.product(("little", "much"), "26", "26", ("0.5", "0.95", "0.99"), ("100", "600", "3,000"))
    )
    lowest = {}
    for row in rows:
        for measure in DEFAULTS:
            shares = dict(zip(INTERVALS, row[measure].split(), strict=True))
            for kind, share in shares.items():
                if share != "–":
                    lowest[measure, kind] = min(float(share), lowest.get((measure, kind), 1.0))
    assert lowest == {
        (row["measure"], row["interval"].strip("`")): float(row["lowest coverage"]) for row in documented("intervals")
    }


@pytest.mark.full
def test_coverage_of_forgetting_and_of_scores() -> None:
    found = coverage(Setting(6, 6, 0.95, "little"), sentences=300, size=None, studies=60, resamples=150)
    assert found["F"]["basic"] > 0.85 > found["F"]["centred"] > found["F"]["percentile"]
    for name in ("T", "T0", "FP"):
        assert all(found[name][kind] > 0.85 for kind in ("basic", "centred", "percentile", "bca"))
        assert found[name]["paper"] < 0.35


@pytest.mark.full
def test_order_means_keep_to_the_level_where_seeds_as_blocks_do_not() -> None:
    found = rejection((3,) * 6, interaction=2.0, studies=60)
    assert found["(seeds as blocks)"] > 0.2
    assert found["paired bootstrap"] > 0.2
    kept = set(TESTS) - {"(seeds as blocks)", "paired bootstrap"}
    # Three standard errors above 5 % where that is the level.
    assert all(found[name] < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60) for name in kept), found


def test_the_simulated_decisions_are_those_of_reports() -> None:
    rng = np.random.default_rng(5)
    for interaction in (0.0, 4.0):
        data = null((3, 1, 2, 3), interaction, rng)
        data = type(data)(data.strategies, data.blocks, data.values + np.array([[0.0], [0.0], [0.0], [0.03]]))
        averaged, found = data.averaged(), rejected(data)
        assert found["two-way ANOVA, blocks"] == (inference.Tests(data, True).blocked[0].p < 0.05)
        pairs = tukey(averaged, blocked_anova(averaged))
        assert found["Tukey, blocks (marks)"] == any(pair.p < 0.05 for pair in pairs)
        assert found["paired t"] == any(pair.p < 0.05 for pair in paired_t(averaged))
        assert found["Wilcoxon"] == any(pair.p < 0.05 for pair in wilcoxon(averaged))


def test_the_test_that_makes_marks_keeps_below_the_limit_in_the_documented_tables() -> None:
    lines = DOCUMENT.read_text(encoding="utf-8").partition("<!-- rejection -->\n")[2].splitlines()
    rows = [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    column = rows[0].index("Tukey, blocks (marks)")
    shares = [float(row[column]) for row in rows[2:]]
    assert len(shares) == 21
    assert max(shares) <= LIMIT
