from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from xclrun.analysis.correlation import correlate, shared_features


def test_pairs_that_lack_a_value_do_not_count() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    y = x + rng.normal(size=12)
    holed = np.where(np.arange(12) == 4, np.nan, y)
    result = correlate(x, holed)
    keep = np.arange(12) != 4
    assert result.n == 11
    assert result.spearman == pytest.approx(stats.spearmanr(x[keep], y[keep]).statistic)
    assert result.pearson_p == pytest.approx(stats.pearsonr(x[keep], y[keep]).pvalue)


def test_few_pairs_have_exact_p_values() -> None:
    """By enumeration: of the orders of three pairs one in six is perfect, on either side."""
    assert correlate([1, 2, 3], [5, 4, 1]).spearman_p == pytest.approx(2 / 6)
    x, y = [1, 2, 3, 4, 5], [2, 1, 4, 3, 5]
    rho = stats.spearmanr(x, y).statistic
    at_least = [stats.spearmanr(x, z).statistic >= rho - 1e-9 for z in itertools.permutations(y)]
    assert correlate(x, y).spearman_p == pytest.approx(2 * sum(at_least) / 120)


@pytest.mark.parametrize(("x", "y"), [([1, 2], [3, 4]), ([1, 1, 1], [1, 2, 3]), ([np.nan] * 4, [1, 2, 3, 4])])
def test_undefined_is_nan(x: list, y: list) -> None:
    assert math.isnan(correlate(x, y).spearman)


def test_what_languages_have_in_common() -> None:
    english = {"81A": "SVO", "85A": "Prepositions", "86A": ""}
    assert shared_features(english, {"81A": "SVO", "85A": "", "86A": ""}) == 1
