from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from xclrun.analysis import formulas
from xclrun.analysis.measures import EXAMPLE, MEASURES, Measure, Scores

from .build import M, R, record

NAN = np.nan


def value(one: Measure, scores: Any, reference: Any) -> Any:
    """The value of a measure of a run that learns in sequence."""
    scores, reference = np.asarray(scores, dtype=float), np.asarray(reference, dtype=float)
    languages = [f"l{j}" for j in range(scores.shape[-1])]
    return one.formula(Scores(scores, reference, record(languages=languages), "intent_accuracy"))


@st.composite
def matrices(draw: st.DrawFn, least: int = 1) -> tuple[np.ndarray, np.ndarray]:
    n = draw(st.integers(least, 5))
    unit = st.floats(0, 1)
    return draw(arrays(float, (n + 1, n), elements=unit)), draw(arrays(float, n, elements=unit))


# Those of the registry that are computed from matrices.
AGGREGATES = {name: partial(value, one) for name, one in MEASURES.items() if one.example is not None}


# --- known answers: the 3 × 3 matrix of build.py, worked by hand ---


def test_forgetting() -> None:
    # F[2,1] = R[1,1] − R[2,1]             = .80 − .70 = .10   (hop 0's .90 does not count)
    # F[3,1] = max(.80, .70) − R[3,1]      = .80 − .75 = .05
    # F[3,2] = max(R[1,2], R[2,2]) − R[3,2] = .60 − .55 = .05   (the maximum is from before de was learnt)
    expected = [[NAN, NAN, NAN], [0.10, NAN, NAN], [0.05, 0.05, NAN]]
    np.testing.assert_allclose(formulas.forgetting_matrix(R), expected, atol=1e-12)
    # F_2 = .10, F_3 = (.05 + .05) / 2
    np.testing.assert_allclose(formulas.forgetting_per_hop(R), [NAN, 0.10, 0.05], atol=1e-12)
    # F^1 = (.10 + .05) / 2, F^2 = .05
    np.testing.assert_allclose(formulas.forgetting_per_language(R), [0.075, 0.05, NAN], atol=1e-12)
    # F = (.10 + .05) / 2
    assert formulas.forgetting(R) == pytest.approx(0.075)


def test_transfer() -> None:
    # R[2,2] − M[2] = .50 − .45 = .05; R[3,3] − M[3] = .85 − .75 = .10
    np.testing.assert_allclose(formulas.transfer_per_language(R, M), [NAN, 0.05, 0.10], atol=1e-12)
    assert formulas.transfer(R, M) == pytest.approx(0.075)
    # I = ((.80 − .80) + (.45 − .50) + (.75 − .85)) / 3
    assert formulas.intransigence(R, M) == pytest.approx(-0.05)


def test_zero_shot_transfer() -> None:
    # j = 2: R[1,2] − R[0,2] = .60 − .20 = .40;  j = 3: (R[1,3] + R[2,3]) / 2 − R[0,3] = .50 − .30 = .20
    np.testing.assert_allclose(formulas.zero_shot_transfer_per_language(R), [NAN, 0.40, 0.20], atol=1e-12)
    assert formulas.zero_shot_transfer(R) == pytest.approx(0.30)


def test_generalisation_after_languages_seen() -> None:
    # i = 1: ((.60 − .20) + (.40 − .30)) / 2 = .25;  i = 2: .60 − .30 = .30
    np.testing.assert_allclose(formulas.generalisation_by_seen(R), [0.25, 0.30])
    for generalisation in (formulas.generalisation_by_seen, formulas.generalisation_by_distance):
        assert generalisation(np.zeros((2, 2, 1))).shape == (2, 0)


@pytest.mark.parametrize("name", MEASURES)
def test_the_value_of_every_measure_for_the_worked_example(name: str) -> None:
    one = MEASURES[name]
    assert one.example is None or value(one, *EXAMPLE) == pytest.approx(one.example, abs=1e-12)
    # Each has a known answer, or what a matrix alone lacks.
    assert (one.example is None) == (not one.needs(3).any()) == bool(one.otherwise)


def test_one_language_has_no_second_hop() -> None:
    one, alone = np.array([[0.1], [0.9]]), np.array([0.8])
    for name in ("F", "T", "T0", "BWT"):
        assert np.isnan(AGGREGATES[name](one, alone))
    assert AGGREGATES["FP"](one, alone) == 0.9
    assert formulas.intransigence(one, alone) == pytest.approx(-0.1)


