"""Stopping on a signal: the training loop checks a flag after every step, saves a checkpoint, and ends.

A second signal ends the process without waiting for the next step. Python runs signal handlers only between its own
instructions, so a long call into a library would also delay the second signal. Therefore each signal is also
written into a pipe immediately, and a separate process counts the signals.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)

# The types of handlers in `signal`.
Handler = Callable[[int, FrameType | None], Any] | int | None

# Signals within this many seconds of the first do not count as a second signal. Workers receive a terminal's
# Ctrl-C twice, directly and from the launcher; Slurm signals both the tasks and the step.
ECHO = 1.0
# Seconds between the second signal and SIGKILL.
GRACE = 3.0

# Code of the counting process: it kills this process `GRACE` seconds after a second signal, unless a zero byte in the
# pipe resets the count. It ends when this process closes the pipe.
COUNT = f"""
import os, select, signal, sys, time
signals, first, last = {set(map(int, SIGNALS))}, None, None
for number in signals:
    signal.signal(number, signal.SIG_IGN)
while True:
    left = None if last is None else max(0.0, last + {GRACE} - time.monotonic())
    if not select.select([0], [], [], left)[0]:
        os.kill(int(sys.argv[1]), signal.SIGKILL)
        break
    byte = os.read(0, 1)
    if not byte:
        break
    now = time.monotonic()
    if byte[0] == 0:
        first = last = None
    elif byte[0] in signals:
        if first is None:
            first = now
        elif now - first > {ECHO} and last is None:
            last = now
"""


class Stopped(BaseException):
    """A signal stopped the run; a checkpoint was saved. Not an `Exception`, so that only the top level catches it.

    Attributes:
        number: signal number.
        at_once: whether a second signal stopped the run; no checkpoint was saved.
    """

    def __init__(self, number: int, at_once: bool = False) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.at_once = number, at_once


def how_ended(code: int) -> str:
    """Return how a process ended, from its exit code; a negative code is a signal."""
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


@dataclass
class StopFlag:
    """A flag that a signal sets; a second signal raises an exception immediately."""

    number: int | None = None
    since: float = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.number, self.since = number, now
        elif now - self.since > ECHO:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            raise Stopped(number, at_once=True)

    def received(self) -> int | None:
        """Return the signal that was received; SIGTERM if the launcher of this worker has ended."""
        if self.number is None and _launcher not in (None, os.getppid()):
            self.number = signal.SIGTERM
        return self.number

    def check(self) -> None:
        """Raise `Stopped` if a signal was received."""
        if (number := self.received()) is not None:
            raise Stopped(number)


# Process ID of the launcher, in a worker.
_launcher: int | None = None


def begin_worker(launcher: int) -> None:
    """Restore the handling of signals in a forked worker, and stop its runs when its launcher has ended."""
    global _launcher
    _launcher = launcher
    handle(signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def handle(handler: Handler) -> dict[int, Handler]:
    """Install a handler of all `SIGNALS`; return the previous handlers. SIGHUP stays ignored (``nohup``)."""
    ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return {number: signal.signal(number, handler) for number in SIGNALS if number != signal.SIGHUP or not ignored}


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Yield a flag that signals set while the block runs; restore the previous handlers after it.

    A second signal, more than `ECHO` seconds after the first, ends the block immediately. If the block has not ended
    `GRACE` seconds later, for example in a long call into a library, this process is killed.
    """
    flag = StopFlag()
    pipe = _pipe_to_counter()
    os.write(pipe, b"\0")
    descriptor = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    before = handle(flag.handle)
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        with contextlib.suppress(OSError):
            os.write(pipe, b"\0")


# Process ID → pipe to its counting process; a forked process needs a new one.
_pipes: dict[int, int] = {}


def _pipe_to_counter() -> int:
    """Return the pipe to this process's counting process, which is started once."""
    if os.getpid() not in _pipes:
        read, write = os.pipe()
        os.set_blocking(write, False)
        # In a new session, so that a terminal's Ctrl-C does not end the counting process.
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", COUNT, str(os.getpid())],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # Otherwise Popen warns that the process is still running.
        os.close(read)
        _pipes.clear()
        _pipes[os.getpid()] = write
    return _pipes[os.getpid()]
