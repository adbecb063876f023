"""States of the runs of a sweep, from their directories and from Slurm."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from xclrun.core.files import UNREADABLE
from xclrun.core.terminal import about, duration, many, note, table
from xclrun.launch.cluster.files import Job
from xclrun.launch.cluster.lookup import Jobs, find_jobs
from xclrun.launch.cluster.slurm import JobState, last_line
from xclrun.store.files import read_events, read_json
from xclrun.store.rundir import RunDirectory, UnreadableRun

STATES = ("finished", "running", "waiting", "unknown", "interrupted", "failed", "lost", "damaged", "older", "newer",
          "missing")  # fmt: skip
# States that need attention.
BAD = ("failed", "lost", "damaged")
# States that change without another command.
OPEN = ("running", "waiting", "unknown")
# Sweeps with more runs do not list runs in a quiet state.
LISTED = 1000
QUIET = ("finished", "waiting", "older", "missing")
# Status reports a run without progress for this number of seconds; evaluations take minutes.
IDLE = 300.0


@dataclass(frozen=True)
class RunStatus:
    """The state of a run.

    Attributes:
        state: ``finished``; ``running``; ``waiting`` (its sweep is running, or it waits for a stage of another run);
            ``unknown`` (it was submitted to Slurm, which does not answer); ``interrupted`` (by a signal); ``failed``;
            ``lost`` (its process died without an error); ``damaged`` (a file has changed); ``older``, ``newer`` (made
            by an incompatible version); ``missing`` (not started). The same command resumes all but ``newer`` runs.
        hop, hops: the last finished or current hop, and the number of hops.
        detail: step, time, or the last line of the error.
        host: host and process of the last attempt.
        seconds: duration of all sessions so far. A session that was killed counts only until its last event.
        at_least: whether an earlier session was killed, so that its full duration is unknown.
        idle: seconds since a running run last wrote its progress.
        job: its last Slurm job, if any, with its ``log``.
    """

    run_id: str
    state: str
    hop: int = 0
    hops: int = 0
    detail: str = ""
    host: str = ""
    seconds: float | None = None
    at_least: bool = False
    idle: float | None = None
    job: str = ""
    log: str = ""

    @property
    def busy(self) -> bool:
        """Whether its state changes without another command."""
        return self.state in OPEN


def run_status(directory: RunDirectory) -> RunStatus:
    """Return the state of a run from its directory."""
    try:
        wrong = directory.damaged()
    except UnreadableRun as other:
        return RunStatus(directory.run_id, other.state, detail=str(other))
    if wrong is None:
        try:
            return _run_status(directory, directory.read_manifest())
        except FileNotFoundError:
            if not directory.prediction_files():
                owner = directory.lease.owner()
                return RunStatus(directory.run_id, "running" if owner is not None and owner.alive else "missing")
            wrong = directory.manifest
        except UNREADABLE:
            wrong = directory.manifest
    detail = f"{wrong} is missing or damaged; re-run the same command to restore it"
    return RunStatus(directory.run_id, "damaged", detail=detail)


def _run_status(directory: RunDirectory, manifest: dict[str, Any]) -> RunStatus:
    """Return the state of a run from its manifest.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the manifest is damaged.
    """
    from xclrun.analysis.record import number_of_hops

    stream = manifest["stream"]
    hops = number_of_hops(stream["kind"], len(stream.get("mixtures") or stream["languages"]), stream.get("blocks"))
    done = max((stage["hop"] for stage in manifest["stages"]), default=0)
    host = f"{manifest['host']}:{manifest['pid']}"
    if directory.done.is_file():
        earlier, killed = _earlier_sessions(directory)
        seconds = round(earlier + manifest["seconds"], 3)
        return RunStatus(directory.run_id, "finished", hops, hops, manifest["finished"], host, seconds, killed)
    owner = directory.lease.owner()
    if owner is not None and owner.alive:
        began = datetime.strptime(manifest["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
        hop, detail = _progress(directory, done)
        if (idle := _idle(directory)) > IDLE:
            # Its process is alive, but may hang.
            detail = f"{detail}; no progress for {about(idle)}".removeprefix("; ")
        earlier, killed = _earlier_sessions(directory)
        # The clock may have been set back.
        seconds = earlier + max(0.0, time.time() - began)
        host = f"{owner.host}:{owner.pid}"
        return RunStatus(directory.run_id, "running", hop, hops, detail, host, seconds, killed, round(idle, 1))
    state = manifest["status"]
    if state in ("running", "finished"):
        # "finished" without DONE: it died before it was marked as finished.
        return RunStatus(directory.run_id, "lost", done, hops, "its process died; re-run the command to resume", host)
    error = str(manifest.get("error", "")).splitlines()
    return RunStatus(directory.run_id, state, done, hops, error[-1] if error else "", host)


def _earlier_sessions(directory: RunDirectory) -> tuple[float, bool]:
    """Return the seconds of all sessions but the last, and whether one of them was killed."""
    seconds, killed = 0.0, False
    events = [(event["time"], event["event"]) for event in read_events(directory.events)]
    starts = [number for number, (_, kind) in enumerate(events) if kind == "started"]
    for start, following in pairwise(starts):
        end, kind = events[following - 1]
        # The clock may have been set back.
        seconds += max(0.0, end - events[start][0])
        killed |= kind in ("started", "hop")
    return seconds, killed


def _idle(directory: RunDirectory) -> float:
    """Return the seconds since a run last wrote its progress or an event."""
    times = [0.0]
    for path in (directory.progress, directory.events):
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime)
    return max(0.0, time.time() - max(times))


def _progress(directory: RunDirectory, done: int) -> tuple[int, str]:
    # The file is only for display, and is soon written again.
    with contextlib.suppress(*UNREADABLE):
        facts = read_json(directory.progress)
        if facts["hop"] > done:
            return facts["hop"], f"{facts['name']}: step {facts['step']}/{facts['steps']}"
    return done, ""


def sweep_status(
    outputs: Path, runs: Sequence[str], warn: Callable[[str], None] = note, jobs: Jobs | None = None
) -> list[RunStatus]:
    """Return the states of the runs of a sweep.

    Runs that have not started are waiting only while another run or a job of the cluster is active.

    Args:
        warn: called for unreadable files.
        jobs: the jobs of the outputs folder, if they are already known.
    """
    statuses = [run_status(RunDirectory(outputs / "runs" / run_id)) for run_id in runs]
    if jobs is None:
        jobs = find_jobs(outputs, warn, ask=any(s.state != "finished" for s in statuses))
    pending = [jobs.of_runs[s.run_id] for s in statuses if s.run_id in jobs.of_runs and s.state != "finished"]
    slurm = jobs.states(pending)
    running_locally = any(s.state == "running" and s.run_id not in jobs.of_runs for s in statuses)
    result = []
    for s in statuses:
        job = jobs.of_runs.get(s.run_id)
        if s.run_id in jobs.being_submitted and s.state not in ("finished", "running"):
            silent = bool(jobs.silence)
            detail = f"Slurm does not answer ({jobs.silence})" if silent else "being submitted to Slurm"
            s = replace(s, state="unknown" if silent else "waiting", detail=detail, seconds=None)
        elif job is not None:
            if s.state != "finished":
                s = _on_cluster(s, job, slurm[job.id], RunDirectory(outputs / "runs" / s.run_id))
            s = replace(s, job=job.id, log=str(job.log))
        elif s.state == "missing" and running_locally:
            s = RunStatus(s.run_id, "waiting")
        elif s.state == "waiting" and not any(other.state == "running" for other in statuses):
            # The sweep is not running any more, so no process will resume the run.
            s = replace(s, state="interrupted", detail="")
        result.append(s)
    return result


def _on_cluster(s: RunStatus, job: Job, slurm: JobState, directory: RunDirectory) -> RunStatus:
    """Return the state of an unfinished run from Slurm's state of its job."""
    if s.state == "running":
        owner = directory.lease.owner()
        if owner is None or owner.facts.get("job") != job.id or slurm.live or slurm.state in ("", "UNKNOWN"):
            return s
        # The heartbeat has not expired, but the job was killed (out of memory or node failure, for example).
        return replace(s, state="lost", detail=_end(job, slurm))
    if s.state == "failed" and directory.failed_since(job.submitted):
        return s
    if slurm.live:
        return replace(s, state="waiting", detail=str(slurm), seconds=None)
    if s.state in ("damaged", "older", "newer"):
        return s
    errors = job.files.errors()
    if errors is not None and s.run_id in errors:
        return replace(s, state="failed", detail=errors[s.run_id].splitlines()[-1])
    if slurm.state == "" and errors is None:
        return replace(s, state="unknown", detail=str(slurm))
    end = _end(job, slurm)
    # A job without a log never started; a queued job leaves Slurm's memory only when it is cancelled.
    unstarted = slurm.state == "UNKNOWN" and job.on_cluster and not job.log.exists()
    if slurm.state in ("CANCELLED", "PREEMPTED") or unstarted or (slurm.state == "UNKNOWN" and job.files.cancelled):
        return replace(s, state="interrupted", detail=end)
    if s.state == "missing" and _started(directory.path.parent, job):
        # Its job ended during another run of the pack.
        return replace(s, detail=f"not started: {end}")
    if s.state in ("lost", "interrupted") or slurm.state in ("COMPLETED", "UNKNOWN", ""):
        return replace(s, state="lost" if s.state != "interrupted" else s.state, detail=end)
    return replace(s, state="failed", detail=end)


