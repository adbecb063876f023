"""Listeners: several hear what one would."""

import inspect
from typing import Any

import pytest

from xclrun.train.progress import Listener, Listeners

HOOKS = [name for name, _ in inspect.getmembers(Listener, inspect.isfunction) if not name.startswith("_")]


def test_every_hook_is_passed_on() -> None:
    """A hook that `Listeners` lacks would be lost without a word."""
    assert set(HOOKS) <= set(vars(Listeners))


@pytest.mark.parametrize("hook", HOOKS)
def test_all_hear_in_order(hook: str) -> None:
    heard: list[tuple[str, tuple[Any, ...]]] = []

    def hearing(name: str) -> Listener:
        listener = Listener()
        setattr(listener, hook, lambda *given: heard.append((name, given)))
        return listener

    given = tuple(range(len(inspect.signature(getattr(Listener, hook)).parameters) - 1))
    assert getattr(Listener(), hook)(*given) is None
    getattr(Listeners([hearing("first"), hearing("second")]), hook)(*given)
    assert heard == [("first", given), ("second", given)]
