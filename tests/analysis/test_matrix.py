from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from xclrun.analysis.matrix import score_matrix
from xclrun.analysis.spans import span_counts, tag_macro_f1

TAG_NAMES = ("O", "B-a", "I-a")


def rows(*cells: tuple[int, str, list[dict[str, Any]]], split: str = "test") -> pd.DataFrame:
    """Prediction rows: (hop, language, examples)."""
    made = [
        {"hop": hop, "split": split, "language": language, "example_id": str(k)} | example
        for hop, language, examples in cells
        for k, example in enumerate(examples)
    ]
    return pd.DataFrame(made)


def intents(*pairs: tuple[int, int]) -> list[dict[str, Any]]:
    return [{"gold": g, "predicted": p} for g, p in pairs]


def tagged(*pairs: tuple[list[int], list[int]]) -> list[dict[str, Any]]:
    made = []
    for gold, predicted in pairs:
        names = ([TAG_NAMES[t] if t >= 0 else "B-new" for t in tags] for tags in (gold, predicted))
        tp, fp, fn = span_counts(*names)
        made.append({"gold_tags": gold, "predicted_tags": predicted, "tp": tp, "fp": fp, "fn": fn})
    return made


def test_intent_accuracy_by_cell() -> None:
    frame = rows(
        (0, "en", intents((0, 1), (1, 1))),  # 1 of 2
        (0, "de", intents((0, 0), (1, 1), (1, 0), (1, 0))),  # 2 of 4
        (1, "en", intents((0, 0), (1, 1))),  # 2 of 2
        (1, "de", intents((0, 0), (1, 0), (1, 0), (1, 0))),  # 1 of 4
    )
    np.testing.assert_array_equal(score_matrix(frame, ["en", "de"], 1, "intent_accuracy"), [[0.5, 0.5], [1.0, 0.25]])
    # columns follow the stream, not the rows
    np.testing.assert_array_equal(score_matrix(frame, ["de", "en"], 1, "intent_accuracy"), [[0.5, 0.5], [0.25, 1.0]])


def test_a_label_that_training_never_had_is_wrong_whatever_is_predicted() -> None:
    frame = rows((0, "en", intents((-1, -1), (-1, 0), (2, 2))))
    assert score_matrix(frame, ["en"], 0, "intent_accuracy")[0, 0] == pytest.approx(1 / 3)


def test_cells_without_rows_are_nan_and_other_splits_are_left_out() -> None:
    test, dev = (
        rows((1, "en", intents((0, 0)))),
        rows((0, "en", intents((0, 0))), (1, "de", intents((0, 0))), split="dev"),
    )
    frame = pd.concat([test, dev])
    np.testing.assert_array_equal(
        score_matrix(frame, ["en", "de"], 2, "intent_accuracy"), [[np.nan, np.nan], [1.0, np.nan], [np.nan, np.nan]]
    )
    assert score_matrix(frame, ["en", "de"], 1, "intent_accuracy", split="dev")[0, 0] == 1.0
    assert np.isnan(score_matrix(frame.iloc[:0], ["en"], 1, "slot_f1", "tag_macro", TAG_NAMES)).all()


def test_span_f1_is_that_of_the_summed_counts() -> None:
    # sentence 1: 1 hit; sentence 2: 1 missed, 1 too many (bounds); sentence 3: nothing. TP 1, FP 1, FN 1 → 1/2
    frame = rows((0, "en", tagged(([1, 2], [1, 2]), ([1, 2], [1, 0]), ([0], [0]))))
    assert score_matrix(frame, ["en"], 0, "slot_f1")[0, 0] == pytest.approx(0.5)


def test_a_cell_with_a_missing_count_is_nan() -> None:
    frame = rows((0, "en", tagged(([1], [1]), ([1], [1]))), (0, "de", tagged(([1], [1]), ([1], [1]))))
    frame["tp"] = frame["tp"].astype(float)
    frame.loc[1, "tp"] = np.nan
    np.testing.assert_array_equal(score_matrix(frame, ["en", "de"], 0, "slot_f1"), [[np.nan, 1.0]])
    frame["gold_tags"] = [None, *frame["gold_tags"].iloc[1:]]
    matrix = score_matrix(frame, ["en", "de"], 0, "slot_f1", "tag_macro", TAG_NAMES)
    np.testing.assert_array_equal(matrix, [[np.nan, 1.0]])