def _end(job: Job, slurm: JobState) -> str:
    """Return how a job ended: Slurm's reason, and what its log says last."""
    # Lines of a cancelled job say only that it was cancelled.
    last = "" if slurm.state in ("CANCELLED", "COMPLETED") else last_line(job.log)
    return f"{slurm}; log: {last}" if last else str(slurm)


def _started(runs: Path, job: Job) -> bool:
    """Whether a run of a job's pack has started since the job was submitted."""
    return any(
        event["event"] == "started" and event["time"] >= job.submitted
        for run in job.runs
        for event in read_events(RunDirectory(runs / run).events)
    )


def wait_until_calm(busy: Callable[[], bool], seconds: float) -> None:
    """Call ``busy`` every ``seconds`` until it is false twice in a row.

    On a network file system, the last writes of a job may be visible late.
    """
    calm = 0
    while True:
        calm = 0 if busy() else calm + 1
        if calm == 2:
            return
        time.sleep(seconds)


def render_counts(statuses: Sequence[RunStatus]) -> str:
    """Return the number of runs in each state."""
    counts = Counter(status.state for status in statuses)
    names = {"unknown": "unknown (Slurm does not answer)"}
    return ", ".join(f"{counts[state]} {names.get(state, state)}" for state in STATES if counts[state])


