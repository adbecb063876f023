"""From a run's files of record to its `RunRecord`: what analysis and reports are made of."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xclrun.core.identity import strategy_name
from xclrun.core.plugins import raised_in
from xclrun.core.task import MetricsOfKeys, Scored, Task, restored, task_identified, tasks_of_dataset
from xclrun.core.terminal import many, note
from xclrun.store.cache import is_intact
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory, UnreadableRun

if TYPE_CHECKING:
    import pandas as pd

    from xclrun.analysis.base_scores import Predictions
    from xclrun.analysis.fewshot.words import Outcome
    from xclrun.analysis.record import RunRecord
    from xclrun.store.counts import Common

# Exceptions that reading a damaged file may raise.
UNREADABLE = (OSError, ValueError, KeyError, IndexError, TypeError, AttributeError, yaml.YAMLError)


def run_directories(outputs: Path, only: Collection[str] | None = None) -> list[RunDirectory]:
    """Return all run directories under ``outputs``, or ``only`` those of some ids, by name: of runs that were begun."""
    if only is not None:
        asked = (RunDirectory(outputs / "runs" / run_id) for run_id in sorted(set(only)))
        return [directory for directory in asked if directory.manifest.is_file() or directory.done.is_file()]
    folders = {path.parent for name in ("manifest.json", "DONE") for path in (outputs / "runs").glob(f"*/{name}")}
    return [RunDirectory(path) for path in sorted(folders)]


def record(directory: RunDirectory, common: Common | None = None, slot_f1: str | None = None) -> RunRecord:
    """Return the record of a run: its scores are computed from its prediction files; what is not measured yet is NaN.

    Args:
        common: what the runs that are read together share.
        slot_f1: how F1 of spans is computed, ``span_micro`` or ``tag_macro``; None: as the run's config says.

    Raises:
        ValueError: the files of record cannot be read, or are not what was written.
    """
    if (wrong := directory.damaged()) is not None:
        raise ValueError(f"{wrong} is missing or damaged; the run's command, given again, makes it again")
    try:
        return _record(directory, common, slot_f1)
    except UnreadableRun:
        raise
    except UNREADABLE as error:
        why = f"{type(error).__name__}: {error}".splitlines()[0].removesuffix(": ")
        # What counts may be a plug-in's.
        why += f", in {place}" if (place := raised_in(error)) else ""
        raise ValueError(f"{directory.path} cannot be read ({why})") from error


def _record(directory: RunDirectory, common: Common | None, slot_f1: str | None) -> RunRecord:
    import numpy as np

    from xclrun.analysis.record import RunRecord, number_of_hops
    from xclrun.store.counts import Common, read, stored

    manifest = directory.read_manifest()
    there = stored(directory)
    config = (there.facts.get("config") if there else None) or _config(directory)
    if slot_f1 is not None:
        config["evaluate"]["slot_f1"] = slot_f1
    stream, languages = manifest["stream"]["kind"], manifest["stream"]["languages"]
    mixtures = tuple(map(tuple, manifest["stream"].get("mixtures", ())))
    hops = number_of_hops(stream, len(mixtures or languages), manifest["stream"].get("blocks"))
    metrics, tags = _ways(config, manifest)
    counted = read(directory, manifest, metrics, tags, common or Common(), there)
    scores = {}
    for metric in metrics.all:
        scores[metric.name] = np.full((hops + 1, len(languages)), np.nan)
        if measured := [stage["hop"] for stage in manifest["stages"]]:
            scores[metric.name][measured] = counted.predictions.matrix(metric, languages)
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
    ended = manifest["status"] if manifest["status"] in ("failed", "interrupted") else "running"
    # What DONE says was checked before.
    status = "finished" if directory.done.is_file() else ended
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
        coded=tuple(_coded(directory, manifest)),
        mixtures=mixtures,
        edited=tuple(stage["hop"] for stage in manifest["stages"] if stage["training"].get("edited")),
        sizes=manifest["data"].get("sizes", {}),
        costs=_costs(manifest),
        environment={**manifest["environment"], "host": manifest["host"], "started": manifest["started"]},
    )


def metrics_of(config: dict[str, Any], manifest: dict[str, Any]) -> MetricsOfKeys:
    """Return the base scores that the keys of a run have, and those next to them."""
    reader = config["dataset"].get("reader") or ""
    if "tasks" in manifest:
        own = {
            key: _task(of["task"]).measured(tagged=bool(of["tags"])) for of in manifest["tasks"] for key in of["keys"]
        }
        return MetricsOfKeys(own=own, reader=reader)
    if "task" in manifest:
        task = _task(manifest["task"])
    else:
        # Before there could be several, manifests did not say it.
        [task] = tasks_of_dataset(config["dataset"])
    return MetricsOfKeys(task.measured(tagged=bool(manifest["tags"])), reader=reader)


def _task(told: str | dict[str, Any]) -> Task:
    """Return the task of a manifest: described there if it is a plug-in's."""
    return task_identified(told) if isinstance(told, str) else restored(told)


