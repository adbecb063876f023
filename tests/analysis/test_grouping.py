from __future__ import annotations

from typing import Any

import pytest

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.grouping import differing_settings, numbered_labels, strategy_labels
from xclrun.report.caveats import comparison_caveats

from .build import record


def labels(*runs: Any) -> list[str]:
    found = strategy_labels(runs)
    return [found[run.run_id] for run in runs]


def er(run_id: str, **settings: Any) -> Any:
    return record("er", run_id=run_id, config={"strategy": settings})


def test_runs_that_agree_keep_the_name() -> None:
    assert labels(record(seed=1), record(seed=2), record(order="l2h", languages=["th", "de", "en"])) == ["naive"] * 3


def test_other_settings_are_named_in_full() -> None:
    runs = record(run_id="a"), record(run_id="b", config={"trainer": {"betas": [0.9, 0.99]}})
    assert labels(*runs) == ["naive(trainer.betas=unset)", "naive(trainer.betas=[0.9,0.99])"]


def test_a_setting_that_came_later_is_named_as_what_it_means() -> None:
    """Ids leave it out where it says what was done before; a label of 'unset' would say nothing."""
    runs = [record("lang_spec_task", run_id=k, config={"strategy": {"start": k}}) for k in ("own", "same")]
    assert labels(*runs) == ["lang_spec_task(start=own)", "lang_spec_task(start=same)"]
    packed = [record(run_id=str(k), config={"trainer": {"packing": k}}) for k in (False, True)]
    assert labels(*packed) == ["naive(trainer.packing=false)", "naive(trainer.packing=true)"]


def test_only_what_differs_is_named() -> None:
    runs = er("a", memory=750, every_k=10), er("b", memory=6000, every_k=10)
    assert labels(*runs) == ["er(memory=750)", "er(memory=6000)"]


def test_statements_without_their_text_have_a_row_of_their_own() -> None:
    def stated(run_id: str, context: str) -> Any:
        statements = {"kind": "pos", "context": context}
        return record("agem_replay", run_id=run_id, config={"dataset": {"statements": statements}})

    assert labels(stated("a", "shown"), stated("b", "hidden")) == [
        "agem_replay(context=shown)",
        "agem_replay(context=hidden)",
    ]


@pytest.mark.parametrize(
    "config",
    [
        {"seed": 9},
        {"bucket": 3},
        {"order": {"name": "l2h", "by_size": "ascending"}},
        {"paths": {"outputs": "elsewhere"}},
        {"runtime": {"device": "cuda", "threads": 4}},
        {"tracking": {"uri": "http://server"}},
        {"hydra": {"job": {"num": 3}}},
        {"dataset": {"root": "/data"}},
        {"trainer": {"checkpoint_minutes": 1.0}},
        {"evaluate": {"attention": True}},
    ],
)
def test_what_cannot_change_a_result_gives_no_label(config: dict[str, Any]) -> None:
    assert labels(record(run_id="a"), record(run_id="b", config=config)) == ["naive", "naive"]


def test_buckets_of_the_same_data_have_one_label_and_those_of_another_k_another() -> None:
    def few(run_id: str, shots: int | None, whole: str = "ab12cd", **fields: Any) -> Any:
        own = {} if shots is None else {"shots": shots, "dataset": {"buckets": {"sampler": "nway"}}}
        return record(run_id=run_id, whole_fingerprint=whole, data_fingerprint=run_id * 6, config=own, **fields)

    assert labels(few("a", 4, bucket=0), few("b", 4, bucket=1)) == ["naive", "naive"]
    assert labels(few("a", 4), few("b", 1)) == ["naive(shots=4)", "naive(shots=1)"]
    assert labels(few("a", 4), few("b", 4, "ffffff")) == ["naive(data=ab12cd)", "naive(data=ffffff)"]
    # Settings of buckets say nothing where there are none: records of before know no such settings.
    unused = {"shots": None, "dataset": {"buckets": {"sampler": "nway"}}}
    assert labels(record(run_id="a"), record(run_id="b", config=unused)) == ["naive", "naive"]


