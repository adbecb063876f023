"""What a job on the cluster does: the runs of its pack, as a local worker does them, and its own requeueing.

It is given paths alone. A signal (preemption, time limit) saves a checkpoint at the next step; the job then has itself
requeued, as long as its tries get any further. A failed run makes the job fail, after the others of its pack.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from xclrun.core.errors import XclrunError
from xclrun.core.terminal import line
from xclrun.launch.cluster import slurm
from xclrun.launch.cluster.files import Pack, PackFiles
from xclrun.launch.console import Console
from xclrun.launch.time_left import TimeLeft
from xclrun.run import Run, thaw
from xclrun.store.rundir import RunDirectory
from xclrun.tracking.background import BackgroundMirror
from xclrun.train.stop import SIGNALS, Stopped

# Attempts in a row without progress after which a job is not requeued any more.
FRUITLESS = 2


def main(arguments: Sequence[str]) -> int:
    """Do the pack of this job: ``<folder of the array> [<index>]``; return the exit code."""
    # Before anything else: an unhandled signal would end the job without a requeue.
    for number in SIGNALS:
        signal.signal(number, _stop)
    index = arguments[1] if len(arguments) > 1 else os.environ["SLURM_ARRAY_TASK_ID"]
    files = PackFiles(Path(arguments[0]) / f"{index}.json")
    os.environ["XCLRUN_JOB"] = job = slurm.this_job() or f"{os.uname().nodename}:{os.getpid()}"
    runs: list[Run] = []
    try:
        pack = files.read()
        line(f"xclrun: job {job} on {os.uname().nodename}")
        errors = _read(files, pack, runs)
        files.add_event("started", job=job, host=os.uname().nodename, position=position(runs))
        errors |= _do(pack, runs)
    except Stopped as stopped:
        _ignore_signals()
        return _stopped(files, runs, stopped.number)
    # A signal during shutdown would mark a finished job as failed.
    _ignore_signals()
    files.add_event("ended", errors=errors, position=position(runs))
    return int(bool(errors))


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(number)


def _ignore_signals() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _read(files: PackFiles, pack: Pack, runs: list[Run]) -> dict[str, str]:
    """Add the runs of a pack to ``runs``; return the errors of those that cannot be done."""
    errors = {}
    for run_id in pack.concerned:
        try:
            runs.append(thaw(RunDirectory(files.outputs / "runs" / run_id)))
        except (XclrunError, OSError) as error:
            line(f"xclrun: {error}")
            errors[run_id] = str(error)
    return errors


def _do(pack: Pack, runs: Sequence[Run]) -> dict[str, str]:
    """Do what the pack says; return the errors of the runs that are not finished."""
    from xclrun.launch.workers import Broken, make_ahead, work

    if not runs:
        return {}
    by_id = {run.id: run for run in runs}
    console, config = Console(list(by_id), left=TimeLeft(runs)), runs[0].config.tracking
    make_ahead([(by_id[run], hop) for run, hop in pack.stages if run in by_id], console)
    todo = [by_id[run] for run in pack.runs if run in by_id]
    with BackgroundMirror(runs[0].outputs, config, pack.runs, enabled=config.by_jobs) as mirror:
        try:
            work(todo, console, mirror)
        except Broken as broken:
            line(f"xclrun: {broken}")
    mirror.close()
    return {run.id: run.directory.error or "not finished" for run in todo if not run.directory.finished}


def position(runs: Sequence[Run]) -> list[int]:
    """Return how far runs are: stages made, and steps of the checkpoints of the trainings under way."""
    made = steps = 0
    for run in runs:
        store = run.store
        for stage in run.stages:
            made += sum(map(store.has, stage.keys))
            if not store.has(stage.train):
                files = store.checkpoints(stage.train).glob("*-*.safetensors")
                steps += max((int(path.name.partition("-")[0]) for path in files), default=0)
        made += run.directory.finished
    return [made, steps]


def fruitless(events: Sequence[dict[str, object]], now: list[int]) -> bool:
    """Whether the last attempts in a row, including the current one, made no progress."""
    positions = [event["position"] for event in events if event["event"] == "started"] + [now]
    return len(positions) > FRUITLESS and all(p == now for p in positions[-1 - FRUITLESS :])


def _stopped(files: PackFiles, runs: Sequence[Run], number: int) -> int:
    """Requeue the job if that is wanted and useful; return the exit code."""
    name, code, now, events = signal.Signals(number).name, 128 + number, position(runs), files.events()
    if not (job := slurm.this_job()):
        line(f"xclrun: stopped by {name}; a checkpoint is saved")
        return code
    said = slurm.details(job)
    state, reason = said.get("JobState", ""), said.get("Reason", "")
    if state in ("PENDING", "REQUEUED"):
        # Somebody else requeued it: preemption, or a person.
        line(f"xclrun: stopped by {name}; a checkpoint is saved, and the job is queued again")
        return code
    if state in ("CANCELLED", "COMPLETING") and reason != "TimeLimit":
        line(f"xclrun: stopped by {name}: Slurm ends the job (cancelled, or queued again); a checkpoint is saved")
        files.add_event("stopped", position=now)
        return code
    if said.get("Requeue") == "0":
        error = f"stopped by {name}, and the job is not to be requeued (hydra.launcher.requeue=false)"
    elif fruitless(events, now):
        error = f"stopped by {name}; {FRUITLESS} tries in a row got no further: is hydra.launcher.time too short?"
    elif slurm.requeue(job):
        line(f"xclrun: stopped by {name}; a checkpoint is saved, and the job is queued again")
        return code
    else:
        error = f"stopped by {name}, and Slurm refused to requeue the job"
    line(f"xclrun: {error}")
    left = {run.id: error for run in runs if not run.directory.finished}
    files.add_event("ended", errors=left, position=now)
    sys.stderr.flush()
    return code