def _dev_scores(stage: dict[str, Any], epoch: dict[str, Any], slot_f1: str, metrics: MetricsOfKeys) -> dict[str, Any]:
    """Return the dev scores of an epoch without F1 of spans where training computed it in another way.

    No predictions are kept of the dev split.
    """
    other = {metric.name for metric in metrics.all if metric.span_f1} if stage["slot_f1"] != slot_f1 else ()
    return {
        language: {name: value for name, value in scores.items() if name not in other}
        for language, scores in epoch["dev"].items()
    }


def write_counts(directory: RunDirectory) -> None:
    """Count the prediction files of a run that is at its end but for DONE, so that reports need not.

    Raises:
        UsageError: the place cannot be written.
        RunError: the disk is full.
    """
    from xclrun.store.counts import write

    config, manifest = _config(directory), directory.read_manifest()
    write(directory, config, manifest, *_ways(config, manifest))


def _ways(config: dict[str, Any], manifest: dict[str, Any]) -> tuple[MetricsOfKeys, list[str] | None]:
    """Return the metrics of a run, and the names of its tags where F1 of spans is that of single tags."""
    metrics = metrics_of(config, manifest)
    macro = config["evaluate"]["slot_f1"] == "tag_macro" and any(metric.span_f1 for metric in metrics.every)
    # Not offered of several tasks, which have no tags in common.
    return metrics, manifest["tags"] if macro else None


