"""Console output of running sweeps: a progress bar or plain lines, and rows of the score matrix."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from xclrun.core.files import UNREADABLE
from xclrun.core.plugins import one_line
from xclrun.core.stream import Hop
from xclrun.core.terminal import about, as_note, columns, duration, if_slow, is_quiet, line
from xclrun.launch.time_left import TimeLeft
from xclrun.store.files import read_json
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import Stopped

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

    from xclrun.plan import Run

# Maximum seconds between two lines of a log.
HEARTBEAT = 50.0
# Width of the bar in columns.
BAR = 12


def hop_label(hop: Hop) -> str:
    """Return a short label of a hop: ``before`` (fine-tuning), ``en``, ``6 joint``, ``6 mixed``, ``de#1-7``."""
    if hop.index == 0:
        return "before"
    if len(hop.train) <= 2 or hop.codes:
        return hop.name
    return f"{len(hop.train)} {'mixed' if hop.mixed else 'joint'}"


def step_line(progress: Progress, hops: int, time_left: str, width: int) -> tuple[str, str]:
    """Return the texts before and after the bar. On a narrow terminal without a bar, the second text is empty.

    The time left is always included. To shorten the text, the epoch is omitted first (steps are counted over all
    epochs), then the rate.

    Args:
        hops: number of hops in the run.
        time_left: text at the end of the line; empty if the time left is unknown.
        width: columns of the terminal.
    """
    p = progress
    hop, epoch, step, rate = (
        f"hop {p.hop.index}/{hops} {p.hop.name}",
        f"epoch {p.epoch}/{p.epochs}",
        f"step {p.step}/{p.steps}",
        f"{p.examples / p.seconds if p.seconds else 0.0:.0f} examples/s",
    )
    before, after = " · ".join((hop, epoch, step)), f"{rate}{time_left}"
    # Two columns before the line, a space on each side of the bar, and one free column.
    if cell_len(before) + cell_len(after) + BAR + 5 <= width:
        return before, after
    lines = [f"{' · '.join(parts)}{time_left}" for parts in ((hop, epoch, step, rate), (hop, step, rate), (hop, step))]
    return next((line for line in lines if 2 + cell_len(line) < width), lines[-1]), ""


