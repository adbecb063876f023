"""Workers: what they share by being forked, and one whose GPU refuses all further work (emulated)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.launch import workers
from xclrun.launch.console import Console
from xclrun.plan import Run
from xclrun.store.lease import Lease
from xclrun.tracking.background import BackgroundMirror

from .commands import events, small

Make = Callable[..., Run]

ONE_HOP = ("order=[en]", "trainer.epochs=1")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """A GPU that refuses all work after the first update of a training, in this process."""
    import torch

    from xclrun.train.loop import HopTraining

    state = [False]

    def asserts(self: HopTraining, *arguments: Any) -> None:
        state[0] = True
        raise RuntimeError("CUDA error: device-side assert triggered")

    def synchronize() -> None:
        if state[0]:
            raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(HopTraining, "_update", asserts)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    return state


def work(runs: list[Run], since: float | None = None) -> None:
    mirror = BackgroundMirror(runs[0].outputs, runs[0].config.tracking, [run.id for run in runs], enabled=False)
    with mirror:
        workers.work(runs, Console([run.id for run in runs], buffered=True), mirror, since)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch, make_run: Make, tmp_path: Path) -> Callable[..., list[int]]:
    """Work on four runs that need leases of another process; return the numbers of the runs in the order of attempts.

    Args:
        needed: number of a run → name of the lease that it needs.
        released: name of a lease → number of the attempt after which the other process releases it.
    """
    runs = [make_run(f"seed={seed}") for seed in (1, 2, 3, 4)]

    def attempted(needed: dict[int, str], released: dict[str, int]) -> list[int]:
        leases = {name: Lease(tmp_path / name) for name in released}
        files = {name: lease.try_acquire() for name, lease in leases.items()}
        tries: list[int] = []

        def execute(run: Run, console: Console, mirror: BackgroundMirror) -> Lease | None:
            tries.append(runs.index(run) + 1)
            lease = leases.get(needed.get(tries[-1], ""))
            result = None if lease is None or lease.free else lease
            for name, attempt in released.items():
                if attempt == len(tries) and (file := files[name]) is not None:
                    leases[name].release(file)
            return result

        monkeypatch.setattr(workers, "_execute", execute)
        work(runs)
        return tries

    return attempted


def test_postponed_runs_are_tried_again_as_soon_as_their_leases_are_free(attempts: Callable[..., list[int]]) -> None:
    assert attempts({1: "hop", 2: "hop"}, {"hop": 3}) == [1, 2, 3, 1, 2, 4]
    assert attempts({1: "other", 2: "hop"}, {"hop": 3, "other": 5}) == [1, 2, 3, 2, 4, 1]


def test_a_worker_without_other_runs_waits_for_all_leases_at_once(attempts: Callable[..., list[int]]) -> None:
    """Another process works on run 3 for a long time, but on the hop that run 4 needs for a short time."""
    assert attempts({3: "run", 4: "hop"}, {"hop": 4, "run": 5}) == [1, 2, 3, 4, 4, 3]


def test_a_process_whose_gpu_is_broken_does_no_other_run(
    make_run: Make, threads: None, broken: list[bool], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (make_run(*ONE_HOP, f"seed={seed}") for seed in (1, 2))
    since = time.time()
    with pytest.raises(workers.Broken, match=f"{first.id}: the GPU accepts no"):
        work([first, second], since)
    assert first.directory.read_manifest()["status"] == "failed"
    assert "device-side assert" in (first.directory.path / "error.log").read_text()
    assert not second.directory.path.exists()
    # Another worker takes it up once more, from where it was; after that it has failed.
    assert not first.directory.failed_since(since)
    broken[0] = False
    with pytest.raises(workers.Broken):
        work([first], since)
    assert first.directory.failed_since(since)
    work([first], since)


def test_an_error_that_leaves_the_gpu_whole_fails_its_run_alone(
    make_run: Make, threads: None, broken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    runs, since = [make_run(*ONE_HOP, f"seed={seed}") for seed in (1, 2)], time.time()
    work(runs, since)
    assert all(run.directory.failed_since(since) for run in runs)


def test_a_dead_worker_leaves_the_run_whose_lease_it_holds_on_this_machine() -> None:
    here = socket.gethostname()

    def run(*owner: Any) -> Any:
        held = SimpleNamespace(host=owner[0], pid=owner[1]) if owner else None
        return SimpleNamespace(directory=SimpleNamespace(lease=SimpleNamespace(owner=lambda: held)))

    runs = [run(), run("elsewhere", 7), run(here, 8), run(here, 7)]
    assert workers._abandoned(runs, 7) is runs[3]
    assert workers._abandoned(runs[:3], 7) is None


def test_a_new_worker_takes_the_place_of_one_that_ended_so(capsys: pytest.CaptureFixture[str]) -> None:
    started: list[subprocess.Popen[bytes]] = []
    places: list[str | None] = []

    def ends(code: int) -> int:
        started.append(subprocess.Popen([sys.executable, "-Sc", f"raise SystemExit({code})"]))
        return started[-1].pid

    def again(place: str | None) -> int | None:
        places.append(place)
        return ends(workers.BROKEN) if len(places) == 1 else None

    # One ends well, one after an error, and one so; the one in its place too, and then all are to stop.
    workers._wait_for({ends(0): "0", ends(1): "0", ends(workers.BROKEN): "1"}, [], Console([]), again)
    for process in started:
        process.wait()
    assert places == ["1", "1"]
    assert capsys.readouterr().err.count("a new worker replaces it") == 1


def test_what_workers_share_is_there_before_they_are_forked(
    make_run: Make, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from xclrun.train import encodings

    run = make_run(*ONE_HOP)
    read: list[Any] = []
    monkeypatch.setattr("xclrun.model.encoder.read_ahead", read.append)
    monkeypatch.setattr(encodings, "_common", None)
    workers.share([run])
    assert read == [run.config.model]
    assert encodings._common is not None
    stored = dict(encodings._common[1].splits)
    splits = encodings.encodings(run).splits
    assert all(any(split is other for other in stored.values()) for split in splits.values())


def test_nothing_is_read_for_runs_whose_evaluations_are_there(
    make_run: Make, do: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    from xclrun.train import encodings

    run = do(make_run(*ONE_HOP))
    monkeypatch.setattr(encodings, "_common", None)
    workers.share([run])
    assert encodings._common is None


# A command with two workers, in which the GPU breaks at the third update of all, once: an emulation, on a CPU.
EMULATED = """
import json, os, sys, torch
from pathlib import Path
from xclrun.train.loop import HopTraining
marker, update, state = Path(sys.argv.pop(1)), HopTraining._update, {"updates": 0, "broken": False}