def test_tag_macro_equals_the_way_over_strings() -> None:
    pairs = [([0, 1, 2, 0], [0, 1, 0, 0]), ([1, -1], [1, 2])]
    frame = rows((0, "en", tagged(*pairs)))
    names = [
        [[TAG_NAMES[t] if t >= 0 else "B-new" for t in tags] for tags in side] for side in zip(*pairs, strict=True)
    ]
    expected = tag_macro_f1(*names)
    # O 4/5, B-a 1, I-a 0, B-new 0
    assert expected == pytest.approx((4 / 5 + 1) / 4)
    assert score_matrix(frame, ["en"], 0, "slot_f1", "tag_macro", TAG_NAMES)[0, 0] == pytest.approx(expected)


def test_rows_as_the_store_gives_them() -> None:
    """Dictionary-encoded words, 16-bit counts whose sum needs more, tags as arrays."""
    from xclrun.store.predictions import table

    examples = tagged(([1, 2], [1, 2]), ([0, 1], [0, 0]), ([-1], [0]))
    columns = rows((0, "en", [i | t for i, t in zip(intents((0, 0), (1, 0), (-1, 0)), examples, strict=True)]))
    columns = columns.assign(tp=[30000, 30000, 0], fp=[0, 0, 20000], fn=[20000, 20000, 0])
    columns = columns.assign(step=0, examples_seen=0, log2_gold=-1.0, log2_gold_tags=-1.0, tokens=2)
    frame = table(columns.to_dict(orient="list")).to_pandas()
    assert frame["tp"].dtype == "int16"
    assert score_matrix(frame, ["en"], 0, "intent_accuracy")[0, 0] == pytest.approx(1 / 3)
    assert score_matrix(frame, ["en"], 0, "slot_f1")[0, 0] == pytest.approx(120000 / 180000)
    # O: gold 1, found 3, hit 1 → 1/2; B-a: gold 2, found 1, hit 1 → 2/3; I-a: 1; the tag that training never had: 0
    macro = score_matrix(frame, ["en"], 0, "slot_f1", "tag_macro", TAG_NAMES)[0, 0]
    assert macro == pytest.approx((1 / 2 + 2 / 3 + 1 + 0) / 4)


def test_categories_without_rows_do_not_count() -> None:
    frame = rows((0, "en", intents((0, 0), (1, 0))), (1, "en", intents((0, 0), (1, 1))))
    frame["language"] = frame["language"].astype(pd.CategoricalDtype(["xx", "en"]))
    np.testing.assert_array_equal(score_matrix(frame, ["en"], 1, "intent_accuracy"), [[0.5], [1.0]])


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (rows((0, "fr", intents((0, 0)))), "languages that the stream does not have: fr"),
        (rows((2, "en", intents((0, 0)))), r"outside 0…1"),
        (rows((0, "en", intents((0, 0))), (0, "en", intents((0, 1)))), "an example twice"),
        (rows((0, "en", intents((0, 0))), (1, "en", intents((0, 0), (1, 1)))), "different numbers of examples: en"),
    ],
)
def test_rows_that_cannot_be_are_refused(frame: pd.DataFrame, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score_matrix(frame, ["en"], 1, "intent_accuracy")


@pytest.mark.parametrize("how", [("accuracy", "span_micro"), ("slot_f1", "macro"), ("slot_f1", "tag_macro")])
def test_unknown_ways_to_score_are_refused(how: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"no way to score|names of the tags"):
        score_matrix(rows((0, "en", tagged(([1], [1])))), ["en"], 0, *how)


def test_the_frame_is_not_changed() -> None:
    frame = rows((0, "en", intents((0, 0), (1, 0))))
    before = frame.copy(deep=True)
    score_matrix(frame, ["en"], 0, "intent_accuracy")
    pd.testing.assert_frame_equal(frame, before)
