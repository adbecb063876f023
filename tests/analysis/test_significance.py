from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm
import statsmodels.formula.api as smf
from scipy import integrate, stats
from scipy.sparse.csgraph import connected_components
from statsmodels.stats.multicomp import pairwise_tukeyhsd
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from tests.conftest import some
from xclrun.analysis import mixed
from xclrun.analysis.anova import anova, blocked_anova, range_quantile, range_tail, tukey
from xclrun.analysis.critical_difference import critical_difference
from xclrun.analysis.power import Components, detectable_effect, power_warnings, smallest_p
from xclrun.analysis.replicates import Replicates, most_shared
from xclrun.analysis.significance import crossed_test, holm, mixed_model, paired_t, wilcoxon

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
    for pair in some(pairs):
        i, j = NAMES.index(pair.a), NAMES.index(pair.b)
        result = (pair.difference, pair.low, pair.high, pair.p)
        expected = (theirs.statistic[i, j], interval.low[i, j], interval.high[i, j], theirs.pvalue[i, j])
        assert result == pytest.approx(expected, rel=1e-6, abs=1e-9)
    long = frame(data)
    table = pairwise_tukeyhsd(long["value"], long["strategy"])
    for a, b, p in some(
        zip(*np.array(table.groupsunique)[np.array(np.triu_indices(4, 1))], table.pvalues, strict=True)
    ):
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


@pytest.mark.parametrize(
    ("kind", "blocks", "languages"),
    [
        ("order", [(o, s, None) for o in ("h2l", "l2h") for s in (1, 2, 3)], ()),
        ("order", [(o, s, b) for o in ("h2l", "l2h") for s in (1, 2) for b in (0, 1)], ("de+en",) * 8),
        ("seed", [("h2l", s, None) for s in (1, 2, 3)], ()),
        ("bucket", [("en-de", s, b) for b in (0, 1, 2) for s in (1, 2)], ("de+en",) * 6),
        ("languages", [(f"en-{k}", 1, b) for k in ("de", "fr") for b in (0, 1)], ("de+en",) * 2 + ("en+fr",) * 2),
    ],
)
def test_a_replicate_is_an_order_and_in_few_shot_a_language_or_the_buckets_of_one(
    kind: str, blocks: list, languages: tuple
) -> None:
    values = np.random.default_rng(0).random((2, len(blocks)))
    data = Replicates(("a", "b"), tuple(blocks), values, languages)
    assert data.kind == kind
    of = pd.Series(data.levels())
    expected = [values[:, of == level].mean(axis=1) for level in of.unique()]
    np.testing.assert_allclose(data.averaged().values.T, expected)


def test_seeds_are_no_evidence_about_other_orders() -> None:
    """Strategies that differ by order alone: every seed repeats its order, so more seeds change no p."""
    rng = np.random.default_rng(1)
    by_order = rng.normal(0.8, 0.02, (4, 6))
    once = Replicates(NAMES, tuple((f"order{o}", 1, None) for o in range(6)), by_order)
    blocks = tuple((f"order{o}", s, None) for o in range(6) for s in (1, 2, 3))
    often = Replicates(NAMES, blocks, np.repeat(by_order, 3, axis=1) + rng.normal(0, 1e-6, (4, 18)))
    same = Replicates(NAMES, blocks, np.repeat(by_order, 3, axis=1))
    for test in (paired_t, wilcoxon, lambda d: tukey(d, blocked_anova(d))):
        assert [p.p for p in test(often.averaged())] == pytest.approx([p.p for p in test(once)], rel=1e-3)
    for data in (often, same):
        assert [p.p for p in mixed_model(data)] == pytest.approx([p.p for p in mixed_model(once)], rel=1e-3)


def interacting(seeds: tuple[int, ...], seed: int = 2) -> Replicates:
    """Four strategies that interact with orders, each with its number of seeds; all variances well above 0."""
    rng = np.random.default_rng(seed)
    blocks = tuple((f"order{o}", s, None) for o, n in enumerate(seeds) for s in range(n))
    of = np.repeat(np.arange(len(seeds)), seeds)
    common = (rng.normal(0, 0.03, len(seeds))[of] + rng.normal(0, 0.01, len(of))) + 0.8
    values = common + rng.normal(0, 0.02, (4, len(seeds)))[:, of] + rng.normal(0, 0.01, (4, len(of)))
    return Replicates(NAMES, blocks, values)


