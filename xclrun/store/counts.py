"""Counts of the runs' prediction files, and the runs' records: read from checked files, and cached in 256 files.

A run counts its prediction files at its end, into a file of record (`write`): a first report reads one small file of
each run, not one for each hop. Runs of earlier versions have none, and where a prediction file was written after DONE,
or there is another metric since, theirs does not count: then the prediction files are counted.

A report of a thousand runs is about ten thousand prediction files. What of them is needed lies, once it was read or
counted, in ``<outputs>/cache/counts/<two hex digits>-<SHA-256>.parquet`` (see `xclrun.store.kept`), the digits being
the first ones of the run id's own digest: for each run a row for each language, and one with its record, which would
take as long to make again from config, manifest and counts as to count; and an index in the file's metadata. An entry
counts as long as DONE says the same of the run's prediction files and none of them was written since, a record as long
as no file of the run was; what is missing, stale or damaged is made again.

So many files that of 10⁵ runs each has 12 MB: that is what one new run writes again, and what is in memory at a time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis import base_scores
from xclrun.analysis.base_scores import Alignment, Predictions, Scores, Sentences, with_own
from xclrun.core.errors import XclrunError
from xclrun.core.identity import digest
from xclrun.core.task import MetricsOfKeys, Scored
from xclrun.store.files import atomic_write
from xclrun.store.kept import Kept
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Version of what is kept; raise it when that changes.
FORMAT = 6
# Arrays in a row, and their types there.
_ARRAYS = {"gold": "<i2", "predicted": "<i2", "tp": "<i2", "fp": "<i2", "fn": "<i2", "tags": "<i2", "log2_gold": "<f4",
           "answers": "<f4", "texts": "<i4", "lengths": "<i4"}  # fmt: skip
_INDEX, _IDS = b"xclrun", b"ids-"
# In the place of a way of scoring: the entry is the record, which follows the way that the run's config says.
_RECORD = "record"


@dataclass(frozen=True)
class Counted:
    """What the prediction files of one run count.

    Attributes:
        predictions: on the test sentences after each hop.
        points: hop → step → split → language → metric → score, of the evaluation points inside hops.
    """

    predictions: Predictions
    points: dict[int, dict[int, dict[str, Scores]]] = field(default_factory=dict)


def count(
    directory: RunDirectory,
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None = None,
    alignment: Alignment | None = None,
) -> Counted:
    """Count the prediction files of a run; those of a finished run are checked.

    Args:
        manifest: of the run.
        metrics: of the keys.
        tags: names of the tags, where F1 of spans is ``tag_macro``.
        alignment: keeps what runs on the same sentences have in common.

    Raises:
        OSError, ValueError, KeyError: a file is missing, or not what was written, or hops were tested on different
            sentences.
    """
    columns = [*base_scores.COLUMNS, *(base_scores.TAG_COLUMNS if tags is not None else ())]
    columns += base_scores.BELIEF_COLUMNS if any(metric.probabilities for metric in metrics.all) else ()
    columns += base_scores.ANSWER_COLUMNS if any(metric.of is Scored.answers for metric in metrics.all) else ()
    # Reading passes over it where there are no questions or pairs.
    columns.append(base_scores.TEXT_COLUMN)
    hops = [stage["hop"] for stage in manifest["stages"]]
    inside = [stage["hop"] for stage in manifest["stages"] if stage["training"].get("points")]
    tables = (directory.table(directory.predictions(hop), columns) for hop in hops)
    sentences = base_scores.of_hops(tables, alignment, tags, metrics.reader)
    points = {
        hop: base_scores.of_points(directory.table(directory.points(hop), [*columns, "step"]), metrics, tags)
        for hop in inside
    }
    return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), points)


def write(
    directory: RunDirectory, manifest: dict[str, Any], metrics: MetricsOfKeys, tags: Sequence[str] | None
) -> None:
    """Count the prediction files of a run that is at its end, for reports; arguments as those of `count`.

    What cannot be counted is left to the reports, which say why.

    Raises:
        UsageError: the place cannot be written.
        RunError: the disk is full.
    """
    # One of an earlier attempt would be taken for this one's.
    directory.counts.unlink(missing_ok=True)
    ids: dict[str, np.ndarray] = {}
    with contextlib.suppress(ValueError, KeyError):
        rows = _rows(count(directory, manifest, metrics, tags), ids)
        atomic_write(directory.counts, _packed({_own(tags): (_kind(metrics), rows)}, ids))


class CountsOfRuns:
    """The counts of all runs under ``outputs``, the folder with ``runs``.

    Runs are asked for in the order of `sort`, in which each file is read once; what is new in a file is written when
    the next one is opened, in the last one with `keep`. Kept counts that are damaged are noted and made again: nothing
    is missing then, so it is no error.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self._alignment = Alignment()
        # Digest → ids of sentences, which many runs share.
        self._ids: dict[str, np.ndarray] = {}
        self._open: _File | None = None
        # What earlier versions kept of all runs in one file; none of it is read any more.
        Kept(outputs / "cache", "counts", ".parquet").remove()

    @staticmethod
    def sort(directories: Iterable[RunDirectory]) -> list[RunDirectory]:
        """Return run directories by the file that their counts are in."""
        return sorted(directories, key=lambda directory: (_name(directory.run_id), directory.run_id))

    def of(
        self, directory: RunDirectory, manifest: dict[str, Any], metrics: MetricsOfKeys, tags: Sequence[str] | None
    ) -> Counted:
        """Return what a run's prediction files count, as `count` does; of a finished run it may be kept.

        Raises:
            OSError, ValueError, KeyError: as `count` does.
        """
        if not directory.done.is_file():
            return count(directory, manifest, metrics, tags, self._alignment)
        done = directory.read_done()
        files = _prediction_files(directory, done)
        key, entry = _key(files, metrics), (directory.run_id, _way(tags))
        file = self._file(directory.run_id)
        kept = file.read(entry, key, self._ids)
        if kept is None:
            if directory.counts.name in done and _older(files, directory.done):
                kept = _Content(directory.content(directory.counts)).read(_own(tags), _kind(metrics), self._ids)
            if kept is None:
                kept = _rows(count(directory, manifest, metrics, tags, self._alignment), self._ids)
            file.new[entry] = key, kept
        return self._counted(kept, manifest, metrics)

    def record(self, directory: RunDirectory) -> dict[str, Any] | None:
        """Return the record of a finished run as it was given to `add`, or None."""
        if not directory.done.is_file():
            return None
        kept = self._file(directory.run_id).read((directory.run_id, _RECORD), _state(directory), self._ids)
        return None if kept is None else json.loads(kept[_RECORD][0].as_py())

    def add(self, record: dict[str, Any], directory: RunDirectory) -> None:
        """Keep the record of a run that has finished, as plain data."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [None] for name in _schema().names}
        rows = pa.table(columns | {_RECORD: [json.dumps(record, ensure_ascii=False)]}, schema=_schema())
        self._file(directory.run_id).new[directory.run_id, _RECORD] = _state(directory), rows

    def keep(self) -> None:
        """Write what is new in the file that is open; if that fails, it is counted again next time."""
        if self._open is not None and self._open.new:
            with contextlib.suppress(XclrunError):
                self._open.write(self._ids)
        self._open = None

    def _file(self, run_id: str) -> _File:
        """Return the file that has the counts of a run."""
        if self._open is None or self._open.name != _name(run_id):
            self.keep()
            self._open = _File(self.outputs, _name(run_id))
        return self._open

    def _counted(self, rows: pa.Table, manifest: dict[str, Any], metrics: MetricsOfKeys) -> Counted:
        sentences, points = {}, "[]"
        for row in rows.drop([_RECORD]).to_pylist():
            ids, points = self._ids[row["ids"]], row["points"]

            def array(name: str, *shape: int, row: dict[str, Any] = row) -> np.ndarray:
                return np.frombuffer(row[name], _ARRAYS[name]).reshape(shape)

            n = len(ids)
            spans = None
            if row["tp"] is not None:
                spans = array("tp", n, -1), array("fp", n, -1), array("fn", n, -1)
            predicted = array("predicted", n, -1)
            tags = None if row["tags"] is None else array("tags", -1, 1 + predicted.shape[1])
            log2_gold = None if row["log2_gold"] is None else array("log2_gold", n, -1)
            answers = None if row["answers"] is None else array("answers", 2, n, -1)
            texts, lengths = (None if row[name] is None else array(name, n) for name in ("texts", "lengths"))
            sentences[row["language"]] = Sentences(
                ids, array("gold", n), predicted, spans, tags, log2_gold, answers, texts, lengths
            )
        by_hop: dict[int, dict[int, dict[str, Scores]]] = {}
        for hop, step, scores in json.loads(points):
            by_hop.setdefault(hop, {})[step] = scores
        return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), by_hop)


class _Content:
    """What a file of counts holds; without a content, or with one that is none of this version, nothing."""

    def __init__(self, content: bytes | None) -> None:
        self._parquet: pq.ParquetFile | None = None
        # (run id, name of the way of scoring) → key, first row and number of rows.
        self._index: dict[tuple[str, str], tuple[str, int, int]] = {}
        if content is not None and (opened := _opened(content)) is not None:
            self._parquet, facts = opened
            self._index = {(run_id, way): (key, at, n) for run_id, way, key, at, n in facts["index"]}

    def read(self, entry: tuple[str, str], key: str, ids: dict[str, np.ndarray]) -> pa.Table | None:
        """Return the rows of an entry, and add to ``ids`` those of their sentences; None: there is none of that key."""
        known, at, n = self._index.get(entry, ("", 0, 0))
        if known != key:
            return None
        rows = self._rows.slice(at, n)
        for name in rows["ids"].drop_null().to_pylist():
            if name not in ids:
                ids[name] = np.array(json.loads(self._metadata[_IDS + name.encode()]))
        return rows

    @cached_property
    def _rows(self) -> pa.Table:
        assert self._parquet is not None  # else the index is empty
        return self._parquet.read(use_threads=False)

    @property
    def _metadata(self) -> dict[bytes, bytes]:
        return {} if self._parquet is None else self._parquet.metadata.metadata or {}


class _File(_Content):
    """The file of those runs whose ids' digests begin alike; what it holds is read when it is made.

    Attributes:
        name: what the digests begin with.
        new: (run id, name of the way of scoring) → key and rows, still to be written.
    """

    def __init__(self, outputs: Path, name: str) -> None:
        self.name, self.outputs = name, outputs
        self.new: dict[tuple[str, str], tuple[str, pa.Table]] = {}
        self._kept = Kept(outputs / "cache" / "counts", name, ".parquet")
        super().__init__(self._kept.read())

    def read(self, entry: tuple[str, str], key: str, ids: dict[str, np.ndarray]) -> pa.Table | None:
        if entry in self.new and self.new[entry][0] == key:
            return self.new[entry][1]
        return super().read(entry, key, ids)

    def write(self, ids: Mapping[str, np.ndarray]) -> None:
        """Write what was kept of runs that are still there, and what is new.

        Args:
            ids: of the sentences of the new rows.

        Raises:
            UsageError: the place cannot be written.
            RunError: the disk is full.
        """
        there = {
            entry: (key, self._rows.slice(at, n))
            for entry, (key, at, n) in self._index.items()
            if entry not in self.new and RunDirectory(self.outputs / "runs" / entry[0]).done.is_file()
        }
        self._kept.write(_packed(there | self.new, ids, self._metadata))


def _packed(
    entries: Mapping[tuple[str, str], tuple[str, pa.Table]],
    ids: Mapping[str, np.ndarray],
    said: Mapping[bytes, bytes] | None = None,
) -> bytes:
    """Return the content of a file.

    Args:
        entries: (run id, name of the way of scoring) → key and rows.
        ids: digest → ids of sentences.
        said: metadata of an earlier file, which holds those that ``ids`` has not.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    index, tables, at = [], [], 0
    for (run_id, way), (key, rows) in entries.items():
        index.append((run_id, way, key, at, len(rows)))
        tables.append(rows)
        at += len(rows)
    table = pa.concat_tables([_schema().empty_table(), *tables])
    facts = {_INDEX: json.dumps({"format": FORMAT, "index": index}).encode()}
    for name in sorted(set(table["ids"].drop_null().to_pylist())):
        known = _IDS + name.encode()
        facts[known] = (said or {}).get(known) or json.dumps(ids[name].tolist()).encode()
    buffer = io.BytesIO()
    with pq.ParquetWriter(buffer, table.schema, compression="zstd", use_dictionary=False) as writer:
        # One group of rows: what reads it reads all of it.
        writer.write_table(table, row_group_size=max(1, len(table)))
        writer.add_key_value_metadata(facts)
    return buffer.getvalue()


