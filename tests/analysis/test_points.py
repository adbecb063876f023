"""Learning curves and checkpoint selection from evaluation points, worked by hand."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import auc

from xclrun.analysis.aggregate import summarise
from xclrun.analysis.formulas import curve_forgetting
from xclrun.analysis.measures import MEASURES, Absent, measure
from xclrun.analysis.points import aultc, hop_points, learning_curve, selection
from xclrun.analysis.record import RunRecord

from .build import record


def at(hop: int, own: int, dev: tuple[float, float], test: tuple[float, float]) -> dict[str, Any]:
    scores = {
        split: {k: {"intent_accuracy": v} for k, v in zip(("en", "de"), values, strict=True)}
        for split, values in (("dev", dev), ("test", test))
    }
    return {"hop": hop, "step": own // 10, "examples": 2 * own, "own": own, **scores}


POINTS = (
    at(1, 100, (0.4, 0.2), (0.5, 0.1)),
    at(1, 150, (0.8, 0.1), (0.7, 0.3)),
    at(2, 100, (0.5, 0.6), (0.5, 0.7)),
    at(2, 120, (0.6, 0.6), (0.3, 0.9)),
)


def run(seed: int = 1, points: tuple[dict[str, Any], ...] = POINTS, **fields: Any) -> RunRecord:
    scores = [[0.1, 0.1], [0.7, 0.3], [0.5, 0.7]]
    return record(seed=seed, scores=scores, languages=("en", "de"), points=points, **fields)


def test_the_learning_curve_runs_through_all_hops() -> None:
    seen, curve = learning_curve(run(), "intent_accuracy") or pytest.fail("there is one")
    np.testing.assert_array_equal(seen, [0, 100, 150, 250, 270])
    np.testing.assert_allclose(curve, [0.1, 0.3, 0.5, 0.6, 0.6])
    by_hand = (100 * 0.2 + 50 * 0.4 + 100 * 0.55 + 20 * 0.6) / 270
    assert aultc(run(), "intent_accuracy") == pytest.approx(by_hand)


def test_aultc_of_a_line_is_its_middle_and_that_of_any_curve_is_scikit_learns() -> None:
    # From 0.2 to 0.8 over two hops of unequal length, at unequal steps.
    line = [at(1, n, (0.5, 0.5), (0.2 + 0.6 * n / 200,) * 2) for n in (10, 50, 120)]
    line += [at(2, n, (0.5, 0.5), (0.2 + 0.6 * (120 + n) / 200,) * 2) for n in (30, 80)]
    straight = record(scores=[[0.2, 0.2], [0.5, 0.5], [0.8, 0.8]], languages=("en", "de"), points=tuple(line))
    assert aultc(straight, "intent_accuracy") == pytest.approx(0.5)
    seen, curve = learning_curve(run(), "intent_accuracy") or pytest.fail("there is one")
    assert aultc(run(), "intent_accuracy") == pytest.approx(auc(seen, curve) / seen[-1])


def test_forgetting_on_the_curve_is_from_the_best_point_of_each_key_by_hand() -> None:
    # en: 0.1 0.5 0.7 0.5 0.3; de: 0.1 0.1 0.3 0.7 0.9. By the hops alone en had been at 0.7, and ended at 0.5.
    result = measure(run(), "intent_accuracy", np.full(2, np.nan))
    assert result["F_m_curve", ""] == pytest.approx((0.4 + 0.0) / 2)
    assert result["F_m", ""] == pytest.approx(0.7 - 0.5)
    # The best may have been before any training.
    before = dataclasses.replace(run(), scores={"intent_accuracy": np.array([[0.9, 0.1], [0.7, 0.3], [0.5, 0.7]])})
    assert measure(before, "intent_accuracy", np.full(2, np.nan))["F_m_curve", ""] == pytest.approx((0.6 + 0.0) / 2)
    curves = np.random.default_rng(0).random((9, 4))
    by_hand = [max(curves[:, j]) - curves[-1, j] for j in range(4)]
    np.testing.assert_allclose(curve_forgetting(curves), by_hand)


def test_intransigence_on_the_curve_by_hand() -> None:
    reference = np.array([0.9, 0.8])
    # Of 270 sentences: en at 135, of which the last point before is at 100; de at the end.
    result = measure(run(), "intent_accuracy", reference)["I_m_curve", ""]
    assert result == pytest.approx(((0.9 - 0.5) + (0.8 - 0.9)) / 2)
    joint = record("multilingual", scores=[[0.1, 0.1], [0.7, 0.3]], languages=("en", "de"), stream="joint",
                   points=(at(1, 75, (0, 0), (0.4, 0.2)), *POINTS[:2]))  # fmt: skip
    # A point that lies at half counts.
    result = measure(joint, "intent_accuracy", reference)["I_m_curve", ""]
    assert result == pytest.approx(((0.9 - 0.4) + (0.8 - 0.3)) / 2)


def test_intransigence_on_the_curve_says_which_of_the_two_it_lacks() -> None:
    available, unknown = np.array([0.9, 0.8]), np.array([np.nan, 0.8])
    joint = record("multilingual", scores=[[0.1, 0.1], [0.7, 0.3]], languages=("en", "de"), stream="joint",
                   points=POINTS[:2], seed=7)  # fmt: skip
    for one in (run(seed=7), joint):
        assert measure(one, "intent_accuracy", unknown)["I_m_curve", ""] == Absent(
            "needs lang_spec_ft", 7, frozenset({"en"})
        )
    for reference in (available, unknown):
        absent = measure(run(points=()), "intent_accuracy", reference)["I_m_curve", ""]
        assert absent == Absent(MEASURES["AULTC"].otherwise)


def test_aultc_is_a_measure_that_says_what_it_needs() -> None:
    nothing = np.full(2, np.nan)
    assert measure(run(), "intent_accuracy", nothing)["AULTC", ""] == pytest.approx(107 / 270)
    for points in ((), POINTS[:2]):  # none, and none in hop 2
        absent = measure(run(points=points), "intent_accuracy", nothing)["AULTC", ""]
        assert getattr(absent, "reason", None) == MEASURES["AULTC"].otherwise
    joint = record("multilingual", scores=[[0.1, 0.1], [0.7, 0.3]], languages=("en", "de"), stream="joint",
                   points=POINTS[:2])  # fmt: skip
    assert measure(joint, "intent_accuracy", nothing)["AULTC", ""] == pytest.approx((100 * 0.2 + 50 * 0.4) / 150)
    alone = run(strategy="lang_spec_ft", stream="independent")
    assert learning_curve(alone, "intent_accuracy") is None
    frame = summarise([run(1), run(2, points=())]).query("measure == 'AULTC' and order == 'mean'")
    assert frame["status"].item() == f"n/a: {MEASURES['AULTC'].otherwise}"


def test_selected_and_oracle_scores_by_hand() -> None:
    result = selection([run()], "intent_accuracy", ("de", "en"))
    # Hop 1 is selected by dev of en: the second point. Hop 2 by dev of de: equal, so the first.
    np.testing.assert_allclose(result.selected, [(0.3 + 0.7) / 2, (0.7 + 0.5) / 2])
    # By its own dev de takes the first point of hop 1, and en the second of hop 2.
    np.testing.assert_allclose(result.oracle, [(0.1 + 0.7) / 2, (0.7 + 0.3) / 2])
    assert np.isnan(result.selected_spread).all()
    # One pair a hop. With dev of the training language: hop 1 both rise (1, 1); hop 2 dev is level: a half each.
    np.testing.assert_allclose(result.source, [0.75, 0.75])
    # With their own: de falls while test rises (0), then level (0.5); en rises with test (1), then against it (0).
    np.testing.assert_allclose(result.target, [0.25, 0.5])


def test_spread_is_over_seeds_of_the_same_order() -> None:
    other = (*POINTS[:1], at(1, 150, (0.9, 0.1), (0.6, 0.5)), *POINTS[2:])
    result = selection([run(1), run(2, points=other), run(3, points=())], "intent_accuracy", ("en", "de"))
    np.testing.assert_allclose(result.selected_spread, [0.1 / 2, 0.2 / 2])  # in hop 1; none in hop 2
    assert selection([run(points=())], "intent_accuracy", ("en", "de")) is None


def test_selection_counts_each_order_the_same_however_many_seeds_it_has() -> None:
    better = (POINTS[0], at(1, 150, (0.8, 0.3), (0.9, 0.5)), *POINTS[2:])
    other = dataclasses.replace(run(1, points=better), languages=("de", "en"), run_id="other")
    once = selection([run(1), other], "intent_accuracy", ("en", "de"))
    often = selection([run(1), run(2), run(3), other], "intent_accuracy", ("en", "de"))
    assert often is not None
    assert once.selected != pytest.approx(selection([run(1)], "intent_accuracy", ("en", "de")).selected)  # type: ignore[union-attr]
    for name in ("selected", "oracle", "source", "target"):
        np.testing.assert_allclose(getattr(often, name), getattr(once, name))


def test_a_language_without_dev_data_is_learned_by_the_hop_that_trains_on_it() -> None:
    """It has no dev score in the curve, so it selects nothing, but later it has been seen."""
    curve = ({"hop": 1, "epoch": 1, "step": 1, "examples": 1, "loss": 1.0, "dev": {"en": {"intent_accuracy": 0.5}}},)
    several: dict[str, Any] = {"stream": "mixture", "mixtures": (("en", "de"),), "curve": curve}
    joint = record(scores=[[0.1, 0.1], [0.7, 0.3]], languages=("en", "de"), points=POINTS[:2], **several)
    [hop] = hop_points(joint, "intent_accuracy")
    assert (hop.sources, hop.seen) == ((0,), (0, 1))


def test_averages_are_those_of_their_hop() -> None:
    averaged = tuple(
        {"hop": hop, "of": "all", "test": {"en": {"intent_accuracy": hop / 10}, "de": {"intent_accuracy": 0.0}}}
        for hop in (2, 1)
    )
    hops = hop_points(run(averaged=averaged), "intent_accuracy")
    assert [hop.averaged["all"].tolist() for hop in hops] == [[0.1, 0.0], [0.2, 0.0]]


def test_the_training_languages_of_a_hop_are_those_that_selected_its_epochs() -> None:
    curve = ({"hop": 2, "epoch": 1, "step": 1, "examples": 1, "loss": 1.0, "dev": {"de": {}, "en": {}}},)
    assert [p.sources for p in hop_points(run(), "intent_accuracy")] == [(0,), (1,)]
    assert [p.sources for p in hop_points(run(curve=curve), "intent_accuracy")] == [(0,), (0, 1)]
