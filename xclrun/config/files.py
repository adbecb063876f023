"""Where the YAML files of the configs lie, and which choices they give."""

from __future__ import annotations

from pathlib import Path

from xclrun.core.version import PACKAGE


def packaged(folder: str) -> Path:
    """Return where ``conf`` or ``sweeps`` lies: inside the installed package, or at the top of a checkout."""
    inside = PACKAGE / folder
    return inside if inside.is_dir() else PACKAGE.parent / folder


def choices() -> dict[str, dict[str, str]]:
    """Return group → choice → the first line of comment of its YAML; sweeps are the group ``sweep``.

    The strategies that can be laid beneath another one are the group ``strategy/expansion``.
    """
    root = packaged("conf")
    result: dict[str, dict[str, str]] = {}
    for path in sorted(root.rglob("*.yaml")):
        group = path.parent.relative_to(root).as_posix()
        if group not in (".", "hydra/sweeper"):
            result.setdefault(group, {})[path.stem] = _first_comment(path)
    parts = {name: told for name, told in result["strategy"].items() if name.startswith("lang_spec_")}
    result["strategy/expansion"] = {name: told for name, told in parts.items() if name != "lang_spec_ft"}
    for path in sorted(packaged("sweeps").glob("*.yaml")):
        result.setdefault("sweep", {})[path.stem] = _first_comment(path)
    return result


def _first_comment(path: Path) -> str:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("# ") and not line.startswith("# @package"):
            return line[2:]
    return ""
