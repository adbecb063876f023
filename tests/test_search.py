"""Searches: their space, identical results after a kill, and hidden test scores."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TINY
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import record
from xclrun.analysis.tuning import Trial, Tuned
from xclrun.compose.jobs import command_jobs, compose_trials
from xclrun.compose.space import Interval, Space, Values
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, UsageError
from xclrun.core.quantity import SHARE
from xclrun.launch.console import Console
from xclrun.launch.forecast import Costs
from xclrun.launch.local import Local
from xclrun.launch.search import Search, _Searching, plan_search, search
from xclrun.launch.sweep import Sweep, SweepFailed
from xclrun.launch.trials import Trials
from xclrun.plan import Run
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory

# Optuna's own affair.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

LR = "trainer.lr=tag(log,interval(1e-4,1e-1))"
SEARCH = (*TINY, "hydra/sweeper=optuna", "strategy=er", "evaluate.every_share=1")


def space(number: int = 4, sampler: str = "tpe", seed: int = 1, **searched: Values | Interval) -> Space:
    return Space(searched, (), (), {"trials": number, "parallel": 1, "sampler": sampler, "seed": seed})


PLANE = {"x": Interval(-1.0, 1.0), "y": Interval(1e-4, 1.0, log=True), "z": Values(("a", "b", "c"))}


def made_objective(values: dict[str, str]) -> float:
    """A bowl that is best at x = 0.5, y = 0.01, z = b."""
    away = (float(values["x"]) - 0.5) ** 2 + (math.log10(float(values["y"])) + 2) ** 2
    return -away - (values["z"] != "b")


def searched(
    search_space: Space, score: Callable[[dict[str, str]], float | None], journal: Path | None = None, together: int = 1
) -> list[tuple[int, dict[str, str]]]:
    """Search to the end; return the settings that this process tried, with the size of their batch."""
    trials, tried = Trials(search_space, "made", True, journal), []
    while batch := trials.next(search_space.settings["trials"], together):
        for first in batch:
            tried.append((len(batch), dict(first.values)))
            trials.tell(first, score(dict(first.values)))
    return tried


def test_a_command_says_what_is_searched_and_what_each_trial_is_averaged_over() -> None:
    result, _ = command_jobs(
        (*SEARCH, LR, "strategy.memory=5,10", "trainer.epochs=int(interval(1,4))", "order=[en,de],[de,en]", "seed=1,2")
    )
    assert isinstance(result, Space)
    assert result.searched == {
        "trainer.lr": Interval(1e-4, 1e-1, log=True),
        "strategy.memory": Values(("5", "10")),
        "trainer.epochs": Interval(1, 4, whole=True),
    }
    [jobs] = compose_trials(result, [{"trainer.lr": "0.002", "strategy.memory": "10", "trainer.epochs": "3"}])
    configs = [job.config for job in jobs]
    assert {(c.trainer.lr, c.strategy.memory, c.trainer.epochs) for c in configs} == {(0.002, 10, 3)}  # type: ignore[attr-defined]
    assert [(c.order.languages, c.seed) for c in configs] == [
        (order, seed) for order, seed in itertools.product((["en", "de"], ["de", "en"]), (1, 2))
    ]


OF = "hydra.sweeper.objective="
EPOCHS = ("evaluate.every_share=null", "evaluate.every_examples=999", "trainer.epochs=2", "trainer.selection=best")
REFUSED = [
    ((), "hydra/sweeper=optuna: no key has several values to search; set for example trainer.lr=1e-5,3e-5 or "),
    (("strategy=er,naive",), "strategy=er,naive: a search cannot compare choices of strategy; "),
    (("seed=interval(1,3)", LR), "seed=interval(1,3): seed is averaged over, not searched; give values, as in seed=1"),
    (("trainer.lr=interval(1e-3,1e-4)",), "the first number must be below the second"),
    (("trainer.lr=tag(log,interval(0,1))",), "a log scale needs numbers above 0"),
    (("trainer.lr=tag(lgo,interval(1,2))",), "unknown tag 'lgo'; did you mean 'log'? Known: log"),
    (("trainer.lr=interval(0,1)",), "trainer.lr=0.0: must be above 0, for example 3e-5"),
    (("strategy.memory=5,-1",), "strategy.memory=-1: must be"),
    (("runtime.threads=1,2",), "hydra/sweeper=optuna: runtime.threads cannot be selected, since it has no effect"),
    ((f"{OF}dev_pf", LR), "hydra.sweeper.objective=dev_pf: unknown objective; did you mean 'dev_f'? "),
    ((f"{OF}dev_f", "evaluate.every_share=null", LR), "needs dev scores after each hop; set evaluate.every_share=1"),
    ((f"{OF}dev_f", "evaluate.point_splits=test", LR), "evaluate.point_splits=test: evaluation on dev is needed"),
    ((f"{OF}dev_fp", *EPOCHS, LR), "needs an evaluation point at the end of each epoch"),
    (("strategy=model_average", LR), "strategy=model_average: dev scores were computed before averaging the weights"),
    (
        ("strategy=multilingual", f"{OF}dev_f", LR),
        "not available for strategy=multilingual; use one of dev_learnt, dev_fp, ",
    ),
    (("hydra.sweeper.trials=1", LR), "hydra.sweeper.trials=1: must be a whole number of at least 2"),
    (("hydra.sweeper.sampler=bayes", LR), "hydra.sweeper.sampler=bayes: unknown; Known: random, tpe"),
    (("hydra/launcher=slurm", LR), "trials depend on earlier trials; set hydra.launcher.wait=true"),
]


@pytest.mark.some_cases
@pytest.mark.parametrize(("arguments", "output"), REFUSED)
def test_mistakes_are_told_before_anything_runs(
    arguments: tuple[str, ...], output: str, xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    code, printed = xclrun("plan", *SEARCH, *arguments, f"paths.outputs={tmp_path}")
    assert (code, printed.count("\n")) == (2, 1), printed
    assert output in printed
    assert not list(tmp_path.iterdir())


def test_a_search_is_refused_where_jobs_must_be_known(xclrun: Callable[..., tuple[int, str]]) -> None:
    code, printed = xclrun("plan", "--params", *SEARCH, LR)
    assert (code, printed.count("\n")) == (2, 1)
    assert "hydra/sweeper=optuna: only `xclrun` and `xclrun plan` accept a search" in printed


def test_without_optuna_one_line_says_how_it_is_installed(
    xclrun: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    code, printed = xclrun("plan", *SEARCH, LR)
    assert (code, printed.count("\n")) == (2, 1)
    assert printed.endswith("package 'optuna' is not installed; run pip install -e '.[search]' in xclrun's clone\n")


def test_a_plan_counts_all_trials(
    xclrun: Callable[..., tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*SEARCH, LR, "order=[en,de],[de,en]", "hydra.sweeper.trials=7", f"paths.outputs={tmp_path}")
    code, printed = xclrun("plan", *arguments, "--json")
    assert code == 0, printed
    facts = json.loads(printed)
    assert facts["search"] | {"name": ""} == {
        "name": "", "objective": "dev_fp", "searched": {"trainer.lr": "0.0001 … 0.1, by logarithm"}, "trials": 7,
        "made": 0, "runs_of_a_trial": 2,
    }  # fmt: skip
    assert [(facts[total]["runs"], facts[total]["asked"]) for total in ("trial", "total")] == [
        (2, 4),
        (14, 28),
    ]
    code, printed = xclrun("plan", *arguments, "--budget")
    assert printed.splitlines()[3] == "14 runs to do, 28 hop trainings after sharing"
    monkeypatch.setattr(Costs, "unmeasured", lambda *_: ("er",))
    assert "note: no training with er has been timed" in xclrun("plan", *arguments)[1]


def test_a_plan_leaves_the_journal_of_a_search_under_way_as_it_is(
    xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    arguments = (*SEARCH, LR, "sweep_name=found", f"paths.outputs={tmp_path}")
    result, _ = command_jobs(arguments)
    assert isinstance(result, Space)
    planned = plan_search(result, Local())
    planned.journal.parent.mkdir()
    trials = planned.trials()
    for score in (0.5, None):
        [first] = trials.next(2, 1)
        trials.tell(first, score)
    content = planned.journal.read_bytes() + b'{"op_code":4,"wor'
    planned.journal.write_bytes(content)
    code, printed = xclrun("plan", *arguments, "--json")
    assert (code, json.loads(printed)["search"]["made"]) == (0, 2), printed
    assert planned.journal.read_bytes() == content


def test_a_search_comes_closer_to_the_best_than_chance() -> None:
    result = {
        sampler: [
            sum(
                made_objective(values) for _, values in searched(space(24, sampler, seed, **PLANE), made_objective)[12:]
            )
            for seed in range(3)
        ]
        for sampler in ("tpe", "random")
    }
    assert min(result["tpe"]) > max(result["random"])


def test_what_is_drawn_has_three_digits_and_stays_inside() -> None:
    tried = searched(space(30, "random", **PLANE), made_objective)
    assert all(-1 <= float(v["x"]) <= 1 and 1e-4 <= float(v["y"]) <= 1 for _, v in tried)
    assert all(float(v[k]) == float(f"{float(v[k]):.3g}") for _, v in tried for k in ("x", "y"))
    assert Interval(0.12345, 0.12349).text(0.12346) == "0.12345"
    # By the logarithm: half of them below the geometric mean.
    assert 8 <= sum(float(v["y"]) < 1e-2 for _, v in tried) <= 22


@pytest.mark.parametrize("together", [1, 3])
def test_a_search_that_was_killed_anywhere_goes_on_as_if_it_had_not_been(together: int, tmp_path: Path) -> None:
    search_space = space(10, x=Interval(1, 3, whole=True), z=Values(("a", "b", "c", "d")))

    def score(values: dict[str, str]) -> float | None:
        return None if values == {"x": "2", "z": "c"} else float(values["x"]) - ord(values["z"])

    whole = tmp_path / "whole.log"
    undisturbed = searched(search_space, score, whole, together)
    assert len({tuple(values.values()) for _, values in undisturbed}) == len(undisturbed) == 10
    content, generator = whole.read_bytes(), random.Random(together)
    for k in range(8):
        journal = tmp_path / f"{k}.log"
        journal.write_bytes(content[: generator.randrange(len(content))])
        before = Trials(search_space, "made", True, journal).tried
        after = [values for _, values in searched(search_space, score, journal, together)]
        assert [dict(trial.values) for trial in before] + after == [values for _, values in undisturbed]
        assert [first.score for first in Trials(search_space, "made", True, journal).tried] == [
            score(v) for _, v in undisturbed
        ]


def test_every_setting_of_a_small_space_is_tried_once_and_then_the_search_is_over() -> None:
    search_space = space(50, x=Interval(1, 2, whole=True), z=Values(("a", "b", "c")))
    tried = searched(search_space, lambda values: float(values["x"]))
    assert sorted(tuple(v.values()) for _, v in tried) == sorted(itertools.product("12", "abc"))
    # All numbers of three digits between two: these cannot be listed, and run out.
    assert 1 <= len(searched(space(50, x=Interval(1.0, 1.02)), lambda values: 0.0)) <= 3


def test_a_lock_that_a_killed_search_left_does_not_stop_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Optuna's lock: a link to the path as it was given, which does not exist as seen from the link.
    Path("searches").mkdir()
    lock = Path("searches/a.log.lock")
    lock.symlink_to("searches/a.log")

    stat = os.stat

    def watched(path: Any, *args: Any, **options: Any) -> os.stat_result:
        assert not str(path).endswith(".lock"), "Optuna waits for a lock"
        return stat(path, *args, **options)

    monkeypatch.setattr(os, "stat", watched)
    trials = Trials(space(**PLANE), "made", True, Path("searches/a.log"))
    assert not os.path.lexists(lock)
    # The journal is found from another working directory, too.
    monkeypatch.chdir("/")
    trials.next(1, 1)
    assert b'"op_code":4' in (tmp_path / "searches/a.log").read_bytes()


def test_a_journal_is_of_one_search(tmp_path: Path) -> None:
    journal = tmp_path / "a.log"
    Trials(space(**PLANE), "made", True, journal)
    with pytest.raises(UsageError, match=r"a\.log is the journal of another search \(made\) .* sweep_name=NAME"):
        Trials(space(**PLANE), "other", True, journal)


@pytest.mark.parametrize(
    "content", ["3\n", "null\n", '{"op_code":99,"worker_id":"a"}\n', "notes without an end of line"]
)
def test_a_file_that_is_no_journal_is_named_and_left_as_it_is(content: str, tmp_path: Path) -> None:
    journal = tmp_path / "a.log"
    journal.write_text(content)
    with pytest.raises(RunError, match=r"a\.log is damaged \(.*\); remove it"):
        Trials(space(**PLANE), "made", True, journal)
    assert journal.read_text() == content


def test_a_blind_console_shows_no_score(finished: Callable[..., Run], capsys: pytest.CaptureFixture[str]) -> None:
    run = finished()
    scores = {key: {"intent_accuracy": 0.5432, "slot_f1": 0.1234} for key in run.stream.languages}
    for blind in (False, True):
        console = Console([run.id], blind=blind)
        console.run_started(run)
        for hop in run.stream.hops:
            console.hop_ended(run, hop, scores, shared=True)
        console.run_ended(run, 1.0)
        display = capsys.readouterr().err
        assert ("54" in display) is ("FP" in display) is ("intent" in display) is (not blind), display
        assert ("hop 3/3 es · shared" in display) is blind


def settled(outputs: Path) -> dict[str, Any]:
    """Return what a search left: its settings and scores in order, and the predictions of its runs."""
    [journal] = (outputs / "searches").glob("*.log")
    facts = [json.loads(line) for line in journal.read_text().splitlines()]
    drawn = [f["params"] for f in facts if f["op_code"] == 4]
    scores = [(f["trial_id"], f["values"]) for f in facts if f["op_code"] == 6]
    predictions = {p.relative_to(outputs): p.read_bytes() for p in sorted(outputs.glob("runs/*/predictions/*"))}
    return {"drawn": drawn, "scores": scores, "predictions": predictions}


@dataclass(frozen=True)
class Breaking(Local):
    """Does runs here, until it has done ``good`` of them: then each fails."""

    good: int = 0

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        done = len(list(sweep.outputs.glob("runs/*/DONE")))
        if done >= self.good:
            raise SweepFailed("failed: no space left on device")
        super().do(sweep, unfinished)


@pytest.mark.full
def test_settings_that_failed_are_tried_again_and_those_without_a_dev_score_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = (*SEARCH, "trainer.lr=1e-2,1e-3,1e-4", "order=[en]", "sweep_name=found", "hydra.sweeper.trials=3")
    result, _ = command_jobs((*arguments, f"paths.outputs={tmp_path}"))
    assert isinstance(result, Space)
    for good, output in ((0, "all settings have failed so far"), (1, "found: only 1 of 3 settings succeeded")):
        with pytest.raises(SweepFailed, match=f"{output}.*; re-run the same command to retry$"):
            search(result, Breaking(good=good))
    assert json.loads((tmp_path / "sweeps/found.json").read_text())["search"]["ended"] is False
    journal = tmp_path / "searches/found.log"
    drawn = journal.read_text().count('"op_code":4')
    capsys.readouterr()

    blind = next(iter(tmp_path.glob("runs/*"))).name

    def without_points(directory: RunDirectory) -> RunRecord:
        read = record(directory)
        return replace(read, points=()) if read.run_id == blind else read

    monkeypatch.setattr("xclrun.launch.search.record", without_points)
    search(result, Local())
    printed = capsys.readouterr()
    output = printed.out + printed.err
    assert f": skipped: hydra/sweeper=optuna: {blind} (er) has no FP on dev: dev scores are missing" in output
    assert "retrying 2 trials" in output
    assert "2 settings tried, 1 failed" in output
    facts = json.loads((tmp_path / "sweeps/found.json").read_text())["search"]
    assert (facts["ended"], facts["made"], len(facts["runs"])) == (True, 3, 2)
    assert blind not in facts["runs"]
    assert journal.read_text().count('"op_code":4') == drawn == 3


@pytest.mark.full
@pytest.mark.in_turn
def test_a_search_killed_for_real_goes_on_and_its_report_shows_the_chosen_setting_alone(
    xclrun: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    arguments = (*SEARCH, LR, "order=[en,de]", "seed=1,2", "hydra.sweeper.trials=3", "sweep_name=found", "-m")

    def start(outputs: Path) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "xclrun", *arguments, f"paths.outputs={outputs}"]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    outputs = {name: tmp_path / name for name in ("whole", "killed")}
    process = start(outputs["whole"])
    output = process.communicate()[0]
    assert process.returncode == 0, output
    kills = 0
    for seen in (1, 3):
        process = start(outputs["killed"])
        assert process.stdout is not None
        hops = 0
        for line in process.stdout:
            hops += "hop 1/2" in line
            if hops == seen:
                os.kill(process.pid, signal.SIGKILL)
                kills += 1
                break
        process.communicate()
        if seen == 1:
            code, printed = xclrun("report", "found", "--outputs", str(outputs["killed"]), "--from-runs")
            assert code == 2
            assert "found is a search with 0 of 3 trials; test scores are hidden until it has finished" in printed
    assert kills == 2
    process = start(outputs["killed"])
    output = process.communicate()[0]
    assert process.returncode == 0, output
    assert settled(outputs["killed"]) == settled(outputs["whole"])
    [chosen] = re.findall(r"Best on dev: (.*)", output)

    code, printed = xclrun("report", "found", "--outputs", str(outputs["killed"]), "--from-runs", "--json")
    assert code == 0, printed
    facts = json.loads(printed[printed.index("{") :])["chosen"]
    [tuned] = facts["strategies"]
    assert (facts["objective"], len(tuned["trials"])) == ("dev_fp", 3)
    assert chosen == ", ".join(f"{key}={value}" for key, value in tuned["trials"][0]["values"].items())
    runs = (outputs["killed"] / "reports" / "found" / "runs.csv").read_text(encoding="utf-8")
    assert [run for trial in tuned["trials"] for run in trial["runs"] if run in runs] == tuned["trials"][0]["runs"]
    budgets = (outputs["killed"] / "reports" / "found" / "tables" / "mini_tiny_budgets.csv").read_text(encoding="utf-8")
    assert budgets.splitlines()[1].endswith(",3")


@pytest.mark.parametrize(("most", "together", "batches"), [(7, 3, [3, 3, 1]), (2, 5, [2]), (4, 1, [1, 1, 1, 1])])
def test_settings_come_in_batches_up_to_the_number_of_trials(most: int, together: int, batches: list[int]) -> None:
    trials = Trials(space(most, "random", **PLANE), "made", True)
    found = []
    while len(found) <= len(batches) and (batch := trials.next(most, together)):
        found.append(len(batch))
        for setting in batch:
            assert setting.open
            trials.tell(setting, None if setting.number == 0 else 0.5)
    assert found == batches
    # A setting that failed is one of the trials, without a score.
    assert [setting.score for setting in trials.tried] == [None, *[0.5] * (most - 1)]


def test_a_batch_that_was_interrupted_is_completed_with_the_same_settings(tmp_path: Path) -> None:
    """Those that are still open come first, and no more than the batch had."""
    search_space = space(6, "random", **PLANE)
    whole, part = (Trials(search_space, "made", True, tmp_path / name) for name in ("whole", "part"))
    expected = whole.next(6, 3)
    assert part.next(6, 3) == expected
    part.tell(expected[1], 0.5)
    again = Trials(search_space, "made", True, tmp_path / "part").next(6, 3)
    assert [setting.number for setting in again] == [expected[0].number, expected[2].number]
    assert [setting.values for setting in again] == [expected[0].values, expected[2].values]
    # Fewer at a time than there are open.
    [first] = Trials(search_space, "made", True, tmp_path / "whole").next(6, 1)
    assert first.values == expected[0].values


@pytest.mark.parametrize("higher", [True, False])
def test_a_search_goes_towards_better_scores(higher: bool) -> None:
    trials = Trials(space(1, **PLANE), "made", higher)
    [first] = trials.next(1, 1)
    trials.tell(first, 0.5)
    assert trials.study.direction.name == ("MAXIMIZE" if higher else "MINIMIZE")
    assert trials.study.best_value == 0.5


# --- The loop over trials: runs that are never trained.


class Pretended(Local):
    """Finishes runs without training them, except those with values in ``failing``."""

    failing: set[str] = set()
    began: list[str] = []

    def do(self, sweep: Sweep, unfinished: Sequence[Run]) -> None:
        facts = read_json(sweep.outputs / "sweeps" / "found.json")["search"]
        assert (facts["ended"], sweep.blind, sweep.tracking.enabled) == (False, True, False)
        for run in unfinished:
            self.began.append(run.id)
            setattr(run.directory, "failed" if run.id in self.failing else "finished", True)
        if self.failing & {run.id for run in unfinished}:
            raise SweepFailed("failed")


@pytest.fixture
def loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Search in a new process where these values fail; return the facts of the sweep's file and the runs that began."""
    runs: dict[str, Any] = {}
    search_space = space(4, "random", x=Values(("1", "2", "3", "4")))
    search_space.settings["comparisons"] = {}

    def run_of(x: str) -> Any:
        directory = SimpleNamespace(run_id=x, finished=False, failed=False)
        directory.failed_since = lambda since: directory.failed
        config = SimpleNamespace(model=SimpleNamespace(name="tiny"), tracking=TrackingConfig(enabled=False))
        facts = {"outputs": tmp_path, "strategy_name": "er", "dataset": SimpleNamespace(name="mini"), "config": config}
        return runs.setdefault(x, SimpleNamespace(id=x, directory=directory, **facts))

    def trial(values: dict[str, str], records: Sequence[Any], *_: Any) -> Trial:
        return Trial(values, float(values["x"]), math.nan, tuple(records))

    def choose(records: Sequence[Any], *_: Any) -> Any:
        best = sorted((trial({"x": one.run_id}, [one]) for one in records), key=lambda one: -one.score)
        return SimpleNamespace(tuned=[Tuned("mini", "tiny", "er", tuple(best), 1)])

    monkeypatch.setattr(Search, "quantity", SHARE)
    monkeypatch.setattr(Search, "runs", lambda self, settings: [[run_of(s.values["x"])] for s in settings])
    for name, value in (
        ("record", lambda directory: SimpleNamespace(run_id=directory.run_id, config={"x": directory.run_id})),
        ("scored_trial", trial),
        ("choose", choose),
        ("notes", lambda probe: []),
        ("note_lines", lambda *_: []),
    ):
        monkeypatch.setattr(f"xclrun.launch.search.{name}", value)
    monkeypatch.setattr("xclrun.report.parts.chosen.trial_table", lambda *_: SimpleNamespace(text=lambda: "trials"))

    def go(failing: str = "", trials: int = 4) -> dict[str, Any]:
        search_space.settings["trials"] = trials
        objective: Any = SimpleNamespace(name="dev_fp", title="FP on dev")
        Pretended.failing, Pretended.began = {*failing}, []
        planned = Search(search_space, objective, (run_of("probe"),), "found", "made")
        _Searching(planned, Pretended()).run()
        return {**read_json(tmp_path / "sweeps" / "found.json")["search"], "began": Pretended.began}

    return go


