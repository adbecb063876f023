"""Progress on a terminal, plain lines in a log; rows of the score matrix as they come."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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

# Seconds between two lines of a log at the most.
HEARTBEAT = 50.0


def workers_line(runs: Sequence[Run], left: TimeLeft | None) -> str:
    """Return a line on several workers: runs finished, where the others are, and the time left."""
    parts = [f"{sum(run.directory.finished for run in runs)} of {len(runs)} runs finished"]
    for i, run in enumerate(runs, 1):
        with contextlib.suppress(OSError, ValueError, KeyError):
            if not run.directory.finished and time.time() - run.directory.progress.stat().st_mtime < 2 * HEARTBEAT:
                p = read_json(run.directory.progress)
                parts.append(f"[{i}/{len(runs)}] hop {p['hop']}/{p['hops']} {p['name']}, step {p['step']}/{p['steps']}")
    if left is not None:
        left.observe()
        if (seconds := left.seconds()) is not None:
            parts.append(f"about {about(seconds)} left")
    return f"  {' · '.join(parts)}"


def learnt(hop: Hop) -> str:
    """Return what a hop has learnt, for a narrow column: ``before``, ``en``, ``6 joint``, ``6 mixed``, ``de#1-7``."""
    if hop.index == 0:
        return "before"
    if len(hop.train) <= 2 or hop.codes:
        return hop.name
    return f"{len(hop.train)} {'mixed' if hop.mixed else 'joint'}"


BAR = 12


def step_line(progress: Progress, hops: int, left: str, width: int) -> tuple[str, str, int]:
    """Return the line of a bar, so that the time left is never cut.

    Where the terminal is too narrow the bar shrinks and goes first, then the epoch (steps go on over the epochs of
    a hop), then the rate.

    Args:
        progress: where the hop is.
        hops: how many the run has.
        left: the time left, as the end of the line; "" where it is not known.
        width: columns of the terminal.

    Returns:
        What stands before the bar, what after it, and the columns of the bar between them; 0: there is none.
    """
    p = progress
    hop, epoch, step = (
        f"hop {p.hop.index}/{hops} {p.hop.name}",
        f"epoch {p.epoch}/{p.epochs}",
        f"step {p.step}/{p.steps}",
    )
    rate = f"{p.examples / p.seconds if p.seconds else 0.0:.0f} examples/s"
    place, after = " · ".join((hop, epoch, step)), f"{rate}{left}"
    # Two columns before the line, a blank on each side of the bar.
    room = width - 2 - cell_len(place) - cell_len(after) - 2
    if room >= 3:
        return place, after, min(BAR, room)
    fitting = ((hop, epoch, step, rate), (hop, step, rate), (hop, step))
    lines = [f"{' · '.join(parts)}{left}" for parts in fitting]
    return next((line for line in lines if 2 + cell_len(line) < width), lines[-1]), "", 0


class Console(Listener):
    """Shows one run after another.

    On a terminal a bar shows hop, epoch, step, examples per second and the time left for the run and for the sweep;
    elsewhere there is one line per hop, and one a minute inside long ones.

    Each of several workers prints a run as a whole when it has ended, so that their lines do not mix.

    Args:
        runs: ids of the runs of the sweep, in order.
        held: keep lines until a run has ended.
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
        # What is going on: the run, its hops that were trained in this attempt, and what is said if it takes long.
        self.run: Run | None = None
        self.trained: set[int] = set()
        self.slow = contextlib.ExitStack()

    def say(self, text: str, last: bool = False, important: bool = False) -> None:
        """Print a line now, or with the others of its run when it has ended; ``important``: with option -q too."""
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
        """Return parts in one line where they fit the terminal, else each in its own."""
        together = between.join(parts)
        return together if len(together) + 2 <= self.width else "\n  ".join(parts)

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
        """Say that a run is finished already."""
        if not self.held:
            line(f"{self._number(run)} {run.label}   {run.id}: finished before, skipped")

    def deferred(self, run: Run, owner: str) -> None:
        """Say that a run comes later, since another process works on it or on a stage of it."""
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

            self._close()
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
            text, rate, _ = step_line(p, self.hops, self._left(), sys.maxsize)
            self.say(f"  {text} · {rate}")
        else:
            text, rate, wide = step_line(p, self.hops, self._left(), self.bar.console.width)
            self.columns[1].bar_width = wide
            self.bar.columns = self.columns if wide else self.columns[:1]
            self.bar.update(self.task, description=text, completed=p.step, total=p.steps, rate=rate)

    def _left(self) -> str:
        """Return the time left for the run, and for the sweep where it has other runs, as the end of a line."""
        if self.left is None or self.run is None or (of_run := self.left.seconds(self.run.id)) is None:
            return ""
        of_all = self.left.seconds() if len(self.runs) > 1 else None
        return f" · left: run {about(of_run)}" + ("" if of_all is None else f", sweep {about(of_all)}")

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        """Epochs are shown on the bar alone: a log gets one line per hop."""

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        from xclrun.report.terminal import brief

        self._close()
        self.slow.close()
        if self.left is not None and hop.index:
            self.left.progressed(run.stages[hop.index].train, 1.0, before=1.0)
        took = brief(time.monotonic() - self.hop_began) if hop.index in self.trained else "kept"
        note = "shared" if shared else took if hop.index else ""
        if self.blind:
            self.say(f"  hop {hop.index}/{len(run.stream.hops) - 1} {learnt(hop)}" + (f" · {note}" if note else ""))
            self.hop_began = time.monotonic()
            return
        own = hop.select[-1] if hop.train and run.stream.kind != "joint" and not hop.mixed else None
        if self.head:
            self.say(self.head)
            self.head = ""
        self.say(self.rows.row(hop.index, learnt(hop), scores, own, note))
        self.hop_began = time.monotonic()

    def run_ended(self, run: Run, seconds: float) -> None:
        from xclrun.analysis.measures import headlines, measure
        from xclrun.analysis.reference import References
        from xclrun.core.task import short_name
        from xclrun.store.beside import with_references
        from xclrun.store.records import record

        summaries: list[str] = []
        mine = record(run.directory)
        last = run.id == self.runs[-1] and not self.blind
        references = References([mine, *with_references(run.outputs, [mine])[0]] if last else [])
        for metric in () if self.blind else mine.metrics:
            measured = measure(mine, metric, references.scores(mine, metric))
            values = [(one, measured[one.name, ""]) for one in headlines()]
            known = [f"{one.name} {one.scale * value:.2f}" for one, value in values if isinstance(value, float)]
            summaries.append(f"{short_name(metric)}: {'  '.join(known)}")
        took = f"({duration(seconds)})"
        rest = None if self.left is None or run.id == self.runs[-1] else self.left.seconds()
        took += "" if not rest else f" · left: sweep {about(rest)}"
        self.say(f"  {self._fitted([*summaries, took], ' · ')}", last=True)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self._close()
        self.slow.close()
        if isinstance(error, Stopped):
            self.say("  stopped", last=True)
            return
        named = f"{run.id}: " if is_quiet() else ""
        self.say(f"  {named}{told(error)}", last=True, important=True)

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
