"""The code itself: its version, and a copy of it that later edits do not reach."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from functools import cache
from pathlib import Path

from xclrun import __version__
from xclrun.config import PACKAGE, packaged
from xclrun.store.files import atomic_directory

STAMP = "CODE_VERSION"
# Run as `python <copy> …`: the copy then comes before any other xclrun, whatever the current folder holds.
ENTRY = "import sys\n\nfrom xclrun.cluster.job import main\n\nsys.exit(main(sys.argv[1:]))\n"


@cache
def code_version() -> str:
    """Return the version of the code: the release, and in a checkout the commit, with ``.dirty`` for changes to it."""
    checkout = PACKAGE.parent
    if (stamp := checkout / STAMP).is_file():
        return stamp.read_text().strip()
    if not (checkout / ".git").exists():
        return __version__
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty=.dirty", "--exclude=*"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__}+g{found}"


def copy_code(folder: Path) -> Path:
    """Copy the package and its configs to ``<folder>/<hash of the content>``, once; return that."""
    files = {Path("xclrun") / path.relative_to(PACKAGE): path for path in _files(PACKAGE)}
    for part in ("conf", "sweeps"):
        files |= {Path("xclrun") / part / path.relative_to(packaged(part)): path for path in _files(packaged(part))}
    content = hashlib.sha256(f"{code_version()}\n{ENTRY}".encode())
    for name, path in sorted(files.items()):
        content.update(f"{name}\n{path.stat().st_size}\n".encode() + path.read_bytes())
    copy = folder / content.hexdigest()[:16]
    if not copy.is_dir():
        with atomic_directory(copy) as temporary:
            for name, path in files.items():
                (temporary / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, temporary / name)
            (temporary / STAMP).write_text(code_version() + "\n")
            (temporary / "__main__.py").write_text(ENTRY)
    return copy


def _files(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
