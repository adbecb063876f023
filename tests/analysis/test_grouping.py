from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.grouping import differing_settings, numbered_labels, strategy_labels
from xclrun.report.caveats import comparison_caveats

from .build import record


def labels(*runs: Any) -> list[str]:
    result = strategy_labels(runs)
    return [result[run.run_id] for run in runs]


def er(run_id: str, **settings: Any) -> Any:
    return record("er", run_id=run_id, config={"strategy": settings})


def stated(run_id: str, context: str) -> Any:
    statements = {"kind": "pos", "context": context}
    return record("agem_replay", run_id=run_id, config={"dataset": {"statements": statements}})


def few(run_id: str, shots: int | None, whole: str = "ab12cd", **fields: Any) -> Any:
    config = {"shots": shots, "dataset": {"buckets": {"sampler": "nway"}}}
    return record(run_id=run_id, whole_fingerprint=whole, data_fingerprint=run_id * 6, config=config, **fields)


def pair(**fields: Any) -> tuple[Any, Any]:
    """Two runs that differ in these fields."""
    return record(run_id="a"), record(run_id="b", **fields)


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ((record(seed=1), record(seed=2), record(order="l2h", languages=["th", "de", "en"])), ["naive"] * 3),
        (
            pair(config={"trainer": {"betas": [0.9, 0.99]}}),
            ["naive(trainer.betas=unset)", "naive(trainer.betas=[0.9,0.99])"],
        ),
        (
            [record("lang_spec_task", run_id=k, config={"strategy": {"start": k}}) for k in ("own", "same")],
            ["lang_spec_task(start=own)", "lang_spec_task(start=same)"],
        ),
        (
            [record(run_id=str(k), config={"trainer": {"packing": k}}) for k in (False, True)],
            ["naive(trainer.packing=false)", "naive(trainer.packing=true)"],
        ),
        # Without the key, a run has the value that later versions write.
        (pair(config={"strategy": {"warm_up": 3}}), ["naive(warm_up=0)", "naive(warm_up=3)"]),
        # Two folders of --config-dir may have a strategy of the same name.
        (
            [record("mine", run_id=name, config={"strategy": {"name": name}}) for name in ("agem", "er")],
            ["mine(name=agem)", "mine(name=er)"],
        ),
        # Only what differs is named.
        ((er("a", memory=750, every_k=10), er("b", memory=6000, every_k=10)), ["er(memory=750)", "er(memory=6000)"]),
        ((stated("a", "shown"), stated("b", "hidden")), ["agem_replay(context=shown)", "agem_replay(context=hidden)"]),
        # Buckets of the same data share a label.
        ((few("a", 4, bucket=0), few("b", 4, bucket=1)), ["naive", "naive"]),
        ((few("a", 4), few("b", 1)), ["naive(shots=4)", "naive(shots=1)"]),
        ((few("a", 4), few("b", 4, "ffffff")), ["naive(data=ab12cd)", "naive(data=ffffff)"]),
        # Settings of buckets have no effect without shots.
        (pair(config={"dataset": {"buckets": {"sampler": "nway"}}}), ["naive", "naive"]),
        # Contents are named where the config is the same.
        (pair(data_fingerprint="ff00ff00"), ["naive(data=ab12cd)", "naive(data=ff00ff)"]),
        (pair(algorithms=2), ["naive(algorithms=1)", "naive(algorithms=2)"]),
        (pair(encoder="abcdefabcd"), ["naive(encoder=)", "naive(encoder=abcdef)"]),
        (pair(strategy_version=2), ["naive(version=1)", "naive(version=2)"]),
        (
            pair(data_fingerprint="ff00ff00", config={"dataset": {"max_train": 100}}),
            ["naive(dataset.max_train=unset)", "naive(dataset.max_train=100)"],
        ),
        (pair(languages=["en", "de"]), ["naive(languages=de+en+th)", "naive(languages=de+en)"]),
        # Runs of other datasets, models and strategies are compared among themselves.
        (
            (
                *pair(model="mbert", config={"model": {"name": "mbert"}}),
                record(run_id="c", dataset="mtop", config={"dataset": {"name": "mtop"}}),
                er("d", memory=750),
            ),
            ["naive", "naive", "naive", "er"],
        ),
    ],
)
def test_labels_name_what_differs(runs: Sequence[Any], expected: list[str]) -> None:
    assert labels(*runs) == expected


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
        {"evaluate": {"every_examples": 50}},
    ],
)
def test_what_cannot_change_a_result_gives_no_label(config: dict[str, Any]) -> None:
    assert labels(record(run_id="a"), record(run_id="b", config=config)) == ["naive", "naive"]


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
    messages = "dataset.max_train={}0, model.size={}, trainer.epochs={}"
    assert numbered_labels(runs[:4]) == {"naive#1": messages.format(2, 10, 2), "naive#2": messages.format(10, 18, 10)}
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