@pytest.mark.parametrize("shape", [(3,), (3, 3), (1, 0), (2, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"\(\.\.\., N \+ 1, N\)"):
        formulas.forgetting(np.zeros(shape))


# --- properties ---


@given(matrices(least=2))
def test_formulas_written_as_loops(pair: tuple[np.ndarray, np.ndarray]) -> None:
    r, m = pair
    n = r.shape[1]
    f = {(i, j): max(r[k, j - 1] for k in range(1, i)) - r[i, j - 1] for i in range(2, n + 1) for j in range(1, i)}
    loops = {
        "F": np.mean([np.mean([f[i, j] for j in range(1, i)]) for i in range(2, n + 1)]),
        "T": np.mean([r[i, i - 1] - m[i - 1] for i in range(2, n + 1)]),
        "T0": np.mean([np.mean([r[i, j - 1] for i in range(1, j)]) - r[0, j - 1] for j in range(2, n + 1)]),
        "FP": np.mean([r[n, j] for j in range(n)]),
        "BWT": np.mean([np.mean([r[i, j - 1] - r[j, j - 1] for j in range(1, i)]) for i in range(2, n + 1)]),
        "I": np.mean([m[i - 1] - r[i, i - 1] for i in range(1, n + 1)]),
        "F_m": np.mean([f[n, j] for j in range(1, n)]),
        "FP_std": np.sqrt(np.mean([(r[n, j] - np.mean(r[n])) ** 2 for j in range(n)])),
        "FP_min": min(r[n, j] for j in range(n)),
    }
    assert loops.keys() == AGGREGATES.keys()
    for name, expected in loops.items():
        assert AGGREGATES[name](r, m) == pytest.approx(expected, abs=1e-12), name
    for k in range(1, n):
        expected = np.mean([r[i, i + k - 1] - r[0, i + k - 1] for i in range(1, n - k + 1)])
        assert formulas.generalisation_by_distance(r)[k - 1] == pytest.approx(expected, abs=1e-12)


@given(st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_stacks_give_what_each_matrix_gives(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    stack, reference = rng.random((2, 3, n + 1, n)), rng.random((2, 3, n))
    stack[0, 1] = np.where(rng.random((n + 1, n)) < 0.2, NAN, stack[0, 1])
    for name, function in AGGREGATES.items():
        one_by_one = [[function(stack[a, b], reference[a, b]) for b in range(3)] for a in range(2)]
        np.testing.assert_allclose(function(stack, reference), one_by_one, atol=1e-12, err_msg=name)
    rows = (formulas.forgetting_matrix, formulas.forgetting_per_language, formulas.zero_shot_transfer_per_language)
    for per in (*rows, formulas.generalisation_by_distance):
        np.testing.assert_allclose(per(stack)[1, 2], per(stack[1, 2]), atol=1e-12)


@given(matrices(), st.data())
def test_unmeasured_cells_make_nan_exactly_what_needs_them(
    pair: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    r, m = pair
    n = r.shape[1]
    i, j = data.draw(st.integers(0, n)), data.draw(st.integers(0, n - 1))
    holed = r.copy()
    holed[i, j] = NAN
    for name, function in AGGREGATES.items():
        before, after = function(r, m), function(holed, m)
        if MEASURES[name].needs(n)[i, j]:
            assert np.isnan(after), name
        else:
            np.testing.assert_equal(after, before, err_msg=name)


@given(matrices(least=2), st.data())
def test_unknown_reference_makes_transfer_nan_never_a_mean_of_the_rest(
    pair: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    r, m = pair
    j = data.draw(st.integers(0, len(m) - 1))
    m[j] = NAN
    assert np.isnan(formulas.transfer(r, m)) == (j > 0)  # nothing transfers to the first language
    assert np.isnan(formulas.intransigence(r, m))
    assert np.isnan(formulas.transfer_per_language(r, m)).sum() == (2 if j > 0 else 1)


def test_inputs_are_not_changed() -> None:
    scores, reference = R.copy(), M.copy()
    for function in AGGREGATES.values():
        function(scores, reference)
    formulas.generalisation_by_distance(scores)
    formulas.learnt_scores(scores)[:] = 0
    formulas.forgetting_matrix(scores)[:] = 0
    np.testing.assert_array_equal(scores, R)
    np.testing.assert_array_equal(reference, M)


def test_one_hop_analysis_is_that_of_the_first_two_hops() -> None:
    prefix = formulas.one_hop(R)
    assert prefix.shape == (3, 2)
    assert formulas.forgetting(prefix) == pytest.approx(0.80 - 0.70)
    assert formulas.transfer(prefix, M[:2]) == pytest.approx(0.50 - 0.45)
    with pytest.raises(ValueError, match="at least two hops"):
        formulas.one_hop(np.zeros((2, 1)))


def test_area_under_the_learning_curve() -> None:
    assert formulas.aultc([0, 500, 1000], [0.0, 0.5, 1.0]) == pytest.approx(0.5)
    assert formulas.aultc([0, 500, 600], [0.2, 0.6, 0.6]) == pytest.approx((500 * 0.4 + 100 * 0.6) / 600)
    rng = np.random.default_rng(5)
    seen, curves = np.array([0, 500, 1000, 1200]), rng.random((4, 4))
    np.testing.assert_allclose(formulas.aultc(seen, curves), np.trapezoid(curves, seen, axis=-1) / 1200)
    for wrong in ([500, 1000], [0, 500, 500], [0]):
        with pytest.raises(ValueError, match="learning curve"):
            formulas.aultc(wrong, np.zeros(len(wrong)))
