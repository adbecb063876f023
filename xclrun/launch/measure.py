"""``xclrun plan --measure``: memory and time of each kind of run on this device, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection
from typing import Any

from xclrun.core.plugins import one_line
from xclrun.core.terminal import fitted, size, table
from xclrun.plan import Run
from xclrun.train.measure import STEPS, HopCost, Measured


@dataclass(frozen=True)
class Row:
    """What one run of a kind took, or why it could not be measured."""

    run: Run
    measured: Measured | None
    error: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the data for ``--json``."""
        measured = {} if self.measured is None else self.measured.to_json()
        return {"run_id": self.run.id, "label": self.run.label, **measured, "error": self.error}


def kinds(runs: Sequence[Run]) -> list[Run]:
    """Return a run of each kind: those that differ in more than their order and seed."""
    settings = ("model", "dataset", "strategy", "trainer", "protocol", "evaluate", "shots")
    first: dict[str, Run] = {}
    for run in runs:
        first.setdefault(repr([run.resolved[key] for key in settings]), run)
    return list(first.values())


def measure_kinds(runs: Sequence[Run]) -> Iterator[Row]:
    """Measure a run of each kind, one after another; nothing is stored."""
    for run in kinds(runs):
        yield _measured_apart(run)


def _measured_apart(run: Run) -> Row:
    """Measure a run in a forked process, so that memory of earlier runs does not count."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_measure, args=(run, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        measured = ours.recv()
    except EOFError:
        measured = None
    process.join()
    if isinstance(measured, Measured):
        return Row(run, measured, measured.error)
    if isinstance(measured, str):
        return Row(run, None, measured)
    killed = process.exitcode == -signal.SIGKILL
    reason = "killed, probably because this machine has too little memory" if killed else "the process ended"
    return Row(run, None, f"{reason}; use a smaller trainer.batch_size with trainer.gradient_accumulation")


def _measure(run: Run, answer: Connection) -> None:
    from xclrun.train.execute import translated
    from xclrun.train.measure import measure

    try:
        answer.send(measure(run))
    except (Exception, SystemExit) as error:
        answer.send(one_line(translated(error, run)))


def render(rows: Sequence[Row]) -> str:
    """Return the measurements as a table; equal rows of later hops are joined."""
    measured = [row.measured for row in rows if row.measured is not None]
    lines = []
    for device, capacity in dict.fromkeys((one.device, one.capacity) for one in measured):
        has = "" if capacity is None else f" ({size(capacity)})"
        lines.append(f"Measured on {device}{has}: {STEPS} steps of each hop, on its longest sentences")
    cells = []
    for row in rows:
        for number, (hops, peak, seconds) in enumerate(_joined(row.measured.hops if row.measured else ())):
            cells.append(("" if number else row.run.label, hops, size(peak), f"{seconds:.3g} s"))
    if cells:
        lines.append(table(("run", "hops", "peak memory", "step"), cells))
    failed = [(row.run.label, row.error) for row in rows if row.error]
    lines += [fitted(f"does not fit or cannot be measured: {label}: {error}", sys.stdout) for label, error in failed]
    return "\n".join(lines)


def _joined(hops: Sequence[HopCost]) -> list[tuple[str, int, float]]:
    """Return (hops, peak, seconds) of the first hop and of the maximum of the later hops."""
    found = []
    for _, group in groupby(hops, key=lambda cost: cost.hop > 1):
        costs = list(group)
        first, last = costs[0].hop, costs[-1].hop
        name = str(first) if first == last else f"{first} to {last}"
        found.append((name, max(cost.peak_bytes for cost in costs), max(cost.seconds for cost in costs)))
    return found
