"""A process of its own that sends the runs of a sweep to a tracker while the next ones train.

``python -m xclrun.tracking.background REQUEST``: training neither waits for a tracking server nor fails with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from xclrun.config.checks import TRACKERS
from xclrun.config.schema import TrackingConfig
from xclrun.core.secret import redact
from xclrun.core.terminal import note

# Exit code of the process where MLflow's database is damaged, or of another version of MLflow (sysexits.h).
UNUSABLE = os.EX_DATAERR


def log_of(tracking: TrackingConfig) -> str:
    """Return the name of the file among the outputs that says what could not be sent."""
    return f"{tracking.to}-sync.log"


@dataclass
class BackgroundMirror:
    """Sends the runs of a sweep from a process of its own, while the next ones train.

    What it cannot send is in a log (`log_of`) and is sent by the next sweep or by ``xclrun sync``. As a context it
    runs from the beginning of the block on; at an error nobody waits for it, and it goes on by itself.
    """

    outputs: Path
    tracking: TrackingConfig
    enabled: bool | None = None  # None: as the config says

    def __enter__(self) -> BackgroundMirror:
        self.process: subprocess.Popen[bytes] | None = None
        self.failed = False
        if self.tracking.enabled if self.enabled is None else self.enabled:
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
        request = json.dumps({"outputs": str(self.outputs), "tracking": asdict(self.tracking)})
        path = self.outputs / log_of(self.tracking)
        with open(path, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
            return subprocess.Popen(
                [sys.executable, "-m", "xclrun.tracking.background", request],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the training; the mirror ends when its input does.
            )

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            self.close(timeout=0.0)

    def changed(self, run_id: str) -> None:
        """Announce that a run has something new to send."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{run_id}\n".encode())
                self.process.stdin.flush()

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


def send(request: str) -> None:
    """Send runs as their ids come in on the standard input, and at its end what the whole sweep tells: transfer."""
    from xclrun.tracking.trackers import tracker

    given = json.loads(request)
    mirror = tracker(Path(given["outputs"]), TrackingConfig(**given["tracking"]))
    named = []
    for text in sys.stdin:
        named.append(text.strip())
        mirror.send_one(named[-1])
    mirror.send_all(only=named)


if __name__ == "__main__":
    try:
        send(sys.argv[1])
    except Exception as error:
        # Into the log, in which a library's message must not show the server's password.
        print(redact(traceback.format_exc()), file=sys.stderr)
        from xclrun.tracking.mirror import UnusableDatabase

        sys.exit(UNUSABLE if isinstance(error, UnusableDatabase) else 1)
