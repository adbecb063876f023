"""Signals set a flag, and a second one does not wait; several listeners hear what one would."""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context
from typing import Any

import pytest

from xclrun.train.progress import Listener, Listeners
from xclrun.train.stop import ECHO, GRACE, SIGNALS, StopFlag, Stopped, begin_worker, handle, stop_on_signals


@pytest.fixture(autouse=True)
def with_a_terminal() -> Iterator[None]:
    """Handle SIGHUP in these tests, even if pytest was started by nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_sets_the_flag(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with stop_on_signals() as stop:
        stop.check()
        os.kill(os.getpid(), number)
        assert stop.number == number
        with pytest.raises(Stopped, match=number.name):
            stop.check()
    assert signal.getsignal(number) is before


def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_worker_stops_when_its_launcher_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xclrun.train.stop._launcher", os.getppid())
    StopFlag().check()
    monkeypatch.setattr("xclrun.train.stop._launcher", os.getppid() + 1)
    with pytest.raises(Stopped, match="SIGTERM"):
        StopFlag().check()
    # The first signal counts.
    assert StopFlag(signal.SIGINT).received() == signal.SIGINT


def as_a_worker() -> None:
    begin_worker(os.getppid())
    StopFlag().check()
    signal.raise_signal(signal.SIGTERM)


def test_a_worker_does_not_keep_the_handlers_of_its_launcher() -> None:
    """Between two runs, a signal ends a worker; its launcher passes signals on instead."""
    before = handle(lambda number, frame: None)
    try:
        worker = get_context("fork").Process(target=as_a_worker)
        worker.start()
        worker.join(30)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert worker.exitcode == -signal.SIGTERM


@pytest.mark.parametrize(("second", "raised"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Stopped)])
def test_a_second_signal_stops_at_once_and_an_echo_does_not(
    second: signal.Signals, raised: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), second)
        assert stop.number == signal.SIGTERM
        monkeypatch.setattr("xclrun.train.stop.ECHO", -1.0)
        with pytest.raises(raised):
            os.kill(os.getpid(), second)


STUCK = """
from xclrun.train.stop import stop_on_signals
with stop_on_signals():
    print("ready", flush=True)
    # A call that neither ends nor lets Python run meanwhile.
    sum(range(10**12))
    print("went on", flush=True)
"""


@pytest.mark.full
@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGUSR1)])
def test_a_second_signal_ends_a_process_that_python_cannot_reach(numbers: tuple[signal.Signals, ...]) -> None:
    with subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(numbers[0])
        try:
            # On a busy machine the counting process can start after the second signal: it needs a third one then.
            for _ in range(5):
                time.sleep(ECHO + 0.2)
                process.send_signal(numbers[1])
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=GRACE + 5)
                    break
        finally:
            process.kill()
        assert process.stdout.read() == ""
    assert process.returncode == -signal.SIGKILL


def test_handlers_come_back_after_an_error() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(ZeroDivisionError), stop_on_signals():
        raise ZeroDivisionError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_nothing_that_handles_errors_catches_a_stop() -> None:
    def careless() -> None:
        try:
            StopFlag(signal.SIGTERM).check()
        except Exception:
            pytest.fail("a stop is no error")

    with pytest.raises(Stopped) as stopped:
        careless()
    assert stopped.value.number == signal.SIGTERM


HOOKS = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction) if not name.startswith("_")]


def test_every_hook_is_passed_on() -> None:
    """A hook that `Listeners` lacks would be lost without a word."""
    assert set(HOOKS) <= set(vars(Listeners))


@pytest.mark.parametrize("hook", HOOKS)
def test_all_hear_in_order(hook: str) -> None:
    received: list[tuple[str, tuple[Any, ...]]] = []

    def hearing(name: str) -> Listener:
        listener = Listener()
        setattr(listener, hook, lambda *arguments: received.append((name, arguments)))
        return listener

    arguments = tuple(range(len(inspect.signature(getattr(Listener, hook)).parameters) - 1))
    assert getattr(Listener(), hook)(*arguments) is None
    getattr(Listeners([hearing("first"), hearing("second")]), hook)(*arguments)
    assert received == [("first", arguments), ("second", arguments)]
