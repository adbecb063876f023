"""Small versions of `benchmarks.statistics`, and consistency of the tables of its pages."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from benchmarks import statistics
from benchmarks.significance import (
    LANGUAGES,
    SKEWED,
    clusters_of,
    primary_p,
    shared_coverage,
    shared_hops,
    sign_flip_p,
    studies,
    tukey_found,
)
from benchmarks.statistics import (
    LIMIT,
    PAGES,
    SEED_BLOCKS,
    SHORT,
    TESTS,
    Setting,
    coverage,
    null,
    rejected,
    rejection,
)
from tests.conftest import some
from xclrun.analysis import all_tests
from xclrun.analysis.anova import blocked_anova, tukey
from xclrun.analysis.bootstrap import DEFAULTS, INTERVALS
from xclrun.analysis.replicates import Replicates
from xclrun.analysis.significance import Pair, paired_t, wilcoxon
from xclrun.core.quantity import SHARE
from xclrun.report import inference


def test_the_percentile_interval_of_forgetting_misses_the_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resamples smaller than the test set, of models that err on sentences of their own: all 8 studies."""
    monkeypatch.setattr(statistics, "COMMON", 0.0)
    of = Setting(6, 6, 0.95, "little")
    result = coverage(of, sentences=800, size=100, studies=8, kinds=("centred", "percentile", "basic"), resamples=100)
    assert result["F"]["excludes percentile"] == 1
    assert result["F"]["percentile"] < 0.5 < result["F"]["basic"]
    assert result["F"]["bias"] > result["F"]["error"] > 0  # resamples are more noisy than the value
    assert result["F"]["excludes basic"] > 0
    for name in ("F", "T", "T0", "FP"):
        assert result[name]["excludes centred"] == 0
    assert [result[name]["excludes percentile"] for name in ("T", "T0", "FP")] == [0, 0, 0]


def documented(name: str) -> list[dict[str, str]]:
    return statistics.documented(name, "".join(page.read_text(encoding="utf-8") for page in PAGES))


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
    columns = ("forgetting", "scores near", "test set")
    assert {tuple(row[name] for name in columns) for row in rows} == set(
        itertools.product(("little", "much"), ("0.5", "0.95", "0.99"), ("100", "600", "3,000"))
    )
    lowest = {}
    for row in rows:
        for measure in DEFAULTS:
            shares = dict(zip(SHORT, row[measure].split(), strict=True))
            for kind, share in shares.items():
                if share != "–":
                    lowest[measure, kind] = min(float(share), lowest.get((measure, kind), 1.0))
    rows = [
        (row["measure"], row["interval"].strip("`"), float(row["lowest coverage"])) for row in documented("intervals")
    ]
    assert lowest == {(measure, kind): share for measure, kind, share in rows if kind in SHORT}


@pytest.mark.full
def test_coverage_of_forgetting_and_of_scores() -> None:
    result = coverage(Setting(6, 6, 0.95, "little"), sentences=300, size=None, studies=60, resamples=150)
    assert result["F"]["basic"] > 0.85 > result["F"]["centred"] > result["F"]["percentile"]
    for name in ("T", "T0", "FP"):
        assert all(result[name][kind] > 0.85 for kind in ("basic", "centred", "percentile", "bca"))
        assert result[name]["paper"] < 0.35


@pytest.mark.full
def test_order_means_keep_to_the_level_where_seeds_as_blocks_do_not() -> None:
    result = rejection((3,) * 6, interaction=2.0, studies=60)
    assert result[SEED_BLOCKS] > 0.2
    assert result["paired bootstrap"] > 0.2
    retained = set(TESTS) - {SEED_BLOCKS, "paired bootstrap"}
    # Three standard errors above 5 % where that is the level.
    assert all(result[name] < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 60) for name in retained), result


def test_the_simulated_decisions_are_those_of_reports() -> None:
    rng = np.random.default_rng(5)
    for interaction in (0.0, 4.0):
        data = null((3, 1, 2, 3), interaction, rng)
        data = type(data)(data.strategies, data.blocks, data.values + np.array([[0.0], [0.0], [0.0], [0.03]]))
        averaged, result = data.averaged(), rejected(data)
        tests = all_tests.Tests(data, SHARE)
        assert result["two-way ANOVA, blocks"] == (tests.blocked[0].p < 0.05)
        primary = inference.Verdicts({("intent_accuracy", "FP"): tests}, "strategy0").primary
        assert result["primary (marks)"] == any(pair.p < 0.05 for pair in primary.values())
        pairs = tukey(averaged, blocked_anova(averaged))
        assert result["Tukey, blocks"] == any(pair.p < 0.05 for pair in pairs)
        assert result["paired t"] == any(pair.p < 0.05 for pair in paired_t(averaged))
        assert result["Wilcoxon"] == any(pair.p < 0.05 for pair in wilcoxon(averaged))


