"""Files of sweeps: the commands and the run IDs of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def commands_of(sweep: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return ``command`` and ``runs`` of each command that a sweep consists of, the last one last."""
    return sweep.get("commands") or [{"command": sweep["command"], "runs": sweep["runs"]}]


def typed_commands(sweep: Mapping[str, Any]) -> str:
    """Return the commands of a sweep in one line."""
    return "; ".join(dict.fromkeys(part["command"] for part in commands_of(sweep)))


def command_of(sweep: Mapping[str, Any], run_id: str) -> str:
    """Return the last command of a sweep that contains a run."""
    return next(str(part["command"]) for part in reversed(commands_of(sweep)) if run_id in part["runs"])


def joined(sweeps: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the runs and commands of several sweeps as one sweep, with the facts of the last one.

    A command whose runs a later one contains is omitted.
    """
    parts: list[dict[str, Any]] = []
    for part in (part for sweep in sweeps for part in commands_of(sweep)):
        parts = [*(earlier for earlier in parts if not {*earlier["runs"]} <= {*part["runs"]}), part]
    runs = list(dict.fromkeys(run for part in parts for run in part["runs"]))
    whole = {key: value for key, value in sweeps[-1].items() if key != "commands"}
    return {**whole, "runs": runs, **({"commands": parts} if len(parts) > 1 else {})}


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
        texts += [text for part in commands_of(sweep) for text in (part["command"], *part["runs"])]
        if valid and all(isinstance(text, str) for text in texts):
            return sweep
    except UNREADABLE:
        pass
    raise ValueError("fields are missing or have the wrong type")
