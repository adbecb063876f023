"""MLflow as a mirror of the files of record: what a run wrote is sent, never computed or kept there alone.

One experiment holds one MLflow run per run, found by its tag ``xclrun.run_id``, and one per sweep, the parent of its
jobs. Sending is idempotent: a run that has not changed since it was sent is left alone. During a sweep a process of
its own sends what is finished, so that training neither waits for a tracking server nor fails with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import sqlite3
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.measures import MEASURES, headlines, measure
from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.core.identity import flat
from xclrun.core.secret import connect, put_away, redact
from xclrun.core.task import METRICS, short_name
from xclrun.store.files import sha256
from xclrun.store.kept import note
from xclrun.store.records import read_records, record, run_directories, sweeps
from xclrun.store.rundir import RunDirectory

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

TAG = "xclrun"
NOTE = "mlflow.note.content"
RECORD = "score_matrix.json"
LOG = "mlflow-sync.log"
# Seconds for which another process that writes to the SQLite file is waited for; what it does takes one or two.
LOCKED = 30.0

# What is sent of a run; raised when that changes, so that runs sent before are sent again.
# 2: scores and measures in percent, parameters that are null left out, a description.
FORMAT = 2

# MLflow's web pages keep the columns of the table of runs in the browser: no tag sets the ones that a newcomer sees.
# What they do read from tags of an experiment are saved views (MLflow 3.17), which have an address and a menu.
VIEW = "xclrun"
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"


def tracking_uri(outputs: Path, uri: str | None) -> str:
    """Return where MLflow keeps runs: the given server, or the SQLite file among the outputs."""
    return uri or f"sqlite:///{(outputs / 'mlflow.db').resolve()}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep MLflow's notes about its database out of a person's sight; errors pass."""
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    # A server that is away is asked three times within seconds, not for minutes: `xclrun sync` asks again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


