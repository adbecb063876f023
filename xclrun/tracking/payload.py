"""What is sent of a run: parameters, scores, tags, tables and descriptions. Nothing is sent here."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from xclrun.analysis.measures import MEASURES, headlines, measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.identity import flat
from xclrun.core.names import markdown
from xclrun.core.task import short_name
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory

TAG = "xclrun"
NOTE = "mlflow.note.content"

# Raised when what is sent changes, so that runs sent before are sent again.
FORMAT = 3

# Saved views: MLflow's pages read them from tags of an experiment, in a form that is not documented. These are the
# versions whose pages are known to show what `view` writes.
VIEW = "xclrun"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_VERSIONS = ("3.17.",)


def facts(mine: RunRecord) -> dict[str, str]:
    """Return what a run is: dataset, model, strategy, order, seed, …"""
    return {
        "kind": "run",
        "run_id": mine.run_id,
        "dataset": mine.dataset,
        "model": mine.model,
        "strategy": mine.strategy,
        "order": mine.order,
        "seed": str(mine.seed),
        "shots": "" if mine.shots is None else str(mine.shots),
        "bucket": "" if mine.bucket is None else str(mine.bucket),
        "data_fingerprint": mine.data_fingerprint,
        "code_version": mine.code_version,
    }


def tags(mine: RunRecord, parent: str | None) -> dict[str, str]:
    """Return the tags of a run in MLflow; ``parent``: id of its sweep's run there."""
    tags = {f"{TAG}.{key}": value for key, value in facts(mine).items()} | {"mlflow.runName": mine.run_id}
    return tags | ({"mlflow.parentRunId": parent} if parent else {})


def measures(mine: RunRecord, references: References) -> dict[str, float]:
    """Return the meta-metrics of a run that are known, as they are shown: ``intent.F``, ``slots.FP``, …"""
    values = {}
    for metric in mine.metrics:
        if mine.status == "finished":
            for (name, language), value in measure(mine, metric, references.scores(mine, metric)).items():
                if isinstance(value, float) and not language:
                    values[f"{short_name(metric)}.{name}"] = MEASURES[name].scale * value
    return values


def with_live_epochs(mine: RunRecord, directory: RunDirectory) -> RunRecord:
    """Add the epochs of the hop that is being trained, which the manifest lists only when the hop has ended.

    Trackers count the epochs they have, so the epochs are added only if none before them is missing.
    """
    if mine.status == "finished":
        return mine
    try:
        progress = read_json(directory.progress)
        hop, epochs = progress["hop"], progress["epochs"]
        complete = [epoch["epoch"] for epoch in epochs] == list(range(1, len(epochs) + 1))
        if complete and hop == len(directory.read_manifest()["stages"]):
            return replace(mine, curve=(*mine.curve, *({**epoch, "hop": hop} for epoch in epochs)))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return mine


def view(metrics: Sequence[str]) -> str:
    """Return a saved view in the form of `VIEW_VERSIONS`: runs alone, with strategy, order, seed and headlines."""
    facts = [f"tags.`{TAG}.{fact}`" for fact in ("strategy", "order", "seed")]
    measured = [f"metrics.`{short_name(metric)}.{one.name}`" for metric in metrics for one in headlines()]
    state = {
        "searchFilter": f"tags.`{TAG}.kind` = 'run'",
        # By name: sorted by time, runs are hidden under their sweep until it is opened.
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": facts + measured,
    }
    # Constant times, so that the same view is the same text.
    return json.dumps({"name": "xclrun: headline measures", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def view_address(server: str, experiment: str) -> str:
    """Return where the saved view opens on a server."""
    return f"{server}/#/experiments/{experiment}/runs?viewStateShareKey={VIEW}"


def _legend() -> str:
    lines = [f"- `{one.name}` {one.arrow} {one.definition}" for one in headlines()]
    return "\n".join(
        [
            "Metrics are percent, differences of scores are points; ↑ higher is better, ↓ lower is better.",
            "",
            *lines,
            "- `score.LANGUAGE` score on the test set of a language; the step is the hop, 0 before any fine-tuning",
            "- `dev.LANGUAGE` score on the dev set after each epoch; the step counts updates over all hops",
            "- `train.loss` mean loss of each epoch; the step counts updates over all hops",
        ]
    )


def about_experiment(experiment: str, viewed: bool) -> str:
    """Return the description of an experiment; ``viewed``: with a link to its saved view."""
    where, names = view_address("", experiment).removeprefix("/"), ", ".join(one.name for one in headlines())
    link = f"The saved view [xclrun: headline measures]({where}) has {names} as columns.\n\n" if viewed else ""
    return (
        "Runs of xclrun, mirrored from its outputs folder: numbers of record are in the files there.\n\n"
        f"{link}{_legend()}"
    )


def about_run(mine: RunRecord) -> str:
    few = "" if mine.shots is None else f", K = {mine.shots}, bucket {mine.bucket}"
    hops = markdown(" → ".join(mine.languages))
    return (
        f"**{markdown(mine.strategy)}** on {markdown(mine.dataset)} with {markdown(mine.model)}: order "
        f"{markdown(mine.order)} ({hops}), seed {mine.seed}{few}.\n\n{_legend()}"
    )


def allowed(key: str) -> str:
    """Return the key of a metric or parameter, which a language may be part of, as MLflow takes it.

    One key that it refuses would stop the sending of all runs. Where it had to change, a short hash tells it from
    others that would become the same.
    """
    plain = re.sub(r"[^\w.\- :]", "_", key)
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def milliseconds(when: str) -> int:
    return round(1000 * datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z").timestamp())


def parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return a config as MLflow's parameters, flat. Null says that something was not asked for: it is left out."""
    return {allowed(key): str(value)[:6000] for key, value in flat(config) if value is not None}


def scores(mine: RunRecord) -> Iterator[tuple[int, str, str, float]]:
    """Yield (hop, metric's short name, language, percent) of what was measured, 0 before any fine-tuning."""
    for metric in mine.metrics:
        for hop, row in enumerate(mine.scores[metric]):
            for language, value in zip(mine.languages, row, strict=True):
                if value == value:
                    yield hop, short_name(metric), language, 100 * float(value)


def rows(mine: RunRecord, metric: str) -> list[list[float | int]]:
    """Return the score matrix of a run in percent, each row with its hop first."""
    return [[hop, *(100 * float(value) for value in row)] for hop, row in enumerate(mine.scores[metric])]


def epochs(mine: RunRecord) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (updates so far through all hops, facts) of each epoch."""
    before, hop, last = 0, 0, 0
    for epoch in mine.curve:
        if epoch["hop"] != hop:
            before, hop = before + last, epoch["hop"]
        last = epoch["step"]
        yield before + last, epoch


def dev_scores(epoch: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield (metric's short name, language, percent) of an epoch's dev scores."""
    for language, scores in epoch["dev"].items():
        for metric, value in scores.items():
            yield short_name(metric), language, 100 * float(value)


def score_table(mine: RunRecord, metric: str) -> dict[str, Any]:
    """Return a score matrix as MLflow's pages show tables: a row for each hop."""
    rows = [[hop, *row] for hop, row in enumerate(mine.scores[metric].tolist())]
    return {"columns": ["hop", *mine.languages], "data": rows}
