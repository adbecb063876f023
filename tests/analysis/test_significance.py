from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import stats
from statsmodels.stats.multicomp import pairwise_tukeyhsd
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from xclrun.analysis.significance import (
    Replicates,
    _random_effects,
    anova,
    blocked_anova,
    critical_difference,
    detectable_effect,
    holm,
    mixed_model,
    p_matrix,
    paired_t,
    power_warnings,
    smallest_p,
    tukey,
    wilcoxon,
)

NAMES = ("naive", "er", "ewc_online", "kd_logit")


@pytest.fixture(scope="module")
def data() -> Replicates:
    rng = np.random.default_rng(3)
    blocks = tuple((f"order{o}", seed, None) for o in range(1, 7) for seed in (1, 2, 3))
    of_order, of_seed = rng.normal(0, 0.02, 6), rng.normal(0, 0.005, 3)
    of_block = np.array([of_order[int(o[-1]) - 1] + of_seed[s - 1] for o, s, _ in blocks])
    quality = np.array([0.80, 0.86, 0.805, 0.82])
    return Replicates(NAMES, blocks, quality[:, None] + of_block + rng.normal(0, 0.01, (4, len(blocks))))


def frame(data: Replicates) -> pd.DataFrame:
    return pd.DataFrame(
        [(s, o, seed, f"{o}/{seed}", data.values[i, j]) for i, s in enumerate(data.strategies)
         for j, (o, seed, _) in enumerate(data.blocks)],
        columns=["strategy", "order", "seed", "block", "value"],
    )  # fmt: skip


def test_anova_equals_scipy(data: Replicates) -> None:
    ours, theirs = anova(data), stats.f_oneway(*data.values)
    assert (ours.f, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-9)
    assert ours.df == (3, 68)


def test_tukey_equals_scipy_and_statsmodels(data: Replicates) -> None:
    pairs = tukey(data, anova(data))
    theirs = stats.tukey_hsd(*data.values)
    interval = theirs.confidence_interval()
    for pair in pairs:
        i, j = NAMES.index(pair.a), NAMES.index(pair.b)
        found = (pair.difference, pair.low, pair.high, pair.p)
        expected = (theirs.statistic[i, j], interval.low[i, j], interval.high[i, j], theirs.pvalue[i, j])
        assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)
    long = frame(data)
    table = pairwise_tukeyhsd(long["value"], long["strategy"])
    for a, b, p in zip(*np.array(table.groupsunique)[np.array(np.triu_indices(4, 1))], table.pvalues, strict=True):
        (ours,) = (pair.p for pair in pairs if {pair.a, pair.b} == {a, b})
        assert ours == pytest.approx(p, abs=2e-3)  # statsmodels interpolates in a table


def test_blocked_anova_equals_the_linear_model(data: Replicates) -> None:
    fit = smf.ols("value ~ C(strategy) + C(block)", frame(data)).fit()
    table = sm.stats.anova_lm(fit, typ=2)
    ours = blocked_anova(data)
    row = table.loc["C(strategy)"]
    assert (ours.f, ours.p) == pytest.approx((row["F"], row["PR(>F)"]), rel=1e-8)
    assert ours.df == (3, table.loc["Residual", "df"])
    assert ours.mean_square_error == pytest.approx(fit.mse_resid)
    share = row["sum_sq"] / (row["sum_sq"] + table.loc["Residual", "sum_sq"])
    assert ours.eta_squared == pytest.approx(share)


def test_blocks_take_what_orders_have_in_common_out_of_the_error(data: Replicates) -> None:
    plain, blocked = tukey(data, anova(data)), tukey(data, blocked_anova(data))
    assert all(b.p <= a.p for a, b in zip(plain, blocked, strict=True))
    assert [p.high - p.low for p in blocked] < [p.high - p.low for p in plain]


def test_the_papers_samples_are_orders(data: Replicates) -> None:
    by_order = data.by_order()
    assert [o for o, _, _ in by_order.blocks] == [f"order{k}" for k in range(1, 7)]
    np.testing.assert_allclose(by_order.values[1, 2], data.values[1, 6:9].mean())


