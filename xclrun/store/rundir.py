"""The directory of one run: its saved config, manifest, predictions, scores and events, and DONE once it has finished.

config.yaml                     the resolved config
manifest.json                   IDs, versions, timings, counts
events.jsonl                    one JSON object per event
predictions/hop-<i>.parquet     predictions after hop i: one row per split, language and example
predictions/points-<i>.parquet  predictions at the evaluation points inside hop i
predictions/next-<i>.parquet    predictions on the next block, before training on it (data in blocks)
scores.parquet                  base scores of every hop and language
counts.parquet                  counts of the predictions, for reports
attention.parquet               attention of [CLS] to each word (optional)
overlap.parquet                 gradient overlap at each step (optional)
class_gradients.parquet         gradients of the class head at each step (optional)
averages/*.parquet              predictions of averaged checkpoints, made after the run
DONE                            name → size and SHA-256 of all these files except events and averages
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xclrun.core.files import UNREADABLE, read_bytes, read_text
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


# Exceptions that reading a damaged file of a run can raise.
UNREADABLE_RUN = (*UNREADABLE, yaml.YAMLError)
# Event: the GPU no longer accepts work from the run's process.
GPU_BROKEN = "gpu_broken"

_FORMAT = re.compile(rb'^ "format": (\d{1,9}),?$', re.MULTILINE)


class UnreadableRun(ValueError):
    """The run was made by another version of xclrun, or the directory holds another run or an edited config.

    Attributes:
        state: ``older`` or ``newer`` version; ``damaged`` for another run or an edited config.
    """

    def __init__(self, state: str, text: str) -> None:
        super().__init__(text)
        self.state = state


class _File:
    """Descriptor: the path of a file in a `RunDirectory`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, directory: RunDirectory, owner: type[RunDirectory]) -> Path:
        return directory.path / self.name


