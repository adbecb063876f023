"""Where the runs of a sweep stand, from their directories alone: nothing is asked of any process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory

STATES = ("finished", "running", "waiting", "interrupted", "failed", "lost", "missing")
# Something has to be done about these.
BAD = ("failed", "lost")


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands.

    Attributes:
        run_id: which.
        state: ``finished``; ``running``; ``waiting`` (its sweep is running, or it waits for a stage of another);
            ``interrupted`` (it was asked to stop; the same command goes on); ``failed``; ``lost`` (its process died
            without a word; the same command goes on); ``missing`` (not started).
        hops, hop: hops in all, and finished or under way.
        detail: step, time, or the last error line.
        host: where it runs or ran.
        seconds: how long it took, or has taken.
    """

    run_id: str
    state: str
    hop: int = 0
    hops: int = 0
    detail: str = ""
    host: str = ""
    seconds: float | None = None


def run_status(directory: RunDirectory) -> RunStatus:
    """Return where a run stands."""
    try:
        manifest = directory.read_manifest()
    except (OSError, ValueError):
        return RunStatus(directory.run_id, "missing")
    stream = manifest["stream"]
    hops = 1 if stream["kind"] == "joint" else len(stream["languages"])
    done = max((stage["hop"] for stage in manifest["stages"]), default=0)
    host = f"{manifest['host']}:{manifest['pid']}"
    if directory.finished:
        return RunStatus(directory.run_id, "finished", hops, hops, manifest["finished"], host, manifest["seconds"])
    owner = directory.lease.owner()
    if owner is not None and owner.alive:
        began = datetime.strptime(manifest["started"], "%Y-%m-%dT%H:%M:%S%z").timestamp()
        hop, detail = _progress(directory, done)
        return RunStatus(
            directory.run_id, "running", hop, hops, detail, f"{owner.host}:{owner.pid}", time.time() - began
        )
    state = manifest["status"]
    if state == "running":
        return RunStatus(directory.run_id, "lost", done, hops, "its process died; the same command goes on", host)
    error = str(manifest.get("error", "")).splitlines()
    return RunStatus(directory.run_id, state, done, hops, error[-1] if error else "", host)


def _progress(directory: RunDirectory, done: int) -> tuple[int, str]:
    try:
        facts = read_json(directory.progress)
    except (OSError, ValueError):
        return done, ""
    if facts["hop"] <= done:
        return done, ""
    return facts["hop"], f"{facts['name']}: step {facts['step']}/{facts['steps']}"


def sweep_status(outputs: Path, runs: Sequence[str]) -> list[RunStatus]:
    """Return where the runs of a sweep stand; those not started are waiting while another one runs, and nothing waits
    while none does."""
    found = [run_status(RunDirectory(outputs / "runs" / run_id)) for run_id in runs]
    if any(status.state == "running" for status in found):
        return [RunStatus(s.run_id, "waiting") if s.state == "missing" else s for s in found]
    # Nobody is left who would come back to what waits.
    return [replace(s, state="interrupted", detail="") if s.state == "waiting" else s for s in found]


def render(name: str, command: str, found: Sequence[RunStatus]) -> str:
    """Return the table of a sweep for a person."""
    from xclrun.console import duration

    counts = Counter(status.state for status in found)
    told = ", ".join(f"{counts[state]} {state}" for state in STATES if counts[state])
    lines = [f"{name}: {len(found)} run{'' if len(found) == 1 else 's'}: {told}", f"  {command}"]
    width = max((len(status.run_id) for status in found), default=0)
    for s in found:
        hop = f"{s.hop}/{s.hops}" if s.hops else ""
        took = "" if s.seconds is None else duration(s.seconds)
        lines.append(f"  {s.run_id:<{width}}  {s.state:<11}  {hop:>5}  {took:>12}  {s.host}  {s.detail}".rstrip())
    return "\n".join(lines)


def to_json(found: Sequence[RunStatus]) -> list[dict[str, Any]]:
    """Return the facts for ``--json``."""
    return [asdict(status) for status in found]
