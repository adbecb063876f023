from __future__ import annotations

import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.analysis.confirmatory import chosen, departures, margin_of
from xclrun.command.report import _comparisons
from xclrun.compose.jobs import command_jobs
from xclrun.core.errors import UsageError
from xclrun.launch.sweep import Sweep, plan_sweep
from xclrun.store.files import read_json, write_json
from xclrun.store.sweeps import read_sweep

FIXED = {"baseline": "er", "primary": ["F", "T"], "margin": 0.7}


def sweep_of(folder: Path, runs: tuple[str, ...], comparisons: dict[str, Any]) -> Path:
    """Write the file of a sweep with these runs; return its path."""
    planned: Any = tuple(SimpleNamespace(id=run, outputs=folder) for run in runs)
    Sweep("mine", "xclrun sweep=mine", planned, comparisons=comparisons).write()
    return folder / "sweeps" / "mine.json"


def test_comparisons_that_are_set_are_checked() -> None:
    assert chosen({"baseline": None, "primary": None, "margin": None}) == {}
    assert chosen({"baseline": "er", "primary": "F, T", "margin": 0.7}) == FIXED
    assert margin_of("0.7") == pytest.approx(0.007)
    for node, message in (
        ({"primary": "F,PF"}, "hydra.sweeper.comparisons.primary=F,PF: unknown measure 'PF'; did you mean 'F'?"),
        ({"margin": 0}, "hydra.sweeper.comparisons.margin=0: needs a number of points above 0"),
        ({"baseline": 3}, "hydra.sweeper.comparisons.baseline=3: needs baseline=STRATEGY"),
        (3, "hydra.sweeper.comparisons=3: needs baseline=STRATEGY"),
    ):
        with pytest.raises(UsageError) as error:
            chosen(node)
        assert str(error.value).startswith(message)


def test_comparisons_of_a_command_reach_its_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xclrun.launch.sweep.plan_jobs", lambda configs: [SimpleNamespace(id="a") for _ in configs])
    name = "hydra.sweeper.comparisons"
    jobs, _ = command_jobs(["model=tiny", f"{name}.primary=[F,T]", f"{name}.margin=0.7", f"{name}.baseline=er"])
    assert isinstance(jobs, list)
    assert plan_sweep(jobs).comparisons == FIXED


def test_a_sweep_keeps_the_comparisons_that_it_recorded_when_it_started(tmp_path: Path) -> None:
    path = sweep_of(tmp_path, ("a", "b"), FIXED)
    assert read_sweep(path)["comparisons"] == FIXED
    # Scores of the runs may be known.
    sweep_of(tmp_path, ("a", "b", "c"), {"primary": ["FP"]})
    assert read_sweep(path)["comparisons"] == FIXED
    # Nor do other runs of the same name change them: the earlier ones stay in the sweep.
    sweep_of(tmp_path, ("d",), {"primary": ["FP"]})
    assert read_sweep(path)["comparisons"] == FIXED
    assert {*read_sweep(path)["runs"]} == {*"abcd"}
    later = tmp_path / "later"
    sweep_of(later, ("a",), {})
    assert not read_sweep(sweep_of(later, ("a",), FIXED)).get("comparisons")
    assert "comparisons" not in read_json(sweep_of(tmp_path / "none", ("a",), {}))


@pytest.mark.parametrize("wrong", [{"margin": "1"}, {"primary": "F"}, {"primary": [1]}, {"other": "x"}, [], "x"])
def test_a_sweep_file_with_invalid_comparisons_is_unreadable(tmp_path: Path, wrong: Any) -> None:
    path = sweep_of(tmp_path, ("a",), {})
    write_json(path, read_json(path) | {"comparisons": wrong})
    with pytest.raises(ValueError, match="wrong type"):
        read_sweep(path)


def test_a_report_uses_the_comparisons_of_its_sweep_and_names_departures() -> None:
    plain = argparse.Namespace(baseline=None, primary=None, margin=None)
    assert _comparisons(plain, {}) == {"baseline": None, "primary": ("F", "FP"), "margin": None, "departures": ()}
    used = _comparisons(plain, FIXED)
    assert used == {"baseline": "er", "primary": ("F", "T"), "margin": pytest.approx(0.007), "departures": ()}
    other = _comparisons(argparse.Namespace(baseline="naive", primary=("FP",), margin=None), FIXED)
    assert (other["baseline"], other["primary"], other["margin"]) == ("naive", ("FP",), pytest.approx(0.007))
    (text,) = other["departures"]
    assert text.endswith(": baseline naive instead of er; primary FP instead of F, T")
    # Options of a sweep that recorded nothing depart from nothing.
    assert departures({}, "er", ("T",), 0.01) == []
    assert departures(FIXED, "er", ("T", "F"), 0.007) == []


def test_choices_that_a_sweep_left_open_are_the_usual_ones() -> None:
    """A sweep that recorded one of them fixed the others with it."""
    recorded = {"baseline": "er"}
    assert departures(recorded, "er", ("FP", "F"), None) == []
    (text,) = departures(recorded, "er", ("T",), 0.01)
    assert text.endswith(": primary T instead of F, FP; margin 1 instead of none")
    (text,) = departures({"margin": 1.0}, "er", ("F", "FP"), None)
    assert text.endswith(": baseline er instead of naive; margin none instead of 1")
