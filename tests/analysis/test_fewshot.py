from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tests.report.few_shot import run
from xclrun.analysis.fewshot.gains import ALL, associations, with_mean
from xclrun.analysis.fewshot.scores import (
    KEYS,
    common,
    dev_curve,
    few_shot_scores,
    over_buckets,
    seeds_against_buckets,
    selected_dev,
)
from xclrun.analysis.fewshot.words import Outcome
from xclrun.analysis.record import RunRecord


def scored(bucket: int, seed: int, zero: float, score: float, shots: int | None = 1, **fields: object) -> RunRecord:
    """A German run with the scores that a test is about."""
    made = run("de", shots or 1, bucket, seed, **fields)  # type: ignore[arg-type]
    matrix = np.array([[0.1, 0.1], [0.9, zero], [0.8, score]])
    config = {**made.config, "shots": shots}
    data = made.to_json() | {"scores": {"token_accuracy": matrix.tolist()}, "config": config}
    return RunRecord.from_json(data | {"run_id": f"{made.run_id}-{shots}"})


def test_a_run_gives_its_zero_shot_and_its_few_shot_score() -> None:
    table = few_shot_scores([scored(3, 2, 0.5, 0.7), scored(3, 2, 0.5, 0.7), run("hi", 4, 0, source=None)])
    alone, row = table.itertuples(index=False)
    assert (row.language, row.source, row.shots, row.bucket, row.seed) == ("de", "en", 1, 3, 2)
    assert (row.zero_shot, row.score) == (0.5, 0.7)
    assert (alone.language, alone.source) == ("hi", "none")
    assert few_shot_scores([]).empty


def test_seeds_are_averaged_before_buckets() -> None:
    runs = [scored(0, 1, 0.5, 0.6), scored(0, 2, 0.4, 0.8), scored(1, 1, 0.5, 0.9)]
    zero, one = over_buckets(few_shot_scores(runs)).itertuples(index=False)
    # Buckets: (0.6 + 0.8) / 2 = 0.7 and 0.9. The seeds' zero-shot scores: 0.5 and 0.4.
    assert one.mean == pytest.approx(0.8)
    # What a gain is taken from has the same weights: (0.5 + 0.4) / 2 = 0.45 and 0.5.
    assert one.zero_shot == pytest.approx(0.475)
    assert one.std == pytest.approx(0.2 / math.sqrt(2))
    assert (one.buckets, one.seeds, one.n, len(one.runs)) == (2, 2, 3, 3)
    assert (zero.shots, zero.buckets) == (0, 0)
    assert zero.mean == pytest.approx(0.45)
    assert zero.std == pytest.approx(0.1 / math.sqrt(2))


def test_one_bucket_has_no_spread_and_what_was_not_measured_is_no_mean() -> None:
    _, one = over_buckets(few_shot_scores([scored(0, 1, 0.5, 0.6)])).itertuples(index=False)
    assert math.isnan(one.std)
    hole = scored(1, 1, 0.5, 0.6).to_json()
    hole["scores"]["token_accuracy"][2][1] = None
    _, one = over_buckets(few_shot_scores([scored(0, 1, 0.5, 0.6), RunRecord.from_json(hole)])).itertuples(index=False)
    assert math.isnan(one.mean)


def test_settings_make_rows_of_their_own_but_bucket_language_and_k_do_not() -> None:
    one, other = scored(0, 1, 0.5, 0.6), scored(1, 1, 0.5, 0.7)
    changed = RunRecord.from_json(other.to_json() | {"config": {**other.config, "trainer": {"lr": 7e-5}}})
    assert few_shot_scores([one, other, run("hi", 4, 2)])["strategy"].unique().tolist() == ["full"]
    assert sorted(few_shot_scores([one, changed])["strategy"]) == ["full(trainer.lr=1e-05)", "full(trainer.lr=7e-05)"]


def test_runs_on_different_data_are_never_averaged() -> None:
    german = [scored(b, 1, 0.5, 0.6, whole_fingerprint=data * 12) for b, data in enumerate("ab")]
    hindi = [run("hi", k, 0, whole_fingerprint="c" * 12) for k in (1, 4)]
    # Data differs with language and K as a matter of course.
    assert set(few_shot_scores([german[0], *hindi])["strategy"]) == {"full"}
    table = few_shot_scores([*german, *hindi])
    assert sorted(table["strategy"]) == ["full", "full", "full(data=aaaaaa)", "full(data=bbbbbb)"]
    assert over_buckets(table).query("language == 'de' and shots == 1")["buckets"].tolist() == [1, 1]


