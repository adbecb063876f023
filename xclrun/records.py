"""From a run's files of record to its `RunRecord`: what analysis and reports are made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from xclrun.plan import strategy_name
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from xclrun.analysis.record import RunRecord


def run_directories(outputs: Path) -> list[RunDirectory]:
    """Return all run directories under ``outputs``, by name."""
    return [RunDirectory(path.parent) for path in sorted((outputs / "runs").glob("*/manifest.json"))]


def record(directory: RunDirectory) -> RunRecord:
    """Return the record of a run; what it has not measured yet is NaN.

    Raises:
        OSError, ValueError, KeyError: the files of record cannot be read.
    """
    import numpy as np

    from xclrun.analysis.record import TASKS, RunRecord

    manifest = directory.read_manifest()
    config: dict[str, Any] = yaml.load(directory.config.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    stream, languages = manifest["stream"]["kind"], manifest["stream"]["languages"]
    hops = 1 if stream == "joint" else len(languages)
    metrics = [m for m in TASKS.values() if m == "intent_accuracy" or manifest["tags"]]
    scores = {metric: np.full((hops + 1, len(languages)), np.nan) for metric in metrics}
    for stage in manifest["stages"]:
        for language, values in stage["scores"].items():
            for metric, value in values.items():
                scores[metric][stage["hop"], languages.index(language)] = value
    curve = [
        {"hop": stage["hop"], **{k: epoch[k] for k in ("epoch", "step", "examples", "loss", "dev")}}
        for stage in manifest["stages"]
        for epoch in stage["training"]["epochs"]
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
        code_version=manifest["code_version"],
        algorithms=manifest["algorithms"],
        encoder=manifest["encoder"],
        strategy_version=manifest["strategy_version"],
        status=status,
        curve=tuple(curve),
    )


def read_records(outputs: Path) -> list[RunRecord]:
    """Return the records of all runs under ``outputs`` whose files can be read."""
    records = []
    for directory in run_directories(outputs):
        try:
            records.append(record(directory))
        except (OSError, ValueError, KeyError):
            continue
    return records


def sweeps(outputs: Path) -> list[dict[str, Any]]:
    """Return the sweeps that were started, the latest last: name, command, run ids."""
    found = [read_json(path) for path in (outputs / "sweeps").glob("*.json")]
    return sorted(found, key=lambda sweep: sweep["started"])
