"""Strategies: one file each, named as in conf. `STRATEGIES` has them all: name in conf → class.

The module ``er`` defines the strategy ``er``: the one class in it whose `name` is that. A module is imported when its
strategy is asked for. Strategies from outside the package are added by `register`.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, get_args

from xclrun.config.schema import StrategyConfig
from xclrun.core.errors import UsageError, did_you_mean
from xclrun.core.plugins import place, provides
from xclrun.strategy.base import Context, Length, State, Strategy, check_answers, divisible, recordable

__all__ = [
    "STRATEGIES",
    "Context",
    "Length",
    "State",
    "Strategy",
    "divisible",
    "having",
    "make",
    "recordable",
    "register",
    "strategy_class",
]

Class = TypeVar("Class", bound=type[Strategy[Any]])


class _Strategies(Mapping[str, type[Strategy[Any]]]):
    """All strategies, by name; packaged ones first, each imported when it is looked up."""

    def __init__(self) -> None:
        self.packaged = [m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg and m.name != "base"]
        self.registered: dict[str, type[Strategy[Any]]] = {}

    def __getitem__(self, name: str) -> type[Strategy[Any]]:
        if name in self.registered:
            return self.registered[name]
        if name not in self.packaged:
            raise KeyError(name)
        content = vars(importlib.import_module(f"{__name__}.{name}")).values()
        [found] = [c for c in content if isinstance(c, type) and issubclass(c, Strategy) and c.name == name]
        return found

    def __iter__(self) -> Iterator[str]:
        return iter([*self.packaged, *self.registered])

    def __len__(self) -> int:
        return len(self.packaged) + len(self.registered)


STRATEGIES = _Strategies()


def register(cls: Class) -> Class:
    """Add a strategy from outside the package, under its `name`; returns the class, so it can decorate it.

    Raises:
        UsageError: it is no strategy, has no name of its own, or the name is taken; its settings are none, or a method
            is nearly called as a hook is.
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise UsageError(f"{cls!r} is not a strategy: it must be a subclass of xclrun.strategy.Strategy")
    shown, name = place(cls), vars(cls).get("name")
    if not isinstance(name, str) or not name:
        raise UsageError(f"{shown}: a strategy needs a name of its own: name = 'my_strategy' in the class")
    if name in STRATEGIES:
        raise UsageError(f"{shown}: there is already a strategy called '{name}'")
    _check_settings(cls, shown)
    _check_hooks(cls, shown)
    STRATEGIES.registered[name] = cls
    provides("strategy", name, cls.__doc__)
    return cls


def _check_hooks(cls: type[Strategy[Any]], shown: str) -> None:
    """Refuse a method that nothing calls, but for its spelling: the strategy would be without it, and say nothing."""
    hooks = [name for name, value in vars(Strategy).items() if callable(value) and not name.startswith("_")]
    of_package = [base for base in cls.__mro__ if base.__module__.startswith(f"{__name__}.")]
    for base in cls.__mro__:
        for name, value in vars(base).items() if base not in of_package else ():
            own = callable(value) and not name.startswith("_") and not any(hasattr(known, name) for known in of_package)
            if own and (near := difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)):
                raise UsageError(
                    f"{shown}: nothing calls a method {name}; did you mean '{near[0]}'? One of your own begins with _"
                )


def _check_settings(cls: type[Strategy[Any]], shown: str) -> None:
    """Refuse settings that are no dataclass of settings, or others than the class says that it has."""
    given = cls.settings_type
    if not (isinstance(given, type) and issubclass(given, StrategyConfig)):
        raise UsageError(f"{shown}: settings_type must be a dataclass that extends StrategyConfig")
    if "__annotations__" in vars(given) and "__dataclass_params__" not in vars(given):
        raise UsageError(f"{shown}: settings_type {given.__name__} is no dataclass: write @dataclass before it")
    for said in (arg for base in vars(cls).get("__orig_bases__", ()) for arg in get_args(base)):
        if dataclasses.is_dataclass(said) and isinstance(said, type) and not issubclass(given, said):
            raise UsageError(f"{shown}: is a Strategy[{said.__name__}]: settings_type = {said.__name__} is missing")


def having(trait: str) -> list[str]:
    """Return the names of the strategies whose class has a trait, as ``expandable`` (see `Strategy`)."""
    return [name for name, cls in STRATEGIES.items() if getattr(cls, trait)]


def strategy_class(name: str) -> type[Strategy[Any]]:
    """Return the class of the strategy called ``name`` in conf."""
    if name not in STRATEGIES:
        raise UsageError(f"no strategy is called '{name}'; {did_you_mean(name, STRATEGIES)}")
    return STRATEGIES[name]


def make(settings: StrategyConfig) -> Strategy[Any]:
    """Return a fresh strategy with these settings.

    Raises:
        UsageError: a setting cannot work, or is that of another strategy; or a hook was assigned for which no
            signature answers.
    """
    found = strategy_class(settings.name)
    if not isinstance(settings, found.settings_type):
        raise UsageError(
            f"strategy.name={settings.name}: has settings of its own; choose it as strategy={settings.name}"
        )
    strategy = found(settings)
    check_answers(found, strategy)
    return strategy