def test_strategies_have_in_common_what_all_have_measured() -> None:
    runs = [scored(b, 1, 0.5, 0.6, strategy=s) for s in ("naive", "fc") for b in (0, 1, 2)]
    table = few_shot_scores([*runs, scored(3, 1, 0.5, 0.6), run("hi", 1, 7)])
    table.loc[(table["strategy"] == "fc") & (table["bucket"] == 1), "score"] = math.nan
    result = common(table)
    # Of a language that one strategy alone has run, all of its buckets are.
    assert sorted(result[result["language"] == "de"]["bucket"]) == [0, 0, 2, 2]
    assert result[result["language"] == "hi"]["bucket"].tolist() == [7]
    table.loc[table["strategy"] == "fc", "score"] = math.nan
    assert common(table)["language"].tolist() == ["hi"]


def test_buckets_against_seeds() -> None:
    runs = [scored(0, 1, 0.5, 0.6), scored(1, 1, 0.5, 0.9), scored(0, 2, 0.5, 0.8), scored(2, 1, 0.5, 0.7)]
    result = seeds_against_buckets(few_shot_scores(runs))
    assert (result.seed, result.bucket) == (1, 0)
    np.testing.assert_allclose(result.buckets, [0.6, 0.9, 0.7])
    np.testing.assert_allclose(result.seeds, [0.6, 0.8])
    assert seeds_against_buckets(few_shot_scores([scored(0, 1, 0.5, 0.6), scored(0, 2, 0.5, 0.8)])) is None


def test_the_whole_training_split_is_no_k() -> None:
    table = over_buckets(few_shot_scores([scored(0, 1, 0.5, 0.6, None), scored(0, 1, 0.5, 0.6)]))
    assert sorted(table["shots"]) == [-1, 0, 1]
    assert set(KEYS) <= set(table.columns)


def test_confusions_leave_out_what_training_never_had() -> None:
    gold, after = np.array([0, 1, -1, 1]), np.array([0, 0, 1, 1])
    outcome = Outcome(("a", "b"), ("x", "y"), np.array([2, 2]), gold, after, after)
    np.testing.assert_array_equal(outcome.confusion(after), [[1, 0], [1, 1]])


def test_dev_scores_by_epoch_may_fall() -> None:
    """As in FS Fig. 6: nothing is smoothed, and a curve ends where training stopped."""
    points = (
        {"hop": 1, "epoch": 1, "dev": {"de": {"token_accuracy": 0.99}}},
        {"hop": 2, "epoch": 1, "dev": {"de": {"token_accuracy": 0.5}}},
        {"hop": 2, "epoch": 2, "dev": {"de": {"token_accuracy": 0.7}}},
        {"hop": 2, "epoch": 3, "dev": {"de": {"token_accuracy": 0.6}}},
    )
    one = replace(run("de", 1, 0), curve=points)
    np.testing.assert_allclose(dev_curve(one, "token_accuracy"), [0.5, 0.7, 0.6])
    assert selected_dev(one, "token_accuracy") == 0.7
    assert np.isnan(dev_curve(one, "class_accuracy")).tolist() == [True] * 3
    assert math.isnan(selected_dev(one, "class_accuracy"))
    assert math.isnan(selected_dev(replace(one, curve=()), "token_accuracy"))


def test_gains_are_set_against_every_factor() -> None:
    gains = with_mean({1: {"de": 0.1, "hi": 0.3, "th": 0.5}, 4: {"de": 0.3, "hi": 0.5}})
    assert gains[ALL] == pytest.approx({"de": 0.2, "hi": 0.4})
    assert with_mean({}) == {ALL: {}}
    result = {
        (a.factor, a.gains, a.overlap): a.correlation for a in associations(gains, {1: {"de": 9, "hi": 5, "th": 1}}, {})
    }
    assert result["lexical_overlap", 1, 1].spearman == pytest.approx(-1)
    assert result["lexical_overlap", 4, 1].n == 2
    assert result["wals_features", 1, None].n == 0