def test_the_balanced_mixed_model_is_the_t_test_on_order_means() -> None:
    """Closed form: the error is the mean square of strategy × order, with its (k − 1)(orders − 1) degrees."""
    data = interacting((3,) * 6)
    anova_of = blocked_anova(data.averaged())
    error = math.sqrt(2 * anova_of.mean_square_error / 6)
    raw = []
    for pair in mixed_model(data):
        assert (pair.high - pair.low) / 2 == pytest.approx(stats.t.ppf(0.975, 15) * error, rel=1e-5)
        raw.append(2 * stats.t.sf(abs(pair.difference) / error, 15))
    assert [pair.p for pair in mixed_model(data)] == pytest.approx(multipletests(raw, method="holm")[1], rel=1e-4)


@pytest.mark.parametrize("seeds", [(3, 3, 3, 3, 3, 3), (3, 1, 2, 3, 1, 2)])
def test_the_mixed_model_is_the_one_that_statsmodels_fits(seeds: tuple[int, ...]) -> None:
    data = interacting(seeds)
    long = frame(data).assign(all=1, both=lambda d: d["strategy"] + d["order"])
    scaled = long.assign(value=long["value"] / long["value"].std(ddof=0))
    components = {name: f"0 + C({name})" for name in ("order", "both", "block")}
    fit = smf.mixedlm("value ~ 0 + C(strategy)", scaled, groups="all", vc_formula=components).fit(method="powell")
    covariance = np.asarray(fit.cov_params())[:2, :2]
    scale = long["value"].std(ddof=0)
    ours = mixed.fit(data.values, [int(order[-1]) for order, _, _ in data.blocks])
    assert ours.converged
    assert ours.error == pytest.approx(math.sqrt([1, -1] @ covariance @ [1, -1]) * scale, rel=5e-3)
    vcomp = dict(zip(sorted(components), fit.vcomp * scale**2, strict=True))
    expected = (fit.scale * scale**2, vcomp["both"], vcomp["block"], vcomp["order"])
    assert ours.variances == pytest.approx(expected, rel=0.05)
    means = fit.fe_params.loc[[f"C(strategy)[{name}]" for name in NAMES]].to_numpy() * scale
    np.testing.assert_allclose(np.diff(ours.means), np.diff(means), atol=1e-4)
    if len(set(seeds)) > 1:  # between the strata of orders and of runs
        assert 9 < ours.df < 24


def test_there_is_no_p_where_the_mixed_model_did_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed, "ITERATIONS", 1)
    for pair in some(mixed_model(interacting((3,) * 6))):
        assert math.isnan(pair.p)
        assert pair.reason == "the mixed model did not converge"


def test_the_mixed_model_of_one_order_and_seed_is_not_available() -> None:
    one = Replicates(("a", "b"), (("h2l", 1, None),), np.array([[0.1], [0.2]]))
    assert [(math.isnan(p.p), p.reason) for p in mixed_model(one)] == [(True, "needs two replicates or more")]


def test_holm_with_missing_values() -> None:
    p = [0.01, np.nan, 0.04, 0.03]
    expected = multipletests([0.01, 0.04, 0.03], method="holm")[1]
    np.testing.assert_allclose(holm(p), [expected[0], np.nan, *expected[1:]])
    assert holm([]).size == 0
    # As comparisons of a family that is fixed beforehand, they count.
    np.testing.assert_allclose(holm(p, count_missing=True), [0.04, np.nan, 0.09, 0.09])
    assert np.isnan(holm([np.nan] * 2, count_missing=True)).all()


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_holm_equals_statsmodels_with_ties_and_large_values(count: int) -> None:
    p = np.random.default_rng(count).random(count).round(1) ** 3
    np.testing.assert_array_equal(holm(p), multipletests(p, method="holm")[1])


