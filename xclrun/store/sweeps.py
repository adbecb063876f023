"""Files of sweeps: the command and the run IDs of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import note
from xclrun.store.files import read_json

# Fields of the ``search`` entry in a sweep file (`xclrun.launch.sweep.Sweep`), and their types.
SEARCH = {"objective": str, "keys": list, "trials": int, "made": int, "ended": bool, "runs": list}
# As `SEARCH`, for the ``comparisons`` entry, whose fields are optional.
COMPARISONS = {"baseline": str, "primary": list, "margin": float}


def sweeps(outputs: Path, warn: Callable[[str], None] = note) -> list[dict[str, Any]]:
    """Return name, command and run IDs of the sweeps, most recent last; ``warn`` is called for unreadable ones."""
    by_time = {}
    for path in (outputs / "sweeps").glob("*.json"):
        try:
            sweep = read_sweep(path)
            by_time[float(sweep.get("given", 0)), path.name] = sweep
        except UNREADABLE as error:
            warn(f"{path} cannot be read ({error}); skipped; re-run the command of the sweep to restore it")
    return [by_time[key] for key in sorted(by_time)]


def read_sweep(path: Path) -> dict[str, Any]:
    """Return the content of a sweep's file.

    Raises:
        OSError, ValueError: the file is unreadable.
    """
    sweep: dict[str, Any] = read_json(path)
    try:
        texts = [sweep["name"], sweep["command"], sweep["started"], *sweep["runs"]]
        types = {key: type(value) for key, value in sweep.get("search", {}).items()}
        chosen = {key: type(value) for key, value in sweep.get("comparisons", {}).items()}
        valid = (not types or types.items() >= SEARCH.items()) and chosen.items() <= COMPARISONS.items()
        texts += sweep.get("comparisons", {}).get("primary", [])
        if valid and all(isinstance(text, str) for text in texts):
            return sweep
    except UNREADABLE:
        pass
    raise ValueError("fields are missing or have the wrong type")
