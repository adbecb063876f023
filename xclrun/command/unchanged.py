"""Recognize a report whose inputs have not changed since it was written: it is printed again instead of made again.

A file in ``outputs/cache`` holds, for a command line, a hash of everything that determines the report, the checksums of
the report's files, and the printed text. The hash covers the sweeps and every file of every run (inode, size and
modification time), the state of unfinished runs, the source of xclrun, libraries and matplotlib's settings. The file is
safe to delete. A report is made again if any input or any of its own files differs.

Reports that print notes, use plug-ins, read a server or few-shot data, or fill a page are always made.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from xclrun.config.files import packaged
from xclrun.core import plugins
from xclrun.core.errors import XclrunError
from xclrun.core.files import UNREADABLE
from xclrun.core.identity import digest
from xclrun.core.version import PACKAGE
from xclrun.store.cache import CachedFile
from xclrun.store.files import sha256
from xclrun.store.rundir import RunDirectory

# Libraries that determine numbers and figures.
LIBRARIES = ("numpy", "scipy", "pandas", "pyarrow", "statsmodels", "sacrebleu", "matplotlib", "jinja2", "rich",
             "mlflow-skinny", "mlflow")  # fmt: skip
# Environment variables that change a report, by prefix.
PREFIXES = ("XCLRUN_", "MPL", "MATPLOTLIB")


class Unchanged:
    """The stored facts of a command's last report.

    Args:
        arguments: arguments of ``xclrun report``; ``args``: the same, parsed.
        width: width of the printed tables.
    """

    def __init__(self, arguments: Sequence[str], args: argparse.Namespace, width: int) -> None:
        self.outputs: Path = args.outputs
        self.mirrors = args.source == "mlflow"
        self._arguments = [*arguments, width]
        self._before, self._stable = self._database(), True
        self.key = None if plugins.hashes() or args.uri is not None or args.into is not None else self._key()
        self._file = CachedFile(
            self.outputs / "cache", f"report-{digest([os.getcwd(), *arguments])[:16]}", ".json", lambda text: None
        )

    def text(self) -> str | None:
        """Return what the command prints if its report is unchanged, or None."""
        if self.key is None:
            return None
        with suppress(*UNREADABLE):
            facts = json.loads(self._file.read() or b"{}")
            if (facts["key"], facts["database"]) == (self.key, self._database()):
                folder = self.outputs / "reports" / facts["name"]
                # Empty if a file could not be read when the report was stored.
                if facts["files"] and facts["files"] == _checksums(folder, facts["files"]):
                    return str(facts["text"])
        return None

    def check(self) -> None:
        """Store no report if another process has changed MLflow's file; call it before this process changes it."""
        self._stable &= self._before == self._database()

    def accept(self) -> None:
        """Accept the changes of MLflow's file that this process has made."""
        self._before = self._database()

    def store(self, name: str, text: str) -> None:
        """Record a report; call it inside `alone`, after all files of the report are written."""
        if self.key is None or not self._stable:
            return
        folder = self.outputs / "reports" / name
        files = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
        facts = {
            "key": self.key, "database": self._database(), "name": name, "text": text,
            "files": _checksums(folder, files),
        }  # fmt: skip
        # In a folder that is not writable, the report is made each time.
        with suppress(XclrunError, OSError):
            self._file.write(json.dumps(facts, ensure_ascii=False).encode())

    def _database(self) -> list[int] | None:
        """Return the state of MLflow's file: if it has changed, the report may have to be sent again."""
        if not self.mirrors:
            return None
        with suppress(OSError):
            return _state(os.stat(self.outputs / "mlflow.db"))
        return None

    def _key(self) -> str:
        from xclrun.launch.status import run_status

        unfinished = []
        for path in sorted((self.outputs / "runs").glob("*")):
            # Without a manifest too: whether the process that starts the run is alive shows in no file.
            if path.is_dir() and not (directory := RunDirectory(path)).done.is_file():
                status = run_status(directory)
                unfinished.append([directory.run_id, status.state, status.detail])
        inputs = [
            self.outputs / "runs",
            self.outputs / "sweeps",
            PACKAGE,
            packaged("conf"),
            packaged("sweeps"),
            *_style_files(),
        ]
        return digest([
            [[str(path), *_files(path)] for path in inputs], unfinished, _versions(), self._arguments,
            plugins.typed_command(), os.getcwd(),
            sorted([name, value] for name, value in os.environ.items() if name.startswith(PREFIXES)),
        ])  # fmt: skip


def _state(stat: os.stat_result) -> list[int]:
    return [stat.st_ino, stat.st_size, stat.st_mtime_ns]


def _files(path: Path | str) -> list[list[Any]]:
    """Return path, inode, size and modification time of a file, or of all files in a folder but bytecode."""
    try:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except NotADirectoryError:
        return [_state(os.stat(path))]
    except OSError:
        return []
    files = []
    for entry in found:
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            files += _files(entry.path)
        else:
            with suppress(OSError):
                files.append([entry.path, *_state(entry.stat())])
    return files


def _style_files() -> list[Path]:
    """Return the places where matplotlib looks for its settings, without importing it."""
    home = Path(os.path.expanduser("~"))
    named = [Path(value) for name in ("MATPLOTLIBRC", "MPLCONFIGDIR") if (value := os.environ.get(name))]
    folders = [Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "matplotlib", home / ".matplotlib"]
    return [path if path.is_file() else path / "matplotlibrc" for path in [Path(), *named, *folders]]


def _versions() -> list[str]:
    versions = [platform.python_version()]
    for library in LIBRARIES:
        with suppress(PackageNotFoundError):
            versions.append(f"{library} {version(library)}")
    return versions


def _checksums(folder: Path, names: Sequence[str] | dict[str, str]) -> dict[str, str]:
    """Return name → checksum of files of a report; empty if one is missing."""
    try:
        return {name: sha256(folder / name) for name in names}
    except OSError:
        return {}
