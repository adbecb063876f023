"""``python -m tests.alone [FILE …]``: each test file by itself, on a narrow terminal, in Latin-1, without root.

A file must not need what another one imports, a wide terminal, UTF-8 or the rights of root. A process that has imported
the libraries, and nothing of xclrun, is forked for each file, so a file costs its tests alone. Without files, it tests
a quarter of them, in turn by XCLRUN_TURN; with ``--all``, all. Exits with code 1 if a file fails.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARIES = ("torch", "transformers", "pandas", "pyarrow.parquet", "scipy.stats", "hydra", "matplotlib")
AT_ONCE = 2
QUARTER = 4
ENVIRONMENT = {"COLUMNS": "40", "PYTHONIOENCODING": "latin-1", "OMP_NUM_THREADS": "1"}


def chosen(files: Sequence[Path], turn: int) -> list[Path]:
    """Return the quarter of the files whose turn it is."""
    return [*files[turn % QUARTER :: QUARTER]]


def without_root(folder: Path) -> None:
    """Give up the rights of root (Linux capabilities), here and in programs that are started, and have an empty home.

    The user stays the same: root's own Python may lie where no other user can read it.
    """
    home = folder / "home"
    home.mkdir()
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        # prctl(PR_SET_SECUREBITS, SECBIT_NOROOT and its lock): programs do not get the rights back.
        libc.prctl(28, 3, 0, 0, 0)
        # capset: version 3, this process, no rights.
        if libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()):
            raise OSError(ctypes.get_errno(), "the rights of root cannot be given up")
    os.environ.update(HOME=str(home), TMPDIR=str(folder))
    tempfile.tempdir = None


def test_file(path: Path, folder: Path) -> int:
    """Run the fast tests of a file in a child of this process; return the child's number."""
    if child := os.fork():
        return child
    code = 1
    try:
        output = os.open(folder / "output", os.O_CREAT | os.O_WRONLY)
        os.dup2(output, 1)
        os.dup2(output, 2)
        without_root(folder)
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(encoding="latin-1", errors="backslashreplace")  # type: ignore[union-attr]
        # Libraries with a plug-in for pytest are imported already.
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        options += ["-m", "not full", f"--basetemp={folder / 'tests'}"]
        result = pytest.main([*options, str(path)])
        # 5: all tests of the file are of the full tier.
        code = 0 if result in (0, 5) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.alone", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--all", action="store_true", help="all files instead of a quarter")
    given = parser.parse_args()
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    if not given.all:
        files = [path.resolve() for path in given.files] or chosen(files, int(os.environ.get("XCLRUN_TURN") or 0))
    os.environ.update(ENVIRONMENT)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    os.chdir(ROOT)
    for library in LIBRARIES:
        importlib.import_module(library)
    place = Path(tempfile.mkdtemp(prefix="alone-"))
    running: dict[int, tuple[Path, Path]] = {}
    waiting, failed = list(files), 0
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            path = waiting.pop(0)
            folder = place / path.stem / str(len(waiting))
            folder.mkdir(parents=True)
            running[test_file(path, folder)] = path, folder
        child, status = os.wait()
        path, folder = running.pop(child)
        if status:
            failed += 1
            print(f"== {path} fails by itself\n{(folder / 'output').read_text(encoding='latin-1')}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)
    print(f"{len(files) - failed} of {len(files)} test files pass by themselves")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