def test_data_and_algorithms_are_named_where_the_config_is_the_same() -> None:
    data = record(run_id="a"), record(run_id="b", data_fingerprint="ff00ff00")
    assert labels(*data) == ["naive(data=ab12cd)", "naive(data=ff00ff)"]
    versions = record(run_id="a"), record(run_id="b", algorithms=2)
    assert labels(*versions) == ["naive(algorithms=1)", "naive(algorithms=2)"]
    encoders = record(run_id="a", encoder="1234567890"), record(run_id="b", encoder="abcdefabcd")
    assert labels(*encoders) == ["naive(encoder=123456)", "naive(encoder=abcdef)"]
    assert labels(record(run_id="a"), record(run_id="b", strategy_version=2)) == [
        "naive(version=1)",
        "naive(version=2)",
    ]
    # a subset has other data, but its setting already says so
    subset = record(run_id="b", data_fingerprint="ff00ff00", config={"dataset": {"max_train": 100}})
    assert labels(record(run_id="a"), subset) == ["naive(dataset.max_train=unset)", "naive(dataset.max_train=100)"]


def test_runs_over_other_languages_are_not_the_same_setting() -> None:
    runs = record(run_id="a"), record(run_id="b", languages=["en", "de"])
    assert labels(*runs) == ["naive(languages=de+en+th)", "naive(languages=de+en)"]


def test_datasets_models_and_strategies_do_not_make_one_another_longer() -> None:
    runs = (
        record(run_id="a"),
        record(run_id="b", model="mbert", config={"model": {"name": "mbert"}}),
        record(run_id="c", dataset="mtop", config={"dataset": {"name": "mtop"}}),
        record("er", run_id="d", config={"strategy": {"memory": 750}}),
    )
    assert labels(*runs) == ["naive", "naive", "naive", "er"]


def test_many_differing_settings_are_cut_to_those_that_tell_the_runs_apart() -> None:
    def run(run_id: str, lr: float, size: int) -> Any:
        return record(run_id=run_id, config={"trainer": {"lr": lr}} | {"model": {f"m{k}": size for k in range(5)}})

    assert labels(run("a", 0.1, 2), run("b", 0.2, 2), run("c", 0.1, 4)) == [
        "naive(model.m0=2, trainer.lr=0.1, …)",
        "naive(model.m0=2, trainer.lr=0.2, …)",
        "naive(model.m0=4, trainer.lr=0.1, …)",
    ]


def test_labels_that_would_be_long_are_numbers_and_a_note_says_what_they_stand_for() -> None:
    def run(run_id: str, epochs: int, **settings: Any) -> Any:
        few = {
            "dataset": {"max_train": 10 * epochs},
            "trainer": {"epochs": epochs},
            "model": {"size": 8 + epochs},
        }
        return record(settings.get("name", "naive"), run_id=run_id, config={"strategy": settings} | few)

    runs = run("b", 10), run("a", 2), run("c", 2), run("d", 2, name="er", memory=5), er("e", memory=5)
    assert labels(*runs[:4]) == ["naive#2", "naive#1", "naive#1", "er"]
    told = "dataset.max_train={}0, model.size={}, trainer.epochs={}"
    assert numbered_labels(runs[:4]) == {"naive#1": told.format(2, 10, 2), "naive#2": told.format(10, 18, 10)}
    (comparison,) = comparisons(runs[:4])
    assert comparison_caveats(comparison)[:2] == [f"{label}: {of}" for label, of in numbered_labels(runs[:4]).items()]


def test_settings_on_which_strategies_disagree_are_found_but_not_their_own() -> None:
    naive = record(config={"trainer": {"epochs": 3}})
    replay = record("er", config={"trainer": {"epochs": 5}, "strategy": {"memory": 750}}, data_fingerprint="ff")
    assert differing_settings({"naive": [naive], "er": [replay]}) == {
        "data": {"naive": "ab12cd34", "er": "ff"},
        "trainer.epochs": {"naive": "3", "er": "5"},
    }
    assert differing_settings({"naive": [naive], "other": [naive]}) == {}
