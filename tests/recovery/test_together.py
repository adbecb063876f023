"""Several processes on one sweep and one store: nothing is trained twice, and a dead owner is not waited for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from xclrun.store import lease
from xclrun.strategy import STRATEGIES

from .commands import SMALL, XCLRUN, events, predictions, small, trainings, wait_for, whole

SWEEP = small("strategy=naive,er,lang_spec_ft", "order=[en,de,th],[th,en,de]")
# naive and er train hops 2 and 3 apart, in both orders; lang_spec_ft's three are the first hops of these and de's.
NEEDED = 2 * 2 * 2 + 3


@pytest.mark.full
def test_started_at_once(
    faults: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    result = faults("together", tmp_path, 4, 0, *SWEEP, f"paths.outputs={tmp_path}", "-m")
    assert result["codes"] == [0, 0, 0, 0]
    assert sorted(result["trained"]) == trainings(tmp_path)
    assert len(result["trained"]) == NEEDED
    # More than one process took part, or the test shows nothing.
    assert len({event["pid"] for event in events(tmp_path, "started")}) > 1
    assert len(events(tmp_path, "finished")) == 6
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert whole(tmp_path)


@pytest.mark.full
def test_one_dies_in_a_training(
    faults: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    result = faults("together", tmp_path, 4, 2, *SWEEP, f"paths.outputs={tmp_path}", "-m")
    assert sorted(result["codes"]) == [-signal.SIGKILL, 0, 0, 0]
    assert sorted(result["trained"]) == trainings(tmp_path)
    assert len(result["trained"]) == NEEDED
    assert result["seconds"] < lease.SILENCE
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert whole(tmp_path)


@pytest.mark.full
def test_commands_of_four_shells(
    start: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    log, script = tmp_path / "trained", str(Path(__file__).with_name("faults.py"))
    arguments = (*SWEEP, f"paths.outputs={tmp_path}", "-m")

    def shell(role: str) -> subprocess.Popen[str]:
        command = [sys.executable, script, "alone", str(log), role, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    shells = [shell(role) for role in ("bystander", "victim", "bystander", "bystander")]
    output = [process.communicate(timeout=300)[0] for process in shells]
    assert sorted(process.returncode for process in shells) == [-signal.SIGKILL, 0, 0, 0], output
    assert sorted(log.read_text().split()) == trainings(tmp_path)
    assert len(trainings(tmp_path)) == NEEDED
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert whole(tmp_path)


def test_silent_owner_on_another_machine(
    xclrun: Callable[..., tuple[int, str]],
    undisturbed: Callable[..., dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(lease, "SILENCE", 1.0)
    arguments = (*small("strategy=er"), f"paths.outputs={tmp_path}", "-m")
    from xclrun.command.plan import plan_runs

    [run] = plan_runs(arguments[:-1])
    locked = run.store.path(run.stages[1].train).with_name(f"{run.stages[1].train}.lease-1")
    locked.parent.mkdir(parents=True)
    locked.write_text(json.dumps({"host": "elsewhere", "machine": "another", "pid": os.getpid(), "birth": "1"}))
    ask, options = lease.Lease.try_acquire, []

    def first(self: lease.Lease) -> Path | None:
        # Its last sign of life comes just before it is asked for, however long the command took to get there.
        if locked.name.startswith(self.path.name) and not options:
            os.utime(locked)
            options.append(time.monotonic())
        return ask(self)

    monkeypatch.setattr(lease.Lease, "try_acquire", first)
    code, output = xclrun(*arguments)
    assert code == 0, output
    assert time.monotonic() - options[0] > 1.0 - 0.1
    assert "waits for elsewhere, process" in " ".join(output.split())
    assert predictions(tmp_path) == undisturbed(small("strategy=er"))
    assert whole(tmp_path)


@pytest.mark.full
def test_owner_on_another_machine_that_gives_signs_of_life_is_waited_for(
    start: Callable[..., Any], tmp_path: Path
) -> None:
    arguments = (*SMALL, f"paths.outputs={tmp_path}", "-m")
    from xclrun.command.plan import plan_runs

    [run] = plan_runs(arguments[:-1])
    locked = run.store.path(run.stages[1].train).with_name(f"{run.stages[1].train}.lease-1")
    locked.parent.mkdir(parents=True)
    locked.write_text(json.dumps({"host": "elsewhere", "machine": "another", "pid": 1, "birth": "1"}))
    process = start(*arguments)

    def signs_of_life() -> bool:
        # However slow the machine, the owner is never silent for long.
        locked.touch()
        return any(tmp_path.glob("runs/*/predictions/hop-0.parquet"))

    wait_for(signs_of_life)
    time.sleep(1.5)
    assert process.poll() is None
    assert trainings(tmp_path) == []
    locked.unlink()
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 0, output
    assert len(trainings(tmp_path)) == 3


@pytest.mark.full
def test_two_workers_give_what_one_gives(undisturbed: Callable[..., dict[str, str]], tmp_path: Path) -> None:
    command = [*XCLRUN, *SWEEP, "hydra.launcher.n=2", f"paths.outputs={tmp_path}", "-m"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert predictions(tmp_path) == undisturbed(SWEEP)
    assert whole(tmp_path)


@pytest.mark.full
def test_a_run_that_fails_is_tried_by_one_worker(tmp_path: Path) -> None:
    arguments = small("seed=1,2,3", "trainer.lr=1e30", "hydra.launcher.n=2", f"paths.outputs={tmp_path}")
    for tries in (3, 6):
        done = subprocess.run([*XCLRUN, *arguments, "-m"], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 1
        assert "0 of 3 runs finished" in done.stderr
        assert len(events(tmp_path, "failed")) == tries


@pytest.mark.parametrize(
    ("extra", "orders", "strategies"),
    [
        (
            ["dataset.languages=[en,de]"],
            "[en,de],[de,en]",
            ["naive", "lang_spec_ft"],
        ),
        pytest.param(
            ["dataset.languages=[en,de,hi]"],
            # The first two share a hop.
            "[en,de,hi],[en,hi,de],[de,hi,en]",
            [name for name in STRATEGIES if "pooler" not in name],  # those need another task
            marks=pytest.mark.full,
        ),
    ],
    ids=["2 orders", "3 orders"],
)
def test_trained_is_what_was_planned(
    xclrun: Callable[..., tuple[int, str]], tmp_path: Path, extra: list[str], orders: str, strategies: list[str]
) -> None:
    arguments = small(*extra, f"order={orders}", f"strategy={','.join(strategies)}", f"paths.outputs={tmp_path}")

    def planned() -> dict[str, Any]:
        return json.loads(xclrun("plan", *arguments, "--json")[1])

    before = planned()
    assert before["total"]["finished"] == 0
    assert before["total"]["needed"] < before["total"]["asked"]
    code, output = xclrun(*arguments, "-m")
    assert code == 0, output
    assert len(trainings(tmp_path)) == before["total"]["needed"]
    # A training that is done again leaves one stage, but is told as a hop that is not shared.
    done_here = [event for event in events(tmp_path, "hop") if event["hop"] and not event["shared"]]
    assert len(done_here) == before["total"]["needed"]
    after = planned()
    assert after["total"]["needed"] == 0
    assert after["total"]["finished"] == after["total"]["runs"] == before["total"]["runs"]
