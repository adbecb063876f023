"""A copy of the code, so later edits do not affect queued jobs."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from xclrun.config.files import packaged
from xclrun.core.version import PACKAGE, STAMP, code_version
from xclrun.store.files import atomic_directory

# `python <copy> -u -m <module> …` is like `python -u -m <module> …`, but imports xclrun from the copy, regardless of
# the current folder and PYTHONPATH. Signals wait until the job handles them (`job.PackJob`), because imports take
# seconds on a network file system.
ENTRY = """import signal

signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2))

import runpy
import sys

_, _, _, *sys.argv = sys.argv
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def copy_code(folder: Path) -> Path:
    """Copy the package and its configs to ``<folder>/<hash of the content>`` unless it exists; return this path."""
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
