"""From a run's files of record to its `RunRecord`: what analysis and reports are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xclrun.plan import strategy_name
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory
from xclrun.task import task_of

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord
    from xclrun.analysis.study import Predictions


def run_directories(outputs: Path) -> list[RunDirectory]:
    """Return all run directories under ``outputs``, by name."""
    return [RunDirectory(path.parent) for path in sorted((outputs / "runs").glob("*/manifest.json"))]


def record(directory: RunDirectory) -> RunRecord:
    """Return the record of a run; what it has not measured yet is NaN.

    Raises:
        OSError, ValueError, KeyError: the files of record cannot be read.
    """
    import numpy as np

    from xclrun.analysis.record import RunRecord

    manifest = directory.read_manifest()
    config: dict[str, Any] = yaml.load(directory.config.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    stream, languages = manifest["stream"]["kind"], manifest["stream"]["languages"]
    hops = 1 if stream == "joint" else len(languages)
    task = task_of(config["dataset"]["task"], config["dataset"].get("tags_are", "spans"))
    metrics = task.metrics(tagged=bool(manifest["tags"]))
    scores = {metric.name: np.full((hops + 1, len(languages)), np.nan) for metric in metrics}
    for stage in manifest["stages"]:
        for language, values in stage["scores"].items():
            for metric, value in values.items():
                scores[metric][stage["hop"], languages.index(language)] = value
    curve = [
        {"hop": stage["hop"], **{k: epoch[k] for k in ("epoch", "step", "examples", "loss", "dev")}}
        for stage in manifest["stages"]
        for epoch in stage["training"]["epochs"]
    ]
    points = [
        {"hop": stage["hop"], **point} for stage in manifest["stages"] for point in stage["training"].get("points", ())
    ]
    ended = manifest["status"] if manifest["status"] in ("failed", "interrupted") else "running"
    status = "finished" if directory.finished else ended
    return RunRecord(
        run_id=manifest["run_id"],
        dataset=config["dataset"]["name"],
        model=config["model"]["name"],
        strategy=strategy_name(config["strategy"]),
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
        costs=_costs(manifest),
        environment={**manifest["environment"], "host": manifest["host"], "started": manifest["started"]},
    )


def _costs(manifest: dict[str, Any]) -> dict[str, float]:
    """Return what a run took; see `xclrun.analysis.record.COSTS`."""
    stages = manifest["stages"]
    parameters = manifest.get("parameters") or {}
    found = {"parameters": parameters.get("total"), "trained": parameters.get("trained")}
    kept = [stage["kept"]["bytes"] for stage in stages if stage.get("kept")]
    found["memory"] = max(kept, default=0)
    for name in ("updates", "examples", "tokens", "seconds"):
        # What is learnt from the memory beside a step's own batch costs as much.
        found[name] = sum(stage["training"][name] + stage["training"].get(f"beside_{name}", 0) for stage in stages)
    found["seconds"] += sum(stage["kept"].get("seconds", 0.0) for stage in stages if stage.get("kept"))
    return {name: float(value) for name, value in found.items() if value is not None}


def read_records(outputs: Path) -> list[RunRecord]:
    """Return the records of all runs under ``outputs`` whose files can be read."""
    records = []
    for directory in run_directories(outputs):
        try:
            records.append(record(directory))
        except (OSError, ValueError, KeyError):
            continue
    return records


def predictions(directory: RunDirectory) -> Predictions:
    """Read what a finished run did on every test sentence; sentences of a language are sorted by id.

    Raises:
        OSError, ValueError, KeyError: a file cannot be read, or hops were tested on different sentences.
    """
    import numpy as np
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from xclrun.analysis.study import Predictions, Sentences

    manifest = directory.read_manifest()
    columns = ["split", "language", "example_id", "gold", "predicted", "tp", "fp", "fn"]
    found: dict[str, list[tuple[np.ndarray, ...]]] = {}
    sorted_as: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for stage in manifest["stages"]:
        rows = pq.read_table(directory.predictions(stage["hop"]), columns=columns)
        rows = rows.filter(pc.equal(rows["split"].cast("string"), "test"))
        of, ids = (rows[name].cast("string").to_numpy() for name in ("language", "example_id"))
        named = ("gold", "predicted", "tp", "fp", "fn") if not rows["tp"].null_count else ("gold", "predicted")
        # Without labels none is right: they are as labels that training never had.
        values = [pc.fill_null(rows[name], -1).to_numpy() for name in named]
        for language in np.unique(of.astype(str)):
            own = np.flatnonzero(of == language)
            # Hops are tested on the same sentences: they are sorted once.
            if language not in sorted_as or not np.array_equal(sorted_as[language][0], ids[own]):
                sorted_as[language] = ids[own], np.argsort(ids[own].astype(str))
            own = own[sorted_as[language][1]]
            found.setdefault(str(language), []).append(tuple(column[own] for column in (ids, *values)))
    sentences = {}
    for language, cells in found.items():
        if len(cells) < len(manifest["stages"]) or any(not np.array_equal(c[0], cells[0][0]) for c in cells):
            raise ValueError(f"{directory.run_id}: hops were tested on different sentences of {language}")
        predicted, *spans = (np.stack(column, axis=1) for column in list(zip(*cells, strict=True))[2:])
        tp_fp_fn = (spans[0], spans[1], spans[2]) if spans else None
        sentences[language] = Sentences(cells[0][0], cells[0][1], predicted, tp_fp_fn)
    return Predictions(tuple(manifest["labels"]), sentences)


def sweeps(outputs: Path) -> list[dict[str, Any]]:
    """Return the sweeps that were started, the latest last: name, command, run ids."""
    found = [read_json(path) for path in (outputs / "sweeps").glob("*.json")]
    return sorted(found, key=lambda sweep: sweep["started"])
