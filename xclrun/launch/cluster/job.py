"""A job on the cluster: it executes the runs of its pack like a local worker. Its tasks train each run together.

After a signal (preemption, time limit) a checkpoint is saved at the next step and Submitit requeues the job, as long as
its attempts make progress. If a run fails, the job fails after the other runs of its pack.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import Any

from xclrun.core.errors import RunError, XclrunError
from xclrun.core.output import protect
from xclrun.core.terminal import line, many
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.files import PackFiles
from xclrun.launch.console import Console
from xclrun.launch.time_left import TimeLeft
from xclrun.run import Run, thaw
from xclrun.store.rundir import RunDirectory
from xclrun.tracking.background import BackgroundMirror
from xclrun.train.stop import SIGNALS, Stopped, begin_worker

# A job is not requeued after this number of consecutive attempts without progress.
FRUITLESS = 2


@dataclass
class PackJob:
    """The callable that Submitit pickles for a job.

    Attributes:
        path: file of the pack.
        requeue: whether the job may be requeued (``hydra.launcher.requeue``).
        runs: the runs with readable configs.
    """

    path: Path
    requeue: bool = False
    runs: list[Run] = field(default_factory=list, init=False)

    def __call__(self) -> None:
        """Execute the pack."""
        protect()
        # Submitit's handler, which calls `checkpoint` and has Slurm requeue the job.
        requeue = signal.getsignal(signal.SIGUSR2)
        # Handle signals before any work: an unhandled signal would end the job without a requeue.
        for number in SIGNALS:
            signal.signal(number, _stop)
        try:
            errors = self._do()
        except Stopped as stopped:
            _ignore_signals()
            line(f"xclrun: interrupted ({signal.Signals(stopped.number).name}); checkpoint saved")
            # If the job is not running, Slurm has already cancelled or requeued it.
            if (job := slurm.this_job()) and slurm.states([job])[job].state in ("RUNNING", ""):
                signal.signal(signal.SIGUSR2, requeue)
                signal.raise_signal(signal.SIGUSR2)
            sys.exit(128 + stopped.number)
        # A signal during shutdown would mark a finished job as failed.
        _ignore_signals()
        PackFiles(self.path).add_event("ended", errors=errors, position=position(self.runs))
        if errors:
            raise RunError(f"{many(len(errors), 'run')} failed: {', '.join(errors)}")

    def _do(self) -> dict[str, str]:
        """Return the errors of the unfinished runs."""
        from xclrun.launch.workers import Broken, make_ahead, work

        files, errors = PackFiles(self.path), {}
        pack, host = files.read(), os.uname().nodename
        try:
            _join_tasks()
        except RunError as error:
            return dict.fromkeys(pack.runs, str(error))
        os.environ["XCLRUN_JOB"] = job = slurm.this_job() or f"{host}:{os.getpid()}"
        line(f"xclrun: job {job} on {host}")
        for run_id in dict.fromkeys([*pack.runs, *(run for run, _ in pack.stages)]):
            try:
                self.runs.append(thaw(RunDirectory(files.outputs / "runs" / run_id)))
            except (XclrunError, OSError) as error:
                line(f"xclrun: {error}")
                errors[run_id] = str(error)
        files.add_event("started", job=job, host=host, position=position(self.runs))
        if not self.runs:
            return errors
        by_id, tracking = {run.id: run for run in self.runs}, self.runs[0].config.tracking
        todo = [by_id[run] for run in pack.runs if run in by_id]
        console = Console(list(by_id), time_left=TimeLeft([r for r in self.runs if not r.directory.finished]))
        make_ahead([(by_id[run], hop) for run, hop in pack.stages if run in by_id], console)
        with BackgroundMirror(self.runs[0].outputs, tracking, pack.runs, enabled=tracking.by_jobs) as mirror:
            try:
                work(todo, console, mirror)
            except Broken as broken:
                line(f"xclrun: {broken}")
        mirror.close()
        return errors | {r.id: r.directory.error or "not finished" for r in todo if not r.directory.finished}

    def checkpoint(self) -> Any:
        """Return the submission that Submitit requeues after a signal, or None to make the job fail."""
        from submitit.helpers import DelayedSubmission

        files, now = PackFiles(self.path), position(self.runs)
        if not self.requeue:
            reason = "interrupted; the job is not requeued (hydra.launcher.requeue=false)"
        elif fruitless(files.events(), now):
            reason = f"interrupted; no progress in {FRUITLESS} attempts; increase hydra.launcher.time"
        else:
            line("xclrun: the job is requeued")
            return DelayedSubmission(replace(self))
        line(f"xclrun: {reason}")
        errors = {run.id: reason for run in self.runs if not run.directory.finished}
        files.add_event("ended", errors=errors, position=now)
        return None


def _join_tasks() -> None:
    """Connect the tasks of a job (``hydra.launcher.tasks_per_node``); only the first task returns."""
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        from submitit.helpers import TorchDistributedEnvironment

        from xclrun.train.ranks import join_launched

        TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
        join_launched()


def main(arguments: Sequence[str]) -> int:
    """Execute the pack of a file in this process, for debugging; return the exit code."""
    try:
        PackJob(Path(arguments[0]))()
    except RunError as error:
        line(f"xclrun: {error}")
        return 1
    return 0


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def position(runs: Sequence[Run]) -> list[int]:
    """Return the progress of runs: the number of stored results and finished runs, and the steps of checkpoints."""
    stages = steps = 0
    for run in runs:
        store = run.store
        for stage in run.stages:
            stages += sum(map(store.has, stage.keys))
            if not store.has(stage.train):
                files = store.checkpoints(stage.train).glob("*-*.safetensors")
                steps += max((int(path.name.partition("-")[0]) for path in files), default=0)
        stages += run.directory.finished
    return [stages, steps]


def fruitless(events: Sequence[dict[str, object]], now: list[int]) -> bool:
    """Return whether the last attempts, including the current one, made no progress."""
    positions = [event["position"] for event in events if event["event"] == "started"] + [now]
    return len(positions) > FRUITLESS and all(p == now for p in positions[-1 - FRUITLESS :])


if __name__ == "__main__":
    begin_worker(os.getppid())
    sys.exit(main(sys.argv[1:]))
