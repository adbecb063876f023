from __future__ import annotations

import warnings

import numpy as np
import pytest

from xclrun.analysis.fewshot.variance import SOURCES, balanced, nested_variance

# Two languages, two buckets in each, two seeds, worked by hand: the sums of squares are 242, 32, 32, 8 and 4.
BY_HAND = np.array([[[10, 12], [14, 16]], [[20, 24], [22, 30]]], dtype=float)


def test_the_example_worked_by_hand() -> None:
    result = nested_variance(BY_HAND)
    assert tuple(c.source for c in result) == SOURCES
    assert [c.df for c in result] == [1, 2, 1, 1, 2]
    np.testing.assert_allclose([c.mean_square for c in result], [242, 16, 32, 8, 2])
    np.testing.assert_allclose([c.variance for c in result], [55, 7, 6, 3, 2])
    np.testing.assert_allclose([c.share for c in result], np.array([55, 7, 6, 3, 2]) / 73)
    # F(2, 2) = 8 has p = 1 / (1 + 8).
    assert result[1].p == pytest.approx(1 / 9)


def test_one_language_is_a_two_way_layout() -> None:
    language, bucket, rest = (c for c in nested_variance(BY_HAND[1:]))
    # 20 24 / 22 30: rows differ by 4, columns by 6, the residuals are ±1.
    assert (language.source, bucket.source, rest.source) == ("bucket in language", "seed", "rest")
    np.testing.assert_allclose([language.variance, bucket.variance, rest.variance], [6, 16, 4])


def test_one_seed_cannot_tell_the_bucket_from_the_rest() -> None:
    language, bucket = nested_variance(BY_HAND[..., :1])
    assert bucket.source == "bucket in language and rest"
    np.testing.assert_allclose([bucket.mean_square, bucket.variance], [5, 5])
    assert language.variance == pytest.approx(((21 - 12) ** 2 - 5) / 2)


def test_a_negative_component_has_no_share() -> None:
    result = nested_variance([[[1, 5], [5, 1]], [[3, 3], [3, 3]]])
    assert min(c.variance for c in result) < 0
    assert all(c.share >= 0 for c in result)
    assert sum(c.share for c in result) == pytest.approx(1)


def test_restricted_maximum_likelihood_gives_the_same() -> None:
    import pandas as pd
    from statsmodels.regression.mixed_linear_model import MixedLM

    rng = np.random.default_rng(5)
    a, b, n = 4, 6, 3
    y = (
        rng.normal(0, 3, (a, 1, 1))
        + rng.normal(0, 2, (a, b, 1))
        + rng.normal(0, 2.5, (1, 1, n))
        + rng.normal(0, 1.5, (a, 1, n))
        + rng.normal(0, 1, (a, b, n))
    )
    result = {c.source: c.variance for c in nested_variance(y)}
    assert min(result.values()) > 0
    cells = pd.DataFrame([(i, f"{i}-{j}", k, f"{i}-{k}", y[i, j, k]) for i, j, k in np.ndindex(a, b, n)])
    cells.columns = ["language", "bucket", "seed", "both", "y"]
    parts = {name: f"0 + C({name})" for name in ("language", "bucket", "seed", "both")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = MixedLM.from_formula("y ~ 1", cells, groups=np.zeros(len(cells)), re_formula="0", vc_formula=parts).fit()
    theirs = dict(zip(fit.model.exog_vc.names, fit.vcomp, strict=True))
    names = {"language": "language", "bucket": "bucket in language", "seed": "seed", "both": "language × seed"}
    for theirs_name, ours in names.items():
        assert result[ours] == pytest.approx(theirs[theirs_name], rel=1e-2)
    assert result["rest"] == pytest.approx(fit.scale, rel=1e-3)


def test_the_largest_balanced_part() -> None:
    cells = {(language, b, s): b + 10.0 * s for language in ("hi", "th") for b in range(4) for s in (1, 2)}
    cells["th", 0, 3] = 9.0
    del cells["hi", 1, 2]
    values, languages, left = balanced(cells)
    assert languages == ["hi", "th"]
    assert values.shape == (2, 3, 2)
    np.testing.assert_array_equal(values[0], [[10, 20], [12, 22], [13, 23]])
    assert left == len(cells) - 12