def test_paired_t_and_wilcoxon_equal_scipy_with_holm_of_statsmodels(data: Replicates) -> None:
    index = [(i, j) for i in range(4) for j in range(i + 1, 4)]
    for pairs, test in ((paired_t(data), stats.ttest_rel), (wilcoxon(data), stats.wilcoxon)):
        raw = [test(data.values[i], data.values[j]).pvalue for i, j in index]
        assert [pair.p for pair in pairs] == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-9)
    for pair, (i, j) in zip(paired_t(data), index, strict=True):
        d = data.values[i] - data.values[j]
        assert (pair.low, pair.high) == pytest.approx(
            stats.t.interval(0.95, len(d) - 1, d.mean(), stats.sem(d)), rel=1e-9
        )
        assert pair.effect == pytest.approx(d.mean() / d.std(ddof=1))
        t, df = pair.effect * math.sqrt(len(d)), len(d) - 1
        ends = [stats.nct.sf(t, df, e * math.sqrt(len(d))) for e in (pair.effect_low, pair.effect_high)]
        assert ends == pytest.approx([0.025, 0.975], abs=1e-6)


def test_the_mixed_model_equals_statsmodels_formula(data: Replicates) -> None:
    long = frame(data).assign(all=1)
    components = {"order": "0 + C(order)", "seed": "0 + C(seed)"}
    scaled = long.assign(value=long["value"] / long["value"].std(ddof=0))
    model = smf.mixedlm("value ~ 0 + C(strategy)", scaled, groups="all", vc_formula=components)
    fit = model.fit()
    (ours,) = (pair for pair in mixed_model(data) if (pair.a, pair.b) == ("naive", "ewc_online"))
    contrast = (fit.fe_params.index == "C(strategy)[naive]").astype(float)
    contrast -= fit.fe_params.index == "C(strategy)[ewc_online]"
    covariance = np.asarray(fit.cov_params())[:4, :4]
    error = math.sqrt(contrast @ covariance @ contrast) * long["value"].std(ddof=0)
    assert ours.difference == pytest.approx(data.values[0].mean() - data.values[2].mean(), rel=1e-4)
    assert ours.high - ours.low == pytest.approx(2 * 1.959964 * error, rel=1e-3)


def test_buckets_are_nested_in_languages_as_in_statsmodels_formula() -> None:
    """Few-shot: an order is a pair of languages, bucket k of one pair has nothing to do with bucket k of another."""
    rng = np.random.default_rng(8)
    blocks = tuple((f"en-{k}", seed, b) for k in ("de", "fr", "hi", "th") for seed in (1, 2, 3) for b in range(3))
    languages = tuple(order.replace("-", "+") for order, _, _ in blocks)
    of_bucket = {(o, b): rng.normal(0, 0.03) for o, _, b in blocks}
    of_order = {o: rng.normal(0, 0.05) for o, _, _ in blocks}
    of_seed = {1: -0.03, 2: 0.01, 3: 0.02}
    effect = np.array([of_order[o] + of_bucket[o, b] + of_seed[s] for o, s, b in blocks])
    values = np.array([0.6, 0.63, 0.7])[:, None] + effect + rng.normal(0, 0.01, (3, len(blocks)))
    data = Replicates(NAMES[:3], blocks, values, languages)
    assert list(_random_effects(data)) == ["order", "seed", "bucket"]  # here languages are the order
    assert len(set(_random_effects(data)["bucket"])) == 12
    long = pd.DataFrame(
        [(s, o, seed, f"{o}/{b}", values[i, j]) for i, s in enumerate(NAMES[:3])
         for j, (o, seed, b) in enumerate(blocks)],
        columns=["strategy", "order", "seed", "bucket", "value"],
    )  # fmt: skip
    long = long.assign(all=1, value=long["value"] / long["value"].std(ddof=0))
    components = {name: f"0 + C({name})" for name in ("order", "seed", "bucket")}
    fit = smf.mixedlm("value ~ 0 + C(strategy)", long, groups="all", vc_formula=components).fit()
    error = math.sqrt(np.array([1, -1, 0]) @ np.asarray(fit.cov_params())[:3, :3] @ np.array([1, -1, 0]))
    (pair,) = (p for p in mixed_model(data) if (p.a, p.b) == NAMES[:2])
    assert pair.high - pair.low == pytest.approx(2 * 1.959964 * error * values.std(), rel=1e-3)
    # Buckets of the same languages in several orders are the same buckets.
    crossed = Replicates(("a", "b"), tuple((o, 1, b) for o in ("h2l", "l2h") for b in range(3)), rng.random((2, 6)))
    assert len(set(_random_effects(crossed)["bucket"])) == 3
    with pytest.raises(ValueError, match="languages of every block"):
        Replicates(("a",), (("o", 1, 0),), np.array([[1.0]]), ("de", "fr"))


