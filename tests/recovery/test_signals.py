"""A signal in the middle of a hop: a checkpoint, the exit code, and the same command resumes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .commands import events, predictions, small, wait_for, whole

# Some 15 seconds of work each; that a stop in a hop changes nothing is tested in one process too (tests/train).
pytestmark = pytest.mark.full

# Hops of a second or more, of which nothing is saved but at a signal; those of two workers, which start one after the
# other, of some seconds.
HOPS = small("strategy=er", "dataset.max_train=48", "trainer.epochs=6", "trainer.checkpoint_minutes=1000")
LONG = small(*HOPS, "trainer.epochs=15")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_signal_in_a_hop(
    number: signal.Signals,
    start: Callable[..., Any],
    xclrun: Callable[..., tuple[int, str]],
    undisturbed: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    arguments = (*HOPS, f"paths.outputs={tmp_path}", "-m")
    process = start(*arguments)
    wait_for(lambda: list(tmp_path.glob("runs/*/progress.json")))
    assert list(tmp_path.glob("store/*/*.checkpoints/*")) == []
    process.send_signal(number)
    sent = time.monotonic()
    output = process.communicate(timeout=30)[0]
    assert time.monotonic() - sent < 10
    assert process.returncode == 128 + number
    assert f"stopped by {number.name}" in output
    assert "Traceback" not in output
    assert len(list(tmp_path.glob("store/*/*.checkpoints/*.safetensors"))) == 1

    code, output = xclrun("status", "--outputs", str(tmp_path))
    assert code == 0
    assert "1 interrupted" in output

    code, output = xclrun(*arguments)
    assert code == 0, output
    assert predictions(tmp_path) == undisturbed(HOPS)
    assert len(events(tmp_path, "started")) == 2
    assert list(tmp_path.glob("store/*/*.checkpoints")) == []
    assert whole(tmp_path)


@pytest.mark.parametrize("to_all", [False, True], ids=["launcher", "terminal"])
def test_signal_with_workers(
    to_all: bool, start: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    sweep = (*LONG, "seed=1,2")
    arguments = (*sweep, "hydra.launcher.n=2", f"paths.outputs={tmp_path}", "-m")
    process = start(*arguments, start_new_session=True)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/progress.json"))) == 2)
    if to_all:
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=30)[0]
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert [event["error"] for event in events(tmp_path, "interrupted")] == ["SIGINT", "SIGINT"]
    assert len(list(tmp_path.glob("store/*/*.checkpoints/*.safetensors"))) == 2
    again = start(*arguments)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 0, output
    assert predictions(tmp_path) == undisturbed(sweep)
    assert whole(tmp_path)


def test_workers_whose_launcher_is_killed_save_checkpoints(
    start: Callable[..., Any], undisturbed: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    sweep = (*LONG, "seed=1,2")
    arguments = (*sweep, "hydra.launcher.n=2", f"paths.outputs={tmp_path}", "-m")
    process = start(*arguments)
    wait_for(lambda: len(list(tmp_path.glob("runs/*/progress.json"))) == 2)
    process.kill()
    process.communicate(timeout=30)
    wait_for(lambda: len(events(tmp_path, "interrupted")) == 2)
    assert [event["error"] for event in events(tmp_path, "interrupted")] == ["SIGTERM", "SIGTERM"]
    assert len(list(tmp_path.glob("store/*/*.checkpoints/*.safetensors"))) == 2
    again = start(*arguments)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 0, output
    assert predictions(tmp_path) == undisturbed(sweep)
    assert whole(tmp_path)
