"""``python -m tests.mutants [TEXT …]``: make each mistake of mutants.yaml in a copy of the project, and run its tests.

A mutant is killed if its tests fail. The command lists the survivors, and entries whose line no longer exists, and then
exits with code 1. Run it before a release: ``make mutants``. With words, it tries mutants whose entry contains one.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from queue import SimpleQueue

import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.yaml")
# A mutant that hangs is killed as well: its tests take seconds otherwise.
SECONDS = 300


@dataclass(frozen=True)
class Mutant:
    """One mistake: in ``file``, the only occurrence of ``old`` becomes ``new``; ``tests`` must then fail."""

    file: str
    old: str
    new: str
    tests: str

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())}  →  {' '.join(self.new.split()) or '(deleted)'}"


def mutants() -> list[Mutant]:
    """Return the list."""
    return [Mutant(**entry) for entry in yaml.safe_load(LIST.read_text(encoding="utf-8"))]


def copy_project(target: Path) -> None:
    """Copy the files that git tracks or would add."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    )  # fmt: skip
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


def rewrite(path: Path, text: str) -> None:
    """Change a source file, and remove its bytecode, which is told apart by size and time in seconds alone."""
    path.write_text(text, encoding="utf-8")
    Path(cache_from_source(str(path))).unlink(missing_ok=True)


def verdict(mutant: Mutant, project: Path) -> str:
    """Return ``killed``, ``survived`` or what is wrong with the entry."""
    path = project / mutant.file
    text = path.read_text(encoding="utf-8") if path.is_file() else ""
    if text.count(mutant.old) != 1:
        return f"out of date: {text.count(mutant.old)} occurrences"
    rewrite(path, text.replace(mutant.old, mutant.new))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not full or some_cases",
        *mutant.tests.split(),
    ]
    # Programs that tests start must not read the project from where it is installed.
    environment = {**os.environ, "PYTHONPATH": str(project), "PYTHONDONTWRITEBYTECODE": ""}
    try:
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, timeout=SECONDS)
    except subprocess.TimeoutExpired:
        return "killed"
    finally:
        rewrite(path, text)
    # pytest: 0 passed, 1 failed, 2 not importable; the others mean that no test ran.
    return {0: "survived", 1: "killed", 2: "killed"}.get(done.returncode, f"no test ran: {mutant.tests}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose entry contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time (default: 2)")
    given = parser.parse_args()
    chosen = [m for m in mutants() if not given.words or any(word in f"{m} {m.tests}" for word in given.words)]
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(given.jobs) as pool:
        free: SimpleQueue[Path] = SimpleQueue()
        for job in range(given.jobs):
            project = Path(folder, str(job))
            copy_project(project)
            free.put(project)

        def attempt(mutant: Mutant) -> str:
            project = free.get()
            try:
                return verdict(mutant, project)
            finally:
                free.put(project)

        wrong = 0
        for mutant, result in zip(chosen, pool.map(attempt, chosen), strict=True):
            wrong += result != "killed"
            print(f"{result}  {mutant}", flush=True)
    print(f"{len(chosen) - wrong} of {len(chosen)} mutants killed")
    return int(wrong > 0 or not chosen)


if __name__ == "__main__":
    sys.exit(main())
