"""Data that trackers receive about a run: parameters, scores, tags, tables and descriptions."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from xclrun.analysis.measures import headlines, measure, quantity
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.core.files import UNREADABLE
from xclrun.core.identity import flat
from xclrun.core.names import markdown
from xclrun.core.quantity import SHARE
from xclrun.core.task import BY_NAME, short_name
from xclrun.store.files import read_json
from xclrun.store.rundir import RunDirectory

TAG = "xclrun"
NOTE = "mlflow.note.content"

# Raise it when the sent data change: all runs are then sent again.
FORMAT = 2

# MLflow's pages read saved views from tags of an experiment, in an undocumented format. In these versions they show the
# result of `view`.
VIEW = "xclrun"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
VIEW_VERSIONS = ("3.17.",)


def facts(run: RunRecord) -> dict[str, str]:
    """Return the identifying properties of a run: dataset, model, strategy, order, seed, …"""
    return {
        "kind": "run",
        "run_id": run.run_id,
        "dataset": run.dataset,
        "model": run.model,
        "strategy": run.strategy,
        "order": run.order,
        "seed": str(run.seed),
        "shots": "" if run.shots is None else str(run.shots),
        "bucket": "" if run.bucket is None else str(run.bucket),
        "data_fingerprint": run.data_fingerprint,
        "code_version": run.code_version,
        **({"merged_from": run.merged_from} if run.merged_from else {}),
    }


def tags(run: RunRecord, parent: str | None) -> dict[str, str]:
    """Return the tags of a run in MLflow; ``parent``: ID of its sweep's run."""
    # MLflow's pages cut names to about 20 characters: without the dataset, they show strategy, order and seed.
    name = run.run_id.removeprefix(f"{run.dataset}-")
    tags = {f"{TAG}.{key}": value for key, value in facts(run).items()} | {"mlflow.runName": name}
    return tags | ({"mlflow.parentRunId": parent} if parent else {})


def measures(run: RunRecord, references: References) -> dict[str, float]:
    """Return the measures of a finished run as printed, such as percent or points: ``intent.F``, ``slots.FP``, …"""
    values = {}
    for metric in run.metrics if run.status == "finished" else ():
        for (name, language), value in measure(run, metric, references.scores(run, metric)).items():
            if isinstance(value, float) and not language:
                values[f"{short_name(metric)}.{name}"] = quantity(metric, name).printed(value)
    return values


def with_live_epochs(run: RunRecord, directory: RunDirectory) -> RunRecord:
    """Add the epochs of the current hop, which the manifest lists only after the hop.

    Trackers store the number of epochs sent, so epochs are added only if all earlier epochs of the hop are available.
    """
    try:
        progress = read_json(directory.progress)
        hop, epochs = progress["hop"], progress["epochs"]
        complete = [epoch["epoch"] for epoch in epochs] == list(range(1, len(epochs) + 1))
        if run.status != "finished" and complete and hop == len(directory.read_manifest()["stages"]):
            return replace(run, curve=(*run.curve, *({**epoch, "hop": hop} for epoch in epochs)))
    except UNREADABLE:
        pass
    return run


