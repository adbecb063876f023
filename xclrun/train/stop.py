"""Stopping on a signal: the training loop looks at a flag after every step, saves a checkpoint, and ends.

A second signal does not wait for the next step. Python handles signals only between its own instructions, so that one
long call into a library would hide the second as well as the first. A its own process therefore counts them: the
system writes every signal into a pipe at once, whatever this process is busy with.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# Seconds within which a second signal is the first one's echo: a terminal's Ctrl-C reaches workers themselves, and once
# more through the launcher; Slurm tells the tasks and the step.
ECHO = 1.0
# Seconds in which this process may end by itself after the second signal.
GRACE = 3.0

# What the counting process does; it ends when this one does, which closes the pipe. A zero byte starts again.
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
    """The run was asked to stop; a checkpoint was saved. Not an Exception: nothing but the top level may catch it.

    Attributes:
        number: of the signal.
        at_once: whether it was the second signal, for which no checkpoint was saved any more.
    """

    def __init__(self, number: int, at_once: bool = False) -> None:
        super().__init__(signal.Signals(number).name)
        self.number, self.at_once = number, at_once


@dataclass
class StopFlag:
    """A flag set by a signal; a second signal stops at once."""

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

    def check(self) -> None:
        """Raise `Stopped` where a stop was asked for."""
        if self.number is not None:
            raise Stopped(self.number)


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Yield a flag that the signals set while the block runs; the handlers before are put back after it.

    A second signal, more than `ECHO` seconds after the first, ends the block at once, or where it does not, `GRACE`
    seconds later this process.
    """
    flag = StopFlag()
    pipe = _counted()
    os.write(pipe, b"\0")
    descriptor = signal.set_wakeup_fd(pipe, warn_on_full_buffer=False)
    before = {number: signal.signal(number, flag.handle) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(descriptor)
        with contextlib.suppress(OSError):
            os.write(pipe, b"\0")


# Process → the pipe to the process that counts its signals: a forked one needs its own.
_pipes: dict[int, int] = {}


def _counted() -> int:
    """Return the pipe to the process that counts the signals of this one; it is started once."""
    if os.getpid() not in _pipes:
        read, write = os.pipe()
        os.set_blocking(write, False)
        # In its own session, or a terminal's Ctrl-C would end it.
        subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", COUNT, str(os.getpid())],
            stdin=read,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ).returncode = 0  # It lives as long as this process; else Popen warns that it is running.
        os.close(read)
        _pipes.clear()
        _pipes[os.getpid()] = write
    return _pipes[os.getpid()]
