"""Execution of runs: one after another in this process, or in several worker processes.

Workers need no coordinator: each acquires the next free run, and waits for other workers only if no other run is left.
"""

from __future__ import annotations

import contextlib
import gc
import math
import os
import signal
import socket
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from types import FrameType
from typing import Any

from xclrun.core.errors import XclrunError
from xclrun.core.files import UNREADABLE
from xclrun.core.plugins import one_line
from xclrun.core.stream import Hop
from xclrun.core.terminal import line
from xclrun.launch.console import HEARTBEAT, Console
from xclrun.launch.sweep import release
from xclrun.plan import Run
from xclrun.store.files import atomic_write, read_json
from xclrun.store.lease import Lease
from xclrun.store.rundir import GPU_BROKEN
from xclrun.tracking.background import BackgroundMirror
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import Stopped, begin_worker, handle, how_ended

# Seconds between two checks whether a postponed run can continue.
POLL = 0.5
# Exit code of a worker with a broken GPU: temporary failure (sysexits.h).
BROKEN = os.EX_TEMPFAIL


class Broken(XclrunError):
    """The GPU accepts no further work from this process, for example after a failed device assertion."""


class MirrorListener(Listener):
    """Notifies the mirror after epochs and hops, and when a run has ended.

    Args:
        every: minimum seconds between two notices about a running run.
    """

    def __init__(self, run: Run, mirror: BackgroundMirror, every: float = 10.0) -> None:
        self.run, self.mirror, self.every, self.notified = run, mirror, every, -math.inf

    def _notify(self) -> None:
        if (now := time.monotonic()) - self.notified >= self.every:
            self.notified = now
            self.mirror.changed(self.run.id, live=True)

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        self._notify()

    def hop_ended(self, run: Run, hop: Hop, scores: dict[str, dict[str, float]], shared: bool) -> None:
        self._notify()

    def run_ended(self, run: Run, seconds: float) -> None:
        self.mirror.changed(run.id)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self.mirror.changed(run.id)


class ProgressListener(Listener):
    """Writes the progress of a run for `xclrun status`, with the epochs of the current hop for trackers."""

    def __init__(self, run: Run, every: float = 2.0) -> None:
        self.run, self.every, self.written = run, every, -math.inf
        self.epochs: list[dict[str, Any]] = []

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.epochs = []
        # A resumed hop does not report its earlier epochs.
        with contextlib.suppress(*UNREADABLE):
            progress = read_json(self.run.directory.progress)
            self.epochs = progress["epochs"] if progress["hop"] == hop.index else []

    def stepped(self, progress: Progress) -> None:
        if time.monotonic() - self.written >= self.every:
            self._write(progress)

    def epoch_ended(self, progress: Progress, facts: dict[str, Any]) -> None:
        self.epochs = [*(epoch for epoch in self.epochs if epoch["epoch"] < facts["epoch"]), facts]
        self._write(progress)

    def _write(self, p: Progress) -> None:
        self.written = time.monotonic()
        facts = {"hop": p.hop.index, "hops": len(self.run.stream.hops) - 1, "name": p.hop.name}
        facts |= {"step": p.step, "steps": p.steps, "seconds": p.seconds, "epochs": self.epochs}
        self.run.directory.write_progress(facts)


def work(runs: Sequence[Run], console: Console, mirror: BackgroundMirror, since: float | None = None) -> None:
    """Execute runs; a failed run does not stop the others.

    A run that needs what another process is computing is postponed until that process releases its lease. Runs that
    have failed after ``since`` (seconds since the epoch), in another worker of the same command, are skipped.
    """
    queue: deque[Run] = deque(runs)
    postponed: list[tuple[Run, Lease]] = []
    while queue or postponed:
        leases = {lease for _, lease in postponed}
        free = {lease for lease in leases if lease.free} if queue else _wait_for_any(leases)
        queue.extendleft(run for run, lease in reversed(postponed) if lease in free)
        postponed = [(run, lease) for run, lease in postponed if lease not in free]
        run = queue.popleft()
        if run.directory.finished:
            console.skipped(run)
        elif since is None or not run.directory.failed_since(since):
            load(console)
            if (lease := _execute(run, console, mirror)) is not None:
                postponed.append((run, lease))
            else:
                release(runs)


def _wait_for_any(leases: Collection[Lease]) -> set[Lease]:
    """Wait until at least one of the leases is free; return the free leases."""
    from xclrun.train.stop import stop_on_signals

    with stop_on_signals() as stop:
        while not (free := {lease for lease in leases if lease.free}):
            stop.check()
            time.sleep(POLL)
        # A signal since the last check must prevent the next run.
        stop.check()
    return free


def _execute(run: Run, console: Console, mirror: BackgroundMirror) -> Lease | None:
    """Execute a run; if it must wait for another process, return the lease of that process."""
    from xclrun.train.execute import Busy, execute
    from xclrun.train.precision import context_broken
    from xclrun.train.progress import Listeners
    from xclrun.train.stop import stop_on_signals

    try:
        with stop_on_signals() as stop:
            execute(run, Listeners([console, ProgressListener(run), MirrorListener(run, mirror)]), stop, patient=False)
    except Busy as busy:
        console.deferred(run, str(busy))
        return busy.lease
    except XclrunError:
        _debug()
    except (Stopped, KeyboardInterrupt):
        raise
    # Including SystemExit, which a plug-in may raise.
    except BaseException as error:
        if run.directory.finished:
            # `execute` reports errors only until the run has finished; this error came later, in a listener.
            console.run_failed(run, error)
        log = run.directory.path / "error.log"
        atomic_write(log, traceback.format_exc())
        line(f"  traceback: {log}", important=True)
        _debug()
        if context_broken():
            run.directory.event(GPU_BROKEN)
            raise Broken(
                f"{run.id}: the GPU accepts no further work from this process; re-run the same command to continue"
            ) from None
    return None