@pytest.mark.parametrize("groups", [2, 3, 24])
@pytest.mark.parametrize("df", [1, 5, 250, math.inf])
def test_tails_of_the_studentized_range_equal_scipys(groups: int, df: float) -> None:
    q = np.array([0.0, 1e-6, 0.2, 1.0, 2.5, 4.0, 9.0, 30.0, 100.0])
    expected = stats.studentized_range.sf(q, groups, df)
    np.testing.assert_allclose(range_tail(q, groups, df), expected, rtol=0, atol=3e-13 if df == 250 else 5e-14)


@pytest.mark.parametrize("df", [1, 2, 3, 30])
def test_the_studentized_range_of_two_means_is_a_t_test_even_in_extreme_tails(df: int) -> None:
    q = np.array([0.5, 3.0, 10.0, 1e4, 1e8])
    np.testing.assert_allclose(range_tail(q, 2, df), 2 * stats.t.sf(q / math.sqrt(2), df), rtol=0, atol=2e-14)


@pytest.mark.parametrize(("confidence", "groups", "df"), [(0.95, 3, 2), (0.99, 5, 40), (0.95, 4, math.inf)])
def test_quantiles_of_the_studentized_range_equal_scipys(confidence: float, groups: int, df: float) -> None:
    assert range_quantile(confidence, groups, df) == pytest.approx(
        stats.studentized_range.ppf(confidence, groups, df), rel=1e-5
    )


def test_ranks_of_two_replicates_are_not_tested() -> None:
    data = Replicates(("a", "b"), (("o1", 1, None), ("o2", 1, None)), np.array([[0.1, 0.3], [0.2, 0.6]]))
    (rank,), (t,) = wilcoxon(data), paired_t(data)
    assert math.isnan(rank.p)
    assert (rank.reason, t.reason, math.isnan(t.effect)) == ("needs three replicates or more", "", True)


def test_the_most_shared_keys_are_those_of_the_group_with_most_runs() -> None:
    six, two = set(range(6)), {0, 1}
    assert most_shared({"a": six, "b": six, "c": two}) == six
    assert most_shared({"a": six | {6}, "b": six, "c": six, "d": two}) == six
    assert most_shared({"a": six, "b": two}) == six
    assert most_shared({"a": six, "b": two}, fewest=2) == two
    # One key that all share is no sample.
    assert most_shared({"a": {0, 1}, "b": {0, 1}, "c": {0}, "d": {0}, "e": {0}}) == {0, 1}
    assert most_shared({"a": {0}, "b": {1}}, fewest=2) == set()
    # A name that shares no key, or one, with others does not hide what they share.
    assert most_shared({"a": six, "b": {7, 8, 9}, "c": {7, 8}}, fewest=2) == {7, 8}
    assert most_shared({"a": six, "b": {0, 7, 8}, "c": {0, 7, 8}}, fewest=2) == {0, 7, 8}
    assert most_shared({}) == set()


def test_friedman_equals_scipy_and_groups_are_maximal(data: Replicates) -> None:
    result = critical_difference(data, higher_is_better=True)
    assert result.p == pytest.approx(stats.friedmanchisquare(*data.values).pvalue)
    assert result.strategies[0] == "er"
    assert result.ranks.sum() == pytest.approx(10)
    # Demšar 2006, table 5: q_0.05 of four classifiers is 2.569.
    assert result.critical == pytest.approx(2.569 * math.sqrt(4 * 5 / (6 * 18)), rel=1e-3)
    for first, last in result.groups:
        assert result.ranks[last] - result.ranks[first] <= result.critical
    reverse = critical_difference(data, higher_is_better=False)
    assert reverse.strategies == result.strategies[::-1]


def test_each_strategy_has_its_own_mean_rank() -> None:
    """Ranks by hand: 1 1 2, 2 3 1 and 3 2 3; then a, b, c from best to worst."""
    values = np.array([[0.9, 0.8, 0.5], [0.7, 0.2, 0.6], [0.1, 0.3, 0.4]])
    data = Replicates(("a", "b", "c"), tuple((f"o{k}", 1, None) for k in range(3)), values)
    for higher_is_better, names in ((True, "abc"), (False, "cba")):
        result = critical_difference(data, higher_is_better)
        assert result.strategies == tuple(names)
        assert result.ranks.tolist() == pytest.approx([4 / 3, 2.0, 8 / 3])


