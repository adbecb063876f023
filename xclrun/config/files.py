"""Where the YAML files of the configs lie, and which choices they give."""

from __future__ import annotations

from pathlib import Path

import yaml

from xclrun.core.plugins import provided
from xclrun.core.version import PACKAGE


def packaged(folder: str) -> Path:
    """Return where ``conf`` or ``sweeps`` lies: inside the installed package, or at the top of a checkout."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def choices() -> dict[str, dict[str, str]]:
    """Return group → choice → the first line of comment of its YAML; sweeps are the group ``sweep``.

    Datasets and strategies of plug-ins are choices without a YAML.
    """
    root = packaged("conf")
    result: dict[str, dict[str, str]] = {}
    for path in sorted(root.rglob("*.yaml")):
        group = path.parent.relative_to(root).as_posix()
        if group not in (".", "hydra/sweeper"):
            result.setdefault(group, {})[path.stem] = _first_comment(path)
    for path in sorted(packaged("sweeps").glob("*.yaml")):
        result.setdefault("sweep", {})[path.stem] = _first_comment(path)
    for group in ("dataset", "strategy"):
        result[group] |= provided(group)
    return result


def strategy_name(choice: str) -> str:
    """Return the name of the code that a choice of the group ``strategy`` configures."""
    if choice in provided("strategy"):
        return choice
    content = yaml.safe_load((packaged("conf") / "strategy" / f"{choice}.yaml").read_text(encoding="utf-8"))
    return str(content.get("name") or strategy_name(content["defaults"][0].partition("@")[0]))


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line[2:]
    return ""
