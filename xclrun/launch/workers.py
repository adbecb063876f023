"""Do runs: one after another in this process, or in several worker processes.

Workers need no coordinator: each takes the next run whose lease is free, and waits for a stage that another one makes
only when nothing else is left to do.
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
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from xclrun.core.errors import XclrunError
from xclrun.core.plugins import told
from xclrun.core.stream import Hop
from xclrun.core.terminal import line
from xclrun.launch.console import HEARTBEAT, Console
from xclrun.run import Run
from xclrun.store.files import atomic_write, read_json
from xclrun.store.rundir import GPU_BROKEN
from xclrun.tracking.background import BackgroundMirror
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import SIGNALS, Stopped

# Exit code of a worker whose GPU is broken: a temporary failure (sysexits.h).
BROKEN = os.EX_TEMPFAIL


class Broken(XclrunError):
    """The GPU refuses all further work of this process, as after a failed assertion on it."""


class MirrorListener(Listener):
    """Notifies the mirror when a run has ended, and while it trains after epochs and hops.

    Args:
        every: seconds at least between two notices about a run that trains.
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
    """Writes the progress of a run for `xclrun status`, and each epoch of the current hop for trackers."""

    def __init__(self, run: Run, every: float = 2.0) -> None:
        self.run, self.every, self.written = run, every, -math.inf
        self.epochs: list[dict[str, Any]] = []

    def hop_started(self, run: Run, hop: Hop) -> None:
        self.epochs = []
        # A resumed hop does not report its earlier epochs again.
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
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
    """Do the runs; one that fails does not stop the others.

    Runs that wait for another process come last. Those that failed after ``since`` (seconds since the epoch) are
    skipped: another worker of the same command tried them.

    Raises:
        Stopped: a signal ended the work.
        Broken: a run has left the GPU unusable for this process; the other runs are unchanged.
    """
    queue, deferred = deque(runs), 0
    while queue:
        run = queue.popleft()
        if run.directory.finished:
            console.skipped(run)
        elif since is None or not run.directory.failed_since(since):
            load(console)
            if not _one(run, console, mirror, patient=deferred > len(queue)):
                queue.append(run)
                deferred += 1
                continue
        deferred = 0


def _one(run: Run, console: Console, mirror: BackgroundMirror, patient: bool) -> bool:
    """Do one run; return whether it has ended, successfully or not: False if it must wait for another process."""
    from xclrun.train.execute import Busy, execute
    from xclrun.train.precision import context_broken
    from xclrun.train.progress import Listeners
    from xclrun.train.stop import stop_on_signals

    try:
        with stop_on_signals() as stop:
            execute(run, Listeners([console, ProgressListener(run), MirrorListener(run, mirror)]), stop, patient)
    except Busy as busy:
        console.deferred(run, str(busy))
        return False
    except XclrunError:
        _debug()
    except (Stopped, KeyboardInterrupt):
        raise
    # Also SystemExit, with which a plug-in would end the other runs.
    except BaseException as error:
        if run.directory.finished:
            # Only the display of its end failed.
            console.run_failed(run, error)
        log = run.directory.path / "error.log"
        atomic_write(log, traceback.format_exc())
        line(f"  the traceback is in {log}", important=True)
        _debug()
        if context_broken():
            run.directory.event(GPU_BROKEN)
            raise Broken(
                f"{run.id}: the GPU refuses all further work of this process; the same command does the other runs"
            ) from None
    return True


def make_ahead(stages: Sequence[tuple[Run, int]], console: Console) -> None:
    """Make hops of runs ahead of all runs that share them; the runs themselves report failures.

    Raises:
        Stopped: a signal ended the work.
    """
    from xclrun.train.execute import make_stages
    from xclrun.train.stop import stop_on_signals

    for run, hop in stages:
        try:
            with stop_on_signals() as stop:
                line(f"{run.label}: making hop {hop}, which other runs share")
                make_stages(run, [0, hop], console, stop)
        except (Stopped, KeyboardInterrupt):
            raise
        except BaseException as error:
            line(f"  {told(error)}")
            _debug()