def render(name: str, command: str, statuses: Sequence[RunStatus]) -> str:
    """Return the table of a sweep for a terminal; large sweeps list only active runs and runs that need attention."""
    rows, listed = [], [s for s in statuses if len(statuses) <= LISTED or s.state not in QUIET]
    for s in listed:
        hop = f"{s.hop}/{s.hops}" if s.hops else ""
        elapsed = "" if s.seconds is None else f"{'> ' * s.at_least}{duration(s.seconds)}"
        rows.append((s.run_id, s.state, hop, elapsed))
    head, rule, *lines = table(("run", "state", "hop", "time"), rows, text_columns=2).splitlines()
    text = [f"{name}: {many(len(statuses), 'run')}: {render_counts(statuses)}", f"  {command}"]
    if len(listed) < len(statuses):
        states = f"{', '.join(QUIET[:-1])} or {QUIET[-1]}"
        text.append(f"  {states} runs are not listed in sweeps of more than {LISTED:,} runs; --json lists all")
    text += [head, rule] if listed else []
    for s, line in zip(listed, lines, strict=True):
        text.append(line)
        if s.state != "finished" and (below := " · ".join(text for text in (s.host, s.detail) if text)):
            text.append(f"    {below}")
        if s.log and s.state in BAD:
            text.append(f"    log: {s.log}")
    return "\n".join(text)
