"""Counts from the prediction files of a run, written to ``counts.parquet`` at the end of the run.

A report reads this small file of each run instead of one prediction file per hop. The table has a row per language:
classes, spans and tags, and the k statistics of each metric that needs other columns of predictions (`Metric.stored`).
Its metadata name the metrics. The prediction files are counted again if the file is missing or lacks a metric.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.core.files import parse_json
from xclrun.core.plugins import version_of
from xclrun.core.task import (
    COLUMNS,
    Metric,
    MetricsOfKeys,
    Scored,
    Task,
    further_metrics,
    restored,
    task_identified,
    tasks_of_dataset,
)
from xclrun.scores import base_scores
from xclrun.scores.base_scores import Alignment, Predictions, Scores, Sentences, with_metrics
from xclrun.store.files import atomic_write
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    import pyarrow as pa

# Version of the file; raise it when its content changes.
FORMAT = 1
# Column → NumPy type of its arrays.
_ARRAYS = {"gold": "<i2", "predicted": "<i2", "tp": "<i2", "fp": "<i2", "fn": "<i2", "tags": "<i2", "texts": "<i4",
           "lengths": "<i4"}  # fmt: skip
_METADATA = b"xclrun"
# Prefix of the columns of statistics, float32.
_STATISTICS = "statistics."


@dataclass(frozen=True)
class Counted:
    """Counts of the prediction files of one run.

    Attributes:
        predictions: counts on the test sentences after each hop.
        points: scores at the evaluation points inside hops: hop → step → split → language → metric → score.
    """

    predictions: Predictions
    points: dict[int, dict[int, dict[str, Scores]]] = field(default_factory=dict)


@dataclass(frozen=True)
class Common:
    """Data that all runs on the same sentences share in memory.

    Attributes:
        ids: JSON text of the sentence IDs of a language → array of these IDs.
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
    """Count the predictions in the files of a run; if the run is finished, verify the files.

    Args:
        tags: names of the tags if span F1 is ``tag_macro``.

    Raises:
        OSError, ValueError, KeyError: a file is missing or damaged, or hops were tested on different sentences.
    """
    columns = [*base_scores.COLUMNS, *(base_scores.TAG_COLUMNS if tags is not None else ())]
    columns += base_scores.BELIEF_COLUMNS if any(metric.probabilities for metric in metrics.all) else ()
    columns += base_scores.ANSWER_COLUMNS if any(metric.of is Scored.answers for metric in metrics.all) else ()
    columns += _own(metrics)
    # Ignored in files without questions or pairs.
    columns.append(base_scores.TEXT_COLUMN)
    tables = (directory.table(directory.predictions(stage["hop"]), columns) for stage in manifest["stages"])
    sentences = base_scores.of_hops(tables, (common or Common()).alignment, tags, metrics.reader)
    points = {
        hop: base_scores.of_points(directory.table(directory.points(hop), [*columns, "step"]), metrics, tags)
        for hop in (stage["hop"] for stage in manifest["stages"] if stage["training"].get("points"))
    }
    return Counted(Predictions(tuple(manifest["labels"]), with_metrics(sentences, metrics)), points)


def write(
    directory: RunDirectory,
    config: dict[str, Any],
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None,
) -> None:
    """Write ``counts.parquet`` before a run is marked as finished; see `count` for the arguments.

    Writes nothing if the predictions cannot be counted; reports then state the reason.
    """
    import pyarrow.parquet as pq

    # The file may be from an earlier attempt.
    directory.counts.unlink(missing_ok=True)
    with contextlib.suppress(ValueError, KeyError):
        counted = count(directory, manifest, metrics, tags)
        points = [[hop, step, scores] for hop, steps in counted.points.items() for step, scores in steps.items()]
        # JSON is read ten times as fast as YAML, but cannot represent every config, such as one with a number as key.
        plain = config if json.loads(json.dumps(config, default=str)) == config else None
        facts = {"kind": _kind(metrics, tags), "points": points, "config": plain}
        buffer = io.BytesIO()
        table = _table(counted, metrics).replace_schema_metadata({_METADATA: json.dumps(facts).encode()})
        pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
        atomic_write(directory.counts, buffer.getvalue())