def _debug() -> None:
    if os.environ.get("XCLRUN_DEBUG"):
        traceback.print_exc()


def work_in_processes(
    runs: Sequence[Run], console: Console, mirror: BackgroundMirror, places: Sequence[str | None]
) -> None:
    """Do the runs in worker processes, one per place: its GPU (as CUDA_VISIBLE_DEVICES), or None.

    Raises:
        Stopped: a signal ended the work; it was passed on to the workers, and they have saved checkpoints.
    """
    load(console)
    if len(places) > 1:
        share(runs)
    stopped: list[int] = []
    since = time.time()

    def start(gpu: str | None) -> int | None:
        """Start a worker; None after a signal."""

        def do() -> None:
            if gpu is not None:
                os.environ["CUDA_VISIBLE_DEVICES"] = gpu
            work(runs, Console(console.runs, held=True, blind=console.blind), mirror, since)

        return None if stopped else fork(do)

    def pass_on(number: int, frame: FrameType | None) -> None:
        stopped.append(number)
        for child in list(children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, number)

    children = {child: gpu for gpu in places if (child := start(gpu)) is not None}
    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    try:
        _wait_for(children, runs, console, start)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stopped:
        raise Stopped(stopped[0])


def load(console: Console) -> None:
    """Import PyTorch once, before forking, and say so, since it takes seconds."""
    if not console.held and "torch" not in sys.modules:
        line("  loading PyTorch …")
        import xclrun.train.execute  # noqa: F401


def share(runs: Sequence[Run]) -> None:
    """Encode the sentences and read the pretrained weights of the first run that trains, before workers are forked.

    They share its pages of memory. Of runs with other data or another encoder, each does that itself.
    """
    run = next((r for r in runs if not all(r.store.has(stage.evaluation) for stage in r.stages)), None)
    if run is None:
        return
    # Threads do not survive a fork, and their libraries would wait for them: none may be started before it.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    from xclrun.model.encoder import read_ahead
    from xclrun.train.encodings import encodings

    torch.set_num_threads(1)
    # The run itself reports what is wrong.
    with contextlib.suppress(XclrunError, OSError):
        encodings(run)
        read_ahead(run.config.model)
    # Garbage collection would write into every object, and so copy its page in each worker.
    gc.collect()
    gc.freeze()


def _wait_for(
    children: dict[int, str | None],
    runs: Sequence[Run],
    console: Console,
    start: Callable[[str | None], int | None],
) -> None:
    """Wait until all workers have ended, and print their progress every minute.

    Args:
        children: process → its place; ended ones are removed.
        start: starts another worker in the place of one that died, or whose GPU is broken.
    """
    last = time.monotonic()
    if console.left is not None:
        console.left.observe()
    while children:
        for child in list(children):
            ended, status = os.waitpid(child, os.WNOHANG)
            if not ended:
                continue
            place, code = children.pop(child), os.waitstatus_to_exitcode(status)
            abandoned = _abandoned(runs, child)
            if abandoned is not None:
                how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
                line(f"  a worker {how} during {abandoned.id}; the same command resumes the run")
                # So that no worker of this command tries the run again, and ends in the same way.
                abandoned.directory.event("failed", error=f"its worker {how}")
            if (abandoned is not None or code == BROKEN) and (new := start(place)) is not None:
                children[new] = place
                if abandoned is None:
                    line("  a worker's GPU refuses all further work of its process; a new one goes on in its place")
        if children and time.monotonic() - last > HEARTBEAT:
            last = time.monotonic()
            line(console.workers_line(runs))
        if children:
            time.sleep(0.05)


def _abandoned(runs: Sequence[Run], child: int) -> Run | None:
    """Return the run whose lease a dead worker did not release."""
    for run in runs:
        owner = run.directory.lease.owner()
        if owner is not None and (owner.host, owner.pid) == (socket.gethostname(), child):
            return run
    return None


def fork(do: Callable[[], object]) -> int:
    """Do something in a forked process; return its id.

    It ends with 0, with 1 after an error, with `BROKEN` after `Broken`, or with 128 + the signal that stopped it.
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
