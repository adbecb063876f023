"""Counts of the runs' prediction files, and the runs' records: read from checked files, and cached in one file.

A report of a thousand runs is about ten thousand prediction files. What of them is needed lies, once counted, in
``<outputs>/cache/counts-<SHA-256>.parquet`` (see `xclrun.store.kept`): for each run a row group with a row for each
language, and one with its record, which would take as long to make again from config, manifest and counts as to count;
and an index in the file's metadata. An entry counts as long as DONE says the same of the run's prediction files and
none of them was written since, a record as long as no file of the run was; what is missing, stale or damaged is made
again.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Sequence
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
from xclrun.store.kept import Kept
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

# Version of what is kept; raise it when that changes.
FORMAT = 4
# Arrays in a row, and their types there.
_ARRAYS = {"gold": "<i2", "predicted": "<i2", "tp": "<i2", "fp": "<i2", "fn": "<i2", "tags": "<i4", "log2_gold": "<f4",
           "answers": "<f4"}  # fmt: skip
_INDEX = b"xclrun"
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
    hops = [stage["hop"] for stage in manifest["stages"]]
    inside = [stage["hop"] for stage in manifest["stages"] if stage["training"].get("points")]
    tables = (directory.table(directory.predictions(hop), columns) for hop in hops)
    sentences = base_scores.of_hops(tables, alignment, tags)
    points = {
        hop: base_scores.of_points(directory.table(directory.points(hop), [*columns, "step"]), metrics, tags)
        for hop in inside
    }
    return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), points)


class CountsOfRuns:
    """The counts of all runs under ``outputs``, the folder with ``runs``.

    Kept counts that are damaged are noted and made again: nothing is missing then, so it is no error.
    """

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        self._kept = Kept(outputs / "cache", "counts", ".parquet")
        self._alignment = Alignment()
        # (run id, name of the way of scoring) → key and rows.
        self._new: dict[tuple[str, str], tuple[str, pa.Table]] = {}
        self._ids: dict[str, np.ndarray] = {}

    def of(
        self, directory: RunDirectory, manifest: dict[str, Any], metrics: MetricsOfKeys, tags: Sequence[str] | None
    ) -> Counted:
        """Return what a run's prediction files count, as `count` does; of a finished run it may be kept.

        Raises:
            OSError, ValueError, KeyError: as `count` does.
        """
        if not directory.done.is_file():
            return count(directory, manifest, metrics, tags, self._alignment)
        key, entry = _key(directory, metrics), (directory.run_id, "" if tags is None else "tag_macro")
        kept = self._read(entry, key)
        if kept is None:
            kept = self._rows(count(directory, manifest, metrics, tags, self._alignment))
            self._new[entry] = key, kept
        return self._counted(kept, manifest, metrics)

    def record(self, directory: RunDirectory) -> dict[str, Any] | None:
        """Return the record of a finished run as it was given to `add`, or None."""
        if not directory.done.is_file():
            return None
        kept = self._read((directory.run_id, _RECORD), _state(directory), [_RECORD])
        return None if kept is None else json.loads(kept[_RECORD][0].as_py())

    def add(self, record: dict[str, Any], directory: RunDirectory) -> None:
        """Keep the record of a run that has finished, as plain data."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [None] for name in _schema().names}
        rows = pa.table(columns | {_RECORD: [json.dumps(record, ensure_ascii=False)]}, schema=_schema())
        self._new[directory.run_id, _RECORD] = _state(directory), rows

    def keep(self) -> None:
        """Write the new counts and records; if that fails, they are counted again next time."""
        import pyarrow.parquet as pq

        if not self._new:
            return
        buffer, used = io.BytesIO(), set()
        index: list[tuple[str, str, str, int]] = []
        with pq.ParquetWriter(buffer, _schema(), compression="zstd", use_dictionary=False) as writer:
            for (run_id, way), (key, rows) in self._all():
                used |= set(rows["ids"].drop_null().to_pylist())
                index.append((run_id, way, key, len(index)))
                writer.write_table(rows)
            ids = {name: self._ids[name].tolist() for name in sorted(used)}
            writer.add_key_value_metadata({_INDEX: json.dumps({"format": FORMAT, "index": index, "ids": ids})})
        with contextlib.suppress(XclrunError):
            self._kept.write(buffer.getvalue())
        self._new = {}
        self.__dict__.pop("_file", None)
        self.__dict__.pop("_index", None)

    @cached_property
    def _file(self) -> pq.ParquetFile | None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with contextlib.suppress(OSError, pa.ArrowException):
            if (path := self._kept.find()) is not None:
                return pq.ParquetFile(pa.BufferReader(path.read_bytes()))
        return None

    @cached_property
    def _index(self) -> dict[tuple[str, str], tuple[str, int]]:
        """Run id and way of scoring → key and row group."""
        if self._file is None:
            return {}
        facts = json.loads((self._file.metadata.metadata or {}).get(_INDEX, "{}"))
        if facts.get("format") != FORMAT:
            return {}
        self._ids = {name: np.array(ids) for name, ids in facts["ids"].items()} | self._ids
        return {(run_id, way): (key, group) for run_id, way, key, group in facts["index"]}

    def _all(self) -> Iterator[tuple[tuple[str, str], tuple[str, pa.Table]]]:
        """Yield what is to be kept: what was kept of runs that are still there, and what is new."""
        for entry, (key, group) in self._index.items():
            if entry not in self._new and self._file and RunDirectory(self.outputs / "runs" / entry[0]).done.is_file():
                yield entry, (key, self._file.read_row_group(group))
        yield from self._new.items()

    def _read(self, entry: tuple[str, str], key: str, columns: Sequence[str] | None = None) -> pa.Table | None:
        if entry in self._new and self._new[entry][0] == key:
            return self._new[entry][1]
        known, group = self._index.get(entry, ("", 0))
        if self._file is None or known != key:
            return None
        return self._file.read_row_group(group, columns=columns, use_threads=False)

    def _rows(self, counted: Counted) -> pa.Table:
        """Return a row for each language; the ids of its sentences, which many runs share, by their digest."""
        import pyarrow as pa

        columns: dict[str, list[Any]] = {name: [] for name in _schema().names}
        points = json.dumps([[h, s, scores] for h, of in counted.points.items() for s, scores in of.items()])
        for language, them in counted.predictions.sentences.items():
            tp, fp, fn = them.spans or (None, None, None)
            arrays = {"gold": them.gold, "predicted": them.predicted, "tp": tp, "fp": fp, "fn": fn, "tags": them.tags}
            arrays |= {"log2_gold": them.log2_gold, "answers": them.answers}
            for name, array in arrays.items():
                columns[name].append(None if array is None else np.ascontiguousarray(array, _ARRAYS[name]).tobytes())
            name = digest(them.ids.tolist())[:32]
            self._ids.setdefault(name, them.ids)
            columns["language"].append(language)
            columns["ids"].append(name)
            columns["points"].append(points)
            columns[_RECORD].append(None)
        return pa.table(columns, schema=_schema())

    def _counted(self, rows: pa.Table, manifest: dict[str, Any], metrics: MetricsOfKeys) -> Counted:
        sentences, points = {}, "[]"
        for row in rows.to_pylist():
            ids, points = self._ids[row["ids"]], row["points"]

            def array(name: str, *shape: int, row: dict[str, Any] = row) -> np.ndarray:
                return np.frombuffer(row[name], _ARRAYS[name]).reshape(shape)

            n = len(ids)
            spans = None
            if row["tp"] is not None:
                spans = array("tp", n, -1), array("fp", n, -1), array("fn", n, -1)
            predicted = array("predicted", n, -1)
            tags = None if row["tags"] is None else array("tags", 3, -1, predicted.shape[1])
            log2_gold = None if row["log2_gold"] is None else array("log2_gold", n, -1)
            answers = None if row["answers"] is None else array("answers", 2, n, -1)
            sentences[row["language"]] = Sentences(ids, array("gold", n), predicted, spans, tags, log2_gold, answers)
        by_hop: dict[int, dict[int, dict[str, Scores]]] = {}
        for hop, step, scores in json.loads(points):
            by_hop.setdefault(hop, {})[step] = scores
        return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), by_hop)


def _schema() -> pa.Schema:
    import pyarrow as pa

    text = [(name, pa.string()) for name in ("language", "ids", "points", _RECORD)]
    return pa.schema([*text, *((name, pa.binary()) for name in _ARRAYS)])


def _key(directory: RunDirectory, metrics: MetricsOfKeys) -> str:
    """Return what changes when the prediction files of a finished run do: what DONE says of them, and their times.

    And when its metrics do: of evaluation points scores are kept, not counts.
    """
    done = directory.read_done()
    names = sorted(name for name in done if name == "manifest.json" or name.startswith("predictions/"))
    files = [(name, done[name]["sha256"], (directory.path / name).stat()) for name in names]
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
