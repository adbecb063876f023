"""MLflow as a mirror of the runs; a server also holds runs of other machines.

One experiment has an MLflow run per run, identified by the tag ``xclrun.run_id``, and one per sweep, the parent of its
runs. Sending is idempotent, and all data can be restored from the run directories.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError, first_line
from xclrun.core.files import UNREADABLE
from xclrun.core.task import METRICS, short_name
from xclrun.core.terminal import note
from xclrun.store.files import writing
from xclrun.store.rundir import RunDirectory
from xclrun.store.sweeps import typed_commands
from xclrun.tracking import payload
from xclrun.tracking.payload import (
    FORMAT,
    NOTE,
    TAG,
    VIEW_TAG,
    VIEW_VERSIONS,
    allowed,
    milliseconds,
    runs_address,
    view_address,
)
from xclrun.tracking.template import create_database
from xclrun.tracking.trackers import DATABASE, MARKERS, Tracker, Update

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment
    from mlflow.entities import Run as MlflowRun

RECORD = "score_matrix.json"
# Folder of the artifacts of the SQLite file.
ARTIFACTS = "mlartifacts"
# Parts of error messages about a damaged file, another user's file, or the schema of another version of MLflow (not
# about a lock).
UNUSABLE = ("(sqlite3.DatabaseError)", "database schema", "readonly database", "unable to open database file")
# The line of an error of SQLAlchemy that names the error of the database; other lines can precede it.
_OF_DATABASE = re.compile(r"^\([\w.]+\) .*", re.MULTILINE)
# Seconds to wait for another process that writes to the SQLite file; one write takes a second or two.
LOCKED = 30.0
# From this number on, one query for all runs is faster than a query per run.
MANY = 300


class UnusableDatabase(RunError):
    """MLflow's SQLite file is damaged, not writable, from another version of MLflow, or from another folder."""

    def __init__(self, path: Path, why: str) -> None:
        why = why.partition(". ")[0]
        super().__init__(f"MLflow's database {path} cannot be used: {why}; `xclrun mlflow sync --rebuild` replaces it")
        self.path = path

    def move_aside(self) -> Path:
        """Rename the file, together with SQLite's auxiliary files and artifacts of another user; return its new path.

        Raises:
            UsageError: the outputs folder is not writable.
        """
        unusable = f".unusable-{time.strftime('%Y%m%d-%H%M%S')}"
        paths = [self.path.with_name(self.path.name + suffix) for suffix in ("", "-journal", "-wal", "-shm")]
        if not os.access(artifacts := self.path.with_name(ARTIFACTS), os.W_OK):
            paths.append(artifacts)
        for path in paths:
            stem = ARTIFACTS if path.name == ARTIFACTS else DATABASE
            with writing(path), contextlib.suppress(FileNotFoundError):
                path.rename(path.with_name(path.name.replace(stem, stem + unusable)))
        return self.path.with_name(f"{DATABASE}{unusable}")


class DeletedExperiment(RunError):
    """The experiment was deleted in MLflow, which keeps its runs until ``mlflow gc``."""

    def __init__(self, client: MlflowClient, experiment: Experiment) -> None:
        super().__init__(
            f"MLflow's experiment '{experiment.name}' was deleted; `xclrun mlflow sync --rebuild` restores it, "
            "or use another tracking.experiment"
        )
        self.client, self.experiment = client, experiment

    def restore(self) -> str:
        """Restore the experiment; return its name."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.restore_experiment(self.experiment.experiment_id)
        except MlflowException as error:
            raise RunError(f"MLflow's experiment cannot be restored: {_cause(error)}") from error
        return str(self.experiment.name)


def tracking_uri(outputs: Path, uri: str | None) -> str:
    """Return the address of MLflow: the server ``uri``, or the SQLite file in ``outputs``."""
    if uri:
        return uri
    path = str((outputs / DATABASE).resolve())
    if not {"?", "%"} & set(path):
        return f"sqlite:///{path}"
    from sqlalchemy.engine import URL

    # `?` would end the path, and SQLAlchemy 2.1 decodes `%20`. Quote the path for SQLite, then the database for the
    # installed version of SQLAlchemy. MLflow creates a folder with the quoted name unless the driver is named.
    quoted = URL.create("sqlite+pysqlite", database=f"file:{quote(path)}", query={"uri": "true"})
    return quoted.render_as_string(hide_password=False)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide MLflow's log lines; its errors are raised too."""
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    # Three attempts within seconds instead of minutes; `xclrun mlflow sync` can be repeated.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(level)


