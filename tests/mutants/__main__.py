"""``python -m tests.mutants [TEXT …]``: make each mistake of mutants.yaml in a copy of the project, and run its tests.

A mutant is killed if its tests fail. The command lists the survivors, and entries whose line no longer exists, and then
exits with code 1. Run it before a release: ``make mutants``. With words, it tries mutants whose entry contains one.
A process that has imported the libraries, and nothing of xclrun, is forked for each mutant, so a mutant costs its tests
alone. In the end, the tests that failed run without a mistake: one that fails then too has detected nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).with_name("mutants.yaml")
# A mutant that hangs is killed as well: its tests take seconds of CPU time otherwise, though more on a busy machine.
SECONDS, WAIT = 300, 1800
LIBRARIES = (
    *("torch", "transformers", "pandas", "pyarrow.parquet", "scipy.stats", "hydra", "matplotlib.pyplot"),
    *("mlflow.tracking", "sqlalchemy", "optuna", "hypothesis", "pytest"),
)
OPTIONS = (
    "-q", "-x", "-n", "0", "-p", "no:cacheprovider", "-m", "not full or some_cases",
    # Libraries with a plug-in for pytest are imported already.
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One mistake: in ``file``, the only occurrence of ``old`` becomes ``new``; ``tests`` must then fail."""

    file: str
    old: str
    new: str
    tests: str

    def __str__(self) -> str:
        return f"{self.file}: {' '.join(self.old.split())}  →  {' '.join(self.new.split()) or '(deleted)'}"

    @property
    def room(self) -> str:
        """The package of xclrun, or the file, that the mistake is in."""
        return Path(self.file).parts[1]


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


class Failures:
    """Plug-in of pytest that writes the IDs of failed tests to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(f"{report.nodeid}\n")


def run_pytest(project: Path, arguments: Sequence[str], place: Path, seconds: int) -> None:
    """Run tests of a copy of the project in this process, a child, and end it with pytest's exit code."""
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        for stream in (1, 2):
            os.dup2(os.open(place / "output", os.O_CREAT | os.O_WRONLY | os.O_APPEND), stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(project)
        # Tests, and programs that they start, must not read the project from where it is installed.
        os.environ.update(PYTHONPATH=str(project), PYTHONDONTWRITEBYTECODE="")
        sys.dont_write_bytecode = False
        sys.path[:] = [str(project), *(path for path in sys.path if path and Path(path).resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "xclrun")]:
            del sys.modules[name]
        importlib.invalidate_caches()
        import pytest

        options = [*OPTIONS, f"--basetemp={place / 'tests'}", *arguments]
        code = int(pytest.main(options, plugins=[Failures(place / "failed")]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


@dataclass
class Attempt:
    """Tests that run in a child of this process, in a copy of the project; the copy may have a mistake."""

    project: Path
    tests: Sequence[str]
    mutant: Mutant | None = None
    seconds: int = SECONDS

    def start(self) -> None:
        self.place, self.began = Path(tempfile.mkdtemp(prefix="mutant-")), time.monotonic()
        if self.mutant is not None:
            path = self.project / self.mutant.file
            self.text = path.read_text(encoding="utf-8")
            rewrite(path, self.text.replace(self.mutant.old, self.mutant.new))
        self.child = os.fork()
        if not self.child:
            run_pytest(self.project, self.tests, self.place, self.seconds)

    def ended(self) -> bool:
        """Return whether the tests have ended, or run for too long; then clean up."""
        ended, status = os.waitpid(self.child, os.WNOHANG)
        late = time.monotonic() - self.began > WAIT
        if not ended and not late:
            return False
        # Programs that tests have left behind end too.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child, signal.SIGKILL)
        if not ended:
            os.waitpid(self.child, 0)
        if self.mutant is not None:
            rewrite(self.project / self.mutant.file, self.text)
        # pytest: 0 passed; 4 and 5 no such test, or none of the fast tier; 1 failed; 2 and 3 not importable.
        none = f"no test ran: {' '.join(self.tests)}"
        results = {0: "survived", 4: none, 5: none}
        self.result = results.get(os.waitstatus_to_exitcode(status), "killed") if ended else "killed"
        failed, self.took = self.place / "failed", time.monotonic() - self.began
        self.failed = failed.read_text(encoding="utf-8").splitlines() if failed.is_file() else []
        shutil.rmtree(self.place, ignore_errors=True)
        return True


def attempts(chosen: Sequence[Mutant], projects: Sequence[Path]) -> Iterator[Attempt]:
    """Try mutants, as many at a time as there are copies of the project; yield each when its tests have ended."""
    free, waiting, running = [*projects], [*chosen], list[Attempt]()
    while waiting or running:
        while waiting and free:
            mutant = waiting.pop(0)
            running.append(Attempt(free.pop(), mutant.tests.split(), mutant))
            running[-1].start()
        for attempt in [*running]:
            if attempt.ended():
                running.remove(attempt)
                free.append(attempt.project)
                yield attempt
        time.sleep(0.02)


def out_of_date(mutant: Mutant) -> bool:
    path = ROOT / mutant.file
    return not path.is_file() or path.read_text(encoding="utf-8").count(mutant.old) != 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("words", nargs="*", help="only mutants whose entry contains one of these")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time (default: 2)")
    given = parser.parse_args()
    chosen = [m for m in mutants() if not given.words or any(word in f"{m} {m.tests}" for word in given.words)]
    old = [mutant for mutant in chosen if out_of_date(mutant)]
    for mutant in old:
        print(f"out of date  {mutant}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    for library in LIBRARIES:
        importlib.import_module(library)
    # Garbage collection in a child would copy the memory that it shares with this process.
    gc.freeze()
    tried, killed = Counter(mutant.room for mutant in chosen), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        projects = [Path(folder, str(job)) for job in range(given.jobs)]
        for project in projects:
            copy_project(project)
        made = []
        for attempt in attempts([mutant for mutant in chosen if mutant not in old], projects):
            made.append(attempt)
            print(f"{attempt.result}  {attempt.took:.1f} s  {attempt.mutant}", flush=True)
        always = Attempt(projects[0], ["--maxfail=1000", *sorted({test for a in made for test in a.failed})])
        always.seconds, always.failed = 10 * SECONDS, []
        if len(always.tests) > 1:
            always.start()
            while not always.ended():
                time.sleep(0.02)
    for test in always.failed:
        print(f"fails without a mistake: {test}")
    for attempt in made:
        assert attempt.mutant is not None
        killed[attempt.mutant.room] += attempt.result == "killed" and not {*attempt.failed} & {*always.failed}
    for room, number in sorted(tried.items()):
        print(f"{room}: {killed[room]} of {number}")
    print(f"{killed.total()} of {len(chosen)} mutants killed")
    return int(killed.total() < len(chosen) or not chosen)


if __name__ == "__main__":
    sys.exit(main())
