"""What the prediction files of a run count: written at the run's end into ``counts.parquet``, for reports.

A report of a thousand runs then reads one small file of each run, not one for each hop. The file has a row for each
language; its metadata say what was counted. Where a run has none, or one of other metrics, or another way to compute F1
of spans is asked for, the prediction files are counted again.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis import base_scores
from xclrun.analysis.base_scores import Alignment, Predictions, Scores, Sentences, with_own
from xclrun.core.task import MetricsOfKeys, Scored
from xclrun.store.files import atomic_write
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

# Version of the file; raise it when its content changes.
FORMAT = 7
# Arrays in a row, and their types there.
_ARRAYS = {"gold": "<i2", "predicted": "<i2", "tp": "<i2", "fp": "<i2", "fn": "<i2", "tags": "<i2", "log2_gold": "<f4",
           "answers": "<f4", "texts": "<i4", "lengths": "<i4"}  # fmt: skip
_METADATA = b"xclrun"


@dataclass(frozen=True)
class Counted:
    """What the prediction files of one run count.

    Attributes:
        predictions: on the test sentences after each hop.
        points: hop → step → split → language → metric → score, of the evaluation points inside hops.
    """

    predictions: Predictions
    points: dict[int, dict[int, dict[str, Scores]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Common:
    """What runs on the same sentences have in common, held in memory once.

    Attributes:
        alignment: the rows of prediction files.
        ids: ids of the sentences of a language as JSON → the array of them.
    """

    alignment: Alignment = field(default_factory=Alignment)
    ids: dict[str, np.ndarray] = field(default_factory=dict)


def count(
    directory: RunDirectory,
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None = None,
    common: Common | None = None,
) -> Counted:
    """Count the prediction files of a run; those of a finished run are checked.

    Args:
        manifest: of the run.
        metrics: of the keys.
        tags: names of the tags, where F1 of spans is ``tag_macro``.

    Raises:
        OSError, ValueError, KeyError: a file is missing, or not what was written, or hops were tested on different
            sentences.
    """
    columns = [*base_scores.COLUMNS, *(base_scores.TAG_COLUMNS if tags is not None else ())]
    columns += base_scores.BELIEF_COLUMNS if any(metric.probabilities for metric in metrics.all) else ()
    columns += base_scores.ANSWER_COLUMNS if any(metric.of is Scored.answers for metric in metrics.all) else ()
    # Reading passes over it if there are no questions or pairs.
    columns.append(base_scores.TEXT_COLUMN)
    hops = [stage["hop"] for stage in manifest["stages"]]
    inside = [stage["hop"] for stage in manifest["stages"] if stage["training"].get("points")]
    tables = (directory.table(directory.predictions(hop), columns) for hop in hops)
    sentences = base_scores.of_hops(tables, (common or Common()).alignment, tags, metrics.reader)
    points = {
        hop: base_scores.of_points(directory.table(directory.points(hop), [*columns, "step"]), metrics, tags)
        for hop in inside
    }
    return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), points)


def write(
    directory: RunDirectory,
    config: dict[str, Any],
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None,
) -> None:
    """Count the prediction files of a run that is at its end; arguments as those of `count`.

    What cannot be counted is left to the reports, which say why.

    Raises:
        UsageError: the place cannot be written.
        RunError: the disk is full.
    """
    import pyarrow.parquet as pq

    # One of an earlier attempt would be taken for this one's.
    directory.counts.unlink(missing_ok=True)
    with contextlib.suppress(ValueError, KeyError):
        counted = count(directory, manifest, metrics, tags)
        points = [[hop, step, scores] for hop, of in counted.points.items() for step, scores in of.items()]
        # Ten times as fast to read as YAML, which may hold what JSON has not, such as a number for a key.
        plain = config if json.loads(json.dumps(config, default=str)) == config else None
        facts = {"kind": _kind(metrics, tags), "points": points, "config": plain}
        buffer = io.BytesIO()
        table = _table(counted).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
        pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
        atomic_write(directory.counts, buffer.getvalue())


@dataclass(frozen=True)
class Stored:
    """The file of a run.

    Attributes:
        table: a row for each language.
        facts: ``kind``: see `_kind`; ``points``: [hop, step, `Counted.points` there]; ``config`` of the run, or None.
    """

    table: pa.Table
    facts: dict[str, Any]


def stored(directory: RunDirectory) -> Stored | None:
    """Return what a finished run wrote; None if there is nothing.

    Raises:
        OSError, ValueError, KeyError: it, or a prediction file that was written after DONE, is not what was written.
    """
    if not directory.done.is_file() or directory.counts.name not in (done := directory.read_done()):
        return None
    finished = directory.done.stat().st_mtime_ns
    for name in done:
        if name.startswith("predictions/") and (path := directory.path / name).stat().st_mtime_ns >= finished:
            directory.content(path)
    table = directory.table(directory.counts)
    return Stored(table, json.loads((table.schema.metadata or {}).get(_METADATA, b"{}")))


def read(
    directory: RunDirectory,
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None,
    common: Common,
    there: Stored | None,
) -> Counted:
    """Return what `count` does; from what is `stored` if it is of these metrics.

    Raises:
        OSError, ValueError, KeyError: as `count` does.
    """
    if there is not None and there.facts.get("kind") == _kind(metrics, tags):
        return _counted(there, manifest, metrics, common)
    return count(directory, manifest, metrics, tags, common)


def _kind(metrics: MetricsOfKeys, tags: Sequence[str] | None) -> list[Any]:
    """Return what the content depends on but for the files: of evaluation points scores are written, not counts."""
    return [FORMAT, [metric.name for metric in metrics.all], tags is not None]


def _table(counted: Counted) -> pa.Table:
    """Return a row for each language."""
    import pyarrow as pa

    types = [("language", pa.string()), ("ids", pa.string()), *((name, pa.binary()) for name in _ARRAYS)]
    rows = []
    for language, them in counted.predictions.sentences.items():
        arrays = dict(zip(("tp", "fp", "fn"), them.spans or (), strict=False))
        arrays |= {name: array for name in _ARRAYS if (array := getattr(them, name, None)) is not None}
        content = {name: np.ascontiguousarray(array, _ARRAYS[name]).tobytes() for name, array in arrays.items()}
        rows.append({"language": language, "ids": json.dumps(them.ids.tolist()), **content})
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def _counted(there: Stored, manifest: dict[str, Any], metrics: MetricsOfKeys, common: Common) -> Counted:
    """Return what `_table` made a table of."""
    sentences = {}
    for row in there.table.to_pylist():
        ids = common.ids.get(row["ids"])
        if ids is None:
            ids = common.ids[row["ids"]] = np.array(json.loads(row["ids"]))
        n = len(ids)
        of: dict[str, Any] = {k: np.frombuffer(row[k], kind) for k, kind in _ARRAYS.items() if row[k] is not None}
        for name in of.keys() & {"predicted", "tp", "fp", "fn", "log2_gold"}:
            of[name] = of[name].reshape(n, -1)
        if "answers" in of:
            of["answers"] = of["answers"].reshape(2, n, -1)
        if "tags" in of:
            of["tags"] = of["tags"].reshape(-1, 1 + of["predicted"].shape[1])
        spans = (of.pop("tp"), of.pop("fp"), of.pop("fn")) if "tp" in of else None
        sentences[row["language"]] = Sentences(ids=ids, spans=spans, **of)
    by_hop: dict[int, dict[int, dict[str, Scores]]] = {}
    for hop, step, scores in there.facts["points"]:
        by_hop.setdefault(hop, {})[step] = scores
    return Counted(Predictions(tuple(manifest["labels"]), with_own(sentences, metrics)), by_hop)