def test_the_test_that_makes_marks_keeps_to_its_level_in_the_documented_tables() -> None:
    shares = [float(row["primary (marks)"]) for row in documented("rejection")]
    assert len(shares) == 21
    assert max(shares) <= LIMIT
    errors, tukey = (
        [float(share) for row in documented("family") for share in row[test].split()]
        for test in ("primary comparisons", "Tukey, one measure")
    )
    assert len(errors) == 4 * 3 * 5
    assert max(errors) <= 0.06
    assert max(tukey) > 0.2  # why it gives no marks


def test_intervals_of_shared_measures_cover_the_truth_in_the_documented_table() -> None:
    rows = [row for row in documented("shared") if row["crossed"] != "–"]
    assert {row["seeds"] for row in rows} == {"2", "3", "5"}
    shares = [float(share) for row in rows for share in row["crossed"].split()]
    assert len(shares) == 3 * 3 * 2 * 4
    assert min(shares) >= 0.9


def test_the_simulated_family_is_that_of_reports() -> None:
    """Vectorised p-values and Tukey's decisions equal those of reports, study by study."""
    rng = np.random.default_rng(2)
    values = studies(6, 3, 4, 3.0, "another", rng, effect=6.0)
    adjusted, result = primary_p(values), tukey_found(values)
    for study in range(len(values)):
        tests = {}
        for k, of in enumerate(values[study]):
            blocks = tuple((f"order{o}", 1, None) for o in range(4))
            tests[f"m{k // 2}", ("F", "FP")[k % 2]] = all_tests.Tests(Replicates(("a", "b", "c"), blocks, of), SHARE)
        primary = inference.Verdicts(tests, "a").primary
        ours = [primary[label, metric, name].p for metric, name in tests for label in ("b", "c")]
        assert adjusted[study].ravel() == pytest.approx(ours)
        pairs = [pair.p < 0.05 for one in tests.values() for pair in one.blocked[1] if pair.a == "a"]
        assert result[study].ravel().tolist() == pairs


def test_marks_keep_to_the_level_with_unequal_spreads_where_tukey_does_not() -> None:
    values = studies(4000, 10, 6, 10.0, "baseline", np.random.default_rng(0))
    assert (primary_p(values) < 0.05).any(axis=(1, 2)).mean() < 0.06
    assert tukey_found(values[:, :1]).any(axis=(1, 2)).mean() > 0.15


def test_crossed_intervals_cover_where_orders_as_samples_do_not() -> None:
    result = shared_coverage(4000, 6, 3, 2.0, 1.0, np.random.default_rng(0))
    assert result["crossed"] > 0.92
    assert result["orders"] < 0.6


def test_clusters_of_orders_that_share_hops_keep_to_the_level_in_the_documented_table() -> None:
    rows = documented("hops")
    assert [int(row["orders"]) for row in rows] == [math.factorial(n) for n in LANGUAGES for _ in range(2)]
    assert all(float(row[f"{measure}, clusters"]) <= LIMIT for row in rows for measure in ("F", "FP"))
    assert max(float(row["F, orders"]) for row in rows) > 0.2  # why clusters count


def test_the_prose_on_skewed_noise_is_what_the_documented_table_shows() -> None:
    rows = documented("skewed")
    assert [(int(row["strategies"]), int(row["orders"])) for row in rows] == list(SKEWED)
    equal, *unequal = zip(*(map(float, row["primary comparisons"].split()) for row in rows), strict=True)
    assert round(max(equal), 2) == 0.03
    assert round(max(map(max, unequal)), 2) == 0.12


@pytest.mark.parametrize("own_first", [False, True])
def test_the_simulated_clusters_are_those_of_reports(own_first: bool) -> None:
    found, data = shared_hops(3, 4, own_first, np.random.default_rng(0))
    assert len(data.clusters) == (4 if own_first else 12)
    for differences in found.values():
        clusters = clusters_of(differences, data)
        for study, values in enumerate(differences):
            replicates = Replicates(data.strategies, data.blocks, np.stack([values, 0 * values]), hops=data.hops)
            pair = all_tests.Tests(replicates, SHARE).t_test("a", "b")
            p = primary_p(np.stack([0 * clusters, clusters], axis=1)[:, np.newaxis])[study].item()
            assert pair.p == pytest.approx(p)


def test_the_simulated_sign_flips_are_those_of_reports() -> None:
    values = np.random.default_rng(1).exponential(size=(4, 6)) - 0.5
    for differences, p in some(zip(values, sign_flip_p(values), strict=True)):
        assert Pair("a", "b", 0, 0, 0, 0, differences=tuple(differences)).sign_flip() == pytest.approx(p)


def test_skewed_noise_has_skew_2_and_the_spread_of_normal_noise() -> None:
    values = studies(20000, 2, 3, 1.0, "baseline", np.random.default_rng(0), skewed=True)
    noise = (values - values.mean(axis=2, keepdims=True))[:, 0, 0]
    assert noise.std() * 2**0.5 == pytest.approx(1, abs=0.03)
    one = studies(20000, 2, 3, 1000.0, "baseline", np.random.default_rng(0), skewed=True)[:, 0, 0, 0] / 1000
    assert ((one - one.mean()) ** 3).mean() / one.std() ** 3 == pytest.approx(2, abs=0.3)
