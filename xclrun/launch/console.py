"""Progress on a terminal, plain lines in a log; rows of the score matrix as they come."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from xclrun.core.plugins import told
from xclrun.core.stream import Hop
from xclrun.core.task import shown
from xclrun.core.terminal import about, as_note, columns, duration, if_slow, is_quiet, line
from xclrun.launch.time_left import TimeLeft
from xclrun.store.files import read_json
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import Stopped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from xclrun.run import Run

# Seconds between two lines of a log at most.
HEARTBEAT = 50.0
# Columns of the bar.
BAR = 12


def learnt(hop: Hop) -> str:
    """Return what a hop trains on, for a narrow column: ``before``, ``en``, ``6 joint``, ``6 mixed``, ``de#1-7``."""
    if hop.index == 0:
        return "before"
    if len(hop.train) <= 2 or hop.codes:
        return hop.name
    return f"{len(hop.train)} {'mixed' if hop.mixed else 'joint'}"


def step_line(progress: Progress, hops: int, left: str, width: int) -> tuple[str, str]:
    """Return the texts before and after the bar; on a narrow terminal one text and "", without the bar.

    The time left is never cut: first the epoch goes (steps are counted over all epochs of a hop), then the rate.

    Args:
        progress: position in the hop.
        hops: number of hops in the run.
        left: the time left, as the end of the line; "" if unknown.
        width: columns of the terminal.
    """
    p = progress
    hop, epoch, step, rate = (
        f"hop {p.hop.index}/{hops} {p.hop.name}",
        f"epoch {p.epoch}/{p.epochs}",
        f"step {p.step}/{p.steps}",
        f"{p.examples / p.seconds if p.seconds else 0.0:.0f} examples/s",
    )
    before, after = " · ".join((hop, epoch, step)), f"{rate}{left}"
    # Two columns before the line, a blank on each side of the bar, and one column free.
    if cell_len(before) + cell_len(after) + BAR + 5 <= width:
        return before, after
    lines = [f"{' · '.join(parts)}{left}" for parts in ((hop, epoch, step, rate), (hop, step, rate), (hop, step))]
    return next((line for line in lines if 2 + cell_len(line) < width), lines[-1]), ""


