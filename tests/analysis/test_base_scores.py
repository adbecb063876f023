"""The one place that scores, against seqeval, scikit-learn and counting one by one."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from seqeval.metrics import f1_score
from sklearn.metrics import f1_score as sklearn_f1

from xclrun.core.task import INTENT_ACCURACY, SLOT_F1, TOKEN_ACCURACY, MetricsOfKeys
from xclrun.scores.base_scores import Alignment, Predictions, of_hops, of_points, of_split
from xclrun.scores.spans import span_counts
from xclrun.store.predictions import table

TAGS = ("O", "I-a", "B-b", "B-a")
METRICS = (INTENT_ACCURACY, SLOT_F1)


def row(language: str, id: str, intents: tuple[int, int], tags: tuple[list[int], list[int]] | None) -> dict[str, Any]:
    """One prediction row; a gold tag −1 is one that training never had."""
    gold, predicted = tags if tags is not None else (None, None)
    counts = (0, 0, 0)
    if tags is not None:
        counts = span_counts(*([TAGS[t] if t >= 0 else "B-new" for t in side] for side in tags))
    named = dict(zip(("tp", "fp", "fn"), counts, strict=True))
    return {
        "hop": 0, "step": 1, "examples_seen": 1, "split": "test", "language": language, "example_id": id,
        "gold": intents[0], "predicted": intents[1], "log2_gold": -1.0, "gold_tags": gold, "predicted_tags": predicted,
        "log2_gold_tags": -1.0, "tokens": 2, **named,
    }  # fmt: skip


def rows_of(*rows: dict[str, Any]) -> pa.Table:
    return table({name: [one[name] for one in rows] for name in rows[0]})


def random_rows(rng: np.random.Generator, languages: dict[str, int], split: str = "test") -> list[dict[str, Any]]:
    """Rows as a model of no skill predicts them; labels and tags that training never had among them."""
    made = []
    for language, n in languages.items():
        for i in range(n):
            of = np.random.default_rng([n, i])  # gold is the same in every hop
            words = int(of.integers(1, 6))
            tags = of.integers(-1, 4, words).tolist(), rng.integers(0, 4, words).tolist()
            made.append(row(language, f"{i:03d}", (int(of.integers(-1, 3)), int(rng.integers(0, 3))), tags))
            made[-1]["split"] = split
    return [made[i] for i in rng.permutation(len(made))]


def one_by_one(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Accuracy, F1 of spans by seqeval, and macro F1 over tags by scikit-learn."""
    names = [
        [[TAGS[t] if t >= 0 else "B-new" for t in r[side]] for r in rows] for side in ("gold_tags", "predicted_tags")
    ]
    flat = [[tag for sentence in side for tag in sentence] for side in names]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "accuracy": sum(r["gold"] == r["predicted"] >= 0 for r in rows) / len(rows),
            "micro": f1_score(*names, zero_division=0),
            "macro": sklearn_f1(*flat, average="macro", zero_division=0),
        }


def test_score_matrices_are_those_of_seqeval_and_scikit_learn() -> None:
    """Rows in any order, other splits among them, columns in the order of the stream."""
    rng, sizes = np.random.default_rng(0), {"en": 23, "de": 17}
    hops = [random_rows(rng, sizes) + random_rows(rng, {"en": 5}, "dev") for _ in range(3)]
    tables = [rows_of(*rows) for rows in hops]
    for tags, way in ((None, "micro"), (TAGS, "macro")):
        predictions = Predictions((), of_hops(tables, tags=tags))
        matrices = [predictions.matrix(metric, ("de", "en")) for metric in METRICS]
        for hop, rows in enumerate(hops):
            for column, language in enumerate(("de", "en")):
                own = [r for r in rows if (r["language"], r["split"]) == (language, "test")]
                expected = one_by_one(own)
                assert 0 < expected[way] < 1
                assert [R[hop, column] for R in matrices] == pytest.approx([expected["accuracy"], expected[way]])
    # What is counted sentence by sentence is in the order of their ids.
    ids = predictions.sentences["en"].ids.tolist()
    assert ids == sorted(ids)
    named = {r["example_id"]: r["predicted"] for r in hops[2] if (r["language"], r["split"]) == ("en", "test")}
    assert predictions.sentences["en"].predicted[:, 2].tolist() == [named[i] for i in ids]