def test_friedman_with_ties() -> None:
    rng = np.random.default_rng(5)
    data = Replicates(NAMES, tuple(("o", s, None) for s in range(12)), rng.integers(0, 3, (4, 12)))
    assert critical_difference(data, True).p == pytest.approx(stats.friedmanchisquare(*data.values).pvalue)


@pytest.mark.parametrize("n", [3, 6, 18])
def test_detectable_effects_equal_statsmodels(n: int) -> None:
    expected = TTestPower().solve_power(nobs=n, alpha=0.05, power=0.8)
    assert detectable_effect(n) == pytest.approx(float(np.squeeze(expected)), rel=1e-4)


def test_the_detectable_effect_of_two_replicates_is_found_in_four_of_five_cases() -> None:
    """P(t > critical) by its definition: with scipy 1.15, statsmodels is 3 % off for one degree of freedom."""
    shift, critical = detectable_effect(2) * math.sqrt(2), stats.t.ppf(0.975, 1)
    missed, _ = integrate.quad(lambda s: stats.norm.cdf(critical * s - shift) * stats.chi.pdf(s, 1), 0, np.inf)
    assert missed == pytest.approx(0.2, abs=1e-4)


def test_too_few_replicates_are_told() -> None:
    assert smallest_p(3) == 0.25 == stats.wilcoxon([1.0, 2.0, 3.0]).pvalue
    assert "smallest p is 0.25" in power_warnings(3, 1)[0]
    assert "is 1 after Holm's correction over 45 comparisons" in power_warnings(6, 45)[0]
    assert len(power_warnings(18, 1)) == 1
    assert power_warnings(1, 1) == ["1 replicate: tests need at least two; run more orders or seeds"]


@pytest.mark.parametrize("unit", [1.0, 1e6])
@pytest.mark.parametrize("rows", [[[0.3, 0.4], [0.25, 0.35]], [[0.1, 0.7, 0.9], [0.1, 0.7, 0.9]]])
def test_equal_differences_have_no_p_and_a_reason(rows: list, unit: float) -> None:
    """a − b is 0.05 each time, but for rounding: there is no spread to test against, and no d_z of 1e15."""
    data = Replicates(("a", "b"), tuple((f"o{k}", 1, None) for k in range(len(rows[0]))), unit * np.array(rows))
    fitted = blocked_anova(data)
    assert (math.isnan(fitted.p), fitted.reason) == (True, "all differences are equal")
    for (pair,) in (paired_t(data), mixed_model(data), tukey(data, fitted), wilcoxon(data)):
        assert math.isnan(pair.p)
        assert math.isnan(pair.effect)
        assert pair.reason == "all differences are equal"
        assert pair.difference == pytest.approx(unit * (rows[0][0] - rows[1][0]))


def test_small_differences_are_tested_like_large_ones() -> None:
    rng = np.random.default_rng(4)
    values = rng.random((3, 6))
    blocks = tuple((f"o{k}", 1, None) for k in range(6))
    large, small = (Replicates(("a", "b", "c"), blocks, 0.5 + unit * values) for unit in (1.0, 1e-9))
    assert blocked_anova(small).p == pytest.approx(blocked_anova(large).p, rel=1e-4)
    assert [p.p for p in paired_t(small)] == pytest.approx([p.p for p in paired_t(large)], rel=1e-4)


