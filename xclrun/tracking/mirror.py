"""MLflow as a mirror of the files of record: what it has of them, what it lacks, and sending that.

One experiment holds one MLflow run per run, found by its tag ``xclrun.run_id``, and one per sweep, the parent of its
jobs. Sending is idempotent: a run that has not changed since it was sent is left alone. Scores that are sent are
computed from prediction files that were checked; nothing is kept in MLflow alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xclrun.analysis.record import RunRecord
from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.core.secret import connect, put_away, redact
from xclrun.core.task import METRICS, short_name
from xclrun.core.terminal import note
from xclrun.store.records import read_records, record, sweeps
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import payload
from xclrun.tracking.payload import FORMAT, NOTE, TAG, VIEW_TAG, milliseconds, view_address
from xclrun.tracking.trackers import Tracker

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run as MlflowRun

RECORD = "score_matrix.json"
# The SQLite file among the outputs.
DATABASE = "mlflow.db"
# What errors say of a file that is damaged, or has the schema of another version of MLflow; a lock is neither.
UNUSABLE = ("(sqlite3.DatabaseError)", "database schema")
# Seconds for which another process that writes to the SQLite file is waited for; what it does takes one or two.
LOCKED = 30.0


class UnusableDatabase(RunError):
    """MLflow's SQLite file among the outputs is damaged, or of another version of MLflow.

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
        self.place = self.uri
        self._runs: list[MlflowRun] | None = None
        outputs.mkdir(parents=True, exist_ok=True)
        with self._talking():
            self.client: MlflowClient = MlflowClient(connect(self.uri))
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
        existing = self.client.get_experiment_by_name(self.tracking.experiment)
        if existing is None:
            return self._create_experiment(place)
        if place is not None and existing.artifact_location != place:
            self._move(existing.artifact_location, place)
        return existing.experiment_id

    def _describe(self) -> None:
        """Describe the experiment; a description written by a user is left alone."""
        tags = self.client.get_experiment(self.experiment).tags
        # Kind "machine learning", not chats: the page opens on the runs.
        wanted = {"mlflow.experimentKind": "custom_model_development", NOTE: payload.about_experiment(self.experiment)}
        for key, value in wanted.items():
            if key not in tags:
                self._tag_experiment(key, value)

    def _save_view(self, metrics: Collection[str]) -> None:
        """Keep a view of the runs with the headline measures of these metrics, and of those before, as columns."""
        tags = self.client.get_experiment(self.experiment).tags
        before = tags.get(VIEW_TAG, "")
        known = [m.name for m in METRICS if m.name in metrics or f"`{m.short}.FP`" in before]
        view = payload.view(known)
        if view != before:
            self._tag_experiment(VIEW_TAG, view)

    def _tag_experiment(self, key: str, value: str) -> None:
        """Tag the experiment; where another process has just made the tag, which a server refuses, set that one."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.set_experiment_tag(self.experiment, key, value)
        except MlflowException:
            if key not in self.client.get_experiment(self.experiment).tags:
                raise
            self.client.set_experiment_tag(self.experiment, key, value)

    def _create_experiment(self, place: str | None) -> str:
        """Make the experiment; where another process has just made it, take that one."""
        from mlflow.exceptions import MlflowException

        try:
            return self.client.create_experiment(self.tracking.experiment, artifact_location=place)
        except MlflowException:
            existing = self.client.get_experiment_by_name(self.tracking.experiment)
            if existing is None:
                raise
            return existing.experiment_id

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
            run = self._find("sweep", sweep["name"])
            if run is None:
                tags = {f"{TAG}.sweep": sweep["name"], f"{TAG}.kind": "sweep", "mlflow.runName": sweep["name"]}
                run = self.client.create_run(self.experiment, start_time=milliseconds(sweep["started"]), tags=tags)
                self.client.log_param(run.info.run_id, "command", sweep["command"][:6000])
            self.client.log_dict(run.info.run_id, dict(sweep), "sweep.json")
            return run.info.run_id

    def send_run(
        self,
        directory: RunDirectory,
        references: References,
        parent: str | None = None,
        rebuild: bool = False,
    ) -> bool:
        """Send one run; return whether anything was sent. A run that is there as it is here is left alone."""
        mine = payload.with_live_epochs(record(directory), directory)
        measured = payload.measures(mine, references)
        version = payload.version(directory, mine, measured)
        manifest = directory.read_manifest()
        with self._talking():
            sent_to = self._find("run_id", mine.run_id)
            if sent_to is not None and sent_to.data.tags.get(f"{TAG}.version") == version and not rebuild:
                return False
            if sent_to is None:
                tags, started = payload.tags(mine, parent), milliseconds(manifest["started"])
                sent_to = self.client.create_run(self.experiment, start_time=started, tags=tags)
            # A run that was continued, or whose first send was cut short, keeps the time at which it began.
            started = sent_to.info.start_time
            self._log_params(sent_to, mine.config)
            self.client.set_tag(sent_to.info.run_id, NOTE, payload.about_run(mine))
            self._log_metrics(sent_to.info.run_id, payload.history(mine, measured), started)
            self._log_artifacts(sent_to.info.run_id, directory, mine)
            self.client.set_tag(sent_to.info.run_id, f"{TAG}.status", mine.status)
            status = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}.get(mine.status, "RUNNING")
            end = None if status == "RUNNING" else started + round(1000 * manifest.get("seconds", 0))
            if status == "RUNNING":
                self.client.update_run(sent_to.info.run_id, status="RUNNING")
            else:
                self.client.set_terminated(sent_to.info.run_id, status=status, end_time=end)
            # Last, so that a send that was cut short is done again.
            self.client.set_tag(sent_to.info.run_id, f"{TAG}.version", version)
        return True

    def _log_params(self, run: MlflowRun, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        # MLflow's params cannot be changed, and what is no part of a run's identity, such as a path, may have.
        new = {key: value for key, value in payload.parameters(config).items() if key not in run.data.params}
        self.client.log_batch(run.info.run_id, params=[Param(key, value) for key, value in new.items()])

    def _log_metrics(self, run: str, history: Iterable[tuple[str, float, int]], began: int) -> None:
        from mlflow.entities import Metric

        # One time stamp for all: sending the same value twice then leaves one. Later than that of an earlier format,
        # whose values MLflow keeps: the last one counts.
        batch = [Metric(name, value, began + FORMAT, step) for name, value, step in history]
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
            # Not log_table: it appends to what is there, and sending twice must change nothing.
            self.client.log_dict(run, payload.score_table(mine, metric), f"{short_name(metric)}_scores.json")
            figure = heatmap(mine, metric)
            settle(figure)
            self.client.log_figure(run, figure, f"{short_name(metric)}_scores.png")

    def send_all(
        self, only: Collection[str] | None = None, rebuild: bool = False, warn: Callable[[str], None] = note
    ) -> int:
        """Send every run and sweep among the outputs (or the runs in ``only``); return how many runs were sent.

        ``rebuild`` also sends again what seems to be there; ``warn`` is called for what cannot be read.
        """
        self._runs = None
        records = read_records(self.outputs, warn)
        chosen = [mine for mine in records if only is None or mine.run_id in only]
        references = References(records)
        if records:
            with self._talking():
                self._save_view({metric for mine in records for metric in mine.metrics})
        # Asking for all at once takes as long as asking for a few hundred one by one.
        asked = only is None and not rebuild
        behind = self._behind(chosen, references) if asked else [mine.run_id for mine in chosen]
        return self._send(behind, references, None if only is None else set(only), rebuild, warn)

    def send_one(self, run_id: str) -> int:
        """Send one run, without what needs other runs: its transfer."""
        return self._send([run_id], References([]), {run_id})

    def catch_up(self, records: Sequence[RunRecord], references: References, warn: Callable[[str], None] = note) -> int:
        """Send those of these runs that MLflow lacks, or has in an older state, with their sweeps; return how many."""
        behind = self._behind(records, references)
        if behind:
            with self._talking():
                self._save_view({metric for mine in records for metric in mine.metrics})
            self._send(behind, references, set(behind), warn=warn)
        return len(behind)

    def _behind(self, records: Iterable[RunRecord], references: References) -> list[str]:
        """Return the ids of those runs whose files are here, and of which MLflow does not have the present state."""
        there, behind = self._versions(), []
        for mine in records:
            directory = RunDirectory(self.outputs / "runs" / mine.run_id)
            # A record that is older than the manifest by now gives a version that was never sent.
            if directory.manifest.is_file() and there.get(mine.run_id) != payload.version(
                directory, payload.with_live_epochs(mine, directory), payload.measures(mine, references)
            ):
                behind.append(mine.run_id)
        return behind

    def _send(
        self,
        run_ids: Iterable[str],
        references: References,
        in_sweeps: set[str] | None,
        rebuild: bool = False,
        warn: Callable[[str], None] = note,
    ) -> int:
        """Send runs, and first the sweeps that have one of ``in_sweeps`` (None: all); return how many were sent."""
        parents: dict[str, str] = {}
        for sweep in sweeps(self.outputs, warn):
            if len(sweep["runs"]) > 1 and (in_sweeps is None or not in_sweeps.isdisjoint(sweep["runs"])):
                parent = self.send_sweep(sweep)
                parents |= {run_id: parent for run_id in sweep["runs"] if run_id not in parents}
                if all(RunDirectory(self.outputs / "runs" / run_id).finished for run_id in sweep["runs"]):
                    self._end_sweep(parent)
        sent = 0
        for run_id in run_ids:
            directory = RunDirectory(self.outputs / "runs" / run_id)
            try:
                sent += self.send_run(directory, references, parents.get(run_id), rebuild)
            except (OSError, ValueError, KeyError) as error:
                warn(f"{directory.path} cannot be read ({error!r}): not sent")
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
        from urllib.parse import unquote, urlparse

        records = []
        with self._talking():
            for run in self._search():
                if RunDirectory(self.outputs / "runs" / run.data.tags[f"{TAG}.run_id"]).path.is_dir():
                    continue
                place = urlparse(run.info.artifact_uri)
                if place.scheme in ("", "file"):
                    path = Path(unquote(place.path)) / RECORD
                else:
                    path = Path(self.client.download_artifacts(run.info.run_id, RECORD))
                if path.is_file():
                    try:
                        records.append(RunRecord.from_json(path.read_bytes()))
                    except ValueError as error:
                        warn(f"{path} cannot be read ({error}): left out; `xclrun sync --rebuild` sends it again")
        return records


def saved_views(outputs: Path, server: str) -> list[str]:
    """Return where the saved views of the SQLite file among the outputs open on a server; none where it has none."""
    query = "SELECT experiment_id FROM experiment_tags WHERE key = ? ORDER BY experiment_id"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{outputs / 'mlflow.db'}?mode=ro", uri=True)) as database:
            return [view_address(server, str(found)) for (found,) in database.execute(query, (VIEW_TAG,))]
    except sqlite3.Error:
        return []
