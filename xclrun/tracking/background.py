"""A background process that sends the runs of a sweep to a tracker while training continues.

Training does not wait for the tracking server and continues if the server fails. When all runs are sent, a marker file
stores a hash of their state, so re-running a finished sweep does not start the process again.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from xclrun.config.checks import TRACKERS
from xclrun.config.schema import TrackingConfig
from xclrun.core.identity import digest
from xclrun.core.output import protect
from xclrun.core.terminal import note
from xclrun.core.version import VERSION
from xclrun.store.files import read_json, write_json
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import sweeps
from xclrun.tracking.trackers import DATABASE, MARKERS, tracker

# Maximum share of time spent on updates of running runs; after a slow update, sending pauses.
LIVE_SHARE = 0.05
_LIVE = "live "

# Exit code if MLflow's database is damaged or from another version of MLflow (sysexits.h).
UNUSABLE = os.EX_DATAERR


@dataclass
class BackgroundMirror:
    """Context manager: a process that sends the runs of a sweep.

    Errors are written to ``log``; the next sweep or ``xclrun mlflow sync`` sends the remaining runs. If the block
    raises an exception, the process continues, but the block ends without waiting for it.

    Attributes:
        runs: IDs of the runs to send at the end.
        enabled: None: the value of the config.
    """

    outputs: Path
    tracking: TrackingConfig
    runs: Sequence[str]
    enabled: bool | None = None

    def __enter__(self) -> BackgroundMirror:
        self.process: subprocess.Popen[bytes] | None = None
        self.failed = False
        enabled = self.tracking.enabled if self.enabled is None else self.enabled
        if enabled and not up_to_date(self.outputs, self.tracking, self.runs):
            try:
                self.process = self._start()
            except OSError as error:
                self.failed = True
                note(f"cannot start sending runs to the tracker ({error}); send them later with `xclrun mlflow sync`")
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process.

        Raises:
            OSError: its log is not writable, or the system cannot start another process.
        """
        request = {"outputs": str(self.outputs), "tracking": asdict(self.tracking), "runs": list(self.runs)}
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "xclrun.tracking.background"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # not interrupted by Ctrl-C; it ends when its input is closed
            )
        assert process.stdin is not None
        # Pass the request on standard input: the IDs of a large sweep exceed the maximum length of an argument.
        process.stdin.write(f"{json.dumps(request)}\n".encode())
        process.stdin.flush()
        # Lines that do not fit into the pipe are dropped from now on, so training never waits.
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.close(timeout=0.0)

    def changed(self, run_id: str, live: bool = False) -> None:
        """Report that a run has changed; ``live``: it is still training, so sending it can be skipped."""
        if self.process is not None and self.process.stdin is not None:
            # One write per line, since several workers share the pipe.
            with contextlib.suppress(OSError, ValueError):
                os.write(self.process.stdin.fileno(), f"{_LIVE * live}{run_id}\n".encode())

    @property
    def log(self) -> Path:
        return self.outputs / f"{self.tracking.to}-sync.log"

    @property
    def problem(self) -> str:
        """The reason why some runs were not sent, and the command that sends them."""
        if self.process is not None and self.process.returncode == UNUSABLE:
            why = f"MLflow's database or experiment cannot be used (see {self.log})"
            return f"{why}; `xclrun mlflow sync --rebuild` replaces it"
        command = "`xclrun mlflow sync`" if self.tracking.in_mlflow else f"`xclrun mlflow sync --to {self.tracking.to}`"
        return f"{TRACKERS[self.tracking.to]} is unreachable (see {self.log}); send the runs later with {command}"

    def close(self, timeout: float = 120.0) -> bool:
        """Wait until all runs are sent; return whether they were."""
        if self.process is None:
            return not self.failed
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            return self.process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False


def send() -> None:
    """Send the runs whose IDs arrive on standard input; at end of input, send all changed runs of the sweep."""
    request = json.loads(sys.stdin.readline())
    outputs, tracking, runs = Path(request["outputs"]), TrackingConfig(**request["tracking"]), request["runs"]
    mirror = tracker(outputs, tracking)
    pause_until = 0.0
    for text in sys.stdin:
        began = time.monotonic()
        if not text.startswith(_LIVE):
            mirror.send_one(text.strip())
        elif began >= pause_until:
            # Ignore errors: the data are sent again when the run has ended.
            with contextlib.suppress(Exception):
                mirror.send_one(text.removeprefix(_LIVE).strip())
            ended = time.monotonic()
            pause_until = ended + (ended - began) / LIVE_SHARE
    # Compute the state before sending: the marker must not cover a run that ends later and is not sent.
    state = _state(outputs, tracking, runs)
    unread: list[str] = []
    mirror.send_all(only=runs, warn=unread.append)
    mirror.close()
    for text in unread:
        note(text)
    # An unreadable run of this sweep must be sent by a later command.
    if state is not None and not any(run_id in text for text in unread for run_id in runs):
        write_json(_marker(outputs, tracking, runs), state)


def up_to_date(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> bool:
    """Return whether the marker file has the current state of these runs; the tracker is not queried."""
    try:
        return bool(read_json(_marker(outputs, tracking, runs)) == _state(outputs, tracking, runs))
    except (OSError, ValueError):
        return False


def _marker(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> Path:
    return outputs / MARKERS / f"{digest([tracking.to, tracking.uri, tracking.experiment, sorted(runs)])}.json"


def _state(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> str | None:
    """Return a hash of all data that a tracker shows of these runs.

    Return None if no marker may be written: a run is unfinished, or MLflow's database does not exist (creating it
    deletes all markers).
    """
    states = []
    if tracking.in_mlflow and tracking.uri is None:
        database = outputs / DATABASE
        # `Mirror` creates an empty file first.
        if not database.is_file() or not database.stat().st_size:
            return None
    for run_id in sorted(runs):
        directory = RunDirectory(outputs / "runs" / run_id)
        if not directory.done.is_file():
            return None
        averages = sorted(path.name for path in directory.averages.glob("*.parquet"))
        states.append([run_id, directory.done.read_text(encoding="utf-8"), averages])
    # Transfer depends on other runs.
    finished = sorted(path.parent.name for path in (outputs / "runs").glob("*/DONE"))
    groups = [(s["name"], s["runs"]) for s in sweeps(outputs, lambda text: None) if not set(runs).isdisjoint(s["runs"])]
    return digest([VERSION, states, finished, sorted(groups)])


if __name__ == "__main__":
    protect()
    try:
        send()
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr)
        from xclrun.tracking.mirror import DeletedExperiment, UnusableDatabase

        sys.exit(UNUSABLE if isinstance(error, UnusableDatabase | DeletedExperiment) else 1)
