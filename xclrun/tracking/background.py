"""A separate process that sends the runs of a sweep to a tracker while the next ones train.

Training neither waits for a tracking server nor fails with it. After everything is sent, a marker file says which
state of the runs the tracker has, so that a finished sweep does not start the process again.
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

from xclrun import __version__
from xclrun.config.checks import TRACKERS
from xclrun.config.schema import TrackingConfig
from xclrun.core.identity import digest
from xclrun.core.terminal import note
from xclrun.store.files import read_json, write_json
from xclrun.store.records import sweeps
from xclrun.store.rundir import RunDirectory

# The largest share of the time that updates of running runs may take: sending is paused after a slow update.
LIVE_SHARE = 0.05
_LIVE = "live "

# MLflow's SQLite file among the outputs.
DATABASE = "mlflow.db"

# Exit code of the process where MLflow's database is damaged, or of another version of MLflow (sysexits.h).
UNUSABLE = os.EX_DATAERR


def sent_markers(outputs: Path) -> Path:
    """Return the folder of the files that say which state of which runs was sent."""
    return outputs / "tracked" / "sent"


def log_of(tracking: TrackingConfig) -> str:
    """Return the name of the file among the outputs that says what could not be sent."""
    return f"{tracking.to}-sync.log"


@dataclass
class BackgroundMirror:
    """Sends the runs of a sweep from its own process, while the next ones train.

    What it cannot send is in a log (`log_of`) and is sent by the next sweep or by ``xclrun sync``. As a context it
    runs from the beginning of the block on; at an error nobody waits for it, and it continues by itself.

    Attributes:
        runs: the ids of the runs that are brought up to date at the end.
        enabled: None: as the config says.
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
                note(f"the runs are not sent to where they are tracked ({error}); `xclrun sync` sends them later")
        return self

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the process.

        Raises:
            OSError: its log cannot be written, or the machine starts no more processes.
        """
        request = {"outputs": str(self.outputs), "tracking": asdict(self.tracking), "runs": list(self.runs)}
        path = self.outputs / log_of(self.tracking)
        with path.open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "xclrun.tracking.background"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the training; the mirror ends when its input does.
            )
        assert process.stdin is not None
        # Not an argument: the ids of a large sweep are longer than an argument may be.
        process.stdin.write(f"{json.dumps(request)}\n".encode())
        process.stdin.flush()
        # From now on a line that does not fit into the pipe is dropped: training never waits.
        os.set_blocking(process.stdin.fileno(), False)
        return process

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.close(timeout=0.0)

    def changed(self, run_id: str, live: bool = False) -> None:
        """Announce that a run has something new to send; ``live``: it is still training, so sending can be skipped."""
        if self.process is not None and self.process.stdin is not None:
            # One write of a short line: several workers share the pipe, and what does not fit is dropped.
            with contextlib.suppress(OSError, ValueError):
                os.write(self.process.stdin.fileno(), f"{_LIVE * live}{run_id}\n".encode())

    @property
    def problem(self) -> str:
        """Return why not all runs were sent, and what sends them, for people."""
        tracker, log = TRACKERS[self.tracking.to], self.outputs / log_of(self.tracking)
        if self.process is not None and self.process.returncode == UNUSABLE:
            return f"MLflow's database cannot be used (see {log}); `xclrun sync --rebuild` replaces it"
        again = "`xclrun sync`" if self.tracking.in_mlflow else f"`xclrun sync --to {self.tracking.to}`"
        return f"{tracker.title} could not be reached (see {log}); {again} sends it later"

    def close(self, timeout: float = 120.0) -> bool:
        """Wait until all is sent; return whether it was."""
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
    """Send runs as their ids come in on the standard input, and at its end everything that is new of the sweep."""
    from xclrun.tracking.trackers import tracker

    request = json.loads(sys.stdin.readline())
    outputs, tracking, runs = Path(request["outputs"]), TrackingConfig(**request["tracking"]), request["runs"]
    mirror = tracker(outputs, tracking)
    pause_until = 0.0
    for text in sys.stdin:
        began = time.monotonic()
        if not text.startswith(_LIVE):
            mirror.send_one(text.strip())
        elif began >= pause_until:
            # What an update misses is sent when the run has ended.
            with contextlib.suppress(Exception):
                mirror.send_one(text.removeprefix(_LIVE).strip())
            ended = time.monotonic()
            pause_until = ended + (ended - began) / LIVE_SHARE
    # A run that ends from now on makes another state.
    state = _state(outputs, tracking, runs)
    unread: list[str] = []
    mirror.send_all(only=runs, warn=unread.append)
    mirror.close()
    for text in unread:
        note(text)
    # Unreadable runs of other sweeps do not matter here; a run of this sweep must be sent by a later command.
    if state is not None and not any(run_id in text for text in unread for run_id in runs):
        write_json(_marker(outputs, tracking, runs), state)


def up_to_date(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> bool:
    """Whether the tracker has the present state of these runs, as far as files of record say.

    A server is not asked: ``xclrun sync`` and reports do so.
    """
    try:
        sent = read_json(_marker(outputs, tracking, runs))
        return sent is not None and sent == _state(outputs, tracking, runs)
    except (OSError, ValueError):
        return False


def _marker(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> Path:
    return sent_markers(outputs) / f"{digest([tracking.to, tracking.uri, tracking.experiment, sorted(runs)])}.json"


def _state(outputs: Path, tracking: TrackingConfig, runs: Sequence[str]) -> str | None:
    """Return a hash of everything that decides what a tracker shows of these runs.

    None if a run is not finished, or MLflow's database is not there; a new one removes the markers.
    """
    own = []
    if tracking.in_mlflow and tracking.uri is None and not (outputs / DATABASE).is_file():
        return None
    for run_id in sorted(runs):
        directory = RunDirectory(outputs / "runs" / run_id)
        if not directory.done.is_file():
            return None
        averages = sorted(path.name for path in directory.averages.glob("*.parquet"))
        own.append([run_id, directory.done.read_text(encoding="utf-8"), averages])
    # Transfer is measured against other runs.
    finished = sorted(path.parent.name for path in (outputs / "runs").glob("*/DONE"))
    groups = [(s["name"], s["runs"]) for s in sweeps(outputs, lambda text: None) if not set(runs).isdisjoint(s["runs"])]
    return digest([__version__, own, finished, sorted(groups)])


if __name__ == "__main__":
    try:
        send()
    except Exception as error:
        print(traceback.format_exc(), file=sys.stderr)
        from xclrun.tracking.mirror import UnusableDatabase

        sys.exit(UNUSABLE if isinstance(error, UnusableDatabase) else 1)
