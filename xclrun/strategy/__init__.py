"""Registry of strategies: `STRATEGIES` maps the name of each strategy (``strategy=NAME``) to its class.

Each strategy is a class in the module with the strategy's name, for example ``er`` in ``er.py``. A module is imported
on first access. `register` adds strategies from outside the package.

Docstrings abbreviate three papers: CCL = "Cross-lingual Continual Learning" (M'hamdi, Ren & May 2023), FS = "A Closer
Look at Few-Shot Crosslingual Transfer" (Zhao et al. 2021), LL = "Towards a robust experimental framework and benchmark
for lifelong language learning" (Hussain et al. 2021).
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
from xclrun.core.identity import NESTED
from xclrun.core.plugins import place, provides, replaces
from xclrun.strategy.base import (
    Context,
    Length,
    Parameters,
    Plan,
    State,
    Strategy,
    adds_parameters,
    check_hooks,
    packaged,
)
from xclrun.strategy.shared.steps import MeanGradient, Step, Term, repeatable

__all__ = [
    "STRATEGIES",
    "Context",
    "Length",
    "MeanGradient",
    "Parameters",
    "Plan",
    "State",
    "Step",
    "Strategy",
    "Term",
    "adds_parameters",
    "make",
    "names_with",
    "nested",
    "register",
    "repeatable",
    "strategy_class",
]

# Hooks of version 0.2.0 → what replaces them.
FORMER = {
    **dict.fromkeys(("replay", "loss", "skip", "edit_gradients", "capturable"), "steps"),
    **dict.fromkeys(("signature", "state_signature", "serving_signature", "points_signature"), "plan"),
    **dict.fromkeys(("hops_read_in_evaluation", "states_read_in_evaluation", "hops_read_in_training"), "plan"),
    **dict.fromkeys(("revisited", "reads_features", "limit", "keeps_encoder"), "plan"),
    **dict.fromkeys(("trains", "language_specific", "prompt_tokens"), "parameters"),
}

Class = TypeVar("Class", bound=type[Strategy[Any]])


class _Strategies(Mapping[str, type[Strategy[Any]]]):
    """Name → class of all strategies, packaged ones first; a packaged module is imported on first access."""

    def __init__(self) -> None:
        self.packaged = [m.name for m in pkgutil.iter_modules(__path__) if not m.ispkg and m.name != "base"]
        self.registered: dict[str, type[Strategy[Any]]] = {}

    def __getitem__(self, name: str) -> type[Strategy[Any]]:
        if name in self.registered:
            return self.registered[name]
        if name not in self.packaged:
            raise KeyError(name)
        content = vars(importlib.import_module(f"{__name__}.{name}")).values()
        [cls] = [c for c in content if isinstance(c, type) and issubclass(c, Strategy) and c.name == name]
        return cls

    def __iter__(self) -> Iterator[str]:
        return iter([*self.packaged, *self.registered])

    def __len__(self) -> int:
        return len(self.packaged) + len(self.registered)


STRATEGIES = _Strategies()


def register(cls: Class) -> Class:
    """Add a strategy from outside the package under its `name`; usable as a decorator.

    A notebook or script may register a strategy again. Runs need a plug-in: a file or an installed package.

    Raises:
        UsageError: the class is not a strategy, its name is missing or taken, its settings type is not a dataclass
            that extends `StrategyConfig`, or a method looks like a misspelled hook.
    """
    if not (isinstance(cls, type) and issubclass(cls, Strategy)):
        raise UsageError(f"{cls!r} is not a strategy: it must be a subclass of xclrun.strategy.Strategy")
    title, name = place(cls), vars(cls).get("name")
    if not isinstance(name, str) or not name:
        raise UsageError(f"{title}: the class sets no name; add name = 'my_strategy'")
    if name in STRATEGIES and not replaces("strategy", name):
        raise UsageError(f"{title}: the name '{name}' is already taken; choose another name")
    _check_settings(cls, title)
    _check_names(cls, title)
    check_hooks(cls)
    STRATEGIES.registered[name] = cls
    provides("strategy", name, cls.__doc__)
    return cls


def _check_names(cls: type[Strategy[Any]], title: str) -> None:
    """Refuse a public method whose name resembles a hook: a misspelled or former hook is never called."""
    hooks = [name for name, value in vars(Strategy).items() if callable(value) and not name.startswith("_")]
    inside = [base for base in cls.__mro__ if packaged(base)]
    for base in cls.__mro__:
        for name, value in vars(base).items() if base not in inside else ():
            new = callable(value) and not name.startswith("_") and not any(hasattr(other, name) for other in inside)
            near = [FORMER[name]] if name in FORMER else difflib.get_close_matches(name, hooks, n=1, cutoff=0.8)
            if new and near:
                raise UsageError(
                    f"{title}: '{name}' is not a hook and is never called; did you mean '{near[0]}'? If it is a "
                    "helper, prefix its name with _"
                )


def _check_settings(cls: type[Strategy[Any]], title: str) -> None:
    settings = cls.settings_type
    if not (isinstance(settings, type) and issubclass(settings, StrategyConfig)):
        raise UsageError(f"{title}: settings_type must be a dataclass that extends StrategyConfig")
    if "__annotations__" in vars(settings) and "__dataclass_params__" not in vars(settings):
        raise UsageError(f"{title}: settings_type {settings.__name__} is not a dataclass: add @dataclass")
    for declared in (arg for base in vars(cls).get("__orig_bases__", ()) for arg in get_args(base)):
        if isinstance(declared, type) and dataclasses.is_dataclass(declared) and not issubclass(settings, declared):
            name = declared.__name__
            raise UsageError(f"{title}: extends Strategy[{name}] but sets no settings_type; add settings_type = {name}")


def names_with(trait: str) -> list[str]:
    """Return the names of the strategies whose class attribute ``trait`` is true, for example ``expandable``."""
    return [name for name, cls in STRATEGIES.items() if getattr(cls, trait)]


def strategy_class(name: str) -> type[Strategy[Any]]:
    """Return the class of the strategy with this name (``strategy=NAME``)."""
    if name not in STRATEGIES:
        raise UsageError(f"unknown strategy '{name}'; {did_you_mean(name, STRATEGIES)}")
    return STRATEGIES[name]


def nested(settings: StrategyConfig) -> list[StrategyConfig]:
    """Return the settings of other strategies in a strategy's settings: of its expansion, or of what it merges."""
    inner = [value for key in NESTED if (value := getattr(settings, key, None)) is not None]
    return [*inner, *(deeper for value in inner for deeper in nested(value))]


def make(settings: StrategyConfig) -> Strategy[Any]:
    """Create a strategy with these settings.

    Raises:
        UsageError: a setting is invalid or belongs to another strategy, or the class overrides a hook without
            `Strategy.plan`.
    """
    cls = strategy_class(settings.name)
    if not isinstance(settings, cls.settings_type):
        raise UsageError(
            f"strategy.name={settings.name}: setting the name does not load this strategy's settings; "
            f"use strategy={settings.name}"
        )
    strategy = cls(settings)
    check_hooks(strategy)
    return strategy