def make_ahead(stages: Sequence[tuple[Run, int]], console: Console) -> None:
    """Train hops that several runs share; a failure is reported later by the runs that need the hop."""
    from xclrun.train.execute import make_stages
    from xclrun.train.stop import stop_on_signals

    for run, hop in stages:
        try:
            with stop_on_signals() as stop:
                line(f"{run.label}: training hop {hop}, which several runs share")
                make_stages(run, [0, hop], console, stop)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            line(f"  {one_line(error)}")
            _debug()


def _debug() -> None:
    if os.environ.get("XCLRUN_DEBUG"):
        traceback.print_exc()


def work_in_processes(
    runs: Sequence[Run], console: Console, mirror: BackgroundMirror, places: Sequence[str | None]
) -> None:
    """Execute runs in worker processes.

    Args:
        places: CUDA_VISIBLE_DEVICES of each worker; None leaves the variable unchanged.
    """
    load(console)
    if len(places) > 1:
        share(runs)
    stopped: list[int] = []
    since, launcher = time.time(), os.getpid()

    def start(gpu: str | None) -> int | None:
        """Start a worker and return its process ID; after a signal, start none and return None."""

        def do() -> None:
            begin_worker(launcher)
            if gpu is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            from xclrun.train.others import end_ranks

            try:
                work(runs, Console(console.runs, buffered=True, blind=console.blind), mirror, since)
            finally:
                end_ranks()

        return None if stopped else fork(do)

    def pass_on(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        for child in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    children = {child: gpu for gpu in places if (child := start(gpu)) is not None}
    before = handle(pass_on)
    try:
        _wait_for(children, runs, console, start)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise Stopped(stopped[0])


def load(console: Console) -> None:
    """Import PyTorch once, before forking; print a line, since it takes seconds."""
    if not console.buffered and "torch" not in sys.modules:
        line("  loading PyTorch …")
        import xclrun.train.execute  # noqa: F401


def share(runs: Sequence[Run]) -> None:
    """Encode the data and read the pretrained weights of the first run to train, in memory that forked workers share.

    Runs with other data or another encoder load them in their worker.
    """
    run = next((r for r in runs if not all(r.store.has(stage.evaluation) for stage in r.stages)), None)
    if run is None:
        return
    # No thread may start before the fork: threads do not survive it, and libraries would wait for them.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    from xclrun.model.encoder import read_ahead
    from xclrun.train.encodings import encodings

    torch.set_num_threads(1)
    # Ignore errors here: they occur again in the run, which reports them.
    with contextlib.suppress(XclrunError, OSError):
        encodings(run)
        read_ahead(run.config.model)
    # Garbage collection writes to every object, which would copy its page in each worker.
    gc.collect()
    gc.freeze()


def _wait_for(
    children: dict[int, str | None],
    runs: Sequence[Run],
    console: Console,
    start: Callable[[str | None], int | None],
) -> None:
    """Wait until all workers have ended; print their progress every minute.

    Args:
        children: process ID → its CUDA_VISIBLE_DEVICES; ended processes are removed.
        start: starts a new worker in place of one that died or has a broken GPU, with the same CUDA_VISIBLE_DEVICES.
    """
    last = time.monotonic()
    if console.time_left is not None:
        console.time_left.observe()
    while children:
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            place, code = children.pop(child), os.waitstatus_to_exitcode(status)
            abandoned = _abandoned(runs, child)
            if abandoned is not None:
                how = how_ended(code)
                line(f"  a worker {how} during {abandoned.id}; re-run the same command to resume the run")
                # Other workers of this command skip the run, because it may kill them too.
                abandoned.directory.event("failed", error=f"its worker {how}")
            if (abandoned is not None or code == BROKEN) and (new := start(place)) is not None:
                children[new] = place
                if abandoned is None:
                    line("  the GPU accepts no further work from a worker; a new worker replaces it")
        if children and time.monotonic() - last > HEARTBEAT:
            last = time.monotonic()
            line(console.workers_line(runs))
        if children:
            time.sleep(0.05)


def _abandoned(runs: Sequence[Run], child: int) -> Run | None:
    """Return the run with a lease that a dead worker did not release."""
    for run in runs:
        owner = run.directory.lease.owner()
        if owner is not None and (owner.host, owner.pid) == (socket.gethostname(), child):
            return run
    return None


def fork(do: Callable[[], object]) -> int:
    """Call a function in a forked process; return the process ID.

    Exit codes: 0; 1 after an error; `BROKEN` after `Broken`; 128 + signal after `Stopped`.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        do()
        code = 0
    except Stopped as stopped:
        code = 128 + stopped.number
    except Broken:
        code = BROKEN
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
