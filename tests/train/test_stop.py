"""Signals set a flag; a second Ctrl-C does not wait."""

import os
import signal

import pytest

from xclrun.train.stop import SIGNALS, StopFlag, Stopped, stop_on_signals


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


def test_a_second_interrupt_stops_at_once() -> None:
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.number == signal.SIGTERM
        os.kill(os.getpid(), signal.SIGUSR1)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


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
