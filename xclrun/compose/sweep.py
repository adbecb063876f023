"""From grids to jobs: all combinations of the values given with commas or ranges.

A grid is key → values. A sweep's YAML holds one, or a list of them, under ``hydra.sweeper.params``; its jobs are those
of all its grids, each once. What is typed beside ``sweep=NAME`` counts more, and is set in every grid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product
from math import prod
from typing import Any

from hydra.core.override_parser.types import Override

from xclrun.compose.keys import has_setting
from xclrun.compose.overrides import checked, parse, rewritten
from xclrun.config.files import load_yaml, published, sweep_files
from xclrun.core.errors import UsageError

Grid = Mapping[str, Any]

# Jobs of one sweep.
MOST = 100_000
GRIDS = "a grid or a list of them, each as in {strategy: 'naive,er', seed: 1}"


def grids(params: Grid | Sequence[Grid]) -> list[Grid]:
    """Return the grids of ``hydra.sweeper.params``, which is one or a list.

    Raises:
        UsageError: it is something else, as YAML of a user may be.
    """
    all_grids = [params] if isinstance(params, Mapping) else params
    if (
        isinstance(all_grids, str)
        or not isinstance(all_grids, Sequence)
        or not all(isinstance(g, Mapping) for g in all_grids)
    ):
        raise UsageError(f"hydra.sweeper.params: is {GRIDS}")
    for key, value in (pair for grid in all_grids for pair in grid.items()):
        if isinstance(value, Mapping | list):
            raise UsageError(
                f"hydra.sweeper.params: {key}: several values are one text with commas, as in '1,2', and a list is a "
                f"text too, as in '[en,de]'; not {value}"
            )
    return list(all_grids)


def sweep_nodes() -> dict[str, dict[str, Any]]:
    """Return the content of each packaged sweep, also of those that `published` makes of others, as Hydra's nodes."""
    nodes = {name: load_yaml(path) for name, path in sweep_files().items()}
    for name, entry in published().items():
        made_grids: list[Grid] = []
        for sweep in entry.sweep.split(","):
            for grid in grids(nodes[sweep]["hydra"]["sweeper"]["params"]):
                made = _kept(grid, list(entry.set)) | entry.set
                for key, values in entry.without.items():
                    left_out = values.split(",")
                    made[key] = ",".join(value for value in str(made[key]).split(",") if value not in left_out)
                if made not in made_grids and all(made[key] for key in entry.without):
                    made_grids.append(made)
        nodes[name] = {"hydra": {"sweeper": {"params": made_grids}}}
    return nodes


def _kept(grid: Grid, given: Sequence[str]) -> dict[str, Any]:
    """Return what is left of a grid beside keys that are given: settings are those of its own strategy."""
    return {
        key: value
        for key, value in grid.items()
        if key not in given and not ("strategy" in given and key.startswith("strategy."))
    }


def expand(overrides: Sequence[str], params: Grid | Sequence[Grid] = ()) -> list[list[str]]:
    """Return the overrides of each job, each job once.

    Args:
        overrides: as `checked` gives them, without those of Hydra's own node.
        params: the grid or grids of a sweep's YAML; values in ``overrides`` count more.

    Raises:
        UsageError: a grid that is none, or has a value that `checked` refuses; a range without steps, or without
            values; more than `MOST` jobs.
        hydra.errors.HydraException: an override that cannot be parsed.
    """
    keys = [override.key_or_group.replace("strategy/expansion", "strategy.expansion") for override in parse(overrides)]
    typed = list(zip(keys, overrides, strict=True))
    all_grids = grids(params) or [{}]
    made: list[list[str]] = []
    for grid in all_grids:
        own = [f"{key}={'null' if value is None else value}" for key, value in _kept(grid, keys).items()]
        texts: dict[str, list[str]] = {}
        for override in parse([*checked(own), *_fitting(typed, grid, all_grids)]):
            # What is typed comes last.
            texts[override.get_key_element()] = _values(override)
            # Counted before jobs are made: a zero too many in a range would take all memory.
            if len(made) + prod(map(len, texts.values())) > MOST:
                raise UsageError(f"{override.input_line}: more than {MOST:,} jobs; share them out among several sweeps")
        made += map(list, product(*texts.values()))
    jobs: dict[frozenset[str], list[str]] = {}
    for job in _without_idle_steps(made):
        jobs.setdefault(frozenset(job), rewritten(job))
    return list(jobs.values())


def _without_idle_steps(jobs: Sequence[list[str]]) -> list[list[str]]:
    """Drop ``trainer.mixture_steps`` from jobs whose order has no mixture, if another job's order has one."""

    def mixes(job: Sequence[str]) -> bool:
        return any("+" in text for text in job if text.startswith(("order=", "order.languages=")))

    if not any(map(mixes, jobs)):
        return list(jobs)
    steps = "trainer.mixture_steps="
    return [job if mixes(job) else [text for text in job if not text.startswith(steps)] for job in jobs]


def _fitting(typed: Sequence[tuple[str, str]], grid: Grid, all_grids: Sequence[Grid]) -> list[str]:
    """Return what is typed (key, text), without settings that only strategies of other grids have."""
    chosen = {key: text.partition("=")[2] for key, text in typed}.get("strategy")

    def has(of: Grid, setting: str) -> bool:
        return any(has_setting(name, setting) for name in str(chosen or of.get("strategy")).split(","))

    fitting = []
    for key, text in typed:
        group, _, rest = key.partition(".")
        setting = rest.partition(".")[0]
        elsewhere = group == "strategy" and not has(grid, setting) and any(has(other, setting) for other in all_grids)
        if not rest or not elsewhere:
            fitting.append(text)
    return fitting


def _values(override: Override) -> list[str]:
    """Return the overrides of single jobs that an override stands for; at most one more than `MOST`."""
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