@dataclass(frozen=True)
class Stored:
    """Content of ``counts.parquet``.

    Attributes:
        table: a row per language.
        facts: ``kind`` (see `_kind`); ``points``: `Counted.points` as [hop, step, scores]; ``config``: the run's
            config, or None if JSON cannot represent the config.
    """

    table: pa.Table
    facts: dict[str, Any]


def stored(directory: RunDirectory) -> Stored | None:
    """Return the counts that a finished run wrote, or None.

    Raises:
        OSError, ValueError, KeyError: the file, or a prediction file that was written after DONE, is damaged.
    """
    if not directory.done.is_file() or directory.counts.name not in (files := directory.read_done()):
        return None
    finished = directory.done.stat().st_mtime_ns
    for name in files:
        if name.startswith("predictions/") and (path := directory.path / name).stat().st_mtime_ns >= finished:
            directory.content(path)
    table = directory.table(directory.counts)
    return Stored(table, parse_json((table.schema.metadata or {}).get(_METADATA, b"{}")))


def read(
    directory: RunDirectory,
    manifest: dict[str, Any],
    metrics: MetricsOfKeys,
    tags: Sequence[str] | None,
    common: Common,
    file: Stored | None,
) -> Counted:
    """Return the result of `count`, from the `stored` counts if these have all metrics."""
    version, names, macro = _kind(metrics, tags)
    if file is not None:
        stored_version, stored_names, stored_macro = file.facts.get("kind") or (0, (), False)
        if (stored_version, stored_macro) == (version, macro) and set(names) <= set(stored_names):
            return _from_table(file, manifest, metrics, common)
    return count(directory, manifest, metrics, tags, common)


def _own(metrics: MetricsOfKeys) -> list[str]:
    """Return the names of tasks' own columns if a metric scores them."""
    own = any(metric.of is Scored.columns for metric in metrics.all)
    return [name for name in COLUMNS if own and name not in base_scores.SPECIAL]


def _kind(metrics: MetricsOfKeys, tags: Sequence[str] | None) -> list[Any]:
    """Return the settings that determine the content; points contain scores, not counts, so metrics are included."""
    return [FORMAT, [_identity(metric) for metric in metrics.all], tags is not None]


def _identity(metric: Metric) -> str:
    """Return the name of a metric, with the versions of the plug-ins that compute what the file stores of it.

    These are the scores at evaluation points and, for some metrics, statistics (`Metric.stored`).
    """
    plugins = dict.fromkeys(filter(None, map(version_of, (metric.statistics, metric.score))))
    version = "+".join(plugins) or ("statistics" if metric.stored else "")
    return f"{metric.name}/{version}" if version else metric.name


def _table(counted: Counted, metrics: MetricsOfKeys) -> pa.Table:
    import pyarrow as pa

    stored = [metric for metric in metrics.all if metric.stored]
    names = [*_ARRAYS, *(f"{_STATISTICS}{metric.name}" for metric in stored)]
    types = [("language", pa.string()), ("ids", pa.string()), *((name, pa.binary()) for name in names)]
    rows = []
    for language, sentences in counted.predictions.sentences.items():
        arrays = dict(zip(("tp", "fp", "fn"), sentences.spans or (), strict=False))
        arrays |= {name: array for name in _ARRAYS if (array := getattr(sentences, name, None)) is not None}
        content = {name: np.ascontiguousarray(array, _ARRAYS[name]).tobytes() for name, array in arrays.items()}
        for metric in stored:
            if not sentences.metrics or metric in sentences.metrics:
                statistics = np.ascontiguousarray(sentences.counts(metric).statistics, "<f4")
                content[f"{_STATISTICS}{metric.name}"] = statistics.tobytes()
        rows.append({"language": language, "ids": json.dumps(sentences.ids.tolist()), **content})
    return pa.Table.from_pylist(rows, schema=pa.schema(types))


