"""The sweeps of the CCL paper hold the runs that its tables and figures need; `test_compose` composes them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from xclrun.config import choices, packaged
from xclrun.report.published import ccl_tables, table_of

SWEEPS = sorted(path.stem for path in packaged("sweeps").glob("*.yaml"))
# What the paper calls a choice.
CALLED = {"er": {"er", "er_6000"}}


def params(name: str) -> dict[str, Any]:
    sweep = yaml.safe_load((packaged("sweeps") / f"{name}.yaml").read_text(encoding="utf-8"))
    return sweep["hydra"]["sweeper"]["params"]


def values(name: str, key: str) -> list[str]:
    return str(params(name)[key]).split(",")


def test_there_is_one_for_each_table_with_results_and_each_figure() -> None:
    assert set(SWEEPS) == {"demo", "fs_pud"} | {f"ccl_table{k}" for k in ccl_tables()} | {
        f"ccl_fig{k}" for k in range(3, 14)
    }
    assert set(ccl_tables()) == {str(k) for k in range(2, 21)} - {"6"}
    assert table_of("ccl_table8") == "8"
    assert table_of("ccl_fig3") is None
    assert table_of("demo") is None


@pytest.mark.parametrize("name", SWEEPS)
def test_every_value_is_a_choice(name: str) -> None:
    for key in ("dataset", "model", "strategy", "order"):
        if key in params(name):
            assert set(values(name, key)) <= choices()[key].keys()


@pytest.mark.parametrize("table", sorted(ccl_tables(), key=int))
def test_a_sweep_runs_all_that_its_table_holds(table: str) -> None:
    name, rows = f"ccl_table{table}", ccl_tables()[table]
    assert (params(name)["dataset"], params(name)["model"]) == ("mtop", "mbert")
    made = {called for choice in values(name, "strategy") for called in CALLED.get(choice, {choice})}
    if "10759" in str(params(name).get("dataset.max_train")):
        made.add("naive_balanced")
    assert {row.model for row in rows} <= made
    named = {"h2l": "order1", "l2h": "order2"}
    asked = {named.get(row.order, row.order) for row in rows} - {"", "mean"}
    assert asked <= set(values(name, "order"))
    if {row.order for row in rows} == {"mean"}:
        assert values(name, "order") == [f"order{k}" for k in range(1, 7)]
    if any(row.measure == "T" for row in rows):
        assert "lang_spec_ft" in made


@pytest.mark.parametrize("name", [name for name in SWEEPS if name.startswith("ccl_fig")])
def test_figures_have_six_orders_and_references(name: str) -> None:
    assert values(name, "order") == [f"order{k}" for k in range(1, 7)]
    assert {"naive", "lang_spec_ft"} <= set(values(name, "strategy"))


def test_seeds_are_those_of_the_paper() -> None:
    assert values("ccl_table8", "seed") == ["42"]
    assert values("ccl_table20", "seed") == ["42", "40", "35"]
