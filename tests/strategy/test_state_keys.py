"""What a stage's keys leave out can change nothing: each setting of each strategy, under each of its choices.

Two configs that differ in one setting either have different keys, or the stages with equal keys are equal byte for
byte: each config is trained in its own store. A setting that is missing from a key would let a run load what another
one trained with other settings.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import done, one_thread, small_run
from tests.train.conftest import stored
from xclrun.core.errors import UsageError
from xclrun.plan import Run
from xclrun.strategy import STRATEGIES

from .test_contract import given

Settings = dict[str, str]

# Settings whose other value a rule cannot guess: what the small model can do, and what a file would be needed for.
OTHER: dict[tuple[str, str], str | None] = {
    **{(name, "lora_targets"): "[query]" for name in STRATEGIES},
    **{(name, "pretrained"): None for name in STRATEGIES},
    ("lang_spec_enc", "layers"): "[1]",
    ("merge", "layers"): "[0]",
}


def fields(strategy: str) -> Iterator[tuple[str, Any]]:
    """Yield the settings of a strategy with their types."""
    hints = typing.get_type_hints(STRATEGIES[strategy].settings_type)
    for field in dataclasses.fields(STRATEGIES[strategy].settings_type):
        if field.name not in ("name", "expansion", "version"):
            yield field.name, hints[field.name]


def choices(strategy: str) -> list[Settings]:
    """Return every combination of the values of a strategy's enums."""
    enums = {name: kind for name, kind in fields(strategy) if isinstance(kind, type) and issubclass(kind, Enum)}
    names = ([value.name for value in kind] for kind in enums.values())
    return [dict(zip(enums, chosen, strict=True)) for chosen in product(*names)]


def other(strategy: str, name: str, kind: Any, value: Any) -> str | None:
    """Return a value of a setting that differs from ``value``; None if there is none to try."""
    if (strategy, name) in OTHER:
        return OTHER[strategy, name]
    kinds = typing.get_args(kind) or (kind,)
    if bool in kinds:
        return str(not value).lower()
    if int in kinds:
        return "2" if value is None else str(value + 1)
    assert float in kinds, f"add a value of {strategy}.{name} to OTHER"
    return "0.6" if value is None else str(value / 2 if value else 0.25)


def numbers(strategy: str) -> list[str]:
    """Return the settings of a strategy that have another value to try, other than enums."""
    enums = choices(strategy)[0]
    return [name for name, _ in fields(strategy) if name not in enums and OTHER.get((strategy, name), "") is not None]


def overrides(strategy: str, settings: Settings) -> tuple[str, ...]:
    # Two layers, so that strategies that choose layers have a choice.
    layers = ("model.hidden_layers=2",) if strategy in ("freeze_bottom", "lang_spec_enc") else ()
    return (*given(strategy), *layers, *(f"strategy.{name}={value}" for name, value in settings.items()))


@pytest.fixture(scope="module")
def planned(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Run | None]:
    """Plan a run in its own outputs folder; None for a config that is refused."""

    @cache
    def get(*given: str) -> Run | None:
        try:
            return small_run(given, tmp_path_factory.mktemp("keys"), corpus)
        except UsageError:
            return None

    return get


@pytest.fixture(scope="module")
def trained(planned: Callable[..., Run | None]) -> Callable[..., dict[str, dict[str, str]]]:
    """Train a run and return what it stored: key → checksums of files."""

    @cache
    def get(*given: str) -> dict[str, dict[str, str]]:
        run = planned(*given)
        assert run
        with one_thread():
            return stored(done(run).store)

    return get


def keys(run: Run) -> set[str]:
    return {key for stage in run.stages for key in (stage.train, stage.state, stage.evaluation) if key}


@pytest.mark.full
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if numbers(name)])
def test_equal_keys_mean_equal_results_whatever_the_setting(
    strategy: str, planned: Callable[..., Run | None], trained: Callable[..., dict[str, dict[str, str]]]
) -> None:
    compared, seen = 0, set[str]()
    for chosen in choices(strategy):
        base = overrides(strategy, chosen)
        # A choice that makes no new key is compared in the next test.
        if not (run := planned(*base)) or keys(run) <= seen:
            continue
        seen |= keys(run)
        for name, kind in fields(strategy):
            if name not in numbers(strategy):
                continue
            value = other(strategy, name, kind, getattr(run.config.strategy, name))
            changed = (*base, f"strategy.{name}={value}")
            if not (second := planned(*changed)):
                continue
            compared += 1
            # Hop 0 is the untrained model: every run shares it.
            shared = (keys(run) & keys(second)) - keys_of_start(run)
            if shared:
                first, after = trained(*base), trained(*changed)
                different = [key for key in shared if first.get(key) != after.get(key)]
                assert not different, f"{changed[-1]} {chosen} changes results under equal keys"
    assert compared, "no setting was compared"


@pytest.mark.full
@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if len(choices(name)) > 1])
def test_equal_keys_mean_equal_results_whatever_the_choice(
    strategy: str, planned: Callable[..., Run | None], trained: Callable[..., dict[str, dict[str, str]]]
) -> None:
    runs = [(chosen, run) for chosen in choices(strategy) if (run := planned(*overrides(strategy, chosen)))]
    known: dict[str, Settings] = {}
    for chosen, run in runs:
        for key in keys(run) - keys_of_start(run):
            if key in known and known[key] != chosen:
                first, after = (trained(*overrides(strategy, one))[key] for one in (known[key], chosen))
                assert first == after, f"{known[key]} and {chosen} have equal keys and different results"
            known.setdefault(key, chosen)
    assert len(runs) > 1


def keys_of_start(run: Run) -> set[str]:
    stage = run.stages[0]
    return {key for key in (stage.train, stage.state, stage.evaluation) if key}
