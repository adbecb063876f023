"""Read runs from their directories: the `RunRecord` of each, its predictions, and its tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from xclrun.analysis.codelength import ANSWER_COLUMNS, COLUMNS, WRITTEN_COLUMNS, of_block
from xclrun.analysis.fewshot.words import Outcome
from xclrun.analysis.record import RunRecord, number_of_hops
from xclrun.core.identity import strategy_name
from xclrun.core.plugins import raised_in
from xclrun.core.task import BY_NAME, MetricsOfKeys, Scored, scores_texts
from xclrun.core.terminal import many, note
from xclrun.scores.base_scores import Predictions, of_hop
from xclrun.scores.counts import Common, metrics_and_tags, metrics_of, read, stored
from xclrun.store.cache import is_intact
from xclrun.store.predictions import read as read_rows
from xclrun.store.rundir import UNREADABLE_RUN, RunDirectory, UnreadableRun, run_directories

if TYPE_CHECKING:
    import pandas as pd


def record(directory: RunDirectory, common: Common | None = None, slot_f1: str | None = None) -> RunRecord:
    """Return the record of a run, with scores from its prediction files; scores of hops without predictions are NaN.

    Args:
        slot_f1: definition of span F1, ``span_micro`` or ``tag_macro``; None: the definition in the run's config.

    Raises:
        ValueError: the run's files are unreadable or damaged.
    """
    if (path := directory.damaged()) is not None:
        raise ValueError(f"{path} is missing or damaged; re-run the command of the run to restore it")
    try:
        return _record(directory, common, slot_f1)
    except UnreadableRun:
        raise
    except UNREADABLE_RUN as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
        # If a plug-in defines the metric, name the place in its code.
        reason += f", in {place}" if (place := raised_in(error)) else ""
        raise ValueError(f"{directory.path} cannot be read ({reason})") from error


def _record(directory: RunDirectory, common: Common | None, slot_f1: str | None) -> RunRecord:
    manifest = directory.read_manifest()
    counts = stored(directory)
    config = (counts.facts.get("config") if counts else None) or directory.config_values()
    if slot_f1 is not None:
        config["evaluate"]["slot_f1"] = slot_f1
    stream, languages = manifest["stream"]["kind"], manifest["stream"]["languages"]
    mixtures = tuple(map(tuple, manifest["stream"].get("mixtures", ())))
    hops = number_of_hops(stream, len(mixtures or languages), manifest["stream"].get("blocks"))
    metrics, tags = metrics_and_tags(config, manifest)
    counted = read(directory, manifest, metrics, tags, common or Common(), counts)
    scores = {}
    for metric in metrics.all:
        scores[metric.name] = np.full((hops + 1, len(languages)), np.nan)
        if measured := [stage["hop"] for stage in manifest["stages"]]:
            scores[metric.name][measured] = counted.predictions.matrix(metric, languages)
    scores = _scored(scores)
    curve = [
        {"hop": stage["hop"], **{k: epoch[k] for k in ("epoch", "step", "examples", "loss")}}
        | {"dev": _dev_scores(stage, epoch, config["evaluate"]["slot_f1"], metrics)}
        for stage in manifest["stages"]
        for epoch in stage["training"]["epochs"]
    ]
    points = [
        {"hop": stage["hop"], **point, **counted.points[stage["hop"]][point["step"]]}
        for stage in manifest["stages"]
        for point in stage["training"].get("points", ())
    ]
    unfinished = manifest["status"] if manifest["status"] in ("failed", "interrupted") else "running"
    status = "finished" if directory.done.is_file() else unfinished
    return RunRecord(
        run_id=manifest["run_id"],
        dataset=config["dataset"]["name"],
        model=config["model"]["name"],
        strategy=strategy_name(config),
        order=config["order"]["name"],
        languages=tuple(languages),
        seed=config["seed"],
        bucket=config["bucket"],
        stream=stream,
        scores=scores,
        config=config,
        data_fingerprint=manifest["data"]["fingerprint"],
        whole_fingerprint=manifest["data"].get("whole", ""),
        code_version=manifest["code_version"],
        algorithms=manifest["algorithms"],
        encoder=manifest["encoder"],
        strategy_version=manifest["strategy_version"],
        status=status,
        curve=tuple(curve),
        points=tuple(points),
        averaged=tuple(_averaged(directory, config, manifest)),
        coded=tuple(_coded(directory, config, manifest)),
        mixtures=mixtures,
        edited=tuple(stage["hop"] for stage in manifest["stages"] if stage["training"].get("edited")),
        sizes=manifest["data"].get("sizes", {}),
        costs=_costs(manifest),
        environment={**manifest["environment"], "host": manifest["host"], "started": manifest["started"]},
        merged_from=manifest.get("merged_from", ""),
        tried=tuple(manifest.get("tried", ())),
        trained=tuple(stage["train"] for stage in manifest["stages"] if stage["hop"]),
    )


def _scored(scores: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return scores without metrics of data that the dataset lacks, such as choices (`Metric.undefined`)."""
    some = {name for name, R in scores.items() if np.isfinite(R).any()}
    # Runs without an evaluated hop have no scores yet.
    if not some:
        return scores
    return {
        name: R for name, R in scores.items() if name in some or BY_NAME[name].beside or not BY_NAME[name].undefined
    }


