"""Search space of a hyperparameter search.

Each trial averages over all values of ``order``, ``seed`` and ``bucket``. All other keys with several values are
searched. A list or range is a set of discrete values, ``interval(low, high)`` is continuous, ``tag(log, interval(…))``
has a log scale, and ``int(interval(…))`` contains whole numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override

from xclrun.compose.keys import nested_choices
from xclrun.compose.overrides import parse
from xclrun.compose.sweep import Grid, as_overrides, grids
from xclrun.config.files import choices
from xclrun.core.errors import UsageError, did_you_mean

# Choice of ``hydra/sweeper`` for a search.
NAME = "optuna"
SWEEPER = f"hydra/sweeper={NAME}"
# Keys that a trial averages over.
AVERAGED = ("order", "seed", "bucket")
# Significant digits of values from an interval: enough to distinguish settings, and short in tables and commands.
DIGITS = 3
# Maximum number of values in a list or range.
MOST = 100


@dataclass(frozen=True)
class Values:
    """Distinct values of a key, as typed."""

    texts: tuple[str, ...]

    @property
    def ends(self) -> tuple[str, ...]:
        """The values to check before the search: all of them."""
        return self.texts

    @property
    def number(self) -> float:
        return len(self.texts)

    def __str__(self) -> str:
        return ", ".join(self.texts)


@dataclass(frozen=True)
class Interval:
    """Numbers from ``low`` to ``high``, both included, on a linear or log scale."""

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
        """Format a number within the interval, with three significant digits."""
        if self.whole:
            return str(int(value))
        return repr(float(min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high)))

    def __str__(self) -> str:
        # Part of a search's identity (`xclrun.launch.search`): do not change it.
        return f"{self.text(self.low)} … {self.text(self.high)}{', by logarithm' if self.log else ''}"


@dataclass(frozen=True)
class Space:
    """The search space of a command.

    Attributes:
        searched: key → its values.
        common: overrides shared by all trials (`xclrun.compose.sweep.expand`), including the keys in `AVERAGED` with
            all their values.
        hydra_overrides: overrides of Hydra's node.
        settings: ``objective``, ``trials``, ``parallel``, ``sampler``, ``seed``.
    """

    searched: Mapping[str, Values | Interval]
    common: tuple[str, ...]
    hydra_overrides: tuple[str, ...]
    settings: Mapping[str, Any]

    def overrides(self, values: Mapping[str, str]) -> list[str]:
        """Return the overrides of a trial with these values of the searched keys."""
        return [*self.common, *(f"{key}={values[key]}" for key in self.searched)]

    @property
    def number(self) -> float:
        """The number of combinations of values; infinite with an interval of real numbers."""
        return math.prod(values.number for values in self.searched.values())

    @property
    def probe(self) -> dict[str, str]:
        """The first value of each key."""
        return {key: values.ends[0] for key, values in self.searched.items()}

    @property
    def probes(self) -> list[dict[str, str]]:
        """Combinations to check before the search: each value in `ends` is in at least one of them."""
        further = [(key, text) for key, values in self.searched.items() for text in values.ends[1:]]
        return [self.probe, *(self.probe | {key: text} for key, text in further)]


def space(
    overrides: Sequence[str],
    params: Grid | Sequence[Grid] | None,
    hydra_overrides: Sequence[str],
    settings: Mapping[str, Any],
) -> Space:
    """Return the search space of a command.

    Args:
        overrides: from `xclrun.compose.overrides.checked`, without those of Hydra's node; they replace values of
            ``params``.
        params: the grid of a sweep's YAML.
    """
    all_grids = grids(params or {})
    if len(all_grids) > 1:
        raise UsageError(
            f"{SWEEPER}: a search needs one grid of values, not {len(all_grids)}; combine them in hydra.sweeper.params"
        )
    typed = {override.key_or_group for override in parse(overrides)}
    grid: Grid = {key: value for key, value in all_grids[0].items() if key not in typed} if all_grids else {}
    searched: dict[str, Values | Interval] = {}
    common = []
    for override in parse([*as_overrides(grid), *overrides]):
        text, key = str(override.input_line), override.key_or_group
        if not override.is_sweep_override() or key in AVERAGED:
            if override.is_interval_sweep():
                raise UsageError(f"{text}: {key} is averaged over, not searched; give values, as in {key}=1,2")
            common.append(text)
        else:
            searched[key] = _searched(override)
    if not searched:
        raise UsageError(
            f"{SWEEPER}: no key has several values to search; set for example trainer.lr=1e-5,3e-5 or "
            "'trainer.lr=tag(log, interval(1e-5, 1e-3))'"
        )
    return Space(searched, tuple(common), tuple(hydra_overrides), settings)


def _searched(override: Override) -> Values | Interval:
    key, text = override.key_or_group, override.input_line
    if key in choices() or key.replace("/", ".") in nested_choices():
        raise UsageError(f"{text}: a search cannot compare choices of {key}; run one search for each")
    if override.is_interval_sweep():
        return _interval(override.value(), override)
    values = tuple(dict.fromkeys(map(str, islice(override.sweep_string_iterator(), MOST + 1))))
    if len(values) < 2:
        raise UsageError(f"{text}: a search needs several values to choose from")
    if len(values) > MOST:
        raise UsageError(f"{text}: more than {MOST:,} values; use an interval, as in int(interval(1, 100000))")
    return Values(values)


def _interval(sweep: Any, override: Override) -> Interval:
    assert isinstance(sweep, IntervalSweep)
    low, high = sweep.start, sweep.end
    whole = isinstance(low, int) and isinstance(high, int)
    if unknown := sorted(sweep.tags - {"log"}):
        raise UsageError(f"{override.input_line}: unknown tag '{unknown[0]}'; {did_you_mean(unknown[0], ['log'])}")
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise UsageError(f"{override.input_line}: the first number must be below the second")
    log = "log" in sweep.tags
    if log and low <= 0:
        raise UsageError(f"{override.input_line}: a log scale needs numbers above 0")
    return Interval(low, high, log, whole)
