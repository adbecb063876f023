"""Stopping on a signal: the training loop looks at a flag after every step, saves a checkpoint, and ends."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

# Seconds within which a second SIGINT is the first one's echo: a terminal's Ctrl-C reaches workers themselves, and once
# more through the launcher.
ECHO = 1.0


class Stopped(BaseException):
    """The run was asked to stop; a checkpoint was saved. Not an Exception: nothing but the top level may catch it."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@dataclass
class StopFlag:
    """Set by a signal; the second SIGINT stops at once."""

    number: int | None = None
    since: float = 0.0

    def handle(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.number is None:
            self.since = now
        elif number == signal.SIGINT and (self.number != number or now - self.since > ECHO):
            raise KeyboardInterrupt
        self.number = number

    def check(self) -> None:
        """Raise `Stopped` where a stop was asked for."""
        if self.number is not None:
            raise Stopped(self.number)


@contextmanager
def stop_on_signals() -> Iterator[StopFlag]:
    """Yield a flag that the signals set while the block runs; the handlers before are put back after it."""
    flag = StopFlag()
    before = {number: signal.signal(number, flag.handle) for number in SIGNALS}
    try:
        yield flag
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