def test_differences_under_1e_12_are_ties_of_ranks() -> None:
    """0.1 + 0.2 is not 0.3 in floating point, but no strategy is better for it."""
    blocks = tuple((f"o{k}", 1, None) for k in range(8))
    noise = np.random.default_rng(6).normal(0, 1e-14, (3, 8))
    base = np.linspace(0.2, 0.9, 8)
    equal = critical_difference(Replicates(("a", "b", "c"), blocks, base + noise), True)
    assert equal.ranks.tolist() == [2.0, 2.0, 2.0]
    assert math.isnan(equal.p)
    steps = np.array([1, 1, -1, 2, 2, 3, -3, 0]) / 100
    exact, noisy = np.array([steps, 0 * steps]), np.array([base + steps, base]) + noise[:2]
    for values in (exact, noisy):
        (pair,) = wilcoxon(Replicates(("a", "b"), blocks, values))
        # Ranks of |d| without the 0: 1 1 1 → 2, 2 2 → 4.5, 3 3 → 6.5; the sum of the signed ones over that of all.
        assert pair.effect == pytest.approx((2 + 2 - 2 + 4.5 + 4.5 + 6.5 - 6.5) / 28)


def test_missing_values_are_refused() -> None:
    with pytest.raises(ValueError, match="one finite value"):
        Replicates(("a",), (("o", 1, None),), np.array([[np.nan]]))


def with_hops(paths: list[str], own_first: bool, seeds: int = 1, strategies: int = 2) -> Replicates:
    """Orders such as ``abc``; a hop's key names what it was trained on, hop 1 only with ``own_first`` its strategy."""
    blocks = tuple((path, seed, None) for path in paths for seed in range(seeds))

    def keys(label: str, path: str, seed: int) -> frozenset[str]:
        return frozenset(f"{label if n > 1 or own_first else ''}{seed}{path[:n]}" for n in range(1, len(path) + 1))

    names = tuple(f"s{k}" for k in range(strategies))
    hops = tuple(tuple(keys(name, path, seed) for path, seed, _ in blocks) for name in names)
    values = np.random.default_rng(len(paths)).normal(size=(strategies, len(blocks)))
    return Replicates(names, blocks, values, hops=hops)


@pytest.mark.parametrize(
    ("languages", "own_first", "clusters"),
    [(3, False, 6), (3, True, 3), (4, False, 12), (4, True, 4), (5, False, 20)],
)
def test_all_orders_of_few_languages_form_clusters_by_their_first_languages(
    languages: int, own_first: bool, clusters: int
) -> None:
    """n (n − 1) pairs of first languages, except with three languages, whose last hop is never shared."""
    data = with_hops(["".join(order) for order in itertools.permutations("abcde"[:languages])], own_first)
    assert len(data.clusters) == clusters
    shared = data.clustered()
    assert len(shared.blocks) == clusters
    assert (shared is data) == (clusters == len(data.blocks))
    for members in data.clusters:
        assert len({path[: 1 if own_first else 2] for path in members}) == 1
    np.testing.assert_allclose(shared.values.mean(axis=1), data.values.mean(axis=1))


