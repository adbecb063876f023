"""A job on the cluster: it executes the runs of its pack like a local worker. Its tasks train each run together.

After a signal (preemption, time limit) a checkpoint is saved at the next step and the job returns to the queue, as long
as its attempts make progress. If a run fails, the job fails after the other runs of its pack.

Signals are held back from the job's first instruction until it handles them (`script.GUARD`, `code.ENTRY`): a signal
that ended a starting job would make Slurm mark it as failed instead of returning it to the queue.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from xclrun.core.errors import RunError, XclrunError
from xclrun.core.output import protect
from xclrun.core.terminal import line, many
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.files import PackFiles
from xclrun.launch.console import Console
from xclrun.launch.time_left import TimeLeft
from xclrun.plan import Run, thaw
from xclrun.store.rundir import RunDirectory
from xclrun.tracking.background import BackgroundMirror
from xclrun.train.stop import SIGNALS, Stopped, begin_worker

# A job is not requeued after this number of consecutive attempts without progress.
FRUITLESS = 2


@dataclass
class PackJob:
    """The work of a job.

    Attributes:
        path: file of the pack.
        requeue: whether the job may be requeued (``hydra.launcher.requeue``).
        runs: the runs with readable configs.
        started: whether this attempt has begun its work.
    """

    path: Path
    requeue: bool = False
    runs: list[Run] = field(default_factory=list, init=False)
    started: bool = field(default=False, init=False)

    def __call__(self) -> None:
        """Execute the pack.

        Raises:
            RunError: a run failed, or the job was interrupted and must not be requeued.
        """
        protect()
        try:
            # Rank 0 handles signals; the other ranks end with it.
            if os.environ.get("SLURM_PROCID", "0") != "0":
                _ignore_signals()
            else:
                for number in SIGNALS:
                    signal.signal(number, _stop)
            # A signal that arrived earlier stops the job now.
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            errors = self._do()
        except Stopped as stopped:
            _ignore_signals()
            saved = "; checkpoint saved" if self.started else " before it began its work"
            line(f"xclrun: interrupted ({signal.Signals(stopped.number).name}){saved}")
            # If the job is not running, Slurm has already cancelled or requeued it.
            if (job := slurm.this_job()) and slurm.states([job])[job].state in ("RUNNING", ""):
                self._return_to_queue(job)
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
                self.runs.append(thaw(self._directory(run_id)))
            except (XclrunError, OSError) as error:
                line(f"xclrun: {error}")
                errors[run_id] = str(error)
        files.add_event("started", job=job, host=host, position=position(self.runs))
        self.started = True
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
        return errors | {run: self._directory(run).error or "not finished" for run in self._begun(pack.runs, errors)}

    def _begun(self, runs: Sequence[str], errors: Collection[str] = ()) -> list[str]:
        """Return the unfinished runs that have started, or all unfinished runs if none has; except those with errors.

        Runs that never started are not failed.
        """
        left = [run for run in runs if run not in errors and not self._directory(run).finished]
        begun = [run for run in left if self._directory(run).manifest.is_file()]
        return begun or ([] if errors else left)

    def _return_to_queue(self, job: str) -> None:
        """Have Slurm requeue this job after a signal; raise a `RunError` if the job must fail instead."""
        files, now = PackFiles(self.path), position(self.runs)
        if not self.requeue:
            reason = "interrupted; the job is not requeued (hydra.launcher.requeue=false)"
        # An attempt that had not begun says nothing about progress.
        elif self.started and fruitless(files.events(), now):
            reason = f"interrupted; no progress in {FRUITLESS} attempts; increase hydra.launcher.time"
        else:
            line("xclrun: the job is requeued")
            if problem := slurm.requeue(job):
                line(f"xclrun: {problem}; re-run the command of the sweep to resume")
            return
        errors = dict.fromkeys(self._begun(files.read().runs), reason)
        files.add_event("ended", errors=errors, position=now)
        raise RunError(reason)

    def _directory(self, run_id: str) -> RunDirectory:
        return RunDirectory(PackFiles(self.path).outputs / "runs" / run_id)


def _join_tasks() -> None:
    """Connect the tasks of a job (``hydra.launcher.tasks_per_node``); only the first task returns."""
    if int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        from xclrun.train.others import join_launched

        os.environ.update(slurm.rank_variables(os.environ))
        join_launched()


def main(arguments: Sequence[str]) -> int:
    """Execute a pack in this process; return the exit code.

    Args:
        arguments: file of the pack, or the folder of the array, and ``requeue`` if the job may be requeued. After
            ``--`` comes Submitit's own command, which would read a pickle.
    """
    arguments = arguments[: list(arguments).index("--")] if "--" in arguments else arguments
    path = Path(arguments[0])
    if path.is_dir():
        path /= f"{os.environ.get('SLURM_ARRAY_TASK_ID', '0')}.json"
    try:
        PackJob(path, requeue="requeue" in arguments[1:])()
    except (RunError, OSError) as error:
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
