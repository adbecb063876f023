from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tests.report.study import run
from xclrun.analysis.matrices import counted
from xclrun.analysis.record import RunRecord
from xclrun.core.task import BY_NAME
from xclrun.scores.base_scores import Predictions, Sentences

IDS, GOLD = np.array(["1", "2", "3"]), np.array([0, 1, 2])
# Three sentences after hops 0, 1 and 2: classes, and TP, FP and FN of spans.
PREDICTED = np.array([[0, 0, 0], [0, 1, 1], [0, 0, 2]])
SPANS = tuple(
    np.array(k) for k in ([[0, 1, 2], [0, 0, 1], [0, 0, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]], [[2, 1, 0]] * 3)
)


def made() -> tuple[Predictions, dict[str, np.ndarray]]:
    """Predictions on two languages, and their score matrices."""
    own = Predictions(("a", "b", "c"), dict.fromkeys(("en", "de"), Sentences(IDS, GOLD, PREDICTED, SPANS)))
    return own, {name: own.matrix(BY_NAME[name], ("en", "de")) for name in ("intent_accuracy", "slot_f1")}


def record(scores: dict[str, np.ndarray]) -> RunRecord:
    own = run("naive", "en-de", 1, ("en", "de")).to_json()
    return RunRecord.from_json(own | {"scores": {name: matrix.tolist() for name, matrix in scores.items()}})


def test_cells_are_the_counts_that_scores_are_ratios_of() -> None:
    predictions, scores = made()
    one = record(scores)
    result = counted([one], {one.run_id: predictions})
    of = {(row.metric, row.hop): row for row in result.itertuples()}
    assert [of["intent_accuracy", hop].en for hop in range(3)] == ["1/3", "2/3", "3/3"]
    # TP 0, 1, 3; FP 1, 1, 1; FN 6, 3, 0.
    assert [of["slot_f1", hop].de for hop in range(3)] == ["0/7", "2/6", "6/7"]
    for (metric, hop), row in of.items():
        assert float(Fraction(row.de)) == pytest.approx(scores[metric][hop, 1], abs=1e-15)


def test_what_is_no_ratio_of_these_counts_stands_with_all_digits() -> None:
    predictions, scores = made()
    scores["slot_f1"] = scores["slot_f1"] * 0.9 + 0.01
    one = record(scores)
    result = counted([one], {one.run_id: predictions})
    slots = result[result["metric"] == "slot_f1"]
    assert [float(text) for text in slots["en"]] == scores["slot_f1"][:, 0].tolist()
    assert set(result[result["metric"] == "intent_accuracy"]["en"]) == {"1/3", "2/3", "3/3"}
