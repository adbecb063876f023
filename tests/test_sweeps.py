"""The sweeps of papers hold the runs that their tables and figures need; `test_compose` composes them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from xclrun.config.files import choices, packaged
from xclrun.report.fewshot.names import method_name
from xclrun.report.published import ccl_tables, table_of
from xclrun.report.published.fsxlt import fsxlt_tables, sweep_table

SWEEPS = sorted(path.stem for path in packaged("sweeps").glob("*.yaml"))
FEW_SHOT = [name for name in SWEEPS if name.startswith("fs_")]
# What the paper calls a choice.
CALLED = {"er": {"er", "er_6000"}}


def params(name: str) -> dict[str, Any]:
    sweep = yaml.safe_load((packaged("sweeps") / f"{name}.yaml").read_text(encoding="utf-8"))
    return sweep["hydra"]["sweeper"]["params"]


def values(name: str, key: str) -> list[str]:
    return str(params(name)[key]).split(",")


def test_there_is_one_for_each_table_with_results_and_each_figure() -> None:
    ccl = {f"ccl_table{k}" for k in ccl_tables()} | {f"ccl_fig{k}" for k in range(3, 14)}
    assert set(SWEEPS) - set(FEW_SHOT) == {"demo"} | ccl
    assert set(ccl_tables()) == {str(k) for k in range(2, 21)} - {"6"}
    assert table_of("ccl_table8") == "8"
    assert table_of("ccl_fig3") is None
    assert table_of("demo") is None


def test_the_sweep_of_attention_keeps_it() -> None:
    asked = [name for name in SWEEPS if params(name).get("evaluate.attention")]
    assert asked == ["fs_table5"]


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


@pytest.mark.parametrize("table", sorted(fsxlt_tables(), key=int))
def test_few_shot_sweeps_run_all_that_their_table_holds(table: str) -> None:
    names = [name for name in FEW_SHOT if sweep_table(name) == table]
    rows = [row for row in fsxlt_tables()[table] if row.shots > 0 and row.language]
    scores = table not in ("3", "14")
    wanted = {(r.task, r.language, r.shots, r.method if scores else "full") for r in rows}
    made = {
        (params(name)["dataset"], language, int(k), method_name(strategy))
        for name in names
        for language in values(name, "language")
        for k in values(name, "shots")
        for strategy in values(name, "strategy")
    }
    assert names
    assert wanted <= made
    # Tables 3 and 14 need all languages of the tables of scores.
    assert made == wanted or not scores


@pytest.mark.parametrize("name", [name for name in FEW_SHOT if name != "fs_pud"])
def test_few_shot_sweeps_are_those_of_the_paper(name: str) -> None:
    given = params(name)
    # Its settings stand in one place: the experiment.
    assert (given["experiment"], given["model"], "model.label_on" in given) == ("fewshot", "mbert", False)
    if sweep_table(name) in ("2", "6", "12", "13"):
        assert given["bucket"] == "range(0,40)"
