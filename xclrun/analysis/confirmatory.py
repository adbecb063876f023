"""The primary comparisons of a study as they are chosen: baseline, measures and margin.

A sweep's YAML can set them (``hydra.sweeper.comparisons``), so that they are fixed before any score is known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from xclrun.analysis.measures import headlines
from xclrun.core.errors import UsageError, did_you_mean

KEY = "hydra.sweeper.comparisons"
# Default measures of the primary comparisons.
PRIMARY = ("F", "FP")


def primary_measures(text: str, option: str = "--primary ") -> tuple[str, ...]:
    """Parse names of measures, separated by commas; ``option`` precedes the text in errors."""
    names, available = [name.strip() for name in text.split(",")], [measure.name for measure in headlines()]
    if unknown := next((name for name in names if name not in available), None):
        raise UsageError(f"{option}{text}: unknown measure '{unknown}'; {did_you_mean(unknown, available)}")
    return tuple(dict.fromkeys(names))


def margin_of(text: str, option: str = "--margin ") -> float:
    """Parse the margin of equivalence tests, in points; return a fraction."""
    try:
        margin = float(text)
    except ValueError:
        margin = math.nan
    if not 0 < margin <= 100:
        raise UsageError(f"{option}{text}: needs a number of points above 0 and at most 100, as in {option}1")
    return margin / 100


def chosen(node: Any) -> dict[str, Any]:
    """Check the comparisons of a sweep and return those that are set: ``baseline``, ``primary``, ``margin`` in points.

    Raises:
        UsageError: a key or value is invalid.
    """
    comparisons: dict[str, Any] = {}
    for key, value in node.items() if isinstance(node, dict) else [("", node)]:
        if value is None:
            continue
        if key == "baseline" and isinstance(value, str):
            comparisons[key] = value
        elif key == "primary":
            text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
            comparisons[key] = list(primary_measures(text, f"{KEY}.primary="))
        elif key == "margin":
            margin_of(str(value), f"{KEY}.margin=")
            comparisons[key] = float(value)
        else:
            name = f"{KEY}.{key}" if key else KEY
            raise UsageError(f"{name}={value}: needs baseline=STRATEGY, primary=MEASURES or margin=POINTS")
    return comparisons


def departures(
    recorded: Mapping[str, Any], baseline: str | None, primary: tuple[str, ...], margin: float | None
) -> list[str]:
    """Name the choices of a report that differ from those that its sweep recorded when it started."""
    if not recorded:
        return []
    used = {
        "baseline": baseline or "naive",
        "primary": ", ".join(sorted(primary)),
        "margin": "none" if margin is None else f"{100 * margin:g}",
    }
    before = {
        "baseline": str(recorded.get("baseline", "naive")),
        "primary": ", ".join(sorted(recorded.get("primary", PRIMARY))),
        "margin": f"{recorded['margin']:g}" if "margin" in recorded else "none",
    }
    changed = [f"{key} {used[key]} instead of {before[key]}" for key in used if used[key] != before[key]]
    text = "the primary comparisons differ from those that the sweep recorded when it started"
    return [f"{text}: {'; '.join(changed)}"] if changed else []