@pytest.mark.parametrize("tags", [None, TAGS])
def test_a_split_and_evaluation_points_score_as_hops_do(tags: tuple[str, ...] | None) -> None:
    rng = np.random.default_rng(1)
    points = {step: random_rows(rng, {"en": 9, "de": 8}) + random_rows(rng, {"en": 7}, "dev") for step in (4, 8)}
    every = [r | {"step": step} for step, rows in points.items() for r in rows]
    result = of_points(rows_of(*every), MetricsOfKeys(METRICS), tags)
    assert {step: {split: set(of) for split, of in splits.items()} for step, splits in result.items()} == {
        step: {"test": {"en", "de"}, "dev": {"en"}} for step in (4, 8)
    }
    for step, rows in points.items():
        for split, by_language in result[step].items():
            for language, scores in by_language.items():
                own = [r for r in rows if (r["language"], r["split"]) == (language, split)]
                columns = {name: [r[name] for r in own] for name in own[0]}
                assert of_split(columns, METRICS, tags) == scores  # to the last bit
                expected = one_by_one(own)
                wanted = [expected["accuracy"], expected["micro" if tags is None else "macro"]]
                assert list(scores.values()) == pytest.approx(wanted)
        sentences = of_hops([rows_of(*rows)], tags=tags)["de"]
        assert [float(sentences.scores(m)[0]) for m in METRICS] == list(result[step]["test"]["de"].values())


def test_a_label_that_training_never_had_is_wrong_whatever_is_predicted() -> None:
    rows = [row("en", str(i), pair, None) for i, pair in enumerate(((-1, -1), (-1, 0), (2, 2)))]
    assert of_hops([rows_of(*rows)])["en"].scores(INTENT_ACCURACY).tolist() == [1 / 3]


def test_data_without_labels_or_without_counts() -> None:
    rows = [row("en", "0", (0, 0), ([0, 2], [0, 2])) | {"gold": None, "predicted": None}]
    sentences = of_hops([rows_of(*rows)])["en"]
    assert sentences.scores(INTENT_ACCURACY).tolist() == [0.0]
    assert sentences.scores(TOKEN_ACCURACY).tolist() == [1.0]
    for missing in ({"tp": None}, {"fp": 1, "tp": None}):
        with pytest.raises(ValueError, match="no span counts"):
            of_hops([rows_of(*(r | missing for r in rows))])["en"].scores(SLOT_F1)


def test_sums_may_be_larger_than_the_type_of_the_rows() -> None:
    counts = ((30000, 0, 20000), (30000, 0, 20000), (0, 20000, 0))
    rows = [
        row("en", str(i), (0, 0), None) | dict(zip(("tp", "fp", "fn"), c, strict=True)) for i, c in enumerate(counts)
    ]
    assert rows_of(*rows)["tp"].type == pa.int16()
    assert of_hops([rows_of(*rows)])["en"].scores(SLOT_F1).tolist() == [120000 / 180000]


def test_rows_that_cannot_be_put_side_by_side_are_refused() -> None:
    rng = np.random.default_rng(2)
    rows = random_rows(rng, {"en": 4, "de": 3})
    with pytest.raises(ValueError, match="'en' has an example twice"):
        of_hops([rows_of(*rows, next(r for r in rows if r["language"] == "en"))])
    other = [r | {"example_id": "x"} if (r["language"], r["example_id"]) == ("de", "002") else r for r in rows]
    gold = [r | {"gold": 2 - r["gold"]} if r["language"] == "de" else r for r in rows]
    for changed in (other, gold, [r for r in rows if r["language"] == "en"]):
        with pytest.raises(ValueError, match="different sentences of de"):
            of_hops([rows_of(*rows), rows_of(*changed)])
    with pytest.raises(ValueError, match="no predictions for language 'th'"):
        Predictions((), of_hops([rows_of(*rows)])).matrix(SLOT_F1, ("en", "th"))


def test_runs_on_the_same_sentences_share_their_ids() -> None:
    rows, alignment = random_rows(np.random.default_rng(3), {"en": 4}), Alignment()
    one, other = (of_hops([rows_of(*rows)], alignment)["en"] for _ in range(2))
    assert one.ids is other.ids


def test_nothing_to_find_and_nothing_found_is_zero_as_in_seqeval() -> None:
    rows = [row("en", "0", (0, 0), ([0], [0]))]
    assert of_hops([rows_of(*rows)])["en"].scores(SLOT_F1).tolist() == [0.0]
    nothing = [row("en", "0", (0, 0), ([], []))]
    assert of_hops([rows_of(*nothing)], tags=TAGS)["en"].scores(SLOT_F1).tolist() == [0.0]


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), min_size=1, max_size=12))
def test_macro_f1_over_tags_equals_scikit_learn(pairs: list[tuple[int, int]]) -> None:
    rows = [row("en", "0", (0, 0), ([g - 1 for g, _ in pairs], [p for _, p in pairs]))]
    columns = {name: [r[name] for r in rows] for name in rows[0]}
    assert of_split(columns, [SLOT_F1], TAGS)["slot_f1"] == pytest.approx(one_by_one(rows)["macro"], abs=1e-12)
