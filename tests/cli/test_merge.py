"""`xclrun model merge`: what it evaluates, what it chooses on dev data, and what it refuses."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from xclrun.analysis.aggregate import comparisons
from xclrun.analysis.finished import finished_run, tuning_trials, with_references
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_records
from xclrun.cli import main
from xclrun.plan import Run, freeze, thaw
from xclrun.report.parts.budgets import budget_table, costs_with_sources
from xclrun.store.rundir import RunDirectory
from xclrun.strategy.merge import Method, Start, settings_for
from xclrun.train.execute import execute
from xclrun.train.merge import candidates
from xclrun.train.progress import Listener
from xclrun.train.stop import StopFlag

Make = Callable[..., Run]
Do = Callable[..., Run]


def merged_runs(run: Run) -> list[dict[str, Any]]:
    directories = [RunDirectory(path) for path in (run.outputs / "runs").glob("*-merge*")]
    return [directory.read_manifest() for directory in directories if directory.finished]


def test_a_merge_is_a_run_that_trains_nothing(make_run: Make, do: Do, capsys: pytest.CaptureFixture[str]) -> None:
    run = do(make_run("strategy=er"))
    trained = [stage["training"] for stage in run.directory.read_manifest()["stages"]]
    given = ["model", "merge", run.id, "--outputs", str(run.outputs), "--method", "task_arithmetic"]
    assert main([*given, "--coefficient", "scale=0.2,0.5"]) == 2
    assert not merged_runs(run)
    assert main([*given, "--coefficient", "scale=0.2,0.5", "--select-on", "dev"]) == 0
    printed = capsys.readouterr()
    assert "the sum is too large" not in printed.err
    scores = [float(line.split()[-2]) for line in printed.out.splitlines() if ": dev " in line and line.endswith(" %")]
    assert len(scores) == 2
    [manifest] = merged_runs(run)
    assert [stage["training"] for stage in manifest["stages"]] == trained
    # The same choice again is the finished run.
    assert main([*given, "--coefficient", f"scale={(0.2, 0.5)[scores.index(max(scores))]}"]) == 0
    assert len(merged_runs(run)) == 1
    # λ of the paper, which is of independent models.
    assert main(given) == 0
    assert "the sum is too large" in capsys.readouterr().err


def test_a_merge_trains_nothing_itself_and_its_budget_includes_its_source(
    make_run: Make, do: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    run = do(make_run("strategy=lang_spec_ft"))
    assert main(["model", "merge", run.id, "--outputs", str(run.outputs), "--method", "mean"]) == 0
    [manifest] = merged_runs(run)
    assert manifest["merged_from"] == run.id
    records = {r.strategy: r for r in read_records(run.outputs)}
    merge, source = records["merge"], records["lang_spec_ft"]
    assert (merge.merged_from, source.merged_from) == (run.id, "")
    assert merge.trained == source.trained == tuple(stage.train for stage in run.stages[1:])
    assert source.costs["updates"] > 0
    zero = dict.fromkeys(("trained", "memory", "updates", "examples", "tokens", "seconds"), 0.0)
    assert merge.costs == zero | {"parameters": merge.costs["parameters"]}
    assert merge.costs["parameters"] < source.costs["parameters"], "one model for all languages"
    assert RunRecord.from_json(merge.to_json()).merged_from == run.id
    older = {key: value for key, value in merge.to_json().items() if key != "merged_from"}
    assert RunRecord.from_json(older).merged_from == ""
    capsys.readouterr()
    assert main(["show", merge.run_id, "--outputs", str(run.outputs)]) == 0
    assert f"models    those of {run.id}, merged without training" in capsys.readouterr().out
    [comparison] = comparisons(list(records.values()))
    table = budget_table(comparison, {})
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    for column in ("steps", "examples", "tokens (k)", "time (min)"):
        assert rows["merge"][column] == rows["lang_spec_ft"][column], "merging trains nothing"
    [note] = [note for note in table.notes if note.startswith("merge: ")]
    assert "models of lang_spec_ft; steps, examples, tokens and time include the training" in note
    # A report about the merge alone finds the costs of its source, which the table does not show.
    [reported] = comparisons([merge])
    pool = [merge, *with_references(run.outputs, [merge])[0]]
    assert {r.run_id for r in pool} == {merge.run_id, run.id}
    alone = budget_table(reported, {}, costs=costs_with_sources(reported.runs, pool))
    assert alone.rows[0][table.header.index("steps")] == rows["merge"]["steps"]
    unknown = budget_table(reported, {})
    assert unknown.rows[0][table.header.index("steps")] == "–"
    assert any(f"{run.id}, whose runs are missing" in note for note in unknown.notes)


def test_coefficients_compared_on_dev_data_count_as_trials(make_run: Make, do: Do) -> None:
    run = do(make_run("strategy=naive", "trainer.epochs=1"))
    given = ["model", "merge", run.id, "--outputs", str(run.outputs), "--method", "ties", "--coefficient"]

    def merges() -> tuple[list[RunRecord], int]:
        records = [r for r in read_records(run.outputs) if r.strategy == "merge"]
        [trials] = tuning_trials(map(finished_run, records)).values()
        return records, trials

    assert main([*given, "density=0.4"]) == 0
    [first], trials = merges()
    assert (first.tried, trials) == ((), 1)
    assert main([*given, "density=0.4,0.2,0.1", "--select-on", "dev"]) == 0
    records, trials = merges()
    assert trials == 3
    assert all(list(RunRecord.from_json(r.to_json()).tried) == list(r.tried) for r in records)
    # A finished merge learns what else was compared; its results stay.
    [planned] = candidates(run, "ties", ["density=0.4"]).values()
    before = planned.directory.predictions(1).read_bytes()
    for tried in ([{"density": 0.4}, {"density": 0.7}], [{"density": 0.70}], [{"density": 0.8}]):
        execute(planned, Listener(), StopFlag(), tried=tried)
    records, trials = merges()
    assert (trials, planned.directory.damaged(thorough=True)) == (5, None)
    assert [r.tried for r in records if r.run_id == planned.id] == [
        ({"density": 0.4}, {"density": 0.7}, {"density": 0.8})
    ]
    assert planned.directory.predictions(1).read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "tie"], "did you mean 'ties'"),
        (["--method", "ties", "--coefficient", "drop=0.5"], "no setting 'drop'"),
        (["--method", "ties", "--coefficient", "scale=0.1", "--coefficient", "scale=0.5"], "'scale' is given twice"),
        (["--method", "ties", "--coefficient", "density=a"], "'a' is not a value of 'density'; expected a number"),
        (["--method", "ties", "--coefficient", "density=2"], "strategy.density=2.0"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, finished: Make, capsys: pytest.CaptureFixture[str]) -> None:
    run = finished("strategy=naive")
    assert main(["model", "merge", run.id, "--outputs", str(run.outputs), *arguments]) == 2
    error = capsys.readouterr().err
    assert (message in error, error.count("\n")) == (True, 1), error


def test_models_that_start_from_hop_0_are_independent(make_run: Make) -> None:
    """The hops of `growing` start from θ_0, like those of `lang_spec_ft`; those of `er` do not."""
    for name, start in (("growing", Start.pretrained), ("er", Start.previous)):
        assert settings_for(make_run(f"strategy={name}").config.strategy, Method.mean).start is start


def test_the_merged_strategy_is_named_by_a_key_of_its_own(make_run: Make) -> None:
    """The command `merge` plans the same run, which another process reads from its config."""
    given = ("strategy.memory=7", "trainer.epochs=1")
    [planned] = candidates(make_run("strategy=er", *given), "mean", []).values()
    merged = ("strategy.merged=er", "strategy.merged.memory=7", "strategy.start=previous", "strategy.method=mean")
    typed = make_run("strategy=merge", *merged, given[1])
    assert typed.id == planned.id
    assert typed.strategy_name == "merge+er"
    assert typed.stages[2].train == make_run("strategy=er", *given).stages[2].train
    freeze(typed)
    assert thaw(typed.directory).stages == typed.stages


def test_weights_that_are_gone_are_not_trained_again(
    make_run: Make, do: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    run = do(make_run("strategy=naive", "trainer.epochs=1"))
    shutil.rmtree(run.store.path(run.stages[2].train))
    assert main(["model", "merge", run.id, "--outputs", str(run.outputs), "--method", "mean"]) == 1
    assert "hop 2: its weights are no longer in the store" in capsys.readouterr().err
    assert not merged_runs(run)


def test_a_merge_whose_predictions_are_not_finite_stores_no_result(
    make_run: Make, do: Do, capsys: pytest.CaptureFixture[str]
) -> None:
    run = do(make_run("strategy=naive", "trainer.epochs=1"))
    before = set(run.store.all_keys())
    given = ["model", "merge", run.id, "--outputs", str(run.outputs), "--method", "task_arithmetic"]
    assert main([*given, "--coefficient", "scale=1e308"]) == 1
    error = capsys.readouterr().err
    assert "not finite" in error
    assert "Traceback" not in error
    assert not merged_runs(run)
    kinds = {run.store.facts(key)["kind"] for key in set(run.store.all_keys()) - before}
    assert "evaluation" not in kinds