def _cause(error: BaseException) -> str:
    """Return the first cause in an error of MLflow, as one line."""
    database = _OF_DATABASE.search(str(error))
    return database[0] if database else first_line(error)


def _lock_file(path: Path) -> IO[str]:
    try:
        return path.open("a")
    except PermissionError:
        # A lock needs no write permission: another user may have created the file.
        if path.is_file():
            return path.open()
        raise


class Mirror(Tracker):
    """MLflow as a tracker of the runs under ``outputs``."""

    name = "mlflow"

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        from mlflow import MlflowClient

        super().__init__(outputs, tracking)
        self.uri = self.place = tracking_uri(outputs, tracking.uri)
        # Sweep → ID of its parent run.
        self._parents: dict[str, str] = {}
        # All runs of the experiment, from the query of `records_elsewhere`; used once, by the next call of `before`.
        self._runs: list[MlflowRun] | None = None
        outputs.mkdir(parents=True, exist_ok=True)
        with self._one_line_errors():
            if tracking.uri is None and not os.path.lexists(outputs / DATABASE):
                # Markers say that runs are in the database, so they go before a new one is there.
                shutil.rmtree(outputs / MARKERS, ignore_errors=True)
                create_database(outputs / DATABASE)
            self.client: MlflowClient = MlflowClient(self.uri)
            self.experiment = self._experiment()
            self._describe()

    @contextlib.contextmanager
    def _one_line_errors(self) -> Iterator[None]:
        """Hide MLflow's output, and convert its errors to one line."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with _quiet(), self._locked():
                yield
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            if self.tracking.uri is None and any(sign in str(error) for sign in UNUSABLE):
                raise UnusableDatabase(self.outputs / DATABASE, _cause(error)) from error
            raise RunError(f"MLflow at {self.uri} cannot be used: {_cause(error)}") from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Let one process at a time change the SQLite file.

        Raises:
            TimeoutError: another process holds the lock for too long.
        """
        if self.tracking.uri is not None:
            yield
            return
        with _lock_file(self.outputs / "mlflow.lock") as file:
            began = time.monotonic()
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() - began > LOCKED:
                        raise TimeoutError(
                            f"another process has locked {file.name} for more than {LOCKED:g} s"
                        ) from error
                    time.sleep(0.05)
            yield

    def _experiment(self) -> str:
        """Return the ID of the experiment; create it if needed."""
        from mlflow.exceptions import MlflowException

        # A server chooses the location of artifacts; those of a SQLite file are in the outputs folder.
        place = None if self.tracking.uri else (self.outputs / ARTIFACTS).resolve().as_uri()
        existing = self.client.get_experiment_by_name(self.tracking.experiment)
        if existing is None:
            # The database is new, so all runs must be sent.
            shutil.rmtree(self.outputs / MARKERS, ignore_errors=True)
            try:
                return self.client.create_experiment(self.tracking.experiment, artifact_location=place)
            except MlflowException:
                # Another process has just created it.
                existing = self.client.get_experiment_by_name(self.tracking.experiment)
                if existing is None:
                    raise
        if existing.lifecycle_stage == "deleted":
            raise DeletedExperiment(self.client, existing)
        if place is not None and existing.artifact_location != place:
            # MLflow stores absolute paths and has no call to change them.
            raise UnusableDatabase(self.outputs / DATABASE, f"its files are in {existing.artifact_location}")
        return existing.experiment_id

    def _describe(self) -> None:
        """Describe the experiment unless a user has done so."""
        tags = self.client.get_experiment(self.experiment).tags
        # With the kind "machine learning", the experiment's page opens on the runs.
        kind, about = "custom_model_development", payload.about_experiment(self.experiment, _shows_views())
        for key, value in {"mlflow.experimentKind": kind, NOTE: about}.items():
            if key not in tags:
                self._tag_experiment(key, value)

    def _save_view(self, metrics: Collection[str]) -> None:
        """Save a view with the headline measures of these metrics, and of those in the previous view, as columns."""
        if _shows_views():
            before = self.client.get_experiment(self.experiment).tags.get(VIEW_TAG, "")
            columns = [m.name for m in METRICS if m.name in metrics or f"`{m.short}.FP`" in before]
            if (view := payload.view(columns)) != before:
                self._tag_experiment(VIEW_TAG, view)

    def _tag_experiment(self, key: str, value: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.set_experiment_tag(self.experiment, key, value)
        except MlflowException:
            # Another process created the tag at the same time; now it can be changed.
            self.client.set_experiment_tag(self.experiment, key, value)

    def _find(self, tag: str, value: str) -> MlflowRun | None:
        runs = self.client.search_runs([self.experiment], f"tags.`{TAG}.{tag}` = '{value}'", max_results=1)
        return runs[0] if runs else None

    def _search(self) -> list[MlflowRun]:
        """Return all runs of the experiment."""
        runs: list[MlflowRun] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment], f"tags.`{TAG}.kind` = 'run'", max_results=1000, page_token=token
            )
            runs += page
            if not (token := page.token):
                return runs

    def before(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        runs, self._runs = self._runs, None
        if runs is None:
            with self._one_line_errors():
                if len(run_ids) < MANY:
                    runs = [run for run_id in run_ids if (run := self._find("run_id", run_id))]
                else:
                    runs = self._search()
        # Only the version is needed: MLflow ignores values that are sent again.
        return {tags[f"{TAG}.run_id"]: {"version": tags.get(f"{TAG}.version")} for tags in (r.data.tags for r in runs)}

    def mark_sent(self, update: Update) -> None:
        """Do nothing: `send` records the run, and tags it with its version."""

    def send_records(
        self,
        records: Iterable[RunRecord],
        references: References,
        warn: Callable[[str], None] = note,
        rebuild: bool = False,
    ) -> int:
        records = list(records)
        if sent := super().send_records(records, references, warn, rebuild):
            with self._one_line_errors():
                self._save_view({metric for record in records for metric in record.metrics})
        return sent

    def send_sweep(self, sweep: Mapping[str, Any]) -> None:
        with self._one_line_errors():
            run = self._find("sweep", sweep["name"])
            if run is None:
                tags = {f"{TAG}.sweep": sweep["name"], f"{TAG}.kind": "sweep", "mlflow.runName": sweep["name"]}
                run = self.client.create_run(self.experiment, start_time=milliseconds(sweep["started"]), tags=tags)
                self.client.log_param(run.info.run_id, "command", typed_commands(sweep)[:6000])
            self._parents[sweep["name"]] = run.info.run_id
            self.client.log_dict(run.info.run_id, dict(sweep), "sweep.json")
            ended = all(RunDirectory(self.outputs / "runs" / run_id).finished for run_id in sweep["runs"])
            if ended and run.info.status != "FINISHED":
                self.client.set_terminated(run.info.run_id)

    def send(self, update: Update) -> None:
        from mlflow.entities import Metric, Param

        record, directory = update.run, RunDirectory(self.outputs / "runs" / update.run.run_id)
        # Record the run first: from now on it counts only from its files (`records_elsewhere`).
        super().mark_sent(update)
        with self._one_line_errors():
            run = self._find("run_id", record.run_id) or self.client.create_run(
                self.experiment,
                start_time=milliseconds(record.environment["started"]),
                tags=payload.tags(record, self._parents.get(update.sweep)),
            )
            # An existing MLflow run keeps the start time with which it was created.
            run_id, started = run.info.run_id, run.info.start_time
            self.client.set_tag(run_id, NOTE, payload.about_run(record))
            values = [(key, value, 0) for key, value in update.measures.items()]
            values += [(key, value, step) for _, key, step, value in update.values()]
            # All values have the same time stamp, so MLflow stores a value only once if it is sent again. A later
            # `FORMAT` uses a later time stamp, because MLflow shows the last value.
            metrics = [Metric(allowed(key), value, started + FORMAT, step) for key, value, step in values]
            # Params cannot be changed; those outside a run's identity, such as paths, may differ when it is resumed.
            config = payload.parameters(record.config).items()
            params = [Param(key, value) for key, value in config if key not in run.data.params]
            self.client.log_batch(run_id, metrics, params)
            self._log_artifacts(run_id, directory, record)
            self.client.set_tag(run_id, f"{TAG}.status", record.status)
            status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}.get(record.status)
            if status is None:
                self.client.update_run(run_id, status="RUNNING")
            else:
                seconds = directory.read_manifest().get("seconds", 0)
                self.client.set_terminated(run_id, status=status, end_time=started + round(1000 * seconds))
            # Set the version last, so an interrupted update is sent again.
            self.client.set_tag(run_id, f"{TAG}.version", update.version)

    def _log_artifacts(self, run: str, directory: RunDirectory, record: RunRecord) -> None:
        from xclrun.report.heatmaps import heatmap
        from xclrun.report.style import settle

        self.client.log_dict(run, record.to_json(), RECORD)
        finished = record.status == "finished"
        small = (directory.config, directory.manifest, directory.events, directory.scores)
        for path in (*small, *((directory.attention,) if finished else ())):
            if path.is_file():
                self.client.log_artifact(run, str(path))
        if not finished:
            return
        for path in directory.prediction_files():
            self.client.log_artifact(run, str(path), "predictions")
        tables = [{"path": f"{short_name(metric)}_scores.json", "type": "table"} for metric in record.metrics]
        self.client.set_tag(run, "mlflow.loggedArtifacts", json.dumps(tables))
        for metric in record.metrics:
            # Not log_table, which appends rows when a run is sent again.
            self.client.log_dict(run, payload.score_table(record, metric), f"{short_name(metric)}_scores.json")
            figure = heatmap(record, metric)
            settle(figure)
            self.client.log_figure(run, figure, f"{short_name(metric)}_scores.png")

    def send_report(self, name: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Send page and tables of a report as a separate run; replace an earlier report of the same name."""
        with self._one_line_errors():
            run = self._find("report", name)
            if run is None:
                tags = {f"{TAG}.report": name, f"{TAG}.kind": "report", "mlflow.runName": f"report {name}"}
                run = self.client.create_run(self.experiment, tags=tags)
            for path in (folder / "index.html", folder / "summary.md", folder / "summary.csv", folder / "runs.csv"):
                self.client.log_artifact(run.info.run_id, str(path))
            self.client.log_artifacts(run.info.run_id, str(folder / "tables"), "tables")
            self.client.log_dict(run.info.run_id, dict(facts), "report.json")
            self.client.set_terminated(run.info.run_id)

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        with self._one_line_errors():
            runs = [self._find("run_id", run_id) for run_id in run_ids]
            for run in [*runs, *([self._find("sweep", sweep)] if sweep else [])]:
                if run is not None:
                    self.client.delete_run(run.info.run_id)
                    # MLflow only marks a run as deleted.
                    if self.tracking.uri is None:
                        shutil.rmtree(self.outputs / ARTIFACTS / run.info.run_id, ignore_errors=True)
        return super().remove(run_ids, sweep)

    def records_elsewhere(self, warn: Callable[[str], None] = note) -> list[RunRecord]:
        """Return the records of runs that other outputs folders sent to a server; warn about unreadable ones.

        A run that was ever sent from this folder counts only from its files: if they were deleted, it does not count.
        """
        records: list[RunRecord] = []
        if self.tracking.uri is None:
            # Only this outputs folder writes to its SQLite file.
            return records
        with self._one_line_errors(), tempfile.TemporaryDirectory() as folder:
            self._runs = self._search()
            for run in self._runs:
                tags = run.data.tags
                # Without a version, the run was sent incompletely.
                if f"{TAG}.version" not in tags or self._sent_here(tags[f"{TAG}.run_id"]):
                    continue
                try:
                    path = Path(self.client.download_artifacts(run.info.run_id, RECORD, folder))
                    records.append(RunRecord.from_json(path.read_bytes()))
                except UNREADABLE as error:
                    name = f"{RECORD} of {tags[f'{TAG}.run_id']} in MLflow"
                    warn(f"{name} cannot be read ({error}); skipped; `xclrun mlflow sync --rebuild` sends it again")
        return records

    def _sent_here(self, run_id: str) -> bool:
        return (self.outputs / "runs" / run_id).is_dir() or self._sent_file(run_id).is_file()


def _shows_views() -> bool:
    """Return whether the pages of this version of MLflow show the result of `payload.view`."""
    import mlflow

    return mlflow.__version__.startswith(VIEW_VERSIONS)


def run_pages(outputs: Path, server: str) -> list[str]:
    """Return the URLs on ``server`` of the runs of each experiment in the SQLite file: the saved view if there is one.

    Experiments that do not contain runs of xclrun are skipped.
    """
    from mlflow import MlflowClient

    try:
        with _quiet():
            experiments = MlflowClient(tracking_uri(outputs, None)).search_experiments()
    except Exception:
        # Ignore a damaged file: the server reports it.
        return []
    return [
        (view_address if VIEW_TAG in one.tags else runs_address)(server, one.experiment_id)
        for one in experiments
        if NOTE in one.tags
    ]
