"""What MLflow is sent, field by field: a client that only remembers, and runs that were never trained."""

from __future__ import annotations

import fcntl
import json
import logging
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from xclrun.analysis.reference import References
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.store.files import write_json
from xclrun.store.rundir import RunDirectory
from xclrun.testing.trackers import example_record, place, until
from xclrun.tracking import mirror
from xclrun.tracking.background import MARKERS
from xclrun.tracking.mirror import DeletedExperiment, Mirror, UnusableDatabase
from xclrun.tracking.payload import FORMAT, NOTE, VIEW_TAG
from xclrun.tracking.trackers import Update

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

NO_REFERENCES = References([])
STARTED = 1_767_225_600_000  # ms: 2026-01-01T00:00:00+0000, when the example run started


class Page(list[Any]):
    token: str | None = None


class Client:
    """An MLflow in memory, which refuses what MLflow refuses and notes the calls that change something."""

    def __init__(self) -> None:
        self.experiments: list[Any] = []
        self.runs: list[Any] = []
        self.calls: list[tuple[str, ...]] = []
        self.files: dict[str, dict[str, Any]] = {}
        self.page_size = 1000
        self.fails: Callable[[str], bool] = lambda call: False

    def __call__(self, uri: str) -> Client:
        self.uri = uri
        return self

    def note(self, *call: str) -> None:
        from mlflow.exceptions import MlflowException

        if self.fails(call[0]):
            raise MlflowException(f"{call[0]} failed")
        self.calls.append(call)

    def run(self, run_id: str) -> Any:
        return next(run for run in self.runs if run.info.run_id == run_id)

    def tagged(self, key: str, value: str) -> Any:
        [run] = [run for run in self.runs if run.data.tags.get(f"xclrun.{key}") == value]
        return run

    def get_experiment_by_name(self, name: str) -> Any:
        return next((experiment for experiment in self.experiments if experiment.name == name), None)

    def get_experiment(self, id: str) -> Any:
        return next(experiment for experiment in self.experiments if experiment.experiment_id == id)

    def create_experiment(self, name: str, artifact_location: str | None) -> str:
        self.note("create_experiment", name)
        id = str(len(self.experiments) + 1)
        facts = {"experiment_id": id, "name": name, "artifact_location": artifact_location, "tags": {}}
        self.experiments.append(SimpleNamespace(**facts, lifecycle_stage="active"))
        return id

    def restore_experiment(self, id: str) -> None:
        self.note("restore_experiment", id)
        self.get_experiment(id).lifecycle_stage = "active"

    def set_experiment_tag(self, id: str, key: str, value: str) -> None:
        self.note("set_experiment_tag", key)
        self.get_experiment(id).tags[key] = value

    def search_runs(self, ids: Sequence[str], text: str, max_results: int, page_token: str | None = None) -> Page:
        key, _, value = text.removeprefix("tags.`").partition("` = ")
        found = [run for run in self.runs if run.data.tags.get(key) == value.strip("'")]
        size, start = min(max_results, self.page_size), int(page_token or 0)
        page = Page(found[start : start + size])
        page.token = str(start + size) if start + size < len(found) else None
        self.calls.append(("search_runs", text))
        return page

    def create_run(self, experiment: str, start_time: int | None = None, tags: dict[str, str] | None = None) -> Any:
        self.note("create_run", (tags or {})["mlflow.runName"])
        info = SimpleNamespace(run_id=f"m{len(self.runs)}", start_time=start_time, end_time=None, status="RUNNING")
        self.runs.append(SimpleNamespace(info=info, data=SimpleNamespace(tags={**(tags or {})}, params={}, metrics={})))
        self.files[info.run_id] = {}
        return self.runs[-1]

    def delete_run(self, id: str) -> None:
        self.runs.remove(self.run(id))

    def set_tag(self, id: str, key: str, value: str) -> None:
        self.note("set_tag", key, value)
        self.run(id).data.tags[key] = value

    def log_param(self, id: str, key: str, value: str) -> None:
        self.note("log_param", key)
        assert key not in self.run(id).data.params, "MLflow refuses another value"
        self.run(id).data.params[key] = value

    def log_batch(self, id: str, metrics: Sequence[Any], params: Sequence[Any]) -> None:
        self.note("log_batch")
        for param in params:
            self.log_param(id, param.key, param.value)
        for metric in metrics:
            point = (metric.step, metric.value, metric.timestamp)
            self.run(id).data.metrics.setdefault(metric.key, []).append(point)

    def set_terminated(self, id: str, status: str = "FINISHED", end_time: int | None = None) -> None:
        self.note("set_terminated", status)
        self.run(id).info.status, self.run(id).info.end_time = status, end_time

    def update_run(self, id: str, status: str) -> None:
        self.note("update_run", status)
        self.run(id).info.status = status

    def log_dict(self, id: str, content: dict[str, Any], name: str) -> None:
        self.note("log_dict", name)
        self.files[id][name] = json.loads(json.dumps(content))

    def log_figure(self, id: str, figure: Any, name: str) -> None:
        self.note("log_figure", name)
        self.files[id][name] = figure

    def log_artifact(self, id: str, path: str, folder: str = "") -> None:
        self.note("log_artifact", path)
        self.files[id][str(Path(folder, Path(path).name))] = path

    def log_artifacts(self, id: str, path: str, folder: str) -> None:
        self.note("log_artifacts", path)
        self.files[id][f"{folder}/"] = path

    def download_artifacts(self, id: str, name: str, folder: str) -> str:
        path = Path(folder, name)
        path.write_text(json.dumps(self.files[id][name]))
        return str(path)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    """The client of every `Mirror` of the test."""
    client = Client()
    monkeypatch.setattr("mlflow.MlflowClient", client)
    monkeypatch.setattr("xclrun.report.heatmaps.heatmap", lambda run, metric: metric)
    monkeypatch.setattr("xclrun.report.style.settle", lambda figure: None)
    return client


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Outputs with the directories of runs."""
    for run_id in "abcdef":
        place(tmp_path, example_record(run_id))
    return tmp_path


def connect(outputs: Path, uri: str | None = None) -> Mirror:
    return Mirror(outputs, TrackingConfig(uri=uri))


# --- A run.


def test_a_run_has_its_times_in_milliseconds_and_its_tags(client: Client, outputs: Path) -> None:
    connect(outputs).send(Update(example_record("a"), {"intent.FP": 50.0}))
    run = client.tagged("run_id", "a")
    assert (run.info.start_time, run.info.end_time) == (STARTED, STARTED + 60_000)
    assert run.info.status == "FINISHED"
    wanted = {"kind": "run", "status": "finished", "strategy": "naive", "order": "list", "seed": "1", "shots": ""}
    assert {key: run.data.tags[f"xclrun.{key}"] for key in wanted} == wanted
    assert run.data.tags["mlflow.runName"] == "a"
    assert "mlflow.parentRunId" not in run.data.tags
    assert "naive" in run.data.tags[NOTE]
    # One time stamp for all: what is sent again is stored once.
    assert run.data.metrics["intent.FP"] == [(0, 50.0, STARTED + FORMAT)]
    assert {point[2] for points in run.data.metrics.values() for point in points} == {STARTED + FORMAT}
    assert [point[0] for point in run.data.metrics["intent.score.de"]] == [0, 1, 2, 3]
    assert [point[0] for point in run.data.metrics["train.loss"]] == [4, 8, 12, 16, 20, 24]


def test_a_run_that_exists_keeps_its_start_and_ends_after_its_seconds(client: Client, outputs: Path) -> None:
    to = connect(outputs)
    to.send(Update(until(example_record("a"), 1), {}))
    later = {"started": "2026-02-01T00:00:00+0000"}
    write_json(outputs / "runs" / "a" / "manifest.json", {"run_id": "a", "seconds": 0.0016, "stages": []})
    to.send(Update(replace(example_record("a"), environment=later), {}))
    run = client.tagged("run_id", "a")
    assert (run.info.start_time, run.info.end_time) == (STARTED, STARTED + 2)


@pytest.mark.parametrize(
    ("status", "shown"),
    [("finished", "FINISHED"), ("failed", "FAILED"), ("interrupted", "KILLED"), ("running", "RUNNING")],
)
def test_each_state_of_a_run_has_a_status_of_mlflow(status: str, shown: str, client: Client, outputs: Path) -> None:
    to = connect(outputs)
    to.send(Update(replace(example_record("a"), status="failed"), {}))
    to.send(Update(replace(example_record("a"), status=status), {}))
    run = client.tagged("run_id", "a")
    assert (run.info.status, run.data.tags["xclrun.status"]) == (shown, status)
    # A running run does not end.
    assert ("set_terminated", shown) in client.calls or status == "running"
    assert [call for call in client.calls if call[0] == "update_run"] == [("update_run", "RUNNING")] * (
        status == "running"
    )


def test_parameters_are_sent_once_and_later_ones_are_added(client: Client, outputs: Path) -> None:
    """MLflow refuses another value; the paths of a run may differ when it is resumed."""
    to, record = connect(outputs), example_record("a")
    to.send(Update(replace(record, config={"paths": {"data": "/a"}, "none": None, "long": "x" * 7000}), {}))
    to.send(Update(replace(record, config={"paths": {"data": "/b"}, "trainer": {"lr": 0.1}}), {}))
    params = client.tagged("run_id", "a").data.params
    assert params == {"paths.data": "/a", "long": "x" * 6000, "trainer.lr": "0.1"}


@pytest.mark.parametrize("call", ["create_run", "log_batch", "log_dict", "log_figure", "set_terminated"])
def test_a_run_that_was_sent_in_part_is_sent_again(call: str, client: Client, outputs: Path) -> None:
    """Its version comes last; what was sent is sent again, with the same values."""
    to, record = connect(outputs), example_record("a")
    client.fails = lambda name: name == call
    with pytest.raises(RunError, match=f"{call} failed"):
        to.send_records([record], NO_REFERENCES)
    assert (to.before(["a"]).get("a") or {"version": None}) == {"version": None}
    client.fails = lambda name: False
    assert to.send_records([record], NO_REFERENCES) == 1
    assert client.calls[-1][0] == "set_experiment_tag", "the view comes after the runs"
    assert [call[1] for call in client.calls if call[0] == "set_tag"][-1] == "xclrun.version"
    assert to.send_records([record], NO_REFERENCES) == 0
    assert to.send_records([record], NO_REFERENCES, rebuild=True) == 1


def test_files_of_a_run_are_those_of_its_state(client: Client, outputs: Path) -> None:
    folder = outputs / "runs" / "a"
    written = ("config.yaml", "events.jsonl", "scores.parquet", "attention.parquet", "predictions/hop-1.parquet")
    for name in written:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("x")
    to = connect(outputs)
    to.send(Update(replace(example_record("a"), status="running"), {}))
    id = client.tagged("run_id", "a").info.run_id
    running = {"score_matrix.json", "config.yaml", "manifest.json", "events.jsonl", "scores.parquet"}
    assert set(client.files[id]) == running
    to.send(Update(example_record("a"), {}))
    tables = {f"{metric}_scores.{kind}" for metric in ("intent", "slots") for kind in ("json", "png")}
    assert set(client.files[id]) == running | tables | {"attention.parquet", "predictions/hop-1.parquet"}
    table = client.files[id]["intent_scores.json"]
    assert table["columns"] == ["hop", "en", "de", "es"]
    assert [row[0] for row in table["data"]] == [0, 1, 2, 3]
    logged = json.loads(client.run(id).data.tags["mlflow.loggedArtifacts"])
    assert logged == [{"path": f"{metric}_scores.json", "type": "table"} for metric in ("intent", "slots")]


# --- Many runs.


@pytest.mark.parametrize("many", [2, 3])
def test_what_was_sent_is_asked_run_by_run_or_in_pages(
    many: int, client: Client, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = connect(outputs)
    for run_id in ("a", "b", "c", "d", "e"):
        to.send(Update(example_record(run_id), {}))
    client.page_size, client.calls[:] = 2, []
    monkeypatch.setattr(mirror, "MANY", many)
    found = to.before(["a", "e"])
    asked = [call[1] for call in client.calls]
    if many == 2:
        assert found.keys() == {"a", "b", "c", "d", "e"}
        assert asked == ["tags.`xclrun.kind` = 'run'"] * 3
    else:
        assert found.keys() == {"a", "e"}
        assert asked == ["tags.`xclrun.run_id` = 'a'", "tags.`xclrun.run_id` = 'e'"]
    assert all(len(facts["version"]) == 64 for facts in found.values())


def test_runs_of_other_machines_come_from_a_server(client: Client, outputs: Path, tmp_path: Path) -> None:
    elsewhere = connect(tmp_path / "other", uri="http://server")
    for run_id in ("a", "c", "d", "e", "f"):
        place(tmp_path / "other", example_record(run_id))
        elsewhere.send(Update(example_record(run_id, seed=3), {}))
    # Sent in part; and unreadable.
    del client.tagged("run_id", "d").data.tags["xclrun.version"]
    client.files[client.tagged("run_id", "e").info.run_id]["score_matrix.json"] = {}
    here, warnings = connect(outputs, uri="http://server"), list[str]()
    here.send(Update(example_record("f"), {}))  # Sent from here once: it counts from its files, which are gone.
    for run_id in "bcdef":
        shutil.rmtree(outputs / "runs" / run_id)
    client.page_size = 1
    assert [record.run_id for record in here.records_elsewhere(warnings.append)] == ["c"]
    assert len(warnings) == 1
    assert "of e in MLflow" in warnings[0]
    # The next question is answered by the same query, once.
    client.calls[:] = []
    assert here.before(["a"])["c"]["version"]
    assert client.calls == []
    here.before(["a"])
    assert client.calls != []
    # The SQLite file holds this folder's runs alone.
    client.experiments[:] = []
    assert connect(outputs).records_elsewhere(warnings.append) == []


# --- The experiment.


def test_a_new_database_forgets_what_was_sent_to_the_old_one(client: Client, outputs: Path) -> None:
    marker = outputs / MARKERS / "a"
    for kept in (False, True):
        marker.parent.mkdir(parents=True, exist_ok=True)
        marker.touch()
        connect(outputs)
        assert marker.exists() is kept


def test_files_of_a_database_are_in_the_outputs_and_a_server_chooses(client: Client, outputs: Path) -> None:
    connect(outputs)
    assert client.experiments[0].artifact_location == (outputs / "mlartifacts").as_uri()
    assert (outputs / "mlflow.db").exists()
    client.experiments[0].artifact_location = "file:///elsewhere"
    connect(outputs, uri="http://server")
    with pytest.raises(UnusableDatabase, match="its files are in file:///elsewhere"):
        connect(outputs)
    client.experiments[:] = []
    connect(outputs, uri="http://server")
    assert client.experiments[0].artifact_location is None


def test_an_experiment_that_another_process_makes_at_the_same_time_is_used(client: Client, outputs: Path) -> None:
    connect(outputs)
    [made], client.fails = client.experiments, lambda call: call == "create_experiment"
    found = iter([None, made, None, None])
    client.get_experiment_by_name = lambda name: next(found)  # type: ignore[method-assign]
    assert connect(outputs).experiment == made.experiment_id
    with pytest.raises(RunError, match="create_experiment failed"):
        connect(outputs)


def test_a_deleted_experiment_is_restored_on_request_alone(client: Client, outputs: Path) -> None:
    connect(outputs)
    client.experiments[0].lifecycle_stage = "deleted"
    with pytest.raises(DeletedExperiment, match="was deleted") as raised:
        connect(outputs)
    client.fails = lambda call: True
    with pytest.raises(RunError, match="cannot be restored: restore_experiment failed"):
        raised.value.restore()
    client.fails = lambda call: False
    assert raised.value.restore() == client.experiments[0].name
    connect(outputs)


def test_what_people_write_on_the_experiment_stays(client: Client, outputs: Path) -> None:
    connect(outputs)
    tags = client.experiments[0].tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    tags[NOTE] = "mine"
    connect(outputs)
    assert tags[NOTE] == "mine"


def test_a_view_is_saved_where_it_changes_and_keeps_earlier_columns(
    client: Client, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "_shows_views", lambda: True)
    to, record = connect(outputs), example_record("a")
    to.send_records([record], NO_REFERENCES)
    tags = client.experiments[0].tags
    assert "intent.FP" in tags[VIEW_TAG]
    client.calls[:] = []
    one = replace(record, run_id="b", scores={"slot_f1": record.scores["slot_f1"]})
    assert to.send_records([one], NO_REFERENCES) == 1
    assert [call for call in client.calls if call[0] == "set_experiment_tag"] == []
    assert "intent.FP" in tags[VIEW_TAG]


def test_a_tag_that_another_process_creates_is_set_again(client: Client, outputs: Path) -> None:
    connect(outputs)
    failures = iter([True, False])
    client.fails = lambda call: call == "set_experiment_tag" and next(failures, False)
    client.experiments[0].tags.clear()
    connect(outputs)
    assert client.experiments[0].tags.keys() >= {NOTE, "mlflow.experimentKind"}


# --- Sweeps and reports.


def sweep_of(*runs: str, command: str = "xclrun -m") -> dict[str, Any]:
    return {"name": "s", "started": "2026-01-01T00:00:01+0000", "command": command, "runs": list(runs)}


def test_a_sweep_is_the_parent_of_its_runs_and_ends_with_the_last(
    client: Client, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to = connect(outputs)
    to.send_sweep(sweep_of("a", "b", command="x" * 7000))
    to.send_sweep(sweep_of("a", "b", "c"))
    sweep = client.tagged("sweep", "s")
    assert (sweep.info.start_time, sweep.info.status) == (STARTED + 1000, "RUNNING")
    assert sweep.data.params == {"command": "x" * 6000}
    assert (sweep.data.tags["xclrun.kind"], sweep.data.tags["mlflow.runName"]) == ("sweep", "s")
    assert client.files[sweep.info.run_id]["sweep.json"]["runs"] == ["a", "b", "c"]
    to.send(Update(example_record("a"), {}, sweep="s"))
    to.send(Update(example_record("b"), {}, sweep="other"))
    assert client.tagged("run_id", "a").data.tags["mlflow.parentRunId"] == sweep.info.run_id
    assert "mlflow.parentRunId" not in client.tagged("run_id", "b").data.tags
    client.calls[:] = []
    finished = {"a"}
    monkeypatch.setattr(RunDirectory, "finished", property(lambda self: self.run_id in finished))
    for done, ended in ((("a",), 0), (("a", "b"), 1), (("a", "b"), 1)):
        finished.update(done)
        to.send_sweep(sweep_of("a", "b"))
        assert [call for call in client.calls if call[0] == "set_terminated"] == [
            ("set_terminated", "FINISHED")
        ] * ended


def test_a_report_is_replaced_by_the_next_of_its_name(client: Client, outputs: Path, tmp_path: Path) -> None:
    to = connect(outputs)
    for facts in ({"runs": 1}, {"runs": 2}):
        to.send_report("r", tmp_path, facts)
    run = client.tagged("report", "r")
    assert (run.data.tags["xclrun.kind"], run.data.tags["mlflow.runName"]) == ("report", "report r")
    assert run.info.status == "FINISHED"
    assert client.files[run.info.run_id].keys() == {
        *("index.html", "summary.md", "summary.csv", "runs.csv", "tables/", "report.json")
    }
    assert client.files[run.info.run_id]["report.json"] == {"runs": 2}


@pytest.mark.parametrize("uri", [None, "http://server"])
def test_what_is_removed_is_deleted_with_the_files_that_are_ours(
    uri: str | None, client: Client, outputs: Path
) -> None:
    to = connect(outputs, uri)
    for run_id in ("a", "b"):
        to.send(Update(example_record(run_id), {}))
    to.send_sweep(sweep_of("a", "b"))
    files = outputs / "mlartifacts" / client.tagged("run_id", "a").info.run_id
    files.mkdir(parents=True)
    assert to.remove(["a", "unknown"], "s")
    assert [run.data.tags["mlflow.runName"] for run in client.runs] == ["b"]
    assert files.exists() is (uri is not None)
    assert not to._sent_file("a").exists()
    assert to._sent_file("b").exists()


# --- Errors and locks.


def test_a_database_that_stays_locked_is_told_and_a_server_needs_no_lock(
    client: Client, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror, "LOCKED", 0.0)
    with (outputs / "mlflow.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        connect(outputs, uri="http://server")
        with pytest.raises(RunError, match="another process has locked"):
            connect(outputs)
        client.experiments[:] = []
    connect(outputs)


@pytest.mark.parametrize("message", mirror.UNUSABLE)
def test_a_database_that_cannot_be_used_is_told_apart_from_a_server_that_fails(
    message: str, client: Client, outputs: Path
) -> None:
    def fail(name: str) -> None:
        raise OSError(f"first {message}")

    client.get_experiment_by_name = fail  # type: ignore[method-assign]
    with pytest.raises(UnusableDatabase):
        connect(outputs)
    with pytest.raises(RunError, match="MLflow at http://server cannot be used: first") as raised:
        connect(outputs, uri="http://server")
    assert not isinstance(raised.value, UnusableDatabase)


def test_log_lines_are_hidden_from_mlflow_alone(client: Client, outputs: Path) -> None:
    logging.disable(logging.INFO)
    try:
        connect(outputs)
        assert logging.root.manager.disable == logging.INFO
    finally:
        logging.disable(logging.NOTSET)


def test_an_unusable_database_is_renamed_with_what_belongs_to_it(tmp_path: Path) -> None:
    names = ["mlflow.db", "mlflow.db-journal", "mlflow.db-wal", "mlflow.db-shm"]
    for name in names:
        (tmp_path / name).write_text(name)
    moved = UnusableDatabase(tmp_path / "mlflow.db", "broken. See more").move_aside()
    suffix = moved.name.removeprefix("mlflow.db")
    assert suffix.startswith(".unusable-")
    expected = {f"mlflow.db{suffix}{name.removeprefix('mlflow.db')}" for name in names}
    assert {path.name for path in tmp_path.iterdir()} == expected