def _averaged(directory: RunDirectory, config: dict[str, Any], manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the scores of averaged checkpoints; a file that is not what was written counts for nothing."""
    from xclrun.analysis.base_scores import of_hop
    from xclrun.store import predictions

    ways = _ways(config, manifest)
    for path in sorted(directory.averages.glob("*-hop-*.parquet")):
        name = re.fullmatch(r"(all|last-\d+)-hop-(\d+)-[0-9a-f]{64}\.parquet", path.name)
        if name is not None and is_intact(path):
            test = of_hop(predictions.read(path), *ways)
            yield {"hop": int(name[2]), "of": name[1], "test": test}


def _coded(directory: RunDirectory, manifest: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the labels of each block cost that was asked for (`RunRecord.coded`)."""
    from xclrun.analysis.codelength import COLUMNS, OF_ANSWERS, of_block

    stream = manifest["stream"]
    if "blocks" not in stream:
        return
    before = len(stream.get("mixtures") or stream["languages"]) - 1
    # Of several tasks, that of the language that comes in blocks.
    sets = next((of for of in manifest.get("tasks", ()) if stream["languages"][-1] in of["keys"]), manifest)
    classes = {what: len(sets[what]) for what in ("labels", "tags")}
    # A task without labels and tags is one of answers.
    columns = COLUMNS if any(classes.values()) else (*COLUMNS, *OF_ANSWERS)
    for hop in (stage["hop"] for stage in manifest["stages"] if stage["hop"] >= before):
        rows = directory.table(directory.next_block(hop), columns)
        found = {"hop": hop, "block": hop - before + 1, "start_knows": stream["start_knows"]}
        yield found | {"codes": of_block(rows, classes)}


def _config(directory: RunDirectory) -> dict[str, Any]:
    config: dict[str, Any] = yaml.load(directory.config.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return config


def _costs(manifest: dict[str, Any]) -> dict[str, float]:
    """Return what a run took; see `xclrun.analysis.record.COSTS`."""
    stages = manifest["stages"]
    parameters = manifest.get("parameters") or {}
    costs = {"parameters": parameters.get("total"), "trained": parameters.get("trained")}
    kept = [stage["kept"]["bytes"] for stage in stages if stage.get("kept")]
    costs["memory"] = max(kept, default=0)
    for name in ("updates", "examples", "tokens", "seconds"):
        # Memory batches count as training cost.
        costs[name] = sum(stage["training"][name] + stage["training"].get(f"beside_{name}", 0) for stage in stages)
    costs["seconds"] += sum(stage["kept"].get("seconds", 0.0) for stage in stages if stage.get("kept"))
    return {name: float(value) for name, value in costs.items() if value is not None}


def read_records(
    outputs: Path,
    warn: Callable[[str], None] = note,
    slot_f1: str | None = None,
    only: Collection[str] | None = None,
) -> list[RunRecord]:
    """Return the records that `each_record` yields; prints how many runs of older versions there are."""
    older: list[UnreadableRun] = []
    records = list(each_record(outputs, only, warn, slot_f1, older))
    if older:
        # A note alone: nothing is wrong with them, and they may stay forever.
        note(f"{many(len(older), 'run')} left out, such as {older[0]}")
    return records


def each_record(
    outputs: Path,
    only: Collection[str] | None,
    warn: Callable[[str], None],
    slot_f1: str | None,
    older: list[UnreadableRun],
) -> Iterator[RunRecord]:
    """Yield the records of the runs under ``outputs`` whose files can be read, by name.

    Args:
        only: ids of runs, of which those that were begun are read and no others are looked at; None: all.
        warn: called for those whose files cannot be read.
        slot_f1: as in `record`.
        older: where the errors of runs of older versions are appended.
    """
    from xclrun.store.counts import Common

    common = Common()
    for directory in run_directories(outputs, only):
        try:
            yield record(directory, common, slot_f1)
        except ValueError as error:
            if isinstance(error, UnreadableRun) and error.state == "older":
                older.append(error)
            else:
                warn(f"{error}; left out")


def read_predictions(
    outputs: Path, records: Iterable[RunRecord], warn: Callable[[str], None]
) -> dict[str, Predictions]:
    """Return run id → predictions of the finished runs here; ``warn`` is called for those that are damaged."""
    from xclrun.store.counts import Common, read, stored

    found, common = {}, Common()
    for mine in records:
        directory = RunDirectory(outputs / "runs" / mine.run_id)
        if directory.finished:
            try:
                manifest = directory.read_manifest()
                ways = _ways(mine.config, manifest)
                counted = read(directory, manifest, *ways, common, stored(directory))
                found[mine.run_id] = counted.predictions
            except (OSError, ValueError, KeyError) as error:
                warn(f"predictions of {mine.run_id} cannot be read ({error})")
    return found


def read_gradients(
    outputs: Path, records: Iterable[RunRecord], warn: Callable[[str], None]
) -> dict[str, dict[str, pd.DataFrame]]:
    """Return ``overlap`` and ``class_gradients`` → run id → rows of that file, of the finished runs here that have it.

    ``warn`` is called for files that cannot be read.
    """
    found: dict[str, dict[str, pd.DataFrame]] = {"overlap": {}, "class_gradients": {}}
    for mine in records:
        directory = RunDirectory(outputs / "runs" / mine.run_id)
        files = {kind: path for kind in found if (path := getattr(directory, kind)).is_file()}
        for kind, path in files.items() if files and directory.finished else ():
            try:
                found[kind][mine.run_id] = directory.table(path).to_pandas()
            except (OSError, ValueError, KeyError) as error:
                warn(f"{path.name} of {mine.run_id} cannot be read ({error})")
    return found


def outcomes(directory: RunDirectory) -> dict[str, Outcome]:
    """Read what a finished few-shot run predicted on its target's test split before and after adapting, by metric.

    Raises:
        OSError, ValueError, KeyError: a file cannot be read, or the two hops were tested on different sentences.
    """
    import numpy as np
    import pyarrow.compute as pc

    from xclrun.analysis.fewshot.words import Outcome

    manifest = directory.read_manifest()
    language, last = manifest["stream"]["languages"][-1], manifest["stages"][-1]["hop"]
    columns = ["split", "language", "example_id", "gold", "predicted", "gold_tags", "predicted_tags"]
    hops = []
    for hop in (last - 1, last):
        table = directory.table(directory.predictions(hop), columns)
        wanted = pc.and_(
            pc.equal(table["split"].cast("string"), "test"), pc.equal(table["language"].cast("string"), language)
        )
        hops.append(table.filter(wanted).sort_by("example_id").combine_chunks())
    before, after = hops
    ids = tuple(before["example_id"].to_pylist())
    if not len(ids) or ids != tuple(after["example_id"].to_pylist()):
        raise ValueError(f"{directory.run_id}: hops were tested on different sentences of {language}")
    found = {}
    for metric in metrics_of(_config(directory), manifest).every:
        tags = metric.of is not Scored.labels
        gold, predicted = ("gold_tags", "predicted_tags") if tags else ("gold", "predicted")
        if before[gold].null_count:
            continue
        lengths = pc.list_value_length(before[gold]).to_numpy() if tags else np.ones(len(ids), dtype=int)
        given = (before[gold], before[predicted], after[predicted])
        values = [(pc.list_flatten(column) if tags else column).to_numpy() for column in given]
        found[metric.name] = Outcome(tuple(manifest["tags" if tags else "labels"]), ids, lengths, *values)
    return found


# What the file of a search adds to those of other sweeps (`xclrun.launch.sweep.Sweep`), and the types.
SEARCH = {"objective": str, "keys": list, "trials": int, "made": int, "ended": bool, "runs": list}


def sweeps(outputs: Path, warn: Callable[[str], None] = note) -> list[dict[str, Any]]:
    """Return the sweeps that were started, the one whose command was given last at the end: name, command, run ids.

    Those whose files cannot be read are left out; ``warn`` is called for them.
    """
    found = []
    for path in (outputs / "sweeps").glob("*.json"):
        try:
            sweep = read_sweep(path)
            # Files of earlier versions do not say when the command was given last.
            found.append((float(sweep.get("given") or path.stat().st_mtime), path.name, sweep))
        except (OSError, ValueError, TypeError) as error:
            warn(f"{path} cannot be read ({error}): left out; the command that started it writes it again")
    return [sweep for _, _, sweep in sorted(found, key=lambda one: one[:2])]


def read_sweep(path: Path) -> dict[str, Any]:
    """Return the content of a sweep's file.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    sweep: dict[str, Any] = read_json(path)
    try:
        texts = [sweep["name"], sweep["command"], sweep["started"], *sweep["runs"]]
        types = {key: type(value) for key, value in sweep.get("search", {}).items()}
        if all(isinstance(text, str) for text in texts) and (not types or types.items() >= SEARCH.items()):
            return sweep
    except (KeyError, TypeError, AttributeError):
        pass
    raise ValueError("it does not hold what is noted of a sweep")
