"""``python -m benchmarks.reproduce PAGE DATA``: reproduce a run of a result page and compare its counts.

A page with the score matrices of its runs (``NAME-matrices.csv``) also lists the commands of the runs. This script
draws one run, plans the page's commands with the current code, and looks up the run by its ID. It executes the run in
an empty folder, without shared stages, and compares each count of its matrices with the count on the page.

On a CPU of the same kind all counts are equal. Another machine or a GPU gives slightly different floating-point
results, so trainings diverge. The script then prints the number of different counts and the largest difference in
percentage points.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shlex
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.matrices import counted
from xclrun.analysis.records import read_predictions, read_records
from xclrun.command.plan import plan_runs
from xclrun.core.errors import UsageError, XclrunError, did_you_mean
from xclrun.plan import Run

if TYPE_CHECKING:
    import pandas as pd

# Command lines of a page, and their placeholder for the data folder.
COMMAND, DATA = re.compile(r"^ {4}(xclrun .*)$", re.MULTILINE), "DIR"
# Columns of the matrices in addition to languages.
KEYS = ("run_id", "strategy", "order", "seed", "metric", "hop")

# (metric, hop, language) → counts.
Cells = Mapping[tuple[str, str, str], str]


@dataclass(frozen=True)
class Difference:
    """A cell that differs from the page.

    Attributes:
        metric, hop, language: position of the cell.
        was, now: counts on the page and of the repeated run; empty if the language was not tested.
    """

    metric: str
    hop: str
    language: str
    was: str
    now: str

    @property
    def points(self) -> float:
        """Absolute difference of the scores in percentage points; 100 if one score is missing."""
        if not (self.was and self.now):
            return 100.0
        return abs(100 * float(score(self.was) - score(self.now)))


def score(cell: str) -> Fraction:
    """Return the score of a cell ``correct/total``; 0/0 is 0."""
    parts = cell.partition("/")
    return Fraction(0) if parts[2] == "0" else Fraction(parts[0]) / Fraction(parts[2] or 1)


def page_matrices(page: Path) -> pd.DataFrame:
    """Return the matrices next to a page, all cells as text.

    Raises:
        UsageError: the page has no matrices.
    """
    import pandas as pd

    files = sorted(page.with_suffix("").glob("*-matrices.csv"))
    if not files:
        raise UsageError(f"{page}: no score matrices of runs (expected {page.with_suffix('')}/NAME-matrices.csv)")
    return pd.concat([pd.read_csv(file, dtype=str, keep_default_na=False) for file in files]).fillna("")


def commands(page: Path, data: Path) -> list[list[str]]:
    """Return the arguments of the page's training commands, with the data folder filled in."""
    result = (shlex.split(line, comments=True)[1:] for line in COMMAND.findall(page.read_text(encoding="utf-8")))
    training = (words for words in result if "-m" in words and "=" in words[0])
    return [[word.replace(f"={DATA}", f"={data}") for word in words] for words in training]


def planned(page: Path, data: Path, run_id: str, outputs: Path) -> Run:
    """Return the run with this ID, planned in ``outputs`` from the page's commands.

    Raises:
        UsageError: with the current code, no command creates this run.
    """
    for words in commands(page, data):
        options = [*words, "tracking=none", f"paths.outputs={outputs}"]
        for run in plan_runs(options):
            if run.id == run_id:
                return run
    raise UsageError(f"{run_id}: no command of {page} creates this run; use the page's data and version of xclrun")


def differences(page: Cells, anew: Cells) -> list[Difference]:
    """Return the cells that differ, in the order of the page."""
    return [
        Difference(*key, page.get(key, ""), anew.get(key, ""))
        for key in {**page, **anew}
        if page.get(key, "") != anew.get(key, "")
    ]


def cells(matrices: pd.DataFrame, run_id: str) -> dict[tuple[str, str, str], str]:
    """Return the cells of one run, without languages that the run did not test."""
    selected: list[dict[Any, str]] = matrices[matrices["run_id"] == run_id].astype(str).to_dict("records")
    whole = {(row["metric"], row["hop"], str(name)): row[name] for row in selected for name in row if name not in KEYS}
    tested = {language for (_, _, language), cell in whole.items() if cell}
    return {key: cell for key, cell in whole.items() if key[2] in tested}


def anew(run: Run, outputs: Path) -> pd.DataFrame:
    """Execute a run; return its matrices."""
    from xclrun.train.execute import execute
    from xclrun.train.progress import Listener
    from xclrun.train.stop import StopFlag

    execute(run, Listener(), StopFlag())
    records = [record for record in read_records(outputs) if record.run_id == run.id]
    return counted(records, read_predictions(outputs, records, print))


def main(arguments: Sequence[str] | None = None) -> int:
    """Reproduce one run of a page; return the exit code: 1 if a count differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.reproduce", description=__doc__)
    parser.add_argument("page", type=Path, help="docs/results/NAME.md")
    parser.add_argument("data", type=Path, help=f"data folder, which replaces {DATA} in the page's commands")
    parser.add_argument(
        "--draw", type=int, default=0, metavar="N", help="seed for drawing a run (default: %(default)s)"
    )
    parser.add_argument("--run", metavar="ID", help="run to reproduce (default: drawn at random)")
    parser.add_argument("--outputs", type=Path, metavar="DIR", help="new folder for the run (default: temporary)")
    options = parser.parse_args(arguments)
    try:
        return reproduce(options.page, options.data, options.draw, options.run, options.outputs)
    except XclrunError as error:
        print(f"benchmarks.reproduce: {error}", file=sys.stderr)
        return 2


def reproduce(page: Path, data: Path, draw: int = 0, run_id: str | None = None, stored: Path | None = None) -> int:
    """Repeat a run of a page and print whether its counts match; return the exit code.

    Raises:
        UsageError: the page has no run ``run_id``, or ``stored`` is not empty.
        XclrunError: the run failed.
    """
    matrices = page_matrices(page)
    ids = sorted(set(matrices["run_id"]))
    if run_id is not None and run_id not in ids:
        raise UsageError(f"--run {run_id}: not a run of {page}; {did_you_mean(run_id, ids)}")
    chosen = run_id or random.Random(draw).choice(ids)
    source = "given" if run_id else f"drawn with seed {draw}"
    print(f"{page}: reproducing {chosen} ({source}; the page has {len(ids)} runs)", flush=True)
    if stored is not None and stored.is_dir() and any(stored.iterdir()):
        raise UsageError(f"--outputs {stored}: the folder is not empty; use an empty folder")
    with tempfile.TemporaryDirectory(prefix="xclrun-reproduce-") as folder:
        outputs = stored or Path(folder)
        retrained = anew(planned(page, data, chosen, outputs), outputs)
    was, now = cells(matrices, chosen), cells(retrained, chosen)
    different = differences(was, now)
    if not different:
        print(f"identical: all {len(was)} counts")
        return 0
    most = max(d.points for d in different)
    print(f"DIFFERENT: {len(different)} of {len(was)} counts, by at most {most:.2f} points")
    for d in different[:10]:
        print(f"  {d.metric}, hop {d.hop}, {d.language}: {d.was or '–'} → {d.now or '–'} ({d.points:.2f})")
    return 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