def test_clusters_are_the_connected_components_of_orders_that_share_a_hop() -> None:
    """Random orders of four languages, with hops that only one of three strategies shares; scipy as oracle."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        paths = ["".join(order) for order in rng.permutation(list(itertools.permutations("abcd")))[:9]]
        names = tuple("xyz")
        chosen = [[{f"{name}{rng.integers(12)}", f"all{k}", "all"} for k in range(9)] for name in names]
        hops = tuple(tuple(map(frozenset, row)) for row in chosen)
        data = Replicates(names, tuple((path, 1, None) for path in paths), np.zeros((3, 9)), hops=hops)
        linked = [[any(row[i] & row[j] - {"all"} for row in chosen) for j in range(9)] for i in range(9)]
        _, component = connected_components(np.array(linked))
        assert {frozenset(members) for members in data.clusters} == {
            frozenset(np.array(paths)[component == c].tolist()) for c in set(component)
        }
        # A pair depends on its own hops alone.
        pair = data.only(("x", "y"))
        linked = [[any(row[i] & row[j] - {"all"} for row in chosen[:2]) for j in range(9)] for i in range(9)]
        assert len(pair.clusters) == connected_components(np.array(linked))[0]


def test_a_cluster_is_averaged_for_each_seed_before_seeds_are() -> None:
    data = with_hops(["abc", "acb", "bac", "bca"], own_first=True, seeds=2)
    assert data.clusters == [["abc", "acb"], ["bac", "bca"]]
    of_blocks = data.values.reshape(2, 2, 2, 2)  # strategy, cluster, order, seed
    np.testing.assert_allclose(data.clustered().values, of_blocks.mean(axis=2).reshape(2, 4))
    np.testing.assert_allclose(data.clustered().averaged().values, of_blocks.mean(axis=(2, 3)))
    assert [block[0] for block in data.clustered().averaged().blocks] == ["abc + acb", "bac + bca"]


def test_variance_components_are_those_of_a_crossed_analysis_of_variance() -> None:
    rng = np.random.default_rng(3)
    table = rng.normal(size=(5, 1)) + rng.normal(size=(1, 3)) + rng.normal(size=(5, 3))
    frame = pd.DataFrame(
        [{"order": i, "seed": j, "value": table[i, j]} for i, j in itertools.product(range(5), range(3))]
    )
    fitted = sm.stats.anova_lm(smf.ols("value ~ C(order) + C(seed)", frame).fit())
    mean_squares = fitted["mean_sq"]
    residual = mean_squares["Residual"]
    found = Components.of(table)
    assert found.residual == pytest.approx(residual)
    assert found.order == pytest.approx((mean_squares["C(order)"] - residual) / 3)
    assert found.seed == pytest.approx((mean_squares["C(seed)"] - residual) / 5)
    # An estimate below 0 is 0; with one seed, nothing separates it.
    assert Components.of(np.array([[1.0, -1.0], [-1.0, 1.0]])).order == 0
    single = Components.of(table[:, :1])
    assert single.order == pytest.approx(table[:, 0].var(ddof=1))
    assert np.isnan([single.seed, single.residual]).all()


@pytest.mark.parametrize("comparisons", [1, 22])
def test_the_orders_for_an_effect_are_those_of_the_noncentral_t(comparisons: int) -> None:
    of = Components(order=1.0, seed=0.0, residual=3.0, orders=6, seeds=3)
    for seeds in (1, 3):
        deviation = (1 + 3 / seeds) ** 0.5
        n = of.orders_for(2.0, seeds, comparisons)
        assert n is not None
        power = [
            TTestPower().power(2 / deviation, nobs=orders, alpha=0.05 / comparisons, df=orders - 1)
            for orders in (n - 1, n)
        ]
        assert power[0] < 0.8 <= power[1]
        assert of.power(2.0, n, seeds, comparisons) == pytest.approx(power[1], abs=1e-4)
    assert of.orders_for(0.01, 5) is None


@pytest.mark.parametrize(("seed", "orders"), [(0.0, 6), (1.5, 6), (1.5, 24)])
def test_predicted_power_is_that_of_simulated_studies(seed: float, orders: int) -> None:
    """All orders have the same seeds, so the effect of seeds does not shrink with the number of orders."""
    rng = np.random.default_rng(0)
    differences = 1.5 + rng.normal(size=(4000, orders, 1)) + rng.normal(size=(4000, orders, 3)) * 2**0.5
    differences += rng.normal(size=(4000, 1, 3)) * seed**0.5
    statistic = stats.ttest_1samp(differences.mean(axis=2), 0, axis=1)
    found = ((statistic.pvalue < 0.05 / 4) & (statistic.statistic > 0)).mean()
    assert found == pytest.approx(Components(1, seed, 2, 6, 3).power(1.5, orders, 3, 4), abs=0.025)


def test_power_without_spread_over_orders_depends_on_the_seeds() -> None:
    of = Components(order=0.0, seed=4.0, residual=0.0, orders=6, seeds=3)
    # Detected unless the seeds reverse the effect.
    assert of.power(1.0, 12, 1) == pytest.approx(stats.norm.cdf(0.5), abs=0.02)
    assert of.power(1.0, 2, 1, 22) <= 1


def test_a_crossed_test_needs_means_that_vary() -> None:
    """Orders and seeds with equal means leave rounding errors only; p would be 0, or a division by 0."""
    pair = crossed_test("a", "b", np.array([0.1, 0.2, 0.2, 0.1]), np.array([[0, 1], [2, 3]]), 1e-12)
    assert (math.isnan(pair.p), math.isnan(pair.low), pair.difference) == (True, True, pytest.approx(0.15))
    assert "do not vary" in pair.reason
