"""Planning a run: what it is made of, where it writes, and what cannot be planned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.core.errors import UsageError
from xclrun.plan import Run, plan_run


def test_a_run_holds_what_was_asked_for(make_run: Callable[..., Run]) -> None:
    run = make_run("strategy=er", "strategy.memory=7", "seed=3")
    assert run.dataset.sizes() == {"de": 18, "en": 22, "es": 13}
    assert run.stream.languages == ("en", "de", "es")
    assert [stage.hop.index for stage in run.stages] == [0, 1, 2, 3]
    assert run.strategy().settings.memory == 7
    assert run.strategy() is not run.strategy()
    assert run.label == "er · en-de-es · seed 3"
    assert make_run("bucket=1", "dataset.max_train=3").label == "naive · en-de-es · seed 1 · bucket 1"


def test_orders_are_resolved_before_they_are_hashed_and_frozen(make_run: Callable[..., Run]) -> None:
    run = make_run("order=h2l")
    # Training sizes: en 22, de 18, es 13.
    arguments = {key: value for key, value in run.resolved["order"].items() if value is not None}
    assert arguments == {"name": "h2l", "languages": ["en", "de", "es"], "by_size": "descending"}
    assert run.config.order.languages == ["en", "de", "es"]
    turned = make_run("order=l2h")
    assert turned.stream.languages == ("es", "de", "en")
    assert turned.id != run.id


def test_an_order_may_leave_languages_out(make_run: Callable[..., Run]) -> None:
    run = make_run("order=[es,en]")
    assert run.stream.languages == ("es", "en")
    assert run.resolved["order"]["name"] == "es-en"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["order=[en,de,fr]"], "order: the dataset has no language 'fr'"),
        (["order=[en,de,en]"], "order: the language 'en' is repeated"),
        (["order=order1"], "order: the dataset has no language 'fr'"),
        (["strategy=er", "strategy.memory=-1"], "strategy.memory=-1"),
        (["trainer.epochs=0"], "trainer.epochs=0"),
    ],
)
def test_what_cannot_be_planned(overrides: list[str], message: str, make_run: Callable[..., Run]) -> None:
    with pytest.raises(UsageError, match=message):
        make_run(*overrides)


def test_where_a_run_writes(make_run: Callable[..., Run], tmp_path: Path) -> None:
    run = make_run(outputs="out")
    assert run.outputs == tmp_path / "out"
    assert run.directory.path == tmp_path / "out" / "runs" / run.id
    assert run.store.root == tmp_path / "out" / "store"
    assert run.cache == tmp_path / "out" / "cache"
    assert make_run(f"paths.store={tmp_path}/shared").store.root == tmp_path / "shared"
    assert not (tmp_path / "out").exists()


def test_home_is_expanded(make_run: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    run = make_run("paths.store='~/store'")
    config = dataclasses.replace(run.config, paths=dataclasses.replace(run.config.paths, outputs="~/out"))
    moved = plan_run(config)
    assert (moved.outputs, moved.store.root) == (tmp_path / "out", tmp_path / "store")


@pytest.mark.parametrize(
    "strategy", ["naive", "er", "inc_joint", "lang_spec_task", "lang_spec_ada_t", "lang_spec_ada_f"]
)
def test_the_reference_is_the_lang_spec_ft_run(strategy: str, make_run: Callable[..., Run]) -> None:
    arguments = (f"strategy={strategy}", "seed=2", "trainer.epochs=1")
    reference = make_run(*arguments).reference()
    adapters = (f"strategy.expansion={strategy}",) if strategy.startswith("lang_spec_ada_") else ()
    assert reference.id == make_run("strategy=lang_spec_ft", *adapters, *arguments[1:]).id
    assert reference.stream.kind == "independent"


def test_the_cost_of_a_hop_is_that_of_what_is_trained(make_run: Callable[..., Run]) -> None:
    def costs(*overrides: str) -> list[dict[str, Any]]:
        run = make_run(*overrides)
        return list(run.costs.values())

    naive, er = costs(), costs("strategy=er")
    assert [cost["examples"] for cost in naive] == [0, 22, 18, 13]
    assert [cost["examples"] for cost in costs("strategy=inc_joint")] == [0, 22, 40, 53]
    assert [cost["strategy"] for cost in er] == ["naive", "naive", "er", "er"]
    assert naive[1] == er[1]
    assert costs("model.hidden_size=32")[1]["model"] != naive[1]["model"]
    assert costs("model.lr=1")[1] == naive[1]
