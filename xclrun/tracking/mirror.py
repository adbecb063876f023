"""MLflow as a mirror of the runs, and of those of other machines if it is a server.

One experiment holds one MLflow run per run, found by its tag ``xclrun.run_id``, and one per sweep, the parent of its
runs. Sending twice changes nothing. Nothing is stored in MLflow alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.core.task import METRICS, short_name
from xclrun.core.terminal import note
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import payload
from xclrun.tracking.background import DATABASE, sent_markers
from xclrun.tracking.payload import FORMAT, NOTE, TAG, VIEW_TAG, VIEW_VERSIONS, allowed, milliseconds, view_address
from xclrun.tracking.trackers import News, Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

RECORD = "score_matrix.json"
# What errors say of a file that is damaged, or has the schema of another version of MLflow; a lock is neither.
UNUSABLE = ("(sqlite3.DatabaseError)", "database schema")
# Seconds for which another process that writes to the SQLite file is waited for; what it does takes one or two.
LOCKED = 30.0
# Asking for all runs at once takes as long as asking for so many one by one.
MANY = 300


class UnusableDatabase(RunError):
    """MLflow's SQLite file among the outputs is damaged, of another version of MLflow, or of another folder.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, why: str) -> None:
        why = why.partition(". ")[0]
        super().__init__(f"MLflow's database {path} cannot be used: {why}; `xclrun sync --rebuild` replaces it")
        self.path = path

    def move_aside(self) -> Path:
        """Rename the file, and the files that SQLite keeps next to it; return its new path."""
        aside = self.path.with_name(f"{self.path.name}.unusable-{time.strftime('%Y%m%d-%H%M%S')}")
        for suffix in ("", "-journal", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                self.path.with_name(self.path.name + suffix).rename(aside.with_name(aside.name + suffix))
        return aside


def tracking_uri(outputs: Path, uri: str | None) -> str:
    """Return where MLflow keeps runs: the given server, or the SQLite file among the outputs."""
    return uri or f"sqlite:///{(outputs / DATABASE).resolve()}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hide MLflow's log lines about its database; errors are still shown."""
    os.environ.setdefault("MLFLOW_ENABLE_ASYNC_LOGGING", "false")
    os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
    # An unreachable server is tried three times within seconds, not for minutes: `xclrun sync` tries again.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


class Mirror(Tracker):
    """MLflow, as seen from the outputs of this machine.

    Raises:
        RunError: MLflow cannot be reached, or its database is damaged.
    """

    def __init__(self, outputs: Path, tracking: TrackingConfig) -> None:
        from mlflow import MlflowClient

        super().__init__(outputs, tracking)
        self.uri = self.place = tracking_uri(outputs, tracking.uri)
        # Sweep → id of its parent run.
        self._parents: dict[str, str] = {}
        # All runs, where they were asked for and nothing was sent since.
        self._runs: list[MlflowRun] | None = None
        outputs.mkdir(parents=True, exist_ok=True)
        with self._talking():
            self.client: MlflowClient = MlflowClient(self.uri)
            self.experiment = self._experiment()
            self._describe()

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """Silence MLflow's own output, and turn its errors into one line."""
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with _quiet(), self._locked():
                yield
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
            if self.tracking.uri is None and any(sign in str(error) for sign in UNUSABLE):
                raise UnusableDatabase(self.outputs / DATABASE, str(error).splitlines()[0]) from error
            raise RunError(f"MLflow at {self.uri} cannot be used: {str(error).splitlines()[0]}") from error

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
        """Return the id of the experiment, which is made if there is none."""
        from mlflow.exceptions import MlflowException

        # A server chooses where artifacts lie; those of a SQLite file lie among the outputs.
        place = None if self.tracking.uri else (self.outputs / "mlartifacts").resolve().as_uri()
        existing = self.client.get_experiment_by_name(self.tracking.experiment)
        if existing is None:
            # Nothing was sent to a database that is new.
            shutil.rmtree(sent_markers(self.outputs), ignore_errors=True)
            try:
                return self.client.create_experiment(self.tracking.experiment, artifact_location=place)
            except MlflowException:
                # Another process has just made it.
                existing = self.client.get_experiment_by_name(self.tracking.experiment)
                if existing is None:
                    raise
        if place is not None and existing.artifact_location != place:
            # MLflow keeps absolute paths, and has no call that changes them.
            raise UnusableDatabase(self.outputs / DATABASE, f"its files are in {existing.artifact_location}")
        return existing.experiment_id

    def _describe(self) -> None:
        """Describe the experiment; a description that a user wrote stays."""
        tags = self.client.get_experiment(self.experiment).tags
        # Kind "machine learning", not chats: the page opens on the runs.
        kind, about = "custom_model_development", payload.about_experiment(self.experiment, _shows_views())
        for key, value in {"mlflow.experimentKind": kind, NOTE: about}.items():
            if key not in tags:
                self._tag_experiment(key, value)

    def _save_view(self, metrics: Collection[str]) -> None:
        """Save a view of the runs with the headline measures of these metrics, and of those before, as columns."""
        if _shows_views():
            before = self.client.get_experiment(self.experiment).tags.get(VIEW_TAG, "")
            known = [m.name for m in METRICS if m.name in metrics or f"`{m.short}.FP`" in before]
            if (view := payload.view(known)) != before:
                self._tag_experiment(VIEW_TAG, view)

    def _tag_experiment(self, key: str, value: str) -> None:
        from mlflow.exceptions import MlflowException

        try:
            self.client.set_experiment_tag(self.experiment, key, value)
        except MlflowException:
            # A server refuses a tag that another process makes at the same time; by now it can be changed.
            self.client.set_experiment_tag(self.experiment, key, value)

    def _find(self, tag: str, value: str) -> MlflowRun | None:
        found = self.client.search_runs([self.experiment], f"tags.`{TAG}.{tag}` = '{value}'", max_results=1)
        return found[0] if found else None

    def _search(self) -> list[MlflowRun]:
        """Return all runs that MLflow has."""
        runs: list[MlflowRun] = []
        token = None
        while True:
            page = self.client.search_runs(
                [self.experiment], f"tags.`{TAG}.kind` = 'run'", max_results=1000, page_token=token
            )
            runs += page
            if not (token := page.token):
                return runs

    # Sending.

    def before(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        runs, self._runs = self._runs, None
        if runs is None:
            with self._talking():
                if len(run_ids) < MANY:
                    runs = [run for run_id in run_ids if (run := self._find("run_id", run_id))]
                else:
                    runs = self._search()
        tags = [run.data.tags for run in runs]
        # The version alone: values that are there are sent once more, and change nothing.
        return {of[f"{TAG}.run_id"]: {"version": of.get(f"{TAG}.version")} for of in tags}

    def note_sent(self, news: News) -> None:
        """Do nothing: `send` tags the run with its version."""

    def send_records(
        self,
        records: Iterable[RunRecord],
        references: References,
        warn: Callable[[str], None] = note,
        rebuild: bool = False,
    ) -> int:
        records = list(records)
        if sent := super().send_records(records, references, warn, rebuild):
            with self._talking():
                self._save_view({metric for mine in records for metric in mine.metrics})
        return sent

    def send_sweep(self, sweep: Mapping[str, Any]) -> None:
        with self._talking():
            run = self._find("sweep", sweep["name"])
            if run is None:
                tags = {f"{TAG}.sweep": sweep["name"], f"{TAG}.kind": "sweep", "mlflow.runName": sweep["name"]}
                run = self.client.create_run(self.experiment, start_time=milliseconds(sweep["started"]), tags=tags)
                self.client.log_param(run.info.run_id, "command", sweep["command"][:6000])
            self._parents[sweep["name"]] = run.info.run_id
            self.client.log_dict(run.info.run_id, dict(sweep), "sweep.json")
            ended = all(RunDirectory(self.outputs / "runs" / run_id).finished for run_id in sweep["runs"])
            if ended and run.info.status != "FINISHED":
                self.client.set_terminated(run.info.run_id)

    def send(self, news: News) -> None:
        from mlflow.entities import Metric, Param

        mine, directory = news.run, RunDirectory(self.outputs / "runs" / news.run.run_id)
        with self._talking():
            run = self._find("run_id", mine.run_id) or self.client.create_run(
                self.experiment,
                start_time=milliseconds(mine.environment["started"]),
                tags=payload.tags(mine, self._parents.get(news.sweep)),
            )
            # A run that was continued, or whose first send was cut short, keeps the time at which it began.
            name, began = run.info.run_id, run.info.start_time
            self.client.set_tag(name, NOTE, payload.about_run(mine))
            values = [(key, value, 0) for key, value in news.measures.items()]
            values += [(f"{short}.score.{language}", value, hop) for hop, short, language, value in news.scores]
            values += [("train.loss", loss, step) for step, loss in news.losses]
            values += [(f"{short}.dev.{language}", value, step) for step, short, language, value in news.dev]
            # One time stamp for all: sending the same value twice then leaves one. Later than that of an earlier
            # format, whose values MLflow keeps: the last one counts.
            metrics = [Metric(allowed(key), value, began + FORMAT, step) for key, value, step in values]
            # MLflow's params cannot be changed, and what is no part of a run's identity, such as a path, may have.
            config = payload.parameters(mine.config).items()
            self.client.log_batch(name, metrics, [Param(*one) for one in config if one[0] not in run.data.params])
            self._log_artifacts(name, directory, mine)
            self.client.set_tag(name, f"{TAG}.status", mine.status)
            status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}.get(mine.status)
            if status is None:
                self.client.update_run(name, status="RUNNING")
            else:
                seconds = directory.read_manifest().get("seconds", 0)
                self.client.set_terminated(name, status=status, end_time=began + round(1000 * seconds))
            # Last, so that a send that was cut short is done again.
            self.client.set_tag(name, f"{TAG}.version", news.version)

    def _log_artifacts(self, run: str, directory: RunDirectory, mine: RunRecord) -> None:
        from xclrun.report.heatmaps import heatmap
        from xclrun.report.style import settle

        self.client.log_dict(run, mine.to_json(), RECORD)
        finished = mine.status == "finished"
        small = (directory.config, directory.manifest, directory.events, directory.scores)
        for path in (*small, *((directory.attention,) if finished else ())):
            if path.is_file():
                self.client.log_artifact(run, str(path))
        if not finished:
            return
        for path in directory.prediction_files():
            self.client.log_artifact(run, str(path), "predictions")
        tables = [{"path": f"{short_name(metric)}_scores.json", "type": "table"} for metric in mine.metrics]
        self.client.set_tag(run, "mlflow.loggedArtifacts", json.dumps(tables))
        for metric in mine.metrics:
            # Not log_table: it appends to what is there, and sending twice must change nothing.
            self.client.log_dict(run, payload.score_table(mine, metric), f"{short_name(metric)}_scores.json")
            figure = heatmap(mine, metric)
            settle(figure)
            self.client.log_figure(run, figure, f"{short_name(metric)}_scores.png")

    def send_report(self, name: str, folder: Path, facts: Mapping[str, Any]) -> None:
        """Send a report as a separate run: the page and the tables; an earlier one of the same name is replaced."""
        with self._talking():
            run = self._find("report", name)
            if run is None:
                tags = {f"{TAG}.report": name, f"{TAG}.kind": "report", "mlflow.runName": f"report {name}"}
                run = self.client.create_run(self.experiment, tags=tags)
            for path in (folder / "index.html", folder / "summary.md", folder / "summary.csv", folder / "runs.csv"):
                self.client.log_artifact(run.info.run_id, str(path))
            self.client.log_artifacts(run.info.run_id, str(folder / "tables"), "tables")
            self.client.log_dict(run.info.run_id, dict(facts), "report.json")
            self.client.set_terminated(run.info.run_id)

    # Reading.

    def records_elsewhere(self, warn: Callable[[str], None] = note) -> list[RunRecord]:
        """Return the records of the runs in MLflow whose files of record are not here.

        Where they are here it is these that count, which are checked. ``warn`` is called for unreadable ones.
        """
        records = []
        with self._talking(), tempfile.TemporaryDirectory() as folder:
            self._runs = self._search()
            for run in self._runs:
                tags = run.data.tags
                here = (self.outputs / "runs" / tags[f"{TAG}.run_id"]).is_dir()
                # Without a version it was not sent to its end.
                if here or f"{TAG}.version" not in tags:
                    continue
                try:
                    path = Path(self.client.download_artifacts(run.info.run_id, RECORD, folder))
                    records.append(RunRecord.from_json(path.read_bytes()))
                except (OSError, ValueError) as error:
                    where = f"{RECORD} of {tags[f'{TAG}.run_id']} in MLflow"
                    warn(f"{where} cannot be read ({error}): left out; `xclrun sync --rebuild` sends it again")
        return records


def _shows_views() -> bool:
    """Whether MLflow's pages, as far as the version here says, show the view that `payload.view` writes."""
    import mlflow

    return mlflow.__version__.startswith(VIEW_VERSIONS)


def saved_views(outputs: Path, server: str) -> list[str]:
    """Return where the saved views in the SQLite file among the outputs open on a server; none where it has none."""
    from mlflow import MlflowClient

    try:
        with _quiet():
            experiments = MlflowClient(tracking_uri(outputs, None)).search_experiments()
    except Exception:
        # The server reports what is wrong with the file.
        return []
    return [view_address(server, one.experiment_id) for one in experiments if VIEW_TAG in one.tags]