class Console(Listener):
    """Shows one run after another.

    On a terminal a bar shows hop, epoch, step, examples per second and the time left for the run and for the sweep;
    otherwise a line is printed per hop, and every minute inside long ones.

    Args:
        runs: ids of the runs of the sweep, in order.
        held: print a run as a whole when it has ended, so that the lines of several workers do not mix.
        left: estimates the time left; None: it is not shown.
        blind: show no score: those of the test split must not be seen yet.
    """

    def __init__(
        self, runs: Sequence[str], held: bool = False, left: TimeLeft | None = None, blind: bool = False
    ) -> None:
        self.runs, self.held, self.left, self.blind = list(runs), held, left, blind
        self.lines: list[str] = []
        self.terminal = sys.stderr.isatty() and not held and not is_quiet()
        self.bar: Bar | None = None
        self.last_drawn = 0.0
        self.hop_began = self.last_line = time.monotonic()
        self.deferred_before: set[str] = set()
        self.run: Run | None = None
        # Hops of the current run that were trained in this attempt.
        self.trained: set[int] = set()
        # The line that is printed if loading takes long.
        self.slow = contextlib.ExitStack()

    def say(self, text: str, last: bool = False, important: bool = False) -> None:
        """Print a line now, or if ``held`` with the ``last`` line of its run; ``important``: with option -q too."""
        if not self.held:
            line(text, important)
            self.last_line = time.monotonic()
            return
        if important or not is_quiet():
            self.lines.append(text)
        if last and self.lines:
            line("\n".join(self.lines), important=True)
            self.lines.clear()

    def _number(self, run: Run) -> str:
        return f"[{self.runs.index(run.id) + 1}/{len(self.runs)}]"

    def _fitted(self, parts: Sequence[str], between: str) -> str:
        """Return parts in one line if they fit the terminal, else each in its own."""
        together = between.join(parts)
        return together if len(together) + 2 <= self.width else "\n  ".join(parts)

    def workers_line(self, unfinished: Sequence[Run]) -> str:
        """Return a line on several workers: runs finished, the steps of the others, and the time left."""
        going = [run for run in unfinished if not run.directory.finished]
        parts = [f"{len(self.runs) - len(going)} of {len(self.runs)} runs finished"]
        for run in going:
            with contextlib.suppress(OSError, ValueError, KeyError):
                if time.time() - run.directory.progress.stat().st_mtime < 2 * HEARTBEAT:
                    p = read_json(run.directory.progress)
                    hop, step = f"hop {p['hop']}/{p['hops']} {p['name']}", f"step {p['step']}/{p['steps']}"
                    parts.append(f"{self._number(run)} {hop}, {step}")
        if self.left is not None:
            self.left.observe()
            if (seconds := self.left.seconds()) is not None:
                parts.append(f"about {about(seconds)} left")
        return f"  {' · '.join(parts)}"

    def run_started(self, run: Run) -> None:
        from xclrun.report.terminal import MatrixRows

        self.hops, self.width = len(run.stream.hops) - 1, columns(sys.stderr)
        if self.held and run.id not in self.deferred_before:
            line(f"{self._number(run)} {run.label}: started")
        self.say(f"\n{self._fitted([f'{self._number(run)} {run.label}', run.id], '   ')}")
        metrics = shown(run.dataset.metrics)
        names = [learnt(hop) for hop in run.stream.hops]
        self.rows = MatrixRows(run.stream.languages, metrics, names, self.width, self.terminal)
        self.head = self.rows.head()  # printed with the first row, when everything has been loaded
        self.run = run
        self.trained.clear()
        if not self.held:
            self.slow.enter_context(if_slow("  loading data and model, and evaluating it before fine-tuning …"))

    def skipped(self, run: Run) -> None:
        if not self.held:
            line(f"{self._number(run)} {run.label}   {run.id}: finished before, skipped")

    def deferred(self, run: Run, owner: str) -> None:
        """Say that a run is postponed, since another process works on it or on a stage of it."""
        self.lines.clear()
        self.slow.close()
        if run.id not in self.deferred_before and not self.held:
            line(f"  {run.label}: {owner} is working on it or on a stage that it shares; it comes later")
        self.deferred_before.add(run.id)

    def noted(self, text: str) -> None:
        self.say(as_note(text, sys.stderr, "  "), important=True)

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.hop_began = time.monotonic()
        self.slow.close()
        self.run, self.hops = run, len(run.stream.hops) - 1
        self.trained.add(hop.index)
        if self.left is not None:
            self.left.start()
        if self.terminal:
            from rich.console import Console as Terminal
            from rich.progress import BarColumn, TextColumn
            from rich.progress import Progress as Bar

            self._close_bar()
            self.columns = (TextColumn("  {task.description}"), BarColumn(BAR), TextColumn("{task.fields[rate]}"))
            self.bar = Bar(*self.columns, console=Terminal(stderr=True), transient=True)
            self.bar.start()
            self.task = self.bar.add_task(f"hop {hop.index}/{self.hops} {hop.name}", total=None, rate="")

    def stepped(self, progress: Progress) -> None:
        now, p = time.monotonic(), progress
        if self.left is not None and self.run is not None:
            self.left.progressed(self.run.stages[p.hop.index].train, p.step / p.steps, before=(p.step - 1) / p.steps)
        due = (
            now - self.last_drawn >= 0.2
            if self.bar is not None
            else now - self.last_line >= HEARTBEAT and not self.held
        )
        if not due:
            return
        self.last_drawn = now
        if self.bar is None:
            self.say(f"  {' · '.join(step_line(p, self.hops, self._left(), sys.maxsize))}")
        else:
            text, rate = step_line(p, self.hops, self._left(), self.bar.console.width)
            self.bar.columns = self.columns if rate else self.columns[:1]
            self.bar.update(self.task, description=text, completed=p.step, total=p.steps, rate=rate)

    def _left(self) -> str:
        """Return the time left for the run, and for the sweep if it has other runs, as the end of a line."""
        if self.left is None or self.run is None or (of_run := self.left.seconds(self.run.id)) is None:
            return ""
        of_all = self.left.seconds() if len(self.runs) > 1 else None
        return f" · left: run {about(of_run)}" + ("" if of_all is None else f", sweep {about(of_all)}")

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        from xclrun.report.terminal import brief

        self._close_bar()
        self.slow.close()
        if self.left is not None and hop.index:
            self.left.progressed(run.stages[hop.index].train, 1.0, before=1.0)
        time_or_kept = brief(time.monotonic() - self.hop_began) if hop.index in self.trained else "kept"
        note = "shared" if shared else time_or_kept if hop.index else ""
        self.hop_began = time.monotonic()
        if self.blind:
            self.say(f"  hop {hop.index}/{len(run.stream.hops) - 1} {learnt(hop)}" + (f" · {note}" if note else ""))
            return
        current = hop.select[-1] if hop.train and run.stream.kind != "joint" and not hop.mixed else None
        if self.head:
            self.say(self.head)
            self.head = ""
        self.say(self.rows.row(hop.index, learnt(hop), scores, current, note))

    def run_ended(self, run: Run, seconds: float) -> None:
        from xclrun.analysis.measures import headlines, measure
        from xclrun.analysis.reference import References
        from xclrun.core.task import short_name
        from xclrun.store.records import record

        summaries: list[str] = []
        if not self.blind:
            scored = record(run.directory)
            # Transfer needs runs of other commands: `report` and `show` compute it.
            references = References([])
            for metric in scored.metrics:
                measured = measure(scored, metric, references.scores(scored, metric))
                values = [(one, measured[one.name, ""]) for one in headlines()]
                texts = [f"{one.name} {one.scale * value:.2f}" for one, value in values if isinstance(value, float)]
                summaries.append(f"{short_name(metric)}: {'  '.join(texts)}")
        rest = None if self.left is None or run.id == self.runs[-1] else self.left.seconds()
        end = f"({duration(seconds)})" + (f" · left: sweep {about(rest)}" if rest else "")
        self.say(f"  {self._fitted([*summaries, end], ' · ')}", last=True)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self._close_bar()
        self.slow.close()
        if isinstance(error, Stopped):
            self.say("  stopped", last=True)
            return
        named = f"{run.id}: " if is_quiet() else ""
        self.say(f"  {named}{told(error)}", last=True, important=True)

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
