"""Save a command line as the YAML file of a sweep (``xclrun plan … --save NAME``)."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from xclrun.core.errors import UsageError
from xclrun.core.names import check_name
from xclrun.core.plugins import typed_command
from xclrun.store.files import atomic_write

# Keys that say where and how runs are executed. They stay on the command line.
LOCAL = ("paths.", "runtime.", "store.", "hydra.launcher", "hydra/launcher", "tracking")
FOLDER = Path("configs")


def save(overrides: Sequence[str], name: str, folder: Path | None) -> str:
    """Write ``<folder>/sweep/<name>.yaml`` with the grid of a command; return the command that runs the sweep.

    Args:
        folder: the folder of the user's YAML files (``--config-dir``); None: `FOLDER`.

    Raises:
        UsageError: the command names another sweep, sets keys of the sweeper, or the file exists with other content.
    """
    check_name("--save", name)
    params, local = dict[str, str](), list[str]()
    for text in overrides:
        key, _, value = text.partition("=")
        if key == "sweep" or key.startswith(("hydra.sweeper", "hydra/sweeper")):
            raise UsageError(f"--save: a command with {key} cannot be saved; copy the file of the sweep and edit it")
        if key.startswith(LOCAL):
            local.append(text)
        elif key not in ("sweep_name", "hydra.searchpath"):
            params[key] = value
    folder = folder or FOLDER
    path = folder / "sweep" / f"{name}.yaml"
    content = yaml.safe_dump({"hydra": {"sweeper": {"params": params}}}, sort_keys=False, allow_unicode=True, width=999)
    content = f"# @package _global_\n# {' '.join(typed_command().split())}\n{content}"
    if path.exists() and path.read_text(encoding="utf-8").splitlines()[2:] != content.splitlines()[2:]:
        raise UsageError(f"--save {name}: {path} has other settings; choose another name, or remove the file")
    atomic_write(path, content)
    return shlex.join(["xclrun", "--config-dir", str(folder), f"sweep={name}", *local, "-m"])
