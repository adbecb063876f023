"""Expand parameter grids to jobs.

A grid maps keys to values, which may be comma-separated lists or ranges. ``hydra.sweeper.params`` of a sweep's YAML is
one grid or a list of grids. The jobs of a sweep are all combinations of values of each grid, without duplicates.
Command-line overrides replace values of every grid, except that strategies select the grids that have them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

from hydra.core.override_parser.types import Override

from xclrun.compose.keys import has_setting
from xclrun.compose.overrides import checked, parse, rewritten
from xclrun.config.files import load_yaml, published, sweep_files
from xclrun.core.errors import UsageError

Grid = Mapping[str, Any]

# Maximum number of jobs of one sweep.
MOST = 100_000
GRIDS = "a grid, for example {strategy: 'naive,er', seed: 1}, or a list of grids"


def grids(params: Grid | Sequence[Grid]) -> list[Grid]:
    """Return ``hydra.sweeper.params`` as a list of grids."""
    all_grids = [params] if isinstance(params, Mapping) else params
    if (
        isinstance(all_grids, str)
        or not isinstance(all_grids, Sequence)
        or not all(isinstance(g, Mapping) for g in all_grids)
    ):
        raise UsageError(f"hydra.sweeper.params: must be {GRIDS}")
    for key, value in (pair for grid in all_grids for pair in grid.items()):
        if isinstance(value, Mapping | list):
            raise UsageError(
                f"hydra.sweeper.params: {key}: must be text; write several values as '1,2' and a list as '[en,de]', "
                f"not {value}"
            )
    return list(all_grids)


def sweep_nodes() -> dict[str, dict[str, Any]]:
    """Return the packaged sweeps and the sweeps of published tables and figures: name → node of Hydra's config."""
    nodes = {name: load_yaml(path) for name, path in sweep_files().items()}
    for name, entry in published().items():
        new_grids: list[Grid] = []
        for sweep in entry.sweep.split(","):
            for grid in grids(nodes[sweep]["hydra"]["sweeper"]["params"]):
                new = _without(grid, list(entry.set)) | entry.set
                for key, values in entry.without.items():
                    excluded = values.split(",")
                    new[key] = ",".join(value for value in str(new[key]).split(",") if value not in excluded)
                if new not in new_grids and all(new[key] for key in entry.without):
                    new_grids.append(new)
        nodes[name] = {"hydra": {"sweeper": {"params": new_grids}}}
    return nodes


def _without(grid: Grid, keys: Collection[str]) -> dict[str, Any]:
    """Return a grid without some keys; ``strategy`` also removes the strategy's settings."""
    return {
        key: value
        for key, value in grid.items()
        if key not in keys and not ("strategy" in keys and key.startswith("strategy."))
    }


def as_overrides(grid: Grid) -> list[str]:
    """Return a grid as overrides."""
    return [f"{key}={'null' if value is None else value}" for key, value in grid.items()]


def expand(overrides: Sequence[str], params: Grid | Sequence[Grid] = ()) -> list[list[str]]:
    """Return the overrides of each job, each job once.

    Args:
        overrides: from `checked`, without those of Hydra's node; they replace values of ``params``, and strategies
            select the grids that have them.
        params: the grid or grids of a sweep's YAML.
    """
    keys = [override.key_or_group.replace("strategy/", "strategy.") for override in parse(overrides)]
    typed = dict(zip(keys, overrides, strict=True))
    all_grids = grids(params)
    if all_grids and "strategy" in typed:
        names = [text.partition("=")[2] for text in _values(*parse([typed.pop("strategy")]))]
        all_grids = _of_strategies(all_grids, names)
    expanded: list[list[str]] = []
    for grid in all_grids or [{}]:
        texts: dict[str, list[str]] = {}
        for override in parse([*checked(as_overrides(_without(grid, typed))), *_fitting(typed, grid, all_grids)]):
            texts[override.get_key_element()] = _values(override)
            # Count before computing the product, which could exhaust the memory.
            if len(expanded) + prod(map(len, texts.values())) > MOST:
                raise UsageError(f"{override.input_line}: more than {MOST:,} jobs; split them into several sweeps")
        expanded += map(list, product(*texts.values()))
    jobs: dict[frozenset[str], list[str]] = {}
    for job in _without_idle_steps(expanded):
        jobs.setdefault(frozenset(job), rewritten(job))
    return list(jobs.values())


def _of_strategies(all_grids: Sequence[Grid], names: Sequence[str]) -> list[Grid]:
    """Select the grids that have some of the strategies ``names``, each with its own settings of them.

    A strategy that no grid has is added to every grid, without the settings of the grid's own strategies.
    """
    own = [str(grid.get("strategy")).split(",") for grid in all_grids]
    new = [name for name in names if not any(name in of for of in own)]
    selected: list[Grid] = []
    for grid, of in zip(all_grids, own, strict=True):
        if kept := [name for name in names if name in of]:
            selected.append({**grid, "strategy": ",".join(kept)})
        if new:
            selected.append({**_without(grid, ["strategy"]), "strategy": ",".join(new)})
    return selected


def _without_idle_steps(jobs: Sequence[list[str]]) -> list[list[str]]:
    """Remove ``trainer.mixture_steps`` from jobs without a mixture, if another job has one."""

    def mixes(job: Sequence[str]) -> bool:
        return any("+" in text for text in job if text.startswith(("order=", "order.languages=")))

    if not any(map(mixes, jobs)):
        return list(jobs)
    steps = "trainer.mixture_steps="
    return [job if mixes(job) else [text for text in job if not text.startswith(steps)] for job in jobs]


def _fitting(typed: Mapping[str, str], grid: Grid, all_grids: Sequence[Grid]) -> list[str]:
    """Filter overrides, by key, for a grid: remove settings that only strategies of other grids have."""

    def has(other: Grid, setting: str) -> bool:
        return any(has_setting(name, setting) for name in str(other.get("strategy")).split(","))

    fitting = []
    for key, text in typed.items():
        group, _, rest = key.partition(".")
        setting = rest.partition(".")[0]
        elsewhere = group == "strategy" and not has(grid, setting) and any(has(other, setting) for other in all_grids)
        if not rest or not elsewhere:
            fitting.append(text)
    return fitting


def _values(override: Override) -> list[str]:
    """Return one override for each value of an override, at most `MOST` + 1."""
    key = override.get_key_element()
    if not override.is_sweep_override():
        return [f"{key}={override.get_value_element_as_str()}"]
    if not override.is_discrete_sweep():
        raise UsageError(
            f"{override.input_line}: a sweep needs values to choose from, as in seed=1,2,3 or seed=range(1,4)"
        )
    if values := [f"{key}={value}" for value in islice(override.sweep_string_iterator(), MOST + 1)]:
        return values
    raise UsageError(f"{override.input_line}: has no values")
