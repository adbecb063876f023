"""Version of the code: the release and, in a checkout, the commit."""

from __future__ import annotations

from functools import cache
from pathlib import Path

VERSION = "0.2.0"

# The folder of the package.
PACKAGE = Path(__file__).parents[1]

STAMP = "CODE_VERSION"

# Version of the layout of a run directory, written to manifest.json as ``format``. Increase it if the old code cannot
# read the new layout, or the new code the old one. Never move or rename manifest.json or its keys ``format`` and
# ``code_version``, because every version reads them first.
FORMAT = 1


@cache
def code_version() -> str:
    """Return the version of the code: the release and, in a checkout, the commit, with ``.dirty`` for local changes."""
    import subprocess

    checkout = PACKAGE.parent
    if (stamp := checkout / STAMP).is_file():
        return stamp.read_text().strip()
    if not (checkout / ".git").exists():
        return VERSION
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return VERSION
    return f"{VERSION}+g{commit}"
