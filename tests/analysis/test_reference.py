from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References, command_of_setting, reference_command, shared_overrides

from .build import alone, record

NAN = np.nan


def find(run: RunRecord, *others: RunRecord) -> list[float]:
    return References(others).scores(run, "intent_accuracy").tolist()


@pytest.mark.parametrize(
    ("run", "references", "expected"),
    [
        (record(languages=["en", "de", "th"]), [alone([0.7, 0.8, 0.9], ["th", "en", "de"])], [0.8, 0.9, 0.7]),
        (record(), [alone([0.7, 0.8], ["th", "en"])], [0.8, NAN, 0.7]),
        (record(), [], [NAN, NAN, NAN]),
        # Several reference runs complement each other.
        (record(), [alone([0.7], ["th"]), alone([0.8, 0.9], ["en", "de"])], [0.8, 0.9, 0.7]),
        # The run in the same order is preferred, then the first by order, for each measured cell.
        (record(order="z"), [alone([0.7, 0.8, 0.9], order="a"), alone([0.1, 0.2, 0.3], order="z")], [0.1, 0.2, 0.3]),
        (record(order="q"), [alone([0.1, 0.2, 0.3], order="z"), alone([0.7, 0.8, 0.9], order="a")], [0.7, 0.8, 0.9]),
        (record(order="a"), [alone([NAN, 0.2, 0.3], order="a"), alone([0.7, 0.8, 0.9], order="b")], [0.7, 0.2, 0.3]),
        (record(), [record("naive", seed=1), record("lang_spec_ft", stream="sequence")], [NAN, NAN, NAN]),
    ],
)
def test_scores_come_from_reference_runs(run: RunRecord, references: list[RunRecord], expected: list[float]) -> None:
    np.testing.assert_array_equal(find(run, *references), expected)
    if references:
        assert np.isnan(References(references).scores(run, "slot_f1")).all()


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
        {"config": {"trainer": {"packing": True}}},
    ],
)
def test_what_cannot_change_the_reference_scores_does_not_matter(different: dict[str, object]) -> None:
    assert find(record(), alone([0.7, 0.8, 0.9], **different)) == [0.7, 0.8, 0.9]  # type: ignore[arg-type]


ADAPTERS = {"name": "lang_spec_ada_t", "reduction": 2, "pretrained": None}


def test_strategies_with_adapters_have_reference_runs_with_adapters() -> None:
    plain = alone([0.7, 0.8, 0.9])
    name = "lang_spec_ft+lang_spec_ada_t"
    settings = {"strategy": {"name": "lang_spec_ft", "expansion": ADAPTERS}}
    mono = replace(alone([0.1, 0.2, 0.3], config=settings, strategy_version="1+1"), strategy=name)
    coarse = {"strategy": {"name": "lang_spec_ft", "expansion": {**ADAPTERS, "reduction": 16}}}
    other = replace(alone([0.5, 0.5, 0.5], config=coarse, strategy_version="1+1"), strategy=name)
    own = record("lang_spec_ada_t", config={"strategy": ADAPTERS})
    over = record("er", config={"strategy": {"name": "er", "expansion": ADAPTERS}}, strategy_version="1+1")
    # Runs before the setting `library` lack it.
    later = record("lang_spec_ada_t", config={"strategy": {**ADAPTERS, "library": "adapters"}})
    assert find(later, mono) == [0.1, 0.2, 0.3]
    beneath = record("er", config={"strategy": {"name": "er", "expansion": {"name": "lang_spec_task"}}})
    for result in (own, over):
        assert find(result, plain, mono, other) == [0.1, 0.2, 0.3]
        np.testing.assert_array_equal(find(result, plain, other), [NAN, NAN, NAN])
    assert find(beneath, plain, mono) == find(record(), plain, mono) == [0.7, 0.8, 0.9]
    # Adapters with another pretrained content are others.
    assert np.isnan(find(record("lang_spec_ada_t", config={"strategy": ADAPTERS}, strategy_version="1+ab"), mono)).all()


def test_references_of_a_setting_that_a_search_chose_are_asked_for_with_its_values_and_without_the_search() -> None:
    command = (
        "xclrun hydra/sweeper=optuna hydra.sweeper.trials=9 dataset=mini strategy=er strategy.memory=5,10 "
        "'trainer.lr=tag(log,interval(1e-4,1e-1))' seed=1,2 -m"
    )
    values = {"trainer.lr": "0.003", "strategy.memory": "5", "trainer.epochs": "4"}
    own = command_of_setting(command, values)
    assert own == ("xclrun dataset=mini strategy=er strategy.memory=5 trainer.lr=0.003 seed=1,2 -m trainer.epochs=4")
    assert reference_command(shared_overrides(own.split()[1:]), None, ["[en,de]"], [1, 2]) == (
        "xclrun dataset=mini trainer.lr=0.003 trainer.epochs=4 strategy=lang_spec_ft 'order=[en,de]' seed=1,2 -m"
    )
