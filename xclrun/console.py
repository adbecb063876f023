"""What a person sees: progress on a terminal, plain lines in a log; the rows of the score matrix as they come."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xclrun.errors import XclrunError
from xclrun.plan import Hop
from xclrun.train.listen import Listener, Progress
from xclrun.train.stop import Stopped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from xclrun.run import Run


def line(text: str = "") -> None:
    """Print one line for a person, at once."""
    print(text, file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """Return seconds as a person says them: ``4.2 s``, ``3 min 05 s``, ``2 h 10 min``."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def learnt(hop: Hop) -> str:
    """Return what a hop has learnt, for a narrow column: ``before``, ``en``, ``6 joint``."""
    return "before" if hop.index == 0 else hop.name if len(hop.train) <= 2 else f"{len(hop.train)} joint"


class Console(Listener):
    """Tells about one run after another.

    On a terminal a bar shows hop, epoch, step, examples per second and time left; elsewhere there is one line per hop.

    Of several workers each tells a run as a whole when it has ended, so that their lines do not mix.

    Args:
        runs: ids of the runs of the sweep, in order.
        held: keep lines until a run has ended.
    """

    def __init__(self, runs: Sequence[str], held: bool = False) -> None:
        self.runs, self.held = list(runs), held
        self.lines: list[str] = []
        self.terminal = sys.stderr.isatty() and not held
        self.bar: Bar | None = None
        self.drawn = 0.0
        self.hop_began = time.monotonic()
        self.told: set[str] = set()

    def of_worker(self) -> Console:
        """Return the console of a worker process."""
        return Console(self.runs, held=True)

    def say(self, text: str, last: bool = False) -> None:
        """Print a line now, or with the others of its run when it has ended."""
        if not self.held:
            line(text)
            return
        self.lines.append(text)
        if last:
            line("\n".join(self.lines))
            self.lines.clear()

    def _number(self, run: Run) -> str:
        return f"[{self.runs.index(run.id) + 1}/{len(self.runs)}]"

    def _fitted(self, parts: Sequence[str], between: str) -> str:
        """Return parts in one line where they fit the terminal, else each in its own."""
        together = between.join(parts)
        return together if len(together) + 2 <= self.width else "\n  ".join(parts)

    def run_started(self, run: Run) -> None:
        from xclrun.matrix import MatrixRows, width_of_terminal

        self.hops, self.width = len(run.stream.hops) - 1, width_of_terminal()
        if self.held:
            line(f"{self._number(run)} {run.label}: started")
        self.say(f"\n{self._fitted([f'{self._number(run)} {run.label}', run.id], '   ')}")
        metrics = run.dataset.kind.metrics(tagged=bool(run.dataset.tags))
        names = [learnt(hop) for hop in run.stream.hops]
        self.rows = MatrixRows(run.stream.languages, metrics, names, self.width, self.terminal)
        self.say(self.rows.head())

    def skipped(self, run: Run) -> None:
        """Say that a run is finished already."""
        if not self.held:
            line(f"{self._number(run)} {run.label}   {run.id}: finished before, skipped")

    def deferred(self, run: Run, owner: str) -> None:
        """Say that a run comes later, since another process works on it or on a stage of it."""
        self.lines.clear()
        if run.id not in self.told and not self.held:
            self.told.add(run.id)
            line(f"  {run.label}: {owner} is working on it or on a stage that it shares; it comes later")

    def noted(self, text: str) -> None:
        self.say(f"  note: {text}")

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.hop_began = time.monotonic()
        if self.terminal:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._close()
            columns = (
                TextColumn("  {task.description}"),
                BarColumn(30),
                TextColumn("{task.fields[rate]}"),
                TimeRemainingColumn(),
            )
            self.bar = Bar(*columns, console=Terminal(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(f"hop {hop.index}/{self.hops} {hop.name}", total=None, rate="")

    def stepped(self, progress: Progress) -> None:
        now = time.monotonic()
        if self.bar is None or now - self.drawn < 0.2:
            return
        self.drawn = now
        p = progress
        rate = p.examples / p.seconds if p.seconds else 0.0
        text = f"hop {p.hop.index}/{self.hops} {p.hop.name} · epoch {p.epoch}/{p.epochs} · step {p.step}/{p.steps}"
        self.bar.update(self.task, description=text, completed=p.step, total=p.steps, rate=f"{rate:.0f} examples/s")

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        """Epochs are shown on the bar alone: a log gets one line per hop."""

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        from xclrun.matrix import brief

        self._close()
        note = "shared" if shared else brief(time.monotonic() - self.hop_began) if hop.index else ""
        own = hop.train[-1] if hop.train and run.stream.kind != "joint" else None
        self.say(self.rows.row(hop.index, learnt(hop), scores, own, note))
        self.hop_began = time.monotonic()

    def run_ended(self, run: Run, seconds: float) -> None:
        from xclrun.analysis.measures import measure
        from xclrun.analysis.record import TASKS
        from xclrun.analysis.reference import References
        from xclrun.records import read_records, record

        mine = record(run.directory)
        references = References(read_records(run.outputs)) if run.id == self.runs[-1] else References([])
        told = []
        for task in mine.tasks:
            metric = TASKS[task]
            measured = measure(mine, metric, references.scores(mine, metric))
            values = [(name, measured[name, ""]) for name in ("F", "T", "T0", "FP")]
            known = [f"{name} {100 * value:.2f}" for name, value in values if isinstance(value, float)]
            told.append(f"{task}: {'  '.join(known)}")
        self.say(f"  {self._fitted([*told, f'({duration(seconds)})'], ' · ')}", last=True)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self._close()
        if isinstance(error, Stopped):
            self.say("  stopped", last=True)
            return
        told = str(error) if isinstance(error, XclrunError) else f"{type(error).__name__}: {error}"
        self.say(f"  {told}", last=True)

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