def test_the_mixed_model_of_one_order_and_seed_is_not_available() -> None:
    one = Replicates(("a", "b"), (("h2l", 1, None),), np.array([[0.1], [0.2]]))
    assert all(math.isnan(pair.p) for pair in mixed_model(one))


def test_holm_with_missing_values() -> None:
    p = [0.01, np.nan, 0.04, 0.03]
    expected = multipletests([0.01, 0.04, 0.03], method="holm")[1]
    np.testing.assert_allclose(holm(p), [expected[0], np.nan, *expected[1:]])
    assert holm([]).size == 0


def test_friedman_equals_scipy_and_groups_are_maximal(data: Replicates) -> None:
    found = critical_difference(data, higher_is_better=True)
    assert found.p == pytest.approx(stats.friedmanchisquare(*data.values).pvalue)
    assert found.strategies[0] == "er"
    assert found.ranks.sum() == pytest.approx(10)
    # Demšar 2006, table 5: q_0.05 of four classifiers is 2.569.
    assert found.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 18)), rel=1e-3)
    for first, last in found.groups:
        assert found.ranks[last] - found.ranks[first] <= found.critical
    reverse = critical_difference(data, higher_is_better=False)
    assert reverse.strategies == found.strategies[::-1]


def test_friedman_with_ties() -> None:
    rng = np.random.default_rng(5)
    data = Replicates(NAMES, tuple(("o", s, None) for s in range(12)), rng.integers(0, 3, (4, 12)))
    assert critical_difference(data, True).p == pytest.approx(stats.friedmanchisquare(*data.values).pvalue)


@pytest.mark.parametrize("n", [2, 3, 6, 18])
def test_detectable_effects_equal_statsmodels(n: int) -> None:
    expected = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
    assert detectable_effect(n) == pytest.approx(float(np.squeeze(expected)), rel=1e-4)


def test_too_few_replicates_are_told() -> None:
    assert smallest_p(3) == 0.25 == stats.wilcoxon([1.0, 2.0, 3.0]).pvalue
    assert "cannot go below p = 0.25: it can never reach 0.05" in power_warnings(3, 1)[0]
    assert "Holm over 45 comparisons cannot go below p = 1" in power_warnings(6, 45)[0]
    assert len(power_warnings(18, 1)) == 1
    assert power_warnings(1, 1) == ["1 replicate: no test is possible; run more orders or seeds"]


def test_equal_strategies_do_not_differ() -> None:
    same = Replicates(("a", "b"), tuple(("o", s, None) for s in range(5)), np.tile(np.arange(5.0), (2, 1)))
    assert math.isnan(blocked_anova(same).f)
    assert [pair.p for pair in (*paired_t(same), *wilcoxon(same))] == [1.0, 1.0]
    assert all(math.isnan(pair.p) for pair in (*tukey(same, blocked_anova(same)), *mixed_model(same)))


def test_p_matrix_is_symmetric(data: Replicates) -> None:
    pairs = paired_t(data)
    matrix = p_matrix(NAMES, pairs)
    np.testing.assert_array_equal(matrix, matrix.T)
    assert np.isnan(np.diag(matrix)).all()
    assert matrix[0, 1] == pairs[0].p


def test_missing_values_are_refused() -> None:
    with pytest.raises(ValueError, match="one finite value"):
        Replicates(("a",), (("o", 1, None),), np.array([[np.nan]]))