def _dev_scores(stage: dict[str, Any], epoch: dict[str, Any], slot_f1: str, metrics: MetricsOfKeys) -> dict[str, Any]:
    """Return the dev scores of an epoch, without span F1 if training used another definition.

    Dev predictions are not stored, so span F1 cannot be recomputed.
    """
    other = {metric.name for metric in metrics.all if metric.span_f1} if stage["slot_f1"] != slot_f1 else ()
    return {
        language: {name: value for name, value in scores.items() if name not in other}
        for language, scores in epoch["dev"].items()
    }


def _averaged(directory: RunDirectory, config: dict[str, Any], manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scores of averaged checkpoints; damaged files are ignored."""
    metrics, tags = metrics_and_tags(config, manifest)
    for path in sorted(directory.averages.glob("*-hop-*.parquet")):
        name = re.fullmatch(r"(all|last-\d+)-hop-(\d+)-[0-9a-f]{64}\.parquet", path.name)
        if name is not None and is_intact(path):
            yield {"hop": int(name[2]), "of": name[1], "test": of_hop(read_rows(path), metrics, tags)}


def _coded(directory: RunDirectory, config: dict[str, Any], manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the codelengths of each block (`RunRecord.coded`)."""
    stream = manifest["stream"]
    if "blocks" not in stream:
        return
    before = len(stream.get("mixtures") or stream["languages"]) - 1
    # With several tasks: the targets of the language that is split into blocks.
    targets = next((t for t in manifest.get("tasks", ()) if stream["languages"][-1] in t["keys"]), manifest)
    classes = {name: len(targets[name]) for name in ("labels", "tags")}
    # A task without labels and tags predicts answers or texts.
    further = WRITTEN_COLUMNS if scores_texts(config["dataset"]) else ANSWER_COLUMNS
    columns = COLUMNS if any(classes.values()) else (*COLUMNS, *further)
    for hop in (stage["hop"] for stage in manifest["stages"] if stage["hop"] >= before):
        codes = of_block(directory.table(directory.next_block(hop), columns), classes)
        yield {"hop": hop, "block": hop - before + 1, "start_knows": stream["start_knows"], "codes": codes}


def _costs(manifest: dict[str, Any]) -> dict[str, float]:
    stages = manifest["stages"]
    parameters = manifest.get("parameters") or {}
    costs = {"parameters": parameters.get("total"), "trained": parameters.get("trained")}
    costs["memory"] = max((stage["kept"]["bytes"] for stage in stages if stage.get("kept")), default=0)
    if "merged_from" in manifest:
        # A merged run trains no hops: its hops were trained for another run.
        costs, stages = costs | {"trained": 0}, [stage | {"training": {}} for stage in stages]
    for name in ("updates", "examples", "tokens", "seconds"):
        # Memory batches count as training cost.
        costs[name] = sum(stage["training"].get(key, 0) for stage in stages for key in (name, f"beside_{name}"))
    costs["seconds"] += sum(stage["kept"].get("seconds", 0.0) for stage in stages if stage.get("kept"))
    return {name: float(value) for name, value in costs.items() if value is not None}


def read_records(
    outputs: Path,
    warn: Callable[[str], None] = note,
    slot_f1: str | None = None,
    only: Collection[str] | None = None,
) -> list[RunRecord]:
    """Return the records that `each_record` yields; print how many runs of older versions were skipped."""
    older: list[UnreadableRun] = []
    records = list(each_record(outputs, only, warn, slot_f1, older))
    if older:
        # A note, not a warning: such runs are intact and need not be removed.
        note(f"skipped {many(len(older), 'run')}, for example {older[0]}")
    return records


def each_record(
    outputs: Path,
    only: Collection[str] | None,
    warn: Callable[[str], None],
    slot_f1: str | None,
    older: list[UnreadableRun],
) -> Iterator[RunRecord]:
    """Yield the records of the readable runs under ``outputs``, sorted by run ID.

    Args:
        only: run IDs; None: all runs.
        warn: called with a line about each unreadable run.
        slot_f1: as in `record`.
        older: receives the errors of runs of older versions.
    """
    common = Common()
    for directory in run_directories(outputs, only):
        try:
            yield record(directory, common, slot_f1)
        except ValueError as error:
            if isinstance(error, UnreadableRun) and error.state == "older":
                older.append(error)
            else:
                warn(f"{error}; skipped")


def read_predictions(
    outputs: Path, records: Iterable[RunRecord], warn: Callable[[str], None]
) -> dict[str, Predictions]:
    """Return run ID → predictions of the finished runs under ``outputs``; ``warn`` is called for unreadable ones."""
    predictions, common = {}, Common()
    for run in records:
        directory = RunDirectory(outputs / "runs" / run.run_id)
        if directory.done.is_file():
            try:
                manifest = directory.read_manifest()
                metrics, tags = metrics_and_tags(run.config, manifest)
                counted = read(directory, manifest, metrics, tags, common, stored(directory))
                predictions[run.run_id] = counted.predictions
            except UNREADABLE_RUN as error:
                warn(f"predictions of {run.run_id} cannot be read ({error})")
    return predictions


def read_gradients(
    outputs: Path, records: Iterable[RunRecord], warn: Callable[[str], None]
) -> dict[str, dict[str, pd.DataFrame]]:
    """Return the rows of the files ``overlap`` and ``class_gradients`` of finished runs: name → run ID → rows.

    A file that a run lacks is omitted. ``warn`` is called for unreadable files.
    """
    gradients: dict[str, dict[str, pd.DataFrame]] = {"overlap": {}, "class_gradients": {}}
    for run in records:
        directory = RunDirectory(outputs / "runs" / run.run_id)
        for kind, tables in gradients.items():
            path = getattr(directory, kind)
            if path.is_file() and directory.done.is_file():
                try:
                    tables[run.run_id] = directory.table(path).to_pandas()
                except UNREADABLE_RUN as error:
                    warn(f"{path.name} of {run.run_id} cannot be read ({error})")
    return gradients


def outcomes(directory: RunDirectory) -> dict[str, Outcome]:
    """Return the predictions of a finished few-shot run on the target's test split, before and after adaptation.

    The result has the form metric → predictions.

    Raises:
        OSError, ValueError, KeyError: a file is unreadable, or the two hops were tested on different sentences.
    """
    import pyarrow.compute as pc

    manifest = directory.read_manifest()
    language, last = manifest["stream"]["languages"][-1], manifest["stages"][-1]["hop"]
    columns = ["split", "language", "example_id", "gold", "predicted", "gold_tags", "predicted_tags"]
    hops = []
    for hop in (last - 1, last):
        table = directory.table(directory.predictions(hop), columns)
        rows = (pc.field("split") == "test") & (pc.field("language") == language)
        hops.append(table.filter(rows).sort_by("example_id").combine_chunks())
    before, after = hops
    ids = tuple(before["example_id"].to_pylist())
    if not len(ids) or ids != tuple(after["example_id"].to_pylist()):
        raise ValueError(f"{directory.run_id}: hops were tested on different sentences of {language}")
    by_metric = {}
    for metric in metrics_of(directory.config_values(), manifest).every:
        tags = metric.of is not Scored.labels
        gold, predicted = ("gold_tags", "predicted_tags") if tags else ("gold", "predicted")
        if before[gold].null_count:
            continue
        lengths = pc.list_value_length(before[gold]).to_numpy() if tags else np.ones(len(ids), dtype=int)
        columns_of_metric = (before[gold], before[predicted], after[predicted])
        values = [(pc.list_flatten(column) if tags else column).to_numpy() for column in columns_of_metric]
        by_metric[metric.name] = Outcome(tuple(manifest["tags" if tags else "labels"]), ids, lengths, *values)
    return by_metric