def _rows(counted: Counted, ids: dict[str, np.ndarray]) -> pa.Table:
    """Return a row for each language; the ids of its sentences, which many runs share, by their digest.

    Args:
        ids: digest → ids; those of the rows are added.
    """
    import pyarrow as pa

    columns: dict[str, list[Any]] = {name: [] for name in _schema().names}
    points = json.dumps([[h, s, scores] for h, of in counted.points.items() for s, scores in of.items()])
    for language, them in counted.predictions.sentences.items():
        tp, fp, fn = them.spans or (None, None, None)
        arrays = {"gold": them.gold, "predicted": them.predicted, "tp": tp, "fp": fp, "fn": fn, "tags": them.tags}
        arrays |= {"log2_gold": them.log2_gold, "answers": them.answers, "texts": them.texts}
        arrays["lengths"] = them.lengths
        for name, array in arrays.items():
            columns[name].append(None if array is None else np.ascontiguousarray(array, _ARRAYS[name]).tobytes())
        name = digest(them.ids.tolist())[:32]
        ids.setdefault(name, them.ids)
        columns["language"].append(language)
        columns["ids"].append(name)
        columns["points"].append(points)
        columns[_RECORD].append(None)
    return pa.table(columns, schema=_schema())


def _name(run_id: str) -> str:
    """Return the name of the file that keeps the counts of a run: ids begin with words, so their digests are spread."""
    return digest(run_id)[:2]


