"""`store.keep`: which weights and states are removed after runs, and which stay."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.launch.forecast import budget, forecast
from xclrun.launch.sweep import release, weights_size
from xclrun.plan import Run
from xclrun.store.files import TEMPORARY
from xclrun.store.rundir import RunDirectory

from .commands import predictions, small, trainings, whole

Make = Callable[..., Run]

TRAINED = ("train", "state")


def stored(run: Run) -> set[str]:
    """Return the keys of the weights and states in the store."""
    store = run.store
    return {key for key in store.all_keys() if store.facts(key)["kind"] in TRAINED}


def fill(run: Run) -> None:
    """Store everything of a run, without training it."""
    for stage in run.stages:
        for kind, key in stage.results.items():
            name = {"weights": "train", "state": "state"}.get(kind.name, "evaluation")
            if stage.hop.index or name == "evaluation":
                run.store.put(key, {"kind": name}, lambda folder: None)


def finish(run: Run) -> None:
    """Store everything of a run, and mark it as finished."""
    fill(run)
    run.directory.open("a: 1\n", dict(run.stored))
    run.directory.scores.write_bytes(b"")
    run.directory.finish()


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count a run as finished as soon as it has a file DONE."""
    monkeypatch.setattr(RunDirectory, "finished", property(lambda self: self.done.is_file()))


@pytest.mark.parametrize(("keep", "hops"), [("all", (1, 2, 3)), ("last", (3,)), ("none", ())])
def test_a_finished_run_keeps_the_weights_that_the_key_names(
    make_run: Make, finished: None, keep: str, hops: tuple[int, ...]
) -> None:
    run = make_run("strategy=naive", f"store.keep={keep}")
    finish(run)
    release([run])
    assert stored(run) == {run.stages[hop].train for hop in hops}
    assert (weights_size([run]) > 0) is (len(hops) > 0)
    # Results stay.
    assert all(run.store.has(stage.evaluation) for stage in run.stages)


def test_of_languages_trained_separately_every_model_is_final(make_run: Make, finished: None) -> None:
    run = make_run("strategy=lang_spec_ft", "store.keep=last")
    finish(run)
    release([run])
    assert stored(run) == {run.stages[hop].train for hop in (1, 2, 3)}


def test_a_final_model_is_kept_with_all_that_its_predictions_read(make_run: Make, finished: None) -> None:
    run = make_run("strategy=mbpa", "store.keep=last")
    finish(run)
    release([run])
    last = run.stages[-1]
    assert stored(run) == {last.train, last.state}


def test_shared_hops_stay_until_the_last_run_that_needs_them_has_finished(make_run: Make, finished: None) -> None:
    naive, er = (make_run(f"strategy={name}", "store.keep=none") for name in ("naive", "er"))
    assert naive.stages[1].train == er.stages[1].train
    finish(naive)
    release([naive, er])
    assert stored(naive) == {naive.stages[1].train}
    finish(er)
    release([naive, er])
    assert stored(naive) == set()


def test_what_a_run_of_another_command_needs_or_keeps_stays(make_run: Make, finished: None) -> None:
    naive = make_run("strategy=naive", "store.keep=none")
    er = make_run("strategy=er")
    er.directory.open("a: 1\n", dict(er.stored))
    finish(naive)
    release([naive])
    assert stored(naive) == {naive.stages[1].train}
    finish(er)
    release([naive])
    assert naive.stages[1].train in stored(naive)


def test_a_later_command_does_not_change_what_a_finished_run_keeps(make_run: Make, finished: None) -> None:
    finish(run := make_run("strategy=naive"))
    # The outputs folder can be reached by another path.
    link = run.outputs.with_name("link")
    link.symlink_to(run.outputs)
    again = make_run("strategy=naive", "store.keep=none", outputs=link)
    release([again])
    assert len(stored(run)) == 3


def test_what_a_kill_left_of_a_removed_stage_does_not_keep_the_stage(make_run: Make, finished: None) -> None:
    finish(run := make_run("strategy=naive", "store.keep=none"))
    stage = run.store.path(run.stages[1].train)
    (stage.with_name(f"{TEMPORARY}removed-{stage.name}") / "part").mkdir(parents=True)
    release([run])
    assert stored(run) == set()


def test_nothing_is_removed_while_a_run_cannot_be_read(make_run: Make, finished: None) -> None:
    naive = make_run("strategy=naive", "store.keep=none")
    finish(naive)
    other = RunDirectory(naive.directory.path.with_name("other"))
    other.path.mkdir()
    for text in ("{", '{"keys": 1}'):
        other.manifest.write_text(text)
        other.done.touch()
        release([naive])
        assert len(stored(naive)) == 3


def test_a_forecast_counts_the_disk_space_that_stays(make_run: Make) -> None:
    sizes = {}
    for keep in ("all", "last", "none"):
        runs = [make_run("strategy=naive", f"store.keep={keep}")]
        sizes[keep] = forecast(runs).total.bytes, budget(runs, 1).bytes
    assert sizes["none"] == (0, 0)
    assert sizes["all"] == tuple(3 * size for size in sizes["last"])
    assert sizes["last"] > sizes["none"]


# Naive, er and the merge share the first hop; the merged model is made of three trained hops.
SWEEP = small("strategy=naive,er,merge")
Command = Callable[..., tuple[int, str]]


@pytest.mark.full
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("keep", "kept"), [("last", 5), ("none", 0)])
def test_a_sweep_trains_nothing_twice_and_predicts_the_same(
    tmp_path: Path, xclrun: Command, undisturbed: Callable[..., dict[str, str]], keep: str, kept: int, workers: int
) -> None:
    command = [*SWEEP, f"store.keep={keep}", f"hydra.launcher.n={workers}", f"paths.outputs={tmp_path}"]
    assert xclrun(*command, "-m")[0] == 0
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert len(trainings(tmp_path)) == kept
    assert whole(tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("place", ["before", "during", "after"])
@pytest.mark.parametrize("number", [1, 4])
def test_a_command_killed_while_it_removes_weights_ends_the_same(
    faults: Callable[..., Any],
    xclrun: Command,
    undisturbed: Callable[..., dict[str, str]],
    tmp_path: Path,
    place: str,
    number: int,
) -> None:
    command = [*SWEEP, "store.keep=none", f"paths.outputs={tmp_path}", "-m"]
    assert faults("dies_removing", place, number, *command) == -signal.SIGKILL
    assert xclrun(*command)[0] == 0
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert trainings(tmp_path) == []
    assert whole(tmp_path, killed=True)