class Console(Listener):
    """Prints the progress of one run after another.

    On a terminal, a bar shows hop, epoch, step, examples per second and the time left for the run and the sweep.
    Otherwise a line is printed per hop, and every minute during long hops.

    Args:
        runs: IDs of the runs of the sweep, in order.
        buffered: print the lines of a run at its end, so those of several workers do not mix.
        time_left: estimator of the time left; None: do not show it.
        blind: hide all scores, since test scores must not be seen during a search.
    """

    def __init__(
        self, runs: Sequence[str], buffered: bool = False, time_left: TimeLeft | None = None, blind: bool = False
    ) -> None:
        self.runs, self.buffered, self.time_left, self.blind = list(runs), buffered, time_left, blind
        self.lines: list[str] = []
        self.terminal = sys.stderr.isatty() and not buffered and not is_quiet()
        self.bar: Bar | None = None
        self.last_drawn = 0.0
        self.hop_began = self.last_line = time.monotonic()
        self.deferred_before: set[str] = set()
        self.run: Run | None = None
        # Hops of the current run that were trained in this attempt.
        self.trained: set[int] = set()
        # Prints a line if loading takes long.
        self.slow = contextlib.ExitStack()

    def say(self, text: str, last: bool = False, important: bool = False) -> None:
        """Print a line; if ``buffered``, with the run's ``last`` line. -q hides lines that are not ``important``."""
        if not self.buffered:
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
        """Return parts on one line if they fit the terminal, else on separate lines."""
        together = between.join(parts)
        return together if len(together) + 2 <= self.width else "\n  ".join(parts)

    def workers_line(self, unfinished: Sequence[Run]) -> str:
        """Return a line about several workers: finished runs, steps of the running ones, and the time left."""
        unfinished = [run for run in unfinished if not run.directory.finished]
        parts = [f"{len(self.runs) - len(unfinished)} of {len(self.runs)} runs finished"]
        for run in unfinished:
            with contextlib.suppress(*UNREADABLE):
                if time.time() - run.directory.progress.stat().st_mtime < 2 * HEARTBEAT:
                    p = read_json(run.directory.progress)
                    hop, step = f"hop {p['hop']}/{p['hops']} {p['name']}", f"step {p['step']}/{p['steps']}"
                    parts.append(f"{self._number(run)} {hop}, {step}")
        if self.time_left is not None:
            self.time_left.observe()
            if (seconds := self.time_left.seconds()) is not None:
                parts.append(f"about {about(seconds)} left")
        return f"  {' · '.join(parts)}"

    def run_started(self, run: Run) -> None:
        from xclrun.launch.matrix import MatrixRows

        self.hops, self.width = len(run.stream.hops) - 1, columns(sys.stderr)
        if self.buffered and run.id not in self.deferred_before:
            line(f"{self._number(run)} {run.label}: started")
        self.say(f"\n{self._fitted([f'{self._number(run)} {run.label}', run.id], '   ')}")
        metrics = run.dataset.metrics.columns
        names = [hop_label(hop) for hop in run.stream.hops]
        self.rows = MatrixRows(run.stream.languages, metrics, names, self.width, self.terminal)
        self.head = self.rows.head()  # printed with the first row, after loading
        self.run = run
        self.trained.clear()
        if not self.buffered:
            self.slow.enter_context(if_slow("  loading data and model, evaluating before fine-tuning …"))

    def skipped(self, run: Run) -> None:
        """Report a run that another process has finished in the meantime."""
        if not self.buffered:
            line(f"{self._number(run)} {run.label}   {run.id}: finished by another process")

    def deferred(self, run: Run, owner: str) -> None:
        """Report that a run is postponed while another process works on it or on one of its stages."""
        self.lines.clear()
        self.slow.close()
        if run.id not in self.deferred_before and not self.buffered:
            line(f"  {run.label}: waits for {owner}, which is working on the run or on a shared stage")
        self.deferred_before.add(run.id)

    def noted(self, text: str) -> None:
        self.say(as_note(text, sys.stderr, "  "), important=True)

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.hop_began = time.monotonic()
        self.slow.close()
        self.run, self.hops = run, len(run.stream.hops) - 1
        self.trained.add(hop.index)
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
        if self.time_left is not None and self.run is not None:
            stage = self.run.stages[p.hop.index]
            self.time_left.progressed(stage.train, p.step / p.steps, before=(p.step - 1) / p.steps)
        due = (
            now - self.last_drawn >= 0.2
            if self.bar is not None
            else now - self.last_line >= HEARTBEAT and not self.buffered
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
        """Return the end of a line: the time left for the run and, if there are several runs, for the sweep."""
        if self.time_left is None or self.run is None or (run_seconds := self.time_left.seconds(self.run.id)) is None:
            return ""
        seconds = self.time_left.seconds() if len(self.runs) > 1 else None
        return f" · left: run {about(run_seconds)}" + ("" if seconds is None else f", sweep {about(seconds)}")

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        from xclrun.launch.matrix import brief

        self._close_bar()
        self.slow.close()
        if self.time_left is not None and hop.index:
            self.time_left.progressed(run.stages[hop.index].train, 1.0, before=1.0)
        duration_or_origin = brief(time.monotonic() - self.hop_began) if hop.index in self.trained else "cached"
        note = "shared" if shared else duration_or_origin if hop.index else ""
        self.hop_began = time.monotonic()
        if self.blind:
            self.say(f"  hop {hop.index}/{len(run.stream.hops) - 1} {hop_label(hop)}" + (f" · {note}" if note else ""))
            return
        current = hop.select[-1] if hop.train and run.stream.kind != "joint" and not hop.mixed else None
        if self.head:
            self.say(self.head)
            self.head = ""
        self.say(self.rows.row(hop.index, hop_label(hop), scores, current, note))

    def run_ended(self, run: Run, seconds: float) -> None:
        from xclrun.analysis.measures import headlines, measure, quantity
        from xclrun.analysis.records import record
        from xclrun.analysis.reference import References
        from xclrun.core.task import short_name

        summaries: list[str] = []
        if not self.blind:
            scored = record(run.directory)
            # No references: transfer is omitted, because it needs runs of other commands.
            references = References([])
            for metric in scored.metrics:
                measured = measure(scored, metric, references.scores(scored, metric))
                values = [(headline, measured[headline.name, ""]) for headline in headlines()]
                texts = [
                    f"{m.name} {quantity(metric, m.name).shown(value)}"
                    for m, value in values
                    if isinstance(value, float)
                ]
                summaries.append(f"{short_name(metric)}: {'  '.join(texts)}")
        rest = None if self.time_left is None or run.id == self.runs[-1] else self.time_left.seconds()
        end = f"({duration(seconds)})" + (f" · left: sweep {about(rest)}" if rest else "")
        self.say(f"  {self._fitted([*summaries, end], ' · ')}", last=True)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self._close_bar()
        self.slow.close()
        if isinstance(error, Stopped):
            self.say("  interrupted", last=True)
            return
        named = f"{run.id}: " if is_quiet() else ""
        self.say(f"  {named}{one_line(error)}", last=True, important=True)

    def _close_bar(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