def _opened(content: bytes) -> tuple[pq.ParquetFile, dict[str, Any]] | None:
    """Return a file of counts, and its index; None where it is no such file, or one of another version."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with contextlib.suppress(pa.ArrowException, OSError, ValueError):
        file = pq.ParquetFile(pa.BufferReader(content))
        facts = json.loads((file.metadata.metadata or {}).get(_INDEX, "{}"))
        if facts.get("format") == FORMAT:
            return file, facts
    return None


def _schema() -> pa.Schema:
    import pyarrow as pa

    text = [(name, pa.string()) for name in ("language", "ids", "points", _RECORD)]
    return pa.schema([*text, *((name, pa.binary()) for name in _ARRAYS)])


def _way(tags: Sequence[str] | None) -> str:
    """Return the name of the way of scoring."""
    return "" if tags is None else "tag_macro"


def _own(tags: Sequence[str] | None) -> tuple[str, str]:
    """Return the entry of a run's own file, which does not name the run."""
    return "", _way(tags)


def _kind(metrics: MetricsOfKeys) -> str:
    """Return what changes when counts do though files do not: of evaluation points scores are kept, not counts."""
    return digest([FORMAT, [metric.name for metric in metrics.all]])


def _prediction_files(
    directory: RunDirectory, done: Mapping[str, Mapping[str, Any]]
) -> list[tuple[str, str, os.stat_result]]:
    """Return name, checksum and state of the files that counts of a finished run are made from."""
    names = sorted(name for name in done if name == "manifest.json" or name.startswith("predictions/"))
    return [(name, done[name]["sha256"], (directory.path / name).stat()) for name in names]


def _older(files: Iterable[tuple[str, str, os.stat_result]], done: Path) -> bool:
    """Whether all files were written before DONE, as those of a run are that nobody has touched since."""
    written = done.stat().st_mtime_ns
    return all(at.st_mtime_ns < written for _, _, at in files)


def _key(files: Iterable[tuple[str, str, os.stat_result]], metrics: MetricsOfKeys) -> str:
    """Return what changes when the prediction files of a finished run do: what DONE says of them, and their times.

    And when its metrics do: of evaluation points scores are kept, not counts.
    """
    return digest(
        [
            FORMAT,
            [metric.name for metric in metrics.all],
            [[name, checksum, at.st_size, at.st_mtime_ns] for name, checksum, at in files],
        ]
    )


def _state(directory: RunDirectory) -> str:
    """Return what changes when any file is written that the record of a finished run is made from."""
    path, found = str(directory.path), []
    for folder in ("", "predictions", "averages"):
        with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(path, folder)) as entries:
            for entry in entries:
                if entry.name.endswith((".parquet", ".yaml", "manifest.json", "DONE")):
                    at = entry.stat()
                    found.append((folder, entry.name, at.st_size, at.st_mtime_ns))
    return digest([FORMAT, sorted(found)])