class Mirror:
    """MLflow, as seen from the outputs of this machine.

    Args:
        outputs: the folder with ``runs``.
        tracking: where MLflow is.

    Raises:
        RunError: MLflow cannot be reached, or its database is damaged.
    """

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        from mlflow import MlflowClient

        self.outputs, self.tracking = outputs, tracking
        self.uri = tracking_uri(outputs, put_away(tracking.uri) if tracking.uri else None)
        self._runs: list[MlflowRun] | None = None
        self._own: dict[str, RunRecord] | None = None
        outputs.mkdir(parents=True, exist_ok=True)
        with self._talking():
            self.client: MlflowClient = MlflowClient(connect(self.uri))
            self.experiment = self._experiment()
            self._describe()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Let MLflow say nothing itself, and turn its errors into one line."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with _quiet(), self._locked():
                yield
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            raise RunError(f"MLflow at {self.uri} cannot be used: {redact(str(error).splitlines()[0])}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the SQLite file.

        Raises:
            TimeoutError: another one holds it for too long.
        """
        if self.tracking.uri is not None:
            yield
            return
        with (self.outputs / "mlflow.lock").open("w") as file:
            began = time.monotonic()
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() - began > LOCKED:
                        raise TimeoutError(f"another process holds {file.name} for more than {LOCKED:g} s") from error
                    time.sleep(0.05)
            yield

    def _experiment(self) -> str:
        # A server chooses where artifacts lie; beside a SQLite file they lie among the outputs.
        place = None if self.tracking.uri else (self.outputs / "mlartifacts").resolve().as_uri()
        found = self.client.get_experiment_by_name(self.tracking.experiment)
        if found is None:
            return self._create_experiment(place)
        if place is not None and found.artifact_location != place:
            self._move(found.artifact_location, place)
        return found.experiment_id

    def _describe(self) -> None:
        """Say on the experiment what it holds; a person's own words are left alone."""
        tags = self.client.get_experiment(self.experiment).tags
        # Machine learning, not chats: the page opens on the runs.
        wanted = {"mlflow.experimentKind": "custom_model_development", NOTE: _about_experiment(self.experiment)}
        for key, value in wanted.items():
            if key not in tags:
                self.client.set_experiment_tag(self.experiment, key, value)

    def _save_view(self, metrics: Sequence[str]) -> None:
        """Keep a view of the runs with the headline measures of these metrics, and of those before, as columns."""
        tags = self.client.get_experiment(self.experiment).tags
        before = tags.get(VIEW_TAG, "")
        known = [m.name for m in METRICS if m.name in metrics or f"`{m.short}.FP`" in before]
        view = _view(known)
        if view != before:
            self.client.set_experiment_tag(self.experiment, VIEW_TAG, view)

    def _create_experiment(self, place: str | None) -> str:
        """Make the experiment; where another process has just made it, take that one."""
        from mlflow.exceptions import MlflowException

        try:
            return self.client.create_experiment(self.tracking.experiment, artifact_location=place)
        except MlflowException:
            found = self.client.get_experiment_by_name(self.tracking.experiment)
            if found is None:
                raise
            return found.experiment_id

    def _move(self, before: str, now: str) -> None:
        """Correct the places in the SQLite file after the outputs were moved: MLflow keeps them as absolute paths."""
        with contextlib.closing(sqlite3.connect(self.outputs / "mlflow.db")) as database, database:
            for table, column in (("experiments", "artifact_location"), ("runs", "artifact_uri")):
                database.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE substr({column}, 1, ?) = ?",
                    (now, len(before) + 1, len(before), before),
                )

    def _find(self, tag: str, value: str) -> MlflowRun | None:
        found = self.client.search_runs([self.experiment], f"tags.`{TAG}.{tag}` = '{value}'", max_results=1)
        return found[0] if found else None

    # Sending.

    def send_sweep(self, sweep: Mapping[str, Any]) -> str:
        """Make the parent run of a sweep, or bring it up to date; return its MLflow run id."""
        with self._talking():
            found = self._find("sweep", sweep["name"])
            if found is None:
                tags = {f"{TAG}.sweep": sweep["name"], f"{TAG}.kind": "sweep", "mlflow.runName": sweep["name"]}
                found = self.client.create_run(self.experiment, start_time=_milliseconds(sweep["started"]), tags=tags)
                self.client.log_param(found.info.run_id, "command", sweep["command"][:6000])
            self.client.log_dict(found.info.run_id, dict(sweep), "sweep.json")
            return found.info.run_id

    def send_run(
        self,
        directory: RunDirectory,
        references: References,
        parent: str | None = None,
        rebuild: bool = False,
    ) -> bool:
        """Send one run; return whether anything was sent. A run that is there as it is here is left alone."""
        mine = record(directory)
        metrics = _metrics(mine, references)
        version = _version(directory, metrics)
        manifest = directory.read_manifest()
        with self._talking():
            found = self._find("run_id", mine.run_id)
            if found is not None and found.data.tags.get(f"{TAG}.version") == version and not rebuild:
                return False
            if found is None:
                tags, started = _tags(mine, parent), _milliseconds(manifest["started"])
                found = self.client.create_run(self.experiment, start_time=started, tags=tags)
            # A run that was continued, or whose first send was cut short, keeps the time at which it began.
            started = found.info.start_time
            self._log_params(found, mine.config)
            self.client.set_tag(found.info.run_id, NOTE, _about_run(mine))
            self._log_metrics(found.info.run_id, mine, metrics, started)
            self._log_artifacts(found.info.run_id, directory, mine)
            self.client.set_tag(found.info.run_id, f"{TAG}.status", mine.status)
            status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}.get(mine.status, "RUNNING")
            end = None if status == "RUNNING" else started + round(1000 * manifest.get("seconds", 0))
            if status == "RUNNING":
                self.client.update_run(found.info.run_id, status="RUNNING")
            else:
                self.client.set_terminated(found.info.run_id, status=status, end_time=end)
            # Last, so that a send that was cut short is done again.
            self.client.set_tag(found.info.run_id, f"{TAG}.version", version)
        return True

    def _log_params(self, run: MlflowRun, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow's params cannot be changed, and what is no part of a run's identity, such as a path, may have.
        # Null says that something was not asked for: a column of it says nothing.
        sent = ((_allowed(k), v) for k, v in flat(config) if v is not None)
        params = {k: str(v)[:6000] for k, v in sent if k not in run.data.params}
        self.client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in params.items()])

    def _log_metrics(self, run: str, mine: RunRecord, metrics: Mapping[str, float], time: int) -> None:
        from mlflow.entities import Metric

        # One time stamp for all: sending the same value twice then leaves one. Later than that of an earlier format,
        # whose values MLflow keeps: the last one counts.
        time += FORMAT
        batch = [Metric(name, value, time, 0) for name, value in metrics.items()]
        for metric in mine.metrics:
            for hop, row in enumerate(mine.scores[metric]):
                for language, value in zip(mine.languages, row, strict=True):
                    if value == value:
                        batch.append(
                            Metric(_allowed(f"{short_name(metric)}.score.{language}"), 100 * float(value), time, hop)
                        )
        step = 0
        for i, epoch in enumerate(mine.curve):
            batch.append(Metric("train.loss", epoch["loss"], time, step + epoch["step"]))
            last = i + 1 == len(mine.curve) or mine.curve[i + 1]["hop"] != epoch["hop"]
            step += epoch["step"] if last else 0
        for start in range(0, len(batch), 1000):
            self.client.log_batch(run, metrics=batch[start : start + 1000])

    def _log_artifacts(self, run: str, directory: RunDirectory, mine: RunRecord) -> None:
        from xclrun.report.heatmaps import heatmap
        from xclrun.report.style import settle

        self.client.log_dict(run, mine.to_json(), RECORD)
        for path in (directory.config, directory.manifest, directory.events, directory.scores):
            if path.is_file():
                self.client.log_artifact(run, str(path))
        if mine.status != "finished":
            return
        for path in directory.prediction_files():
            self.client.log_artifact(run, str(path), "predictions")
        if directory.attention.is_file():
            self.client.log_artifact(run, str(directory.attention))
        tables = [{"path": f"{short_name(metric)}_scores.json", "type": "table"} for metric in mine.metrics]
        self.client.set_tag(run, "mlflow.loggedArtifacts", json.dumps(tables))
        for metric in mine.metrics:
            matrix = mine.scores[metric]
            rows: dict[str, list[Any]] = {"hop": list(range(len(matrix)))}
            rows |= {language: matrix[:, j].tolist() for j, language in enumerate(mine.languages)}
            # Not log_table: it appends to what is there, and sending twice must change nothing.
            self.client.log_dict(
                run,
                {"columns": list(rows), "data": list(map(list, zip(*rows.values(), strict=True)))},
                f"{short_name(metric)}_scores.json",
            )
            figure = heatmap(mine, metric)
            settle(figure)
            self.client.log_figure(run, figure, f"{short_name(metric)}_scores.png")

    def send_all(
        self,
        only: Sequence[str] | None = None,
        references: References | None = None,
        rebuild: bool = False,
        tell: Callable[[str], None] = note,
    ) -> int:
        """Send every run and sweep among the outputs (or the runs in ``only``); return how many runs were sent.

        ``rebuild`` also sends again what seems to be there; ``tell`` hears of what cannot be read, and is not sent.
        """
        self._runs, all_read = None, references is None
        records = {mine.run_id: mine for mine in (read_records(self.outputs, tell) if references is None else ())}
        self._own = records if all_read else self._own
        references = references or References(list(records.values()))
        if metrics := {metric for mine in records.values() for metric in mine.metrics}:
            with self._talking():
                self._save_view(sorted(metrics))
        parents: dict[str, str] = {}
        for sweep in sweeps(self.outputs, tell):
            if len(sweep["runs"]) > 1 and (only is None or set(only) & set(sweep["runs"])):
                parent = self.send_sweep(sweep)
                parents |= {run_id: parent for run_id in sweep["runs"] if run_id not in parents}
                if all(RunDirectory(self.outputs / "runs" / run_id).finished for run_id in sweep["runs"]):
                    self._end_sweep(parent)
        # Asking for all at once takes as long as asking for a few hundred one by one.
        there = self._versions() if only is None and not rebuild else None
        sent = 0
        for directory in run_directories(self.outputs):
            if only is None or directory.run_id in only:
                mine = records.get(directory.run_id)
                if all_read and mine is None:
                    # Told already.
                    continue
                try:
                    # A record that is older than the manifest by now gives a version that was never sent.
                    if there and mine and there.get(mine.run_id) == _version(directory, _metrics(mine, references)):
                        continue
                    sent += self.send_run(directory, references, parents.get(directory.run_id), rebuild)
                except (OSError, ValueError, KeyError) as error:
                    tell(f"{directory.path} cannot be read ({error!r}): not sent")
        if sent:
            self._runs = None
        return sent

    def _versions(self) -> dict[str, str]:
        """Return run id → version of what MLflow has of it."""
        with self._talking():
            tags = [run.data.tags for run in self._search()]
        return {of[f"{TAG}.run_id"]: of.get(f"{TAG}.version", "") for of in tags}

    def _search(self) -> list[MlflowRun]:
        """Return all runs that MLflow has, as they were when they were last asked for, before anything was sent."""
        if self._runs is None:
            self._runs, token = [], None
            while True:
                page = self.client.search_runs(
                    [self.experiment], f"tags.`{TAG}.kind` = 'run'", max_results=1000, page_token=token
                )
                self._runs += page
                token = page.token
                if not token:
                    break
        return self._runs

    def _end_sweep(self, parent: str) -> None:
        with self._talking():
            if self.client.get_run(parent).info.status != "FINISHED":
                self.client.set_terminated(parent)

    def send_report(self, name: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Send a report as a run of its own: the page and the tables; an earlier one of the same name is replaced."""
        with self._talking():
            found = self._find("report", name)
            if found is None:
                tags = {f"{TAG}.report": name, f"{TAG}.kind": "report", "mlflow.runName": f"report {name}"}
                found = self.client.create_run(self.experiment, tags=tags)
            for path in (folder / "index.html", folder / "summary.md", folder / "summary.csv", folder / "runs.csv"):
                self.client.log_artifact(found.info.run_id, str(path))
            self.client.log_artifacts(found.info.run_id, str(folder / "tables"), "tables")
            self.client.log_dict(found.info.run_id, dict(facts), "report.json")
            self.client.set_terminated(found.info.run_id)

    # Reading.

    def records(self, tell: Callable[[str], None] = note) -> list[RunRecord]:
        """Return the records of all runs in MLflow.

        Of runs whose files of record are here it is these that count, which are checked; ``tell`` hears of those that
        cannot be read.
        """
        from urllib.parse import unquote, urlparse

        if self._own is None:
            self._own = {mine.run_id: mine for mine in read_records(self.outputs, tell)}
        found = []
        with self._talking():
            for run in self._search():
                run_id = run.data.tags[f"{TAG}.run_id"]
                if RunDirectory(self.outputs / "runs" / run_id).path.is_dir():
                    found += [self._own[run_id]] if run_id in self._own else []
                    continue
                place = urlparse(run.info.artifact_uri)
                if place.scheme in ("", "file"):
                    path = Path(unquote(place.path)) / RECORD
                else:
                    path = Path(self.client.download_artifacts(run.info.run_id, RECORD))
                if path.is_file():
                    try:
                        found.append(RunRecord.from_json(path.read_bytes()))
                    except ValueError as error:
                        tell(f"{path} cannot be read ({error}): left out; `xclrun sync --rebuild` sends it again")
        self._runs = self._own = None
        return found


def _tags(mine: RunRecord, parent: str | None) -> dict[str, str]:
    facts = {
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
    tags = {f"{TAG}.{key}": value for key, value in facts.items()} | {"mlflow.runName": mine.run_id}
    return tags | ({"mlflow.parentRunId": parent} if parent else {})


def _metrics(mine: RunRecord, references: References) -> dict[str, float]:
    """Return the meta-metrics of a run that are known, as they are shown: ``intent.F``, ``slots.FP``, …"""
    found = {}
    for metric in mine.metrics:
        if mine.status == "finished":
            for (name, language), value in measure(mine, metric, references.scores(mine, metric)).items():
                if isinstance(value, float) and not language:
                    found[f"{short_name(metric)}.{name}"] = MEASURES[name].scale * value
    return found


def _version(directory: RunDirectory, metrics: Mapping[str, float]) -> str:
    """Return what changes when there is something new to send."""
    return f"{FORMAT}:{sha256(directory.manifest)[:16]}" + (f"+{len(metrics)}" if directory.finished else "")


def _view(metrics: Sequence[str]) -> str:
    """Return a saved view as MLflow 3.17 keeps it: runs alone, with what tells them apart and their headlines."""
    told = [f"tags.`{TAG}.{fact}`" for fact in ("strategy", "order", "seed")]
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
        "selectedColumns": told + measured,
    }
    # The times are those of nothing: the same view is the same text.
    return json.dumps({"name": "xclrun: headline measures", "createdAt": 0, "updatedAt": 0, "state": json.dumps(state)})


def view_address(server: str, experiment: str) -> str:
    """Return where the saved view opens on a server."""
    return f"{server}/#/experiments/{experiment}/runs?viewStateShareKey={VIEW}"


def saved_views(outputs: Path, server: str) -> list[str]:
    """Return where the saved views of the SQLite file among the outputs open on a server; none where it has none."""
    query = "SELECT experiment_id FROM experiment_tags WHERE key = ? ORDER BY experiment_id"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{outputs / 'mlflow.db'}?mode=ro", uri=True)) as database:
            return [view_address(server, str(found)) for (found,) in database.execute(query, (VIEW_TAG,))]
    except sqlite3.Error:
        return []


def _legend() -> str:
    lines = [f"- `{one.name}` {one.arrow} {one.definition}" for one in headlines()]
    return "\n".join(
        [
            "Metrics are percent, differences of scores are points; ↑ higher is better, ↓ lower is better.",
            "",
            *lines,
            "- `score.LANGUAGE` score on the test set of a language; the step is the hop, 0 before any fine-tuning",
            "- `train.loss` mean loss of each epoch; the step counts updates through all hops",
        ]
    )


def _about_experiment(experiment: str) -> str:
    where, names = view_address("", experiment).removeprefix("/"), ", ".join(one.name for one in headlines())
    return (
        "Runs of xclrun, mirrored from its outputs folder: numbers of record are in the files there.\n\n"
        f"The saved view [xclrun: headline measures]({where}) has {names} as columns.\n\n{_legend()}"
    )


def _about_run(mine: RunRecord) -> str:
    from xclrun.core.names import markdown

    few = "" if mine.shots is None else f", K = {mine.shots}, bucket {mine.bucket}"
    hops = markdown(" → ".join(mine.languages))
    return (
        f"**{markdown(mine.strategy)}** on {markdown(mine.dataset)} with {markdown(mine.model)}: order "
        f"{markdown(mine.order)} ({hops}), seed {mine.seed}{few}.\n\n{_legend()}"
    )


def _allowed(key: str) -> str:
    """Return the key of a metric or parameter, which a language may be part of, as MLflow takes it.

    One key that it refuses would stop the sending of all runs. Where it had to change, a short hash tells it from
    others that would become the same.
    """
    plain = re.sub(r"[^\w.\- :]", "_", key)
    return plain if plain == key else f"{plain}-{hashlib.sha256(key.encode()).hexdigest()[:6]}"


def _milliseconds(when: str) -> int:
    from datetime import datetime

    return round(1000 * datetime.strptime(when, "%Y-%m-%dT%H:%M:%S%z").timestamp())


@dataclass
class BackgroundMirror:
    """Sends the runs of a sweep from a process of its own, while the next ones train.

    What it cannot send is in ``mlflow-sync.log`` and is sent by the next sweep or by ``xclrun sync``.
    """

    outputs: Path
    tracking: TrackingConfig
    enabled: bool | None = None  # None: as the config says

    def start(self) -> None:
        """Start the process; without tracking, do nothing."""
        self.process: subprocess.Popen[bytes] | None = None
        if self.tracking.enabled if self.enabled is None else self.enabled:
            request = json.dumps({"outputs": str(self.outputs), "tracking": asdict(self.tracking)})
            with open(self.outputs / LOG, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "xclrun.tracking.mirror", request],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C is for the training; the mirror ends when its input does.
                )

    def changed(self, run_id: str) -> None:
        """Say that a run has something new."""
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.write(f"{run_id}\n".encode())
                self.process.stdin.flush()

    def close(self, timeout: float = 120.0) -> bool:
        """Wait until all is sent; return whether it was."""
        if self.process is None:
            return True
        with contextlib.suppress(OSError):
            assert self.process.stdin is not None
            self.process.stdin.close()
        try:
            return self.process.wait(timeout) == 0
        except subprocess.TimeoutExpired:
            return False


def _background(request: str) -> None:
    """Send runs as their ids come in on the standard input, and at its end what the whole sweep tells: transfer."""
    given = json.loads(request)
    outputs, tracking = Path(given["outputs"]), TrackingConfig(**given["tracking"])
    mirror = Mirror(outputs, tracking)
    named = []
    for text in sys.stdin:
        named.append(text.strip())
        mirror.send_all(only=named[-1:], references=References([]))
    mirror.send_all(only=named)


if __name__ == "__main__":
    try:
        _background(sys.argv[1])
    except Exception:
        # Into the log, where libraries' own words about a server must not carry its password.
        sys.exit(redact(traceback.format_exc()))
