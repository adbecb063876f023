from __future__ import annotations

import numpy as np
import pytest

from xclrun.analysis.points import directional_agreement, oracle, selected

DEV = np.array([[0.5, 0.2, 0.1], [0.6, 0.1, 0.3], [0.4, 0.9, 0.2]])
TEST = DEV[::-1] / 2


def test_selected_takes_the_point_that_the_source_likes_best() -> None:
    np.testing.assert_array_equal(selected(DEV, TEST, [0]), TEST[1])
    np.testing.assert_array_equal(selected(DEV, TEST, [1]), TEST[2])
    np.testing.assert_array_equal(selected(DEV, TEST, [0, 2]), TEST[1])
    np.testing.assert_array_equal(selected(np.stack([DEV, DEV[::-1]]), np.stack([TEST, TEST]), [0])[1], TEST[1])


def test_the_oracle_takes_each_languages_own_point() -> None:
    np.testing.assert_array_equal(oracle(DEV, TEST), [TEST[1, 0], TEST[2, 1], TEST[1, 2]])
    assert (oracle(TEST, TEST) >= selected(DEV, TEST, [0])).all()


def test_a_dev_score_that_was_not_measured_chooses_nothing() -> None:
    nan = np.nan
    dev = np.array([[0.5, nan, nan], [nan, 0.1, nan], [0.4, 0.9, nan]])
    np.testing.assert_array_equal(selected(dev, TEST, [0]), TEST[0])
    np.testing.assert_array_equal(selected(dev, TEST, [0, 1]), TEST[2])
    np.testing.assert_array_equal(selected(dev, TEST, [2]), [nan] * 3)
    np.testing.assert_array_equal(oracle(dev, TEST), [TEST[0, 0], TEST[2, 1], nan])
    assert directional_agreement([1, nan, 2, 3], [0.1, 0.9, 0.2, 0.3]) == 1


def test_directional_agreement_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    dev, test = rng.integers(0, 20, 30) / 20, rng.integers(0, 400, 30) / 400
    agreed = []
    for i in range(30):
        for j in range(i + 1, 30):
            if abs(test[i] - test[j]) >= 0.005 - 1e-12:
                product = (dev[j] - dev[i]) * (test[j] - test[i])
                agreed.append(0.5 if product == 0 else float(product > 0))
    assert directional_agreement(dev, test) == pytest.approx(np.mean(agreed))
    assert np.isnan(directional_agreement([1, 2], [0.1, 0.104]))
