"""A search as it is typed: what every trial has, what each is averaged over, and what is searched.

Of the keys with several values, ``order``, ``seed`` and ``bucket`` are those of each trial: a setting is judged by the
mean over them. All others are searched: values with commas and ranges of numbers one by one, ``interval(low, high)``
between its ends; ``tag(log, interval(…))`` by the logarithm, ``int(interval(…))`` whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from xclrun.compose.overrides import parse
from xclrun.compose.sweep import GRIDS, Grid, grids
from xclrun.config.files import choices
from xclrun.core.errors import UsageError, did_you_mean

# The sweeper that searches, as the group ``hydra/sweeper`` names it.
NAME = "optuna"
SWEEPER = f"hydra/sweeper={NAME}"
# What a setting is averaged over.
AVERAGED = ("order", "seed", "bucket")
# Significant digits of what is drawn from an interval: enough to tell settings apart, and short in tables and commands.
DIGITS = 3
# Values of a key that come one by one.
MOST = 100


@dataclass(frozen=True)
class Values:
    """The values of a key that are searched, one by one.

    Attributes:
        texts: as they are typed, each once.
    """

    texts: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """Values that are checked before anything runs: all."""
        return self.texts

    @property
    def number(self) -> float:
        """How many there are."""
        return len(self.texts)

    def __str__(self) -> str:
        return ", ".join(self.texts)


@dataclass(frozen=True)
class Interval:
    """Numbers between two, both included.

    Attributes:
        low, high: whole numbers where ``whole``.
        log: drawn by their logarithm.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def ends(self) -> tuple[str, ...]:
        return self.text(self.low), self.text(self.high)

    @property
    def number(self) -> float:
        return self.high - self.low + 1 if self.whole else math.inf

    def text(self, value: float) -> str:
        """Return a number of it as it could be typed; of three significant digits, but never outside."""
        if self.whole:
            return str(int(value))
        return repr(float(min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)))

    def __str__(self) -> str:
        return f"{self.text(self.low)} … {self.text(self.high)}{', by logarithm' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """What a command searches.

    Attributes:
        searched: key → its values.
        common: overrides of every trial, as `xclrun.compose.sweep.expand` takes them; those of `AVERAGED` have several
            values where a trial has several runs.
        of_hydra: overrides of Hydra's own node.
        settings: of the search: ``objective``, ``trials``, ``parallel``, ``sampler``, ``seed``.
    """

    searched: Mapping[str, Values | Interval]
    common: tuple[str, ...]
    of_hydra: tuple[str, ...]
    settings: Mapping[str, Any]

    def overrides(self, values: Mapping[str, str]) -> list[str]:
        """Return the overrides of one trial, given a value for each key that is searched."""
        return [*self.common, *(f"{key}={values[key]}" for key in self.searched)]

    @property
    def number(self) -> float:
        """How many settings there are; infinite with an interval."""
        return math.prod(of.number for of in self.searched.values())

    @property
    def probe(self) -> dict[str, str]:
        """A setting of it: the first value of each key."""
        return {key: of.ends[0] for key, of in self.searched.items()}

    @property
    def probes(self) -> list[dict[str, str]]:
        """Settings in which each value that can be checked beforehand comes once."""
        others = [(key, text) for key, of in self.searched.items() for text in of.ends[1:]]
        return [self.probe, *(self.probe | {key: text} for key, text in others)]


def space(
    overrides: Sequence[str], params: Grid | Sequence[Grid] | None, of_hydra: Sequence[str], settings: Mapping[str, Any]
) -> Space:
    """Return what is searched.

    Args:
        overrides: of the command, as `xclrun.compose.overrides.checked` gives them, without those of Hydra's own node.
        params: the grid of a sweep's YAML; what is typed counts more.

    Raises:
        UsageError: nothing is searched, or what cannot be; several grids.
        hydra.errors.HydraException: an override that cannot be parsed.
    """
    given = grids(params or {})
    if len(given) > 1:
        raise UsageError(
            f"{SWEEPER}: a search has one grid of values, not {len(given)} (hydra.sweeper.params is {GRIDS})"
        )
    grid: Grid = given[0] if given else {}
    typed = {override.key_or_group for override in parse(overrides)}
    own = [f"{key}={'null' if value is None else value}" for key, value in grid.items() if key not in typed]
    searched: dict[str, Values | Interval] = {}
    common = []
    for override in parse([*own, *overrides]):
        text, key = str(override.input_line), override.key_or_group
        if not override.is_sweep_override() or key in AVERAGED:
            _check_averaged(override)
            common.append(text)
        else:
            searched[key] = _searched(override)
    if not searched:
        raise UsageError(
            f"{SWEEPER}: nothing is searched; give a key several values, as in trainer.lr=1e-5,3e-5 or "
            "'trainer.lr=tag(log, interval(1e-5, 1e-3))'"
        )
    return Space(searched, tuple(common), tuple(of_hydra), settings)


def _check_averaged(override: Override) -> None:
    if override.is_interval_sweep():
        key = override.key_or_group
        raise UsageError(f"{override.input_line}: {key} is averaged over, not searched; give values, as in {key}=1,2")


def _searched(override: Override) -> Values | Interval:
    key, text = override.key_or_group, override.input_line
    if key in {*choices(), "strategy.expansion", "strategy/expansion"}:
        raise UsageError(
            f"{text}: a search compares values of single keys, as in trainer.lr; for each {key} give a command"
        )
    if override.is_interval_sweep():
        return _interval(override.value(), override)
    found = tuple(dict.fromkeys(map(str, islice(override.sweep_string_iterator(), MOST + 1))))
    if len(found) < 2:
        raise UsageError(f"{text}: a search needs several values to choose from")
    if len(found) > MOST:
        raise UsageError(
            f"{text}: more than {MOST:,} values; an interval has any number, as in int(interval(1, 100000))"
        )
    return Values(found)


def _interval(sweep: Any, override: Override) -> Interval:
    assert isinstance(sweep, IntervalSweep)
    low, high = sweep.start, sweep.end
    whole = isinstance(low, int) and isinstance(high, int)
    if unknown := sorted(sweep.tags - {"log"}):
        raise UsageError(
            f"{override.input_line}: the tag '{unknown[0]}' means nothing here; {did_you_mean(unknown[0], ['log'])}"
        )
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{override.input_line}: the first number must be below the second")
    log = "log" in sweep.tags
    if log and low <= 0:
        raise UsageError(f"{override.input_line}: logarithms are of numbers above 0")
    return Interval(low, high, log, whole)