def asserts(self, *given):
    state["updates"] += 1
    if state["updates"] == 3:
        try:
            marker.open("x").write(str(os.getpid()))
            state["broken"] = True
        except FileExistsError:
            pass
    refuse()
    return update(self, *given)

def refuse():
    if state["broken"]:
        raise RuntimeError("CUDA error: device-side assert triggered")

HopTraining._update = asserts
torch.cuda.is_initialized, torch.cuda.synchronize = (lambda: True), refuse
from xclrun.cli import main
sys.exit(main())
"""


@pytest.mark.full
def test_the_run_of_a_broken_gpu_is_finished_by_another_worker(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    arguments = [*small("seed=1,2,3,4", "order=[en]"), f"paths.outputs={outputs}", "hydra.launcher.n=2", "-m"]
    command = [sys.executable, "-c", EMULATED, str(tmp_path / "marker"), *arguments]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, env=alone, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a new worker replaces it" in done.stderr
    assert len(list(outputs.glob("runs/*/DONE"))) == 4
    [lost] = events(outputs, "gpu_broken")
    tries = events(outputs, "started")
    # One try more than there are runs, by three processes in all.
    assert len(tries) == 5
    assert len({event["pid"] for event in tries}) == 3
    assert lost["time"] < max(event["time"] for event in tries)