def _from_table(file: Stored, manifest: dict[str, Any], metrics: MetricsOfKeys, common: Common) -> Counted:
    """Undo `_table`."""
    sentences = {}
    for row in file.table.to_pylist():
        ids = common.ids.get(row["ids"])
        if ids is None:
            ids = common.ids[row["ids"]] = np.array(json.loads(row["ids"]))
        n = len(ids)
        arrays: dict[str, Any] = {k: np.frombuffer(row[k], kind) for k, kind in _ARRAYS.items() if row[k] is not None}
        for name in arrays.keys() & {"predicted", "tp", "fp", "fn"}:
            arrays[name] = arrays[name].reshape(n, -1)
        cells = arrays["predicted"].shape[1]
        if "tags" in arrays:
            arrays["tags"] = arrays["tags"].reshape(-1, 1 + cells)
        spans = (arrays.pop("tp"), arrays.pop("fp"), arrays.pop("fn")) if "tp" in arrays else None
        statistics = {
            name.removeprefix(_STATISTICS): np.frombuffer(content, "<f4").reshape(n, cells, -1)
            for name, content in row.items()
            if name.startswith(_STATISTICS) and content is not None
        }
        sentences[row["language"]] = Sentences(ids=ids, spans=spans, statistics=statistics, **arrays)
    points: dict[int, dict[int, dict[str, Scores]]] = {}
    names = {metric.name for metric in metrics.all}
    for hop, step, splits in file.facts["points"]:
        points.setdefault(hop, {})[step] = {
            split: {language: {k: of[k] for k in of if k in names} for language, of in by_language.items()}
            for split, by_language in splits.items()
        }
    return Counted(Predictions(tuple(manifest["labels"]), with_metrics(sentences, metrics)), points)


def write_counts(directory: RunDirectory) -> None:
    """Count the prediction files of a run before it is marked as finished, and write the counts for reports."""
    config, manifest = directory.config_values(), directory.read_manifest()
    write(directory, config, manifest, *metrics_and_tags(config, manifest))


def metrics_and_tags(config: dict[str, Any], manifest: dict[str, Any]) -> tuple[MetricsOfKeys, list[str] | None]:
    """Return (metrics of a run, names of its tags); the names are None unless span F1 is ``tag_macro``."""
    metrics = metrics_of(config, manifest)
    macro = config["evaluate"]["slot_f1"] == "tag_macro" and any(metric.span_f1 for metric in metrics.every)
    return metrics, manifest["tags"] if macro else None


def metrics_of(config: dict[str, Any], manifest: dict[str, Any]) -> MetricsOfKeys:
    reader = config["dataset"].get("reader") or ""
    if "tasks" in manifest:
        tasks = [(_task(targets["task"]), targets) for targets in manifest["tasks"]]
        by_key = {key: _measured(task, bool(targets["tags"])) for task, targets in tasks for key in targets["keys"]}
        grouped = frozenset(key for task, targets in tasks if task.grouped for key in targets["keys"])
        return MetricsOfKeys(by_key=by_key, reader=reader, grouped=grouped)
    # The manifest has no task if the config determines it.
    task = _task(manifest["task"]) if "task" in manifest else tasks_of_dataset(config["dataset"])[0]
    return MetricsOfKeys(_measured(task, bool(manifest["tags"])), reader=reader, grouped=task.grouped)


def _measured(task: Task, tagged: bool) -> tuple[Metric, ...]:
    return (*task.measured(tagged), *further_metrics(task, tagged))


def _task(value: str | dict[str, Any]) -> Task:
    """Return a task from a manifest, which has the task's name or, for a plug-in's task, its description."""
    return task_identified(value) if isinstance(value, str) else restored(value)