def test_a_search_ends_with_its_last_trial_and_runs_nothing_again(
    loop: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = loop(trials=3)
    assert (facts["ended"], facts["made"], len(facts["runs"]), facts["keys"]) == (True, 3, 3, ["x"])
    assert facts["began"] == facts["runs"]
    best = max(facts["runs"])
    assert f"Best on dev: x={best}\n" in capsys.readouterr().err
    assert loop(trials=3)["began"] == []
    # No more than there are settings.
    facts = loop(trials=9)
    assert (facts["made"], sorted(facts["runs"]), len(facts["began"])) == (4, [*"1234"], 1)


def test_settings_that_failed_are_tried_again_by_the_next_command_and_scored_once(
    loop: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    facts = loop("2")
    assert (facts["made"], sorted(facts["runs"])) == (4, [*"134"])
    assert "4 settings tried" not in capsys.readouterr().err
    facts = loop()
    assert (facts["began"], sorted(facts["runs"])) == (["2"], [*"1234"])
    printed = capsys.readouterr().err
    assert "retrying 1 trial " in printed
    assert "4 settings tried in" in printed


def test_first_settings_that_fail_stop_the_command_once(loop: Callable[..., dict[str, Any]]) -> None:
    """The machine may be the cause; if they fail again, the settings are."""
    with pytest.raises(SweepFailed, match="all settings have failed so far"):
        loop("1234")
    assert len(Pretended.began) == 1
    [first] = Pretended.began
    facts = loop(first)
    assert (facts["made"], facts["ended"], len(facts["runs"])) == (4, True, 3)


def test_a_search_whose_settings_all_fail_comes_to_an_end(loop: Callable[..., dict[str, Any]]) -> None:
    for _ in range(2):
        with pytest.raises(SweepFailed, match=r"have failed so far; re-run the same command to retry$"):
            loop("1234", trials=2)
    with pytest.raises(SweepFailed, match="only 0 of 2 settings succeeded"):
        loop("1234", trials=2)


@pytest.mark.parametrize("change", ["seed", "sampler", "searched", "objective", "runs"])
def test_a_journal_is_of_what_decides_its_settings(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def identity(**given: Any) -> str:
        planned = space(4, given.get("sampler", "tpe"), given.get("seed", 1), x=given.get("searched", Values(("1",))))
        planned.settings["objective"] = given.get("objective", "dev_fp")
        runs = [SimpleNamespace(id=id, outputs=Path("o"), resolved={}) for id in given.get("runs", ("b", "a"))]
        for name, value in (
            ("compose_trials", lambda *_: [[SimpleNamespace(config=None)]]),
            ("plan_jobs", lambda configs: runs),
            ("check_keys", lambda *_: None),
            ("_objective", lambda name, runs: SimpleNamespace(name=name)),
            ("given_name", lambda jobs: None),
        ):
            monkeypatch.setattr(f"xclrun.launch.search.{name}", value)
        return plan_search(planned, Local()).identity

    others = {"seed": 2, "sampler": "random", "searched": Values(("1", "2")), "objective": "dev_f", "runs": ("a", "c")}
    assert identity() == identity(runs=("a", "b"))
    assert identity(**{change: others[change]}) != identity()
