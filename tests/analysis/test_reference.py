from __future__ import annotations

import numpy as np
import pytest

from xclrun.analysis.reference import References

from .build import alone, record

NAN = np.nan


def find(run: object, *others: object) -> list[float]:
    return References(others).scores(run, "intent_accuracy").tolist()  # type: ignore[arg-type]


def test_scores_come_in_the_order_of_the_run() -> None:
    reference = alone([0.7, 0.8, 0.9], ["th", "en", "de"])
    assert find(record(languages=["en", "de", "th"]), reference) == [0.8, 0.9, 0.7]


def test_a_language_that_no_reference_run_has_is_nan() -> None:
    np.testing.assert_array_equal(find(record(), alone([0.7, 0.8], ["th", "en"])), [0.8, NAN, 0.7])
    np.testing.assert_array_equal(find(record()), [NAN, NAN, NAN])


def test_several_reference_runs_complete_one_another() -> None:
    halves = alone([0.7], ["th"]), alone([0.8, 0.9], ["en", "de"])
    assert find(record(), *halves) == [0.8, 0.9, 0.7]


def test_the_reference_run_of_the_same_order_comes_first() -> None:
    own, other = alone([0.1, 0.2, 0.3], order="z"), alone([0.7, 0.8, 0.9], order="a")
    assert find(record(order="z"), other, own) == [0.1, 0.2, 0.3]
    assert find(record(order="q"), own, other) == [0.7, 0.8, 0.9]  # else the first by order


def test_an_unmeasured_cell_is_taken_from_another_reference_run() -> None:
    assert find(record(order="a"), alone([NAN, 0.2, 0.3], order="a"), alone([0.7, 0.8, 0.9], order="b")) == [
        0.7,
        0.2,
        0.3,
    ]


@pytest.mark.parametrize(
    "different",
    [
        {"seed": 2},
        {"bucket": 3},
        {"data_fingerprint": "ffff"},
        {"algorithms": 2},
        {"encoder": "other weights"},
        {"dataset": "mtop"},
        {"model": "mbert"},
        {"status": "running"},
        {"status": "failed"},
        {"config": {"trainer": {"lr": 0.01}}},
        {"config": {"model": {"hidden_layers": 3}}},
        {"config": {"evaluate": {"slot_f1": "tag_macro"}}},
    ],
)
def test_a_reference_run_must_agree(different: dict[str, object]) -> None:
    assert np.isnan(find(record(), alone([0.7, 0.8, 0.9], **different))).all()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "different",
    [
        {"order": "l2h"},
        {"code_version": "0.2.0"},
        {"config": {"strategy": {"memory": 5}}},
        {"config": {"runtime": {"device": "cuda"}, "paths": {"outputs": "x"}, "trainer": {"checkpoint_minutes": 1}}},
    ],
)
def test_what_cannot_change_the_reference_scores_does_not_matter(different: dict[str, object]) -> None:
    assert find(record(), alone([0.7, 0.8, 0.9], **different)) == [0.7, 0.8, 0.9]  # type: ignore[arg-type]


def test_other_strategies_and_metrics_are_no_reference() -> None:
    assert np.isnan(find(record(), record("naive", seed=1), record("lang_spec_ft", stream="sequence"))).all()
    scores = References([alone([0.7, 0.8, 0.9])]).scores(record(), "slot_f1")
    assert np.isnan(scores).all()


def test_adapters_are_measured_against_their_own_kind() -> None:
    orders = {"en": ("en", "de", "th"), "de": ("de", "th", "en"), "th": ("th", "en", "de")}
    scores = {first: np.full((4, 3), 0.1 * k) for k, first in enumerate(orders, start=1)}
    runs = [record("lang_spec_ada_f", languages=orders[k], scores=scores[k]) for k in orders]
    runs += [record("lang_spec_ada_f", languages=orders["en"], scores=np.full((4, 3), 0.9), run_id="other",
                    config={"strategy": {"reduction": 4}}), alone([0.8, 0.8, 0.8])]  # fmt: skip
    references = References(runs)
    np.testing.assert_allclose(references.scores(runs[0], "intent_accuracy"), [0.1, 0.2, 0.3])
    np.testing.assert_allclose(references.scores(runs[1], "intent_accuracy"), [0.2, 0.3, 0.1])
    np.testing.assert_allclose(references.scores(runs[3], "intent_accuracy"), [0.9, np.nan, np.nan])