@dataclass(frozen=True)
class RunDirectory:
    """Files and state of one run."""

    path: Path

    config = _File("config.yaml")
    manifest = _File("manifest.json")
    scores = _File("scores.parquet")
    events = _File("events.jsonl")
    done = _File("DONE")
    counts = _File("counts.parquet")  # `xclrun.scores.counts`
    attention = _File("attention.parquet")  # `xclrun.analysis.fewshot.attention`
    overlap = _File("overlap.parquet")  # `xclrun.train.overlap`
    class_gradients = _File("class_gradients.parquet")  # `xclrun.train.class_gradients`
    averages = _File("averages")  # `xclrun.train.average`; the file names contain checksums
    progress = _File("progress.json")  # for display
    queued = _File("queued.json")  # store keys that a waiting run will need

    @property
    def run_id(self) -> str:
        return self.path.name

    def predictions(self, hop: int) -> Path:
        return self.path / "predictions" / f"hop-{hop}.parquet"

    def points(self, hop: int) -> Path:
        """Return the path of the predictions at the evaluation points inside a hop."""
        return self.path / "predictions" / f"points-{hop}.parquet"

    def next_block(self, hop: int) -> Path:
        return self.path / "predictions" / f"next-{hop}.parquet"

    def prediction_files(self) -> list[Path]:
        """Return all existing prediction files, sorted."""
        return sorted((self.path / "predictions").glob("*-*.parquet"))

    def results(self) -> list[Path]:
        """Return the files with the results of the run."""
        optional = (self.attention, self.overlap, self.class_gradients)
        return [self.scores, *self.prediction_files(), *(path for path in optional if path.is_file())]

    @property
    def finished(self) -> bool:
        """Whether the run has finished and its files pass the quick check of `damaged`."""
        try:
            return self.done.is_file() and self.damaged() is None
        except UnreadableRun:
            return False

    def check_format(self) -> None:
        """Raise UnreadableRun if the manifest has another format than this version reads."""
        with contextlib.suppress(OSError):
            match = _FORMAT.search(read_bytes(self.manifest))
            if match is not None and (number := int(match[1])) != FORMAT:
                raise self._other_version(newer=number > FORMAT)

    def _other_version(self, newer: bool) -> UnreadableRun:
        version = "unknown"
        with contextlib.suppress(*UNREADABLE):
            version = self.read_manifest()["code_version"]
        if newer:
            return UnreadableRun("newer", f"{self.run_id}: made by a newer version ({version}); upgrade xclrun")
        text = f"{self.run_id}: made by an older version ({version}); re-run its command to retrain it"
        return UnreadableRun("older", text)

    def damaged(self, thorough: bool = False) -> Path | None:
        """Return the first missing or damaged file of a finished run; None if all are intact or the run is unfinished.

        The quick check compares all sizes, the content of config and manifest, and the run ID; ``thorough`` compares
        all content. DONE is returned if it is unreadable.

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
                # Without `Path`, which is slow for the files of thousands of runs.
                if not _has_size(f"{self.path}/{name}", facts["bytes"]):
                    return self.path / name
                if (thorough or name in small) and sha256(self.path / name) != facts["sha256"]:
                    return self.path / name
            # The folder may have been renamed or replaced.
            if f'"{self.run_id}"'.encode() not in read_bytes(self.manifest):
                run_id = self.read_manifest()["run_id"]
                text = f"{self.path} holds the run {run_id}; rename the folder to this ID, or remove it"
                raise UnreadableRun("damaged", text)
        except UnreadableRun:
            raise
        except UNREADABLE:
            return self.done
        return None

    def read_done(self) -> dict[str, dict[str, Any]]:
        """Return the content of DONE: name → ``bytes`` and ``sha256``.

        Raises:
            UnreadableRun: an older version wrote it, without sizes.
        """
        files: dict[str, dict[str, Any]] = read_json(self.done)
        if files and all(isinstance(facts, str) for facts in files.values()):
            raise self._other_version(newer=False)
        return files

    def read_config(self) -> str:
        """Return the text of the config after verifying its checksum.

        The checksum is compared with DONE. Without DONE, it must match the manifest or the queue file.

        Raises:
            OSError: the config is unreadable.
            UnreadableRun: the config was edited.
        """
        content, written = read_bytes(self.config), set()
        try:
            written.add(self.read_done()[self.config.name]["sha256"])
        except UnreadableRun:
            raise
        except UNREADABLE:
            pass
        for path in () if written else (self.manifest, self.queued):
            with contextlib.suppress(*UNREADABLE):
                written.add(read_json(path)["config_sha256"])
        if written and hashlib.sha256(content).hexdigest() not in written:
            raise UnreadableRun("damaged", f"{self.config} was edited; re-run the command of the run to restore it")
        return content.decode()

    def config_values(self) -> dict[str, Any]:
        """Return the config as plain data, without verifying its checksum."""
        values: dict[str, Any] = yaml.load(read_text(self.config), Loader=yaml.CSafeLoader)
        return values

    def content(self, path: Path) -> bytes:
        """Return the content of a file of a finished run, verified by its checksum in DONE.

        Raises:
            OSError: the file does not exist.
            KeyError: DONE does not list the file.
            ValueError: the checksum of the file differs.
        """
        content, written = read_bytes(path), self.read_done()[str(path.relative_to(self.path))]
        if hashlib.sha256(content).hexdigest() != written["sha256"]:
            raise ValueError(f"{path} has changed since the run finished; remove {self.done} and re-run the command")
        return content

    def table(self, path: Path, columns: Sequence[str] | None = None) -> pa.Table:
        """Return the rows of a Parquet file of the run; for a finished run, verify it like `content`.

        Raises:
            OSError: the file does not exist.
            KeyError: DONE does not list the file.
            ValueError: the checksum of the file differs, or the file is not in the Parquet format.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        content = self.content(path) if self.done.is_file() else read_bytes(path)
        try:
            # For thousands of small files, several times as fast as `pq.read_table`.
            return pq.ParquetFile(pa.BufferReader(content)).read(columns=columns, use_threads=False)
        except pa.ArrowException as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def error(self) -> str | None:
        """The error of the last attempt if it failed, or None."""
        with contextlib.suppress(*UNREADABLE):
            manifest = self.read_manifest()
            if manifest["status"] == "failed":
                return str(manifest["error"])
        return None

    @property
    def lease(self) -> Lease:
        """The lease that lets one process at a time work on the run."""
        return Lease(self.path / "run")

    def write_progress(self, facts: dict[str, Any]) -> None:
        """Write the progress of the run, for display. The file is not flushed to disk, so a power cut can lose it."""
        temporary = self.progress.with_name(f"{TEMPORARY}progress-{os.getpid()}")
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(facts), encoding="utf-8")
            os.replace(temporary, self.progress)

    def open(self, config_yaml: str, manifest: dict[str, Any]) -> None:
        """Write config and manifest at the start of an attempt, and remove DONE of a damaged run."""
        with writing(self.done):
            self.done.unlink(missing_ok=True)
        atomic_write(self.config, config_yaml)
        manifest |= {"format": FORMAT, "config_sha256": hashlib.sha256(config_yaml.encode()).hexdigest()}
        self.write_manifest(manifest)

    def queue(self, config_yaml: str, facts: Mapping[str, Any]) -> None:
        """Write the config of a run that another process will execute, and its ``keys`` in the ``store``."""
        atomic_write(self.config, config_yaml)
        checksum = hashlib.sha256(config_yaml.encode()).hexdigest()
        write_json(self.queued, {**facts, "config_sha256": checksum})

    def tidy(self) -> None:
        """Remove temporary files that a crash left; only the holder of the lease may call this."""
        for path in self.path.rglob(f"{TEMPORARY}*"):
            with contextlib.suppress(OSError):
                path.unlink()

    def write_manifest(self, manifest: dict[str, Any]) -> None:
        write_json(self.manifest, manifest)

    def store_keys(self) -> list[str]:
        """Return the store keys that the run needs, from its manifest or from its queue file.

        Raises:
            ValueError: the run has files, but none of the two is readable.
        """
        for path in (self.manifest, self.queued):
            with contextlib.suppress(*UNREADABLE):
                return list(read_json(path)["keys"])
        if any(self.path.iterdir()):
            raise ValueError(f"{self.manifest} cannot be read; re-run the command of the run to restore it")
        return []

    def kept_keys(self) -> list[str]:
        """Return the store keys that the finished run keeps (``store.keep``).

        Raises:
            OSError, ValueError, KeyError, TypeError: the manifest is unreadable.
        """
        manifest = self.read_manifest()
        return list(manifest["kept" if "kept" in manifest else "keys"])

    def store(self) -> Path | None:
        """Return the folder of the run's store; None: the folder ``store`` in its outputs.

        Raises:
            OSError, ValueError, KeyError, TypeError, yaml.YAMLError: neither manifest nor config is readable.
        """
        for path in (self.manifest, self.queued):
            with contextlib.suppress(*UNREADABLE):
                store = read_json(path)["store"]
                return None if store is None else Path(store)
        # Older versions did not record the store.
        import yaml

        store = yaml.load(self.read_config(), Loader=yaml.CSafeLoader)["paths"]["store"]
        return None if store is None else Path(store).expanduser()

    def read_manifest(self) -> dict[str, Any]:
        return read_json(self.manifest)

    def event(self, kind: str, **facts: Any) -> None:
        append_event(self.events, kind, **facts)

    def failed_since(self, since: float) -> bool:
        """Return whether an attempt has failed at ``since`` (seconds since the epoch) or later.

        The first failure with a broken GPU does not count: another process can have caused it.
        """
        kinds = [event["event"] for event in read_events(self.events) if event["time"] >= since]
        failed = kinds.count("failed")
        return failed > 1 or (failed == 1 and GPU_BROKEN not in kinds)

    def finish(self) -> None:
        """Mark the run as finished: write DONE."""
        counts = [self.counts] if self.counts.is_file() else []
        files = [self.config, self.manifest, *self.results(), *counts]
        facts = {str(f.relative_to(self.path)): {"bytes": f.stat().st_size, "sha256": sha256(f)} for f in files}
        write_json(self.done, facts)


def _has_size(path: str, size: int) -> bool:
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def run_directories(outputs: Path, only: Collection[str] | None = None) -> list[RunDirectory]:
    """Return the directories of the started runs under ``outputs``, sorted by run ID; ``only``: run IDs to include."""
    if only is not None:
        directories = (RunDirectory(outputs / "runs" / run_id) for run_id in sorted(set(only)))
        return [directory for directory in directories if directory.manifest.is_file() or directory.done.is_file()]
    folders = {path.parent for name in ("manifest.json", "DONE") for path in (outputs / "runs").glob(f"*/{name}")}
    return [RunDirectory(path) for path in sorted(folders)]


def differing_results(first: RunDirectory, second: RunDirectory) -> list[str]:
    """Return the names of the result files that differ between two directories."""
    before, after = ({str(p.relative_to(d.path)): read_bytes(p) for p in d.results()} for d in (first, second))
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