def view(metrics: Sequence[str]) -> str:
    """Return a saved view for `VIEW_VERSIONS`: runs, with strategy, order, seed and headline measures as columns."""
    facts = [f"tags.`{TAG}.{fact}`" for fact in ("strategy", "order", "seed")]
    measured = [f"metrics.`{short_name(metric)}.{headline.name}`" for metric in metrics for headline in headlines()]
    state = {
        "searchFilter": f"tags.`{TAG}.kind` = 'run'",
        # By name: in a list sorted by time, runs are collapsed under their sweep.
        "orderByKey": "tags.`mlflow.runName`",
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "datasetsFilter": [],
        "modelVersionFilter": "All Runs",
        "selectedColumns": facts + measured,
    }
    # Constant time stamps, so equal views have equal text.
    return json.dumps({"name": "xclrun: headline measures", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def runs_address(server: str, experiment: str) -> str:
    """Return the URL of the page with an experiment's runs on a server."""
    return f"{server}/#/experiments/{experiment}/runs"


def view_address(server: str, experiment: str) -> str:
    """Return the URL of the saved view on a server."""
    return f"{runs_address(server, experiment)}?viewStateShareKey={VIEW}"


def _legend(metrics: Sequence[str] = ()) -> str:
    """Explain the values of runs; ``metrics``: their metrics, of which those that are not accuracies are named."""
    lines = [f"- `{entry.name}` {'↑' if entry.higher_is_better else '↓'} {entry.definition}" for entry in headlines()]
    others = {metric: kind for metric in metrics if (kind := quantity(metric)) != SHARE}
    lines += [
        f"- `{short_name(metric)}.…` {kind.arrow} {BY_NAME[metric].title}, in {kind.label}"
        for metric, kind in others.items()
    ]
    return "\n".join(
        [
            "Metrics are percent, differences of scores are points; ↑ higher is better, ↓ lower is better.",
            "",
            *lines,
            "- `score.LANGUAGE` score on the test set of a language; the step is the hop, 0 before fine-tuning",
            "- `dev.LANGUAGE` score on the dev set after each epoch; the step counts updates over all hops",
            "- `train.loss` mean loss of each epoch; the step counts updates over all hops",
        ]
    )


def about_experiment(experiment: str, viewed: bool) -> str:
    """Return the description of an experiment; ``viewed``: with a link to its saved view."""
    url, names = view_address("", experiment).removeprefix("/"), ", ".join(headline.name for headline in headlines())
    link = f"The saved view [xclrun: headline measures]({url}) has {names} as columns.\n\n" if viewed else ""
    return f"A copy of the runs in xclrun's outputs folder, which is authoritative.\n\n{link}{_legend()}"


def about_run(run: RunRecord) -> str:
    few = "" if run.shots is None else f", K = {run.shots}, bucket {run.bucket}"
    hops = markdown(" → ".join(run.languages))
    return (
        f"**{markdown(run.strategy)}** on {markdown(run.dataset)} with {markdown(run.model)}: order "
        f"{markdown(run.order)} ({hops}), seed {run.seed}{few}.\n\n{_legend(run.metrics)}"
    )


def allowed(key: str) -> str:
    """Return a valid key for MLflow, which rejects the whole batch otherwise; keys contain names of languages.

    A changed key gets a short hash, so different keys stay different.
    """
    plain = re.sub(r"[^\w.\- :]", "_", key)
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def milliseconds(when: str) -> int:
    return round(1000 * datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z").timestamp())


def parameters(config: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a config that are not null, flat, as MLflow parameters."""
    return {allowed(key): str(value)[:6000] for key, value in flat(config) if value is not None}


def scores(run: RunRecord) -> Iterator[tuple[int, str, str, float]]:
    """Yield (hop, metric's short name, language, score as printed); hop 0 is before fine-tuning."""
    for metric in run.metrics:
        for hop, row in enumerate(run.scores[metric]):
            for language, value in zip(run.languages, row, strict=True):
                if value == value:
                    yield hop, short_name(metric), language, quantity(metric).printed(float(value))


def rows(run: RunRecord, metric: str) -> list[list[float | int]]:
    """Return the rows of a score matrix: hop, then the score on each language as printed."""
    printed = quantity(metric).printed
    return [[hop, *(printed(float(value)) for value in row)] for hop, row in enumerate(run.scores[metric])]


def epochs(run: RunRecord) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Yield (number of updates over all hops, facts) for each epoch."""
    before, hop, last = 0, 0, 0
    for epoch in run.curve:
        if epoch["hop"] != hop:
            before, hop = before + last, epoch["hop"]
        last = epoch["step"]
        yield before + last, epoch


def dev_scores(epoch: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """Yield (metric's short name, language, score as printed) of an epoch's dev scores."""
    for language, scores in epoch["dev"].items():
        for metric, value in scores.items():
            yield short_name(metric), language, quantity(metric).printed(float(value))


def score_table(run: RunRecord, metric: str) -> dict[str, Any]:
    """Return a score matrix (fractions) as a table of MLflow, with a row per hop."""
    rows = [[hop, *row] for hop, row in enumerate(run.scores[metric].tolist())]
    return {"columns": ["hop", *run.languages], "data": rows}
