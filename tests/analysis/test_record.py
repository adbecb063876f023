from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from xclrun.analysis.record import RunRecord

from .build import R, record


def test_json_round_trip_keeps_every_value() -> None:
    holed = R.copy()
    holed[3, 1] = np.nan
    curve = (
        {"hop": 1, "epoch": 1, "step": 38, "examples": 608, "loss": 1.23, "dev": {"en": {"intent_accuracy": 0.8}}},
    )
    scores = {"intent_accuracy": holed, "slot_f1": R / 3}
    original = record("er", "h2l", scores=scores, bucket=4, curve=curve, config={"strategy": {"memory": 750}})
    text = json.dumps(original.to_json(), allow_nan=False)
    for back in (RunRecord.from_json(text), RunRecord.from_json(text.encode()), RunRecord.from_json(json.loads(text))):
        assert back.to_json() == original.to_json()
        np.testing.assert_array_equal(back.scores["slot_f1"], R / 3)  # to the last bit
        np.testing.assert_array_equal(np.isnan(back.scores["intent_accuracy"]), np.isnan(holed))
        assert (back.languages, back.curve, back.bucket) == (("en", "de", "th"), curve, 4)


def test_nan_becomes_null_in_curves_too() -> None:
    curve = ({"hop": 1, "loss": float("nan"), "dev": {"en": {"intent_accuracy": np.float64(0.5)}}},)
    plain = record(curve=curve).to_json()["curve"]
    assert plain == [{"hop": 1, "loss": None, "dev": {"en": {"intent_accuracy": 0.5}}}]


@pytest.mark.parametrize(("stream", "shape"), [("sequence", (4, 3)), ("independent", (4, 3)), ("joint", (2, 3))])
def test_shape_follows_the_stream(stream: str, shape: tuple[int, int]) -> None:
    assert record(stream=stream, scores=np.zeros(shape)).hops == shape[0] - 1
    with pytest.raises(ValueError, match=rf"needs \({shape[0]}, 3\)"):
        record(stream=stream, scores=np.zeros((shape[0] + 1, 3)))


@pytest.mark.parametrize("score", [-0.01, 1.01, np.inf, 91.06])
def test_scores_are_fractions(score: float) -> None:
    wrong = R.copy()
    wrong[1, 1] = score
    with pytest.raises(ValueError, match=r"outside \[0, 1\]"):
        record(scores=wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema 2"),
        ({"schema": None}, "schema None"),
        ({"colour": "red"}, "missing or unknown keys: colour"),
        ({"seed": "1"}, "seed: '1'"),
        ({"seed": True}, "seed: True"),
        ({"bucket": "b"}, "bucket: 'b'"),
        ({"run_id": None}, "run_id: None"),
        ({"languages": ["en", "en", "th"]}, "repeated"),
        ({"languages": ["en", "de", 3]}, "invalid languages"),
        ({"languages": []}, "missing"),
        ({"stream": "circle"}, "stream 'circle'"),
        ({"status": "done"}, "status 'done'"),
        ({"curve": [1]}, "curve"),
        ({"scores": {"intent_accuracy": [[0.5]]}}, r"shape \(1, 1\)"),
        ({"scores": {"intent_accuracy": [[0.5], [0.1, 0.2]]}}, "inhomogeneous"),
        ({"scores": {"intent_accuracy": [["high"]]}}, "could not convert"),
    ],
)
def test_from_json_refuses_what_a_record_cannot_be(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunRecord.from_json(record().to_json() | change)


def test_from_json_names_the_missing_key_and_refuses_what_is_not_json() -> None:
    data = record().to_json()
    del data["order"]
    for wrong, message in ((data, "missing or unknown keys: order"), ("{", "Expecting")):
        with pytest.raises(ValueError, match=message):
            RunRecord.from_json(wrong)


def test_scores_are_copies_that_cannot_be_changed() -> None:
    given = R.copy()
    retained = record(scores=given).scores["intent_accuracy"]
    given[0, 0] = 0.0
    assert retained[0, 0] == 0.90
    with pytest.raises(ValueError, match="read-only"):
        retained[0, 0] = 0.0


def test_tasks_are_those_that_were_scored() -> None:
    assert record().metrics == ("intent_accuracy",)
    assert record(scores={"slot_f1": R, "intent_accuracy": R}).metrics == ("intent_accuracy", "slot_f1")
