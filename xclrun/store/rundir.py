"""The directory of one run: its frozen config, manifest, predictions, scores, events, and DONE when all of it is there.

config.yaml   the resolved config             predictions/hop-<i>.parquet   one row per split, language, example
                                              predictions/points-<i>.parquet  the same at points inside the hop
                                              predictions/next-<i>.parquet  of the block that comes next, in blocks
                                              attention.parquet             of [CLS], by word, where asked for
                                              overlap.parquet               of gradients, by step, where asked for
                                              class_gradients.parquet       of class heads, by step, where asked for
manifest.json ids, versions, timings, counts  scores.parquet                base scores of every hop and language
                                              counts.parquet                of the predictions, for reports
                                              averages/*.parquet            predictions of averaged checkpoints
events.jsonl  what happened, one JSON a line  DONE                          name → size and SHA-256 of the files above,
                                                                            but for averages, which come later
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.core.version import FORMAT
from xclrun.store.files import (
    TEMPORARY,
    append_event,
    atomic_write,
    read_events,
    read_json,
    sha256,
    write_json,
    writing,
)
from xclrun.store.lease import Lease

if TYPE_CHECKING:
    import pyarrow as pa


# The event after which the GPU refused all work of the process that did the run.
GPU_BROKEN = "gpu_broken"


_FORMAT = re.compile(rb'^ "format": (\d{1,9}),?$', re.MULTILINE)


class UnreadableRun(ValueError):
    """The files of a directory are of another version of xclrun, of another run, or have been edited.

    Attributes:
        state: ``older`` or ``newer``: which version made the run; ``damaged`` if it is another run, or its config
            has changed.
    """

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


class _File:
    """A file of a run by its name in the directory; read from a `RunDirectory` it is the path."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, directory: RunDirectory, owner: type[RunDirectory]) -> Path:
        return directory.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Paths and states of one run."""

    path: Path

    config = _File("config.yaml")
    manifest = _File("manifest.json")
    scores = _File("scores.parquet")
    events = _File("events.jsonl")
    done = _File("DONE")
    # What the prediction files count (`xclrun.store.counts`), for reports, which else count them.
    counts = _File("counts.parquet")
    # What [CLS] attends to after each hop (`xclrun.analysis.fewshot.attention`), where that was asked for.
    attention = _File("attention.parquet")
    # Which parameters got gradients in consecutive steps (`xclrun.train.overlap`), where that was asked for.
    overlap = _File("overlap.parquet")
    # Gradients of the class heads (`xclrun.train.class_gradients`), where that was asked for.
    class_gradients = _File("class_gradients.parquet")
    # Predictions of averaged checkpoints (`xclrun.train.average`), each named by its checksum: made after the run.
    averages = _File("averages")
    # How far the run is, for display.
    progress = _File("progress.json")
    # The keys of the store that a run will need which waits to be started.
    queued = _File("queued.json")

    @property
    def run_id(self) -> str:
        return self.path.name

    def predictions(self, hop: int) -> Path:
        """Return the path of one hop's prediction file."""
        return self.path / "predictions" / f"hop-{hop}.parquet"

    def points(self, hop: int) -> Path:
        """Return the path of the predictions at the evaluation points inside a hop, if there are such."""
        return self.path / "predictions" / f"points-{hop}.parquet"

    def next_block(self, hop: int) -> Path:
        """Return the path of a hop's predictions of the block that comes next, where the data come in blocks."""
        return self.path / "predictions" / f"next-{hop}.parquet"

    def prediction_files(self) -> list[Path]:
        """Return all prediction files that are there, sorted."""
        return sorted((self.path / "predictions").glob("*-*.parquet"))

    def results(self) -> list[Path]:
        """Return the files of what the run predicted and measured."""
        asked_for = (self.attention, self.overlap, self.class_gradients)
        return [self.scores, *self.prediction_files(), *(path for path in asked_for if path.is_file())]

    @property
    def finished(self) -> bool:
        """Whether the run counts: it was done, and its files are there as `damaged` looks at them."""
        try:
            return self.done.is_file() and self.damaged() is None
        except UnreadableRun:
            return False

    def check_format(self) -> None:
        """Raise UnreadableRun where the manifest has a format that this version does not read."""
        with contextlib.suppress(OSError):
            found = _FORMAT.search(self.manifest.read_bytes())
            if found is not None and (number := int(found[1])) != FORMAT:
                raise self._other_version(newer=number > FORMAT)

    def _other_version(self, newer: bool) -> UnreadableRun:
        version = "unknown"
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            version = self.read_manifest()["code_version"]
        if newer:
            return UnreadableRun("newer", f"{self.run_id}: made by a newer version ({version}); upgrade xclrun")
        again = "give the run's command again to retrain it"
        return UnreadableRun("older", f"{self.run_id}: made by an older version ({version}); {again}")

    def damaged(self, thorough: bool = False) -> Path | None:
        """Return the first file of record of a run that was done which is missing or not what was written, or None.

        Looks at the sizes of all, at the content of config and manifest, from which everything else is read, and at
        whether they are of this run; ``thorough``: at all content. DONE itself is returned where it cannot be read.

        Raises:
            UnreadableRun: the run was made by another version, or the directory holds another run.
        """
        self.check_format()
        if not self.done.is_file():
            return None
        small = (self.config.name, self.manifest.name)
        try:
            files = self.read_done()
            if not {"config.yaml", "manifest.json", "scores.parquet"} <= files.keys():
                return self.done
            for name, facts in files.items():
                # Not by way of `Path`, of which a report of thousands of runs would make a hundred thousand.
                if not _has_size(f"{self.path}/{name}", facts["bytes"]):
                    return self.path / name
                if (thorough or name in small) and sha256(self.path / name) != facts["sha256"]:
                    return self.path / name
            # A folder that was renamed, or put in the place of another, holds another run.
            if f'"{self.run_id}"'.encode() not in self.manifest.read_bytes():
                held = self.read_manifest()["run_id"]
                raise UnreadableRun(
                    "damaged", f"{self.path} holds the run {held}: rename the folder to that, or remove it"
                )
        except UnreadableRun:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self.done
        return None

    def read_done(self) -> dict[str, dict[str, Any]]:
        """Return what DONE says: name → ``bytes`` and ``sha256``.

        Raises:
            UnreadableRun: it is that of an older version, which had no sizes.
        """
        files: dict[str, dict[str, Any]] = read_json(self.done)
        if files and all(isinstance(facts, str) for facts in files.values()):
            raise self._other_version(newer=False)
        return files

    def read_config(self) -> str:
        """Return the text of the config, once its checksum has been compared with those in DONE, manifest and queue.

        Raises:
            OSError: it cannot be read.
            UnreadableRun: it is not what was written.
        """
        content, written = self.config.read_bytes(), set()
        with contextlib.suppress(OSError, KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError):
            written.add(self.read_done()[self.config.name]["sha256"])
        for path in () if written else (self.manifest, self.queued):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                written.add(read_json(path)["config_sha256"])
        if written and hashlib.sha256(content).hexdigest() not in written:
            again = "give the command of the run again"
            raise UnreadableRun("damaged", f"{self.config} has changed since it was written; {again}")
        return content.decode()

    def content(self, path: Path) -> bytes:
        """Return the content of a file of record of a finished run.

        Raises:
            OSError, KeyError: it is not there, or no file of record.
            ValueError: it is not what was written.
        """
        content, written = path.read_bytes(), self.read_done()[str(path.relative_to(self.path))]
        if hashlib.sha256(content).hexdigest() != written["sha256"]:
            raise ValueError(f"{path} has changed since the run finished; remove {self.done}, and run it again")
        return content

    def table(self, path: Path, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a Parquet file of the run, or some of their columns; of a finished run it is checked.

        Raises:
            OSError, KeyError: it is not there, or no file of record.
            ValueError: it is not what was written.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self.content(path) if self.done.is_file() else path.read_bytes()
        try:
            # Small files, of which there are thousands: what reads a whole data set takes several times as long.
            return pq.ParquetFile(pa.BufferReader(content)).read(columns=columns, use_threads=False)
        except pa.ArrowException as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def error(self) -> str | None:
        """The error with which the last attempt failed, or None."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            manifest = self.read_manifest()
            if manifest["status"] == "failed":
                return str(manifest["error"])
        return None

    @property
    def lease(self) -> Lease:
        """The lease under which the run is done: one process at a time works on it."""
        return Lease(self.path / "run")

    def write_progress(self, facts: dict[str, Any]) -> None:
        """Write the progress of the run; for display only, so it is not flushed to the disk and may be lost."""
        temporary = self.progress.with_name(f"{TEMPORARY}progress-{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(facts), encoding="utf-8")
            os.replace(temporary, self.progress)

    def open(self, config_yaml: str, manifest: dict[str, Any]) -> None:
        """Make the directory, or take it up again: the config is frozen, the manifest says that the run is running.

        A run that was done, and is damaged, is not done any more.
        """
        with writing(self.done):
            self.done.unlink(missing_ok=True)
        atomic_write(self.config, config_yaml)
        manifest |= {"format": FORMAT, "config_sha256": hashlib.sha256(config_yaml.encode()).hexdigest()}
        self.write_manifest(manifest)

    def queue(self, config_yaml: str, keys: Sequence[str]) -> None:
        """Write the config of a run that another process will do, and the keys of the store that it will need."""
        atomic_write(self.config, config_yaml)
        checksum = hashlib.sha256(config_yaml.encode()).hexdigest()
        write_json(self.queued, {"keys": list(keys), "config_sha256": checksum})

    def tidy(self) -> None:
        """Remove what a crash left half-written; only for the holder of the lease."""
        for path in self.path.rglob(f"{TEMPORARY}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        """Replace the manifest."""
        write_json(self.manifest, manifest)

    def store_keys(self) -> list[str]:
        """Return the keys of the store that the run needs: those of its manifest, or those noted when it was queued."""
        for read in (self.read_manifest, lambda: read_json(self.queued)):
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                return list(read()["keys"])
        return []

    def read_manifest(self) -> dict[str, Any]:
        """Return the manifest."""
        return read_json(self.manifest)

    def event(self, kind: str, **facts: Any) -> None:
        """Append one line to the events."""
        append_event(self.events, kind, **facts)

    def failed_since(self, since: float) -> bool:
        """Whether an attempt has failed at ``since`` (seconds of the epoch) or later.

        One after which the GPU refused all work does not count the first time: another process may have been the cause.
        """
        kinds = [event["event"] for event in read_events(self.events) if event["time"] >= since]
        failed = kinds.count("failed")
        return failed > 1 or (failed == 1 and GPU_BROKEN not in kinds)

    def finish(self) -> None:
        """Write DONE: from now on the run counts."""
        counts = [self.counts] if self.counts.is_file() else []
        files = [self.config, self.manifest, *self.results(), *counts]
        facts = {str(f.relative_to(self.path)): {"bytes": f.stat().st_size, "sha256": sha256(f)} for f in files}
        write_json(self.done, facts)


def _has_size(path: str, size: int) -> bool:
    """Whether there is a file of that size."""
    try:
        at = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(at.st_mode) and at.st_size == size


def differing_results(one: RunDirectory, other: RunDirectory) -> list[str]:
    """Return the names of the files of predictions and scores that two directories do not have alike."""
    before, after = ({str(p.relative_to(d.path)): p.read_bytes() for p in d.results()} for d in (one, other))
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
