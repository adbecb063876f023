"""The mirror in MLflow: its content, that sending is idempotent, and that it can be rebuilt."""

from __future__ import annotations

import fcntl
import http.client
import http.server
import io
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.conftest import copy_tracked, read_csv
from xclrun.analysis.record import RunRecord
from xclrun.analysis.records import read_records
from xclrun.analysis.reference import References
from xclrun.cli import main
from xclrun.command.plan import plan_runs
from xclrun.config.schema import TrackingConfig
from xclrun.core.errors import RunError
from xclrun.core.task import BY_NAME
from xclrun.report import heatmaps
from xclrun.report.workers import PlotWorkers
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import background
from xclrun.tracking.mirror import DeletedExperiment, Mirror, UnusableDatabase, _lock_file, run_pages, tracking_uri
from xclrun.tracking.payload import FORMAT, VIEW, VIEW_TAG, allowed
from xclrun.tracking.trackers import Update
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped

# MLflow calls deprecated functions of SQLAlchemy.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SMALL = (
    "dataset.languages=[en,de,th]",
    "dataset.max_train=16",
    "dataset.max_eval=8",
    "model.hidden_size=16",
    "model.intermediate_size=32",
    "model.vocab_size=300",
    "trainer.epochs=2",
    "trainer.batch_size=4",
    "runtime.device=cpu",
    "tracking=none",
)
SWEEP = (*SMALL, "strategy=naive,er", "order=[en,de,th]")
# An experiment outside the study.
ANOTHER = TrackingConfig(experiment="another")
XCLRUN = [sys.executable, "-c", "import sys; from xclrun.cli import main; sys.exit(main())"]


@pytest.fixture(scope="module", autouse=True)
def drawn() -> Iterator[list[str]]:
    """Draw one figure of each strategy and replace the others, which take most of the time; return the strategies."""
    from matplotlib.figure import Figure

    strategies: list[str] = []

    def draw(run: RunRecord, metric: str) -> Figure:
        if run.strategy in strategies:
            return Figure(figsize=(1, 1))
        strategies.append(run.strategy)
        return heatmaps_heatmap(run, metric)

    heatmaps_heatmap = heatmaps.heatmap
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(heatmaps, "heatmap", draw)
        yield strategies


def content(mirror: Any) -> dict[str, dict[str, Any]]:
    """Return all data in MLflow by run name, with the whole history of each metric."""
    result = {}
    for run in mirror.client.search_runs([mirror.experiment], max_results=1000):
        id = run.info.run_id
        files: list[str] = []
        folders = [""]
        while folders:
            for file in mirror.client.list_artifacts(id, folders.pop() or None):
                (folders if file.is_dir else files).append(file.path)
        name = run.data.tags.get("xclrun.run_id", run.data.tags["mlflow.runName"])
        assert name not in result, "a duplicate run"
        result[name] = {
            "id": id,
            "status": run.info.status,
            "times": (run.info.start_time, run.info.end_time),
            "params": run.data.params,
            "tags": run.data.tags,
            "metrics": {
                key: [(m.step, m.value, m.timestamp) for m in mirror.client.get_metric_history(id, key)]
                for key in run.data.metrics
            },
            "files": sorted(files),
            "place": Path(run.info.artifact_uri.removeprefix("file://")),
        }
    return result


def lasting(result: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the data that a rebuilt MLflow must contain: all except IDs, paths and versions."""
    stored = {}
    for name, facts in result.items():
        tags = {
            key: value for key, value in facts["tags"].items() if key.startswith("xclrun.") and key != "xclrun.version"
        }
        parent = next((n for n, f in result.items() if f["id"] == facts["tags"].get("mlflow.parentRunId")), None)
        stored[name] = {key: facts[key] for key in ("status", "params", "metrics", "files")} | {
            "tags": tags,
            "in": parent,
        }
    return stored


class Study:
    """Two finished runs and a failed one, sent; then their reference run, sent too."""

    def __init__(self, outputs: Path) -> None:
        self.outputs = outputs
        place = f"paths.outputs={outputs}"
        assert main([*SWEEP, place, "-m"]) == 0
        assert main([*SMALL, "order=[en,de,th]", "seed=7", "trainer.lr=1e30", place, "-m"]) == 1
        self.mirror = Mirror(outputs, TrackingConfig())
        self.sent = [self.mirror.send_all()]
        self.before = content(self.mirror)
        self.sent.append(self.mirror.send_all())
        self.again = content(self.mirror)
        assert main([*SMALL, "strategy=lang_spec_ft", "order=[en,de,th]", place, "-m"]) == 0
        self.sent.append(self.mirror.send_all())
        self.after = content(self.mirror)
        self.sent.append(self.mirror.send_all())
        self.records = {record.run_id: record for record in read_records(outputs)}

    def run(self, strategy: str, status: str = "finished") -> str:
        [name] = [r.run_id for r in self.records.values() if (r.strategy, r.status) == (strategy, status)]
        return name

    @property
    def parent(self) -> str:
        [name] = [name for name in self.after if name.startswith("sweep-")]
        return name


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The study, once per module: creating a database takes MLflow seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HYDRA_FULL_ERROR", "1")  # set by the command; restored here
        return Study(tmp_path_factory.mktemp("study"))


def test_one_experiment_holds_runs_and_their_parent(study: Study) -> None:
    names = {run.name for run in study.mirror.client.search_experiments()}
    assert names == {"Default", "xclrun"}
    assert set(study.after) == {study.parent, *study.records}
    children = {
        n for n, f in study.after.items() if f["tags"].get("mlflow.parentRunId") == study.after[study.parent]["id"]
    }
    assert children == {study.run("naive"), study.run("er")}


def test_status(study: Study) -> None:
    assert study.after[study.run("naive")]["status"] == "FINISHED"
    assert study.after[study.run("naive", "failed")]["status"] == "FAILED"
    assert study.after[study.run("naive", "failed")]["tags"]["xclrun.status"] == "failed"
    assert study.after[study.parent]["status"] == "FINISHED"


def test_params_are_the_whole_config_without_what_is_null(study: Study) -> None:
    name = study.run("er")
    params = study.after[name]["params"]
    assert params["strategy.memory"] == "250"
    assert params["trainer.epochs"] == "2"
    assert params["order.languages"] == "['en', 'de', 'th']"
    config = yaml.safe_load((study.outputs / "runs" / name / "config.yaml").read_text())

    def leaves(node: Any) -> int:
        return sum(leaves(value) if isinstance(value, dict) else value is not None for value in node.values())

    assert len(params) == leaves(config)
    assert "None" not in params.values()
    assert "dataset.root" not in params


def test_a_language_of_any_name_is_a_key_that_mlflow_takes(outputs: Path) -> None:
    keys = ["intent.score.zh-Hant", "intent.score.zh(TW)", "intent.score.zh[TW]", "intent.score.<b>\u202e%"]
    mirror = Mirror(outputs, TrackingConfig())
    run = mirror.client.create_run(mirror.experiment).info.run_id
    for key in keys:
        mirror.client.log_metric(run, allowed(key), 1.0)
    assert keys[0] in (taken := mirror.client.get_run(run).data.metrics)
    assert len(taken) == len(keys), "two languages stay two"


def test_tags(study: Study) -> None:
    name = study.run("er")
    tags = study.after[name]["tags"]
    expected = {
        "kind": "run",
        "run_id": name,
        "strategy": "er",
        "order": "en-de-th",
        "seed": "1",
        "bucket": "",
        "model": "tiny",
    }
    assert {key: tags[f"xclrun.{key}"] for key in expected} == expected


def test_metrics_are_those_of_the_record_in_percent_as_tables_print_them(study: Study) -> None:
    name = study.run("naive")
    metrics, mine = study.after[name]["metrics"], study.records[name]
    assert set(mine.scores) == {"intent_accuracy", "slot_f1"}
    for task, metric in ((BY_NAME[name].short, name) for name in mine.scores):
        for measure in ("F", "T", "T0", "FP"):
            assert len(metrics[f"{task}.{measure}"]) == 1
        final = 100 * sum(mine.scores[metric][3]) / 3
        assert metrics[f"{task}.FP"][0][1] == round(final, 2)
        for j, language in enumerate(mine.languages):
            history = metrics[f"{task}.score.{language}"]
            assert [(step, value) for step, value, _ in history] == [
                (i, round(100 * mine.scores[metric][i, j], 2)) for i in range(4)
            ]
    # Later than the values of earlier formats, which MLflow keeps: the last one counts.
    began, _ = study.after[name]["times"]
    assert {time for history in metrics.values() for _, _, time in history} == {began + FORMAT}
    # 3 hops of 2 epochs of 4 steps.
    assert [step for step, _, _ in metrics["train.loss"]] == [4, 8, 12, 16, 20, 24]
    dev = [(step, value) for step, value, _ in metrics["intent.dev.de"]]
    assert dev == [
        (12, round(100 * mine.curve[2]["dev"]["de"]["intent_accuracy"], 2)),
        (16, round(100 * mine.curve[3]["dev"]["de"]["intent_accuracy"], 2)),
    ]
    assert all(math.isfinite(value) for _, value, _ in metrics["train.loss"])


def test_runs_say_what_they_are_and_what_their_numbers_mean(study: Study) -> None:
    note = study.after[study.run("er")]["tags"]["mlflow.note.content"]
    assert note.startswith("**er** on mini with tiny: order en-de-th (en → de → th), seed 1.\n")
    for part in ("Metrics are percent", "- `F` ↓ forgetting: ", "- `T0` ↑ zero-shot transfer: ", "- `train.loss` "):
        assert part in note
    assert "mlflow.note.content" in study.before[study.run("naive", "failed")]["tags"]


def test_a_saved_view_has_the_headline_measures_as_columns(study: Study) -> None:
    experiment = study.mirror.client.get_experiment(study.mirror.experiment)
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"
    view = json.loads(experiment.tags[f"mlflow.sharedViewState.{VIEW}"])
    assert (view["name"], type(view["createdAt"])) == ("xclrun: headline measures", int)
    state = json.loads(view["state"])
    facts = study.after[study.run("er")]
    columns = state["selectedColumns"]
    assert columns[:3] == ["tags.`xclrun.strategy`", "tags.`xclrun.order`", "tags.`xclrun.seed`"]
    assert columns[3:] == [
        f"metrics.`{task}.{name}`" for task in ("intent", "slots") for name in ("F", "T", "T0", "FP")
    ]
    for column in columns:
        kind, name = column.split(".", 1)
        assert name.strip("`") in facts[kind]
    result = study.mirror.client.search_runs([study.mirror.experiment], state["searchFilter"])
    assert {run.data.tags["xclrun.run_id"] for run in result} == set(study.records)  # no sweeps among them
    names = {run.data.tags["mlflow.runName"] for run in result}
    assert names == {run_id.removeprefix("mini-") for run_id in study.records}
    [address] = run_pages(study.outputs, "http://here:5")
    assert address == f"http://here:5/#/experiments/{study.mirror.experiment}/runs?viewStateShareKey={VIEW}"
    assert address.removeprefix("http://here:5/") in experiment.tags["mlflow.note.content"]


def test_another_version_of_mlflow_gets_no_saved_view(
    study: Study, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mlflow.__version__", "4.0.0")
    mirror = Mirror(outputs, TrackingConfig(experiment="other"))
    assert mirror.send_one(study.run("er")) == 1
    tags = mirror.client.get_experiment(mirror.experiment).tags
    assert "viewStateShareKey" not in tags["mlflow.note.content"]
    assert VIEW_TAG not in tags
    assert f"http://here:5/#/experiments/{mirror.experiment}/runs" in run_pages(outputs, "http://here:5")


def test_what_people_wrote_on_the_experiment_stays_and_a_view_keeps_the_columns_of_other_tasks(
    study: Study, outputs: Path
) -> None:
    mirror, mine = Mirror(outputs, ANOTHER), study.records[study.run("er")]
    mirror.client.set_experiment_tag(mirror.experiment, "mlflow.note.content", "mine")
    classes = replace(mine, status="running", scores={"class_accuracy": mine.scores["intent_accuracy"]}, curve=())
    for record in (mine, classes):
        assert mirror.send_records([record], References([record])) == 1
    tags = Mirror(outputs, ANOTHER).client.get_experiment(mirror.experiment).tags
    assert tags["mlflow.note.content"] == "mine"
    assert {f"{task}.FP" in tags[VIEW_TAG] for task in ("intent", "slots", "class")} == {True}


def test_transfer_comes_with_the_reference_run(study: Study) -> None:
    name = study.run("naive")
    assert "intent.F" in study.before[name]["metrics"]
    assert "intent.T" not in study.before[name]["metrics"]
    assert "intent.T" in study.after[name]["metrics"]
    assert study.sent == [3, 0, 3, 0]


def test_sending_again_changes_nothing(study: Study) -> None:
    assert study.again == study.before
    assert content(study.mirror) == study.after
    # What was sent once more for its transfer holds each of the other values once.
    for key, history in study.before[study.run("er")]["metrics"].items():
        assert study.after[study.run("er")]["metrics"][key] == history


def test_artifacts(study: Study, drawn: list[str]) -> None:
    assert set(drawn) >= {"er", "naive", "lang_spec_ft"}
    name = study.run("er")
    facts = study.after[name]
    assert facts["files"] == [
        "config.yaml",
        "events.jsonl",
        "intent_scores.json",
        "intent_scores.png",
        "manifest.json",
        *[f"predictions/hop-{i}.parquet" for i in range(4)],
        "score_matrix.json",
        "scores.parquet",
        "slots_scores.json",
        "slots_scores.png",
    ]
    place, directory = facts["place"], study.outputs / "runs" / name
    for file in ("config.yaml", "manifest.json", "predictions/hop-2.parquet"):
        assert (place / file).read_bytes() == (directory / file).read_bytes()
    assert (place / "intent_scores.png").read_bytes().startswith(b"\x89PNG")
    table = json.loads((place / "intent_scores.json").read_text())
    assert table["columns"] == ["hop", "en", "de", "th"]
    mine = study.records[name]
    assert table["data"] == [[i, *row] for i, row in enumerate(mine.scores["intent_accuracy"].tolist())]
    assert RunRecord.from_json((place / "score_matrix.json").read_bytes()).to_json() == mine.to_json()
    assert json.loads((study.after[study.parent]["place"] / "sweep.json").read_text())["name"] == study.parent


@pytest.mark.parametrize("server", [False, True])
def test_a_run_whose_files_were_deleted_counts_neither_from_the_database_nor_from_a_server(
    server: bool, study: Study, outputs: Path, tmp_path: Path
) -> None:
    mirror = Mirror(outputs, shared(study, tmp_path) if server else ANOTHER)
    assert mirror.send_all() == 4
    shutil.rmtree(outputs / "runs" / study.run("er"))
    assert mirror.records_elsewhere() == []
    assert study.run("er") not in plain(mirror)


@pytest.mark.full
def test_runs_of_another_outputs_folder_come_from_a_server_as_they_were_sent_and_the_report_names_them(
    study: Study, outputs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PlotWorkers, "begin", lambda self, plots: None)
    monkeypatch.setattr(PlotWorkers, "finish", lambda self, plots: {plot.name: [] for plot in plots})
    server = shared(study, tmp_path)
    assert Mirror(outputs, server).send_all() == 4
    mine = copy_tracked(study.outputs, tmp_path / "mine")
    shutil.rmtree(mine / "runs" / study.run("er"))
    options = ("--uri", str(server.uri), "--experiment", server.experiment)
    [other] = Mirror(mine, server).records_elsewhere()
    assert other.to_json() == study.records[study.run("er")].to_json()
    assert main(["report", "--all", *options, "--outputs", str(mine), "--json"]) == 0
    notes = [text for text in json.loads(capsys.readouterr().out)["notes"] if "only in MLflow" in text]
    assert [text for text in notes if study.run("er") in text and study.run("naive") not in text] == notes != []


def test_the_database_has_the_permissions_of_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # MLflow takes seconds to create its tables.
    monkeypatch.setattr("xclrun.tracking.mirror.Mirror._experiment", lambda self: "1")
    monkeypatch.setattr("xclrun.tracking.mirror.Mirror._describe", lambda self: None)
    monkeypatch.setattr("mlflow.MlflowClient", lambda uri: None)
    before = os.umask(0o002)
    try:
        Mirror(tmp_path, TrackingConfig())
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o664}


def test_a_removed_run_and_its_sweep_go_from_mlflow_with_their_files(study: Study, outputs: Path) -> None:
    mirror, run = Mirror(outputs, ANOTHER), study.run("er")
    assert mirror.send_all() == 4
    before = content(mirror)
    assert mirror.remove([run, "never-sent"], study.parent)
    after = content(mirror)
    assert before.keys() - after.keys() == {run, study.parent}
    assert not before[run]["place"].exists()
    assert all(facts["place"].exists() for facts in after.values())
    # If the run is trained again, it is sent again.
    assert mirror.send_all() == 1


def test_a_deleted_experiment_is_named_and_a_rebuild_restores_it(
    study: Study, outputs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mirror = Mirror(outputs, ANOTHER)
    mirror.client.delete_experiment(mirror.experiment)
    with pytest.raises(DeletedExperiment, match="'another' was deleted"):
        Mirror(outputs, ANOTHER)
    command = ["mlflow", "sync", "--experiment", "another", "--outputs", str(outputs)]
    assert main(command) == 1
    assert main([*command, "--rebuild"]) == 0
    assert "4 runs sent" in capsys.readouterr().out


def test_the_first_cause_of_a_database_error_is_shown(study: Study, tmp_path: Path) -> None:
    from mlflow.exceptions import MlflowException

    text = "(raised in an autoflush)\n(sqlite3.OperationalError) attempt to write a readonly database\n[SQL: …]"
    with pytest.raises(UnusableDatabase, match="readonly database") as raised, study.mirror._one_line_errors():
        raise MlflowException(text)
    assert "autoflush" not in str(raised.value)
    server = Mirror(study.outputs, shared(study, tmp_path))
    with pytest.raises(RunError, match="readonly database") as raised, server._one_line_errors():
        raise MlflowException(text)
    assert not isinstance(raised.value, UnusableDatabase)


def test_an_unusable_database_is_renamed_with_the_artifacts_that_another_user_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlartifacts").mkdir()
    for name in ("mlflow.db", "mlflow.db-wal"):
        (tmp_path / name).touch()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    aside = UnusableDatabase(tmp_path / "mlflow.db", "why").move_aside()
    ending = aside.name.removeprefix("mlflow.db")
    expected = {aside.name, f"{aside.name}-wal", f"mlartifacts{ending}"}
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_the_lock_of_another_user_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, opened = tmp_path / "mlflow.lock", Path.open
    path.touch()

    def read_only(self: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if mode != "r":
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, mode, *arguments, **named)

    monkeypatch.setattr(Path, "open", read_only)
    with _lock_file(path) as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.unlink()
    with pytest.raises(PermissionError):
        _lock_file(path)


def shared(study: Study, folder: Path) -> TrackingConfig:
    """Return the config of a server that several outputs folders use: the study's database, which exists already."""
    tracking = TrackingConfig(uri=study.mirror.uri, experiment=f"shared-{folder.name}")
    study.mirror.client.create_experiment(tracking.experiment, artifact_location=(folder / "artifacts").as_uri())
    return tracking


@pytest.fixture
def outputs(study: Study, tmp_path: Path) -> Path:
    """A copy of the study's outputs, to be changed.

    MLflow remembers, by a run's id, where its files lie: a test that changes these sends the runs to `ANOTHER`.
    """
    return copy_tracked(study.outputs, tmp_path / "outputs")


@pytest.mark.full
def test_send_that_was_cut_short_is_done_again(outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main([*SMALL, "order=[en,de,th]", "seed=3", f"paths.outputs={outputs}", "-m"]) == 0
    mirror = Mirror(outputs, TrackingConfig())
    with monkeypatch.context() as patch:

        def fail(*arguments: Any) -> None:
            raise OSError("the line is dead")

        patch.setattr(mirror.client, "log_figure", fail)
        with pytest.raises(Exception, match="the line is dead"):
            mirror.send_all()
    assert mirror.send_all() == 1
    [name] = [name for name in content(mirror) if "-s3-" in name]
    facts = content(mirror)[name]
    assert facts["params"]["seed"] == "3"
    assert "intent.F" in facts["metrics"]


def plain(mirror: Mirror) -> dict[str, Any]:
    """Return what a report reads: the runs that are here, and those that MLflow alone has."""
    return {m.run_id: m.to_json() for m in [*read_records(mirror.outputs), *mirror.records_elsewhere()]}


@pytest.mark.full
def test_a_report_is_the_same_from_the_runs_and_brings_mlflow_up_to_date_only_where_it_is_behind(
    study: Study, outputs: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Figures take most of a report's time.
    monkeypatch.setattr(PlotWorkers, "begin", lambda self, plots: None)
    monkeypatch.setattr(PlotWorkers, "finish", lambda self, plots: {plot.name: [] for plot in plots})

    def report(name: str, *options: str) -> tuple[bytes, str]:
        assert main(["report", "--all", "--outputs", str(outputs), "--name", name, *options]) == 0
        return (outputs / "reports" / name / "summary.csv").read_bytes(), capsys.readouterr().err

    summary, output = report("there")
    assert output == ""  # all was sent before
    mirror = Mirror(outputs, TrackingConfig())
    mirror.client.set_tag(study.after[study.run("er")]["id"], "xclrun.version", "older")
    again, output = report("behind")
    assert again == summary
    assert output == f"note: MLflow was not up to date; 1 run was sent to {mirror.uri}\n"
    assert report("once_more") == (summary, "")
    shutil.move(outputs / "mlflow.db", outputs / "elsewhere.db")
    for name, *options in (("runs", "--from", "runs"), ("old_spelling", "--from-runs")):
        assert report(name, *options) == (summary, "")
    assert not (outputs / "mlflow.db").exists()
    # Another F1, of the same predictions.
    other, output = report("macro", "--from", "runs", "--slot-f1", "tag_macro")
    key = ["metric", "strategy", "order", "measure", "language"]
    micro, macro = (read_csv(io.BytesIO(text), keep_default_na=False).set_index(key) for text in (summary, other))
    intents = [frame.query("metric == 'intent_accuracy'") for frame in (micro, macro)]
    pd.testing.assert_frame_equal(*intents)
    [mine] = [record for record in read_records(outputs, slot_f1="tag_macro") if record.run_id == study.run("er")]
    final = float(macro["value"]["slot_f1", "er", "mean", "FP", ""])
    assert final == pytest.approx(mine.scores["slot_f1"][-1].mean(), abs=1e-12)
    assert final != float(micro["value"]["slot_f1", "er", "mean", "FP", ""])
    assert "macro F1 over single tags" in (outputs / "reports" / "macro" / "summary.md").read_text()


def test_an_average_that_was_made_after_a_run_was_sent_is_something_new(study: Study) -> None:
    mine, measured = study.records[study.run("er")], {"intent.F": 0.5}
    averaged = ({"hop": 1, "of": "all", "test": {}}, {"hop": 2, "of": "all", "test": {}})
    versions = [Update(replace(mine, averaged=averaged[:n]), measured).version for n in range(3)]
    assert Update(mine, measured).version == versions[0]
    assert len({*versions, Update(mine, {}).version}) == 4


@pytest.mark.full
@pytest.mark.in_turn
def test_a_database_of_outputs_that_were_moved_is_made_again_by_a_rebuild(study: Study, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(study.outputs, tmp_path / "moved"))
    shutil.rmtree(moved / "mlartifacts")
    with pytest.raises(UnusableDatabase, match=f"{study.outputs}.*`xclrun mlflow sync --rebuild` replaces it"):
        Mirror(moved, TrackingConfig())
    assert main(["mlflow", "sync", "--rebuild", "--outputs", str(moved)]) == 0
    from mlflow import MlflowClient

    # Under another name: MLflow has open connections to the earlier file in this process.
    client = MlflowClient(f"sqlite:///{(moved / 'mlflow.db').rename(moved / 'rebuilt.db')}")
    experiment = client.get_experiment_by_name("xclrun").experiment_id
    rebuilt = content(SimpleNamespace(client=client, experiment=experiment))
    assert lasting(rebuilt) == lasting(study.after)
    assert all(moved in facts["place"].parents for facts in rebuilt.values())


@pytest.mark.parametrize("name", ["plain #1", "o?1", "o%3F1", "100%", "é&=;"])
def test_the_database_is_in_the_outputs_folder_whatever_the_folder_is_called(name: str, tmp_path: Path) -> None:
    import sqlalchemy

    folder = tmp_path / "in" / name
    folder.mkdir(parents=True)
    engine = sqlalchemy.create_engine(tracking_uri(folder, None))
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("CREATE TABLE made (x)"))
    engine.dispose()
    assert [path.name for path in folder.iterdir()] == ["mlflow.db"]
    assert [path.name for path in folder.parent.iterdir()] == [name]


@pytest.mark.full
def test_mlflow_makes_no_folder_next_to_outputs_with_a_question_mark(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "o?1%20"
    Mirror(folder, TrackingConfig())
    assert (folder / "mlflow.db").is_file()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


@pytest.mark.full
def test_run_that_cannot_be_read_does_not_stop_the_others(
    outputs: Path, study: Study, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged, mirror = study.run("naive"), Mirror(outputs, ANOTHER)
    assert mirror.send_all() == 4
    (outputs / "runs" / damaged / "manifest.json").write_text("{")
    assert mirror.send_all(rebuild=True) == 3
    assert f"{damaged}/manifest.json is missing or damaged" in capsys.readouterr().err
    # Nor is MLflow's copy of it taken for it: it is checked by nothing.
    rest = {run_id: mine.to_json() for run_id, mine in study.records.items() if run_id != damaged}
    assert plain(mirror) == rest
    for path in outputs.glob("mlartifacts/*/artifacts/score_matrix.json"):
        path.write_text("{")
    assert plain(mirror) == rest
    capsys.readouterr()
    # If another outputs folder sent the run, there are no files to count from.
    shutil.rmtree(outputs / "runs" / study.run("lang_spec_ft"))
    shutil.rmtree(outputs / "tracked")
    monkeypatch.setattr(mirror, "tracking", replace(mirror.tracking, uri=mirror.uri))
    assert len(plain(mirror)) == len(rest) - 1
    assert "`xclrun mlflow sync --rebuild` sends it again" in capsys.readouterr().err


@pytest.mark.full
def test_interrupted_run_keeps_one_value_for_each_step(outputs: Path) -> None:
    [run] = plan_runs([*SMALL, "order=[en,de,th]", "seed=4", f"paths.outputs={outputs}"])
    from xclrun.train.execute import execute

    stop = StopFlag()

    class Stopper(Listener):
        def stepped(self, progress: Progress) -> None:
            if progress.hop.index == 2:
                stop.number = signal.SIGTERM

    with pytest.raises(Stopped):
        execute(run, Stopper(), stop)
    # Times are in seconds: it began an hour ago.
    manifest = run.directory.read_manifest()
    # Not `fromisoformat`, which reads no offset +0000 before Python 3.11.
    began = datetime.strptime(manifest["started"], "%Y-%m-%dT%H:%M:%S%z") - timedelta(hours=1)
    run.directory.write_manifest(manifest | {"started": began.strftime("%Y-%m-%dT%H:%M:%S%z")})
    mirror = Mirror(outputs, TrackingConfig())
    assert mirror.send_all() == 1
    assert content(mirror)[run.id]["status"] == "KILLED"
    assert len(content(mirror)[run.id]["metrics"]["intent.score.en"]) == 2
    execute(run, Listener(), StopFlag())
    assert mirror.send_all() == 1
    facts = content(mirror)[run.id]
    assert facts["status"] == "FINISHED"
    for key, history in facts["metrics"].items():
        steps = [step for step, _, _ in history]
        assert len(set(steps)) == len(steps), key


@pytest.mark.full
def test_rebuild_where_all_is_there_changes_no_number(outputs: Path, study: Study) -> None:
    directory, mirror = outputs / "runs" / study.run("er"), Mirror(outputs, ANOTHER)
    assert mirror.send_all() == 4
    config = (directory / "config.yaml").read_text()
    assert "threads: 1" in config
    (directory / "config.yaml").write_text(config.replace("threads: 1", "threads: 2"))
    RunDirectory(directory).finish()
    assert mirror.send_all(rebuild=True) == 4
    assert lasting(content(mirror)) == lasting(study.after)


@pytest.mark.full
@pytest.mark.in_turn
def test_first_mirrors_of_several_processes_make_one_experiment(study: Study, outputs: Path) -> None:
    (outputs / "mlflow.db").unlink()
    command = [*XCLRUN, "mlflow", "sync", "--outputs", str(outputs)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in range(4)]
    output = [process.communicate(timeout=200)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0, 0], output
    mirror = Mirror(outputs, TrackingConfig())
    assert {run.name for run in mirror.client.search_experiments()} == {"Default", "xclrun"}
    assert lasting(content(mirror)) == lasting(study.after)


def test_nobody_waits_for_the_mirror_after_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    class Process:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.stdin = os.fdopen(os.open("/dev/null", os.O_WRONLY), "wb")

        def wait(self, timeout: float) -> int:
            waited.append(timeout)
            return 0

    monkeypatch.setattr(background.subprocess, "Popen", Process)
    with background.BackgroundMirror(tmp_path, TrackingConfig(), ["a"]) as mirror:
        pass
    assert waited == []
    assert mirror.close()
    with pytest.raises(KeyError), background.BackgroundMirror(tmp_path, TrackingConfig(), ["a"]):
        raise KeyError
    assert waited == [120.0, 0.0]


def send_in_background(monkeypatch: pytest.MonkeyPatch, outputs: Path, runs: Sequence[str], *lines: str) -> None:
    """Do what the background process does, which reads its request and ids of runs from the standard input."""
    request = {"outputs": str(outputs), "tracking": asdict(TrackingConfig()), "runs": runs}
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join([json.dumps(request), *lines, ""])))
    background.send()


def test_a_sweep_whose_mirror_is_up_to_date_starts_no_process(
    study: Study, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs, started = [study.run("naive"), study.run("er")], []
    monkeypatch.setattr(background.BackgroundMirror, "_start", lambda self: started.append(self.runs))

    def starts(tracking: TrackingConfig = TrackingConfig()) -> bool:  # noqa: B008
        started.clear()
        with background.BackgroundMirror(outputs, tracking, runs):
            return bool(started)

    assert starts()
    send_in_background(monkeypatch, outputs, runs)
    assert not starts()
    assert starts(TrackingConfig(uri="http://localhost:1"))
    assert starts(TrackingConfig(experiment="other"))
    # Transfer is measured against other runs, and averages are made after a run has ended.
    reference = RunDirectory(outputs / "runs" / study.run("lang_spec_ft")).done
    reference.rename(reference.with_name("moved"))
    assert starts()
    reference.with_name("moved").rename(reference)
    assert not starts()
    averages = RunDirectory(outputs / "runs" / runs[0]).averages
    averages.mkdir()
    (averages / "all-hop-1-aa.parquet").touch()
    assert starts()
    shutil.rmtree(averages)
    # A run that was retrained.
    done = RunDirectory(outputs / "runs" / runs[0]).done
    before = done.read_text()
    done.write_text(before.replace('"bytes": ', '"bytes": 1'))
    assert starts()
    done.write_text(before)
    assert not starts()
    # Another database, and none.
    (outputs / "mlflow.db").unlink()
    assert starts()
    assert main(["mlflow", "sync", "--to", "mlflow", "--outputs", str(outputs)]) == 0
    assert starts()


def test_a_run_that_could_not_be_read_is_sent_by_the_next_command(
    study: Study, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [study.run("naive"), study.run("er")]
    manifest = outputs / "runs" / runs[0] / "manifest.json"
    content = manifest.read_text()
    manifest.write_text("{")
    send_in_background(monkeypatch, outputs, runs)
    manifest.write_text(content)
    assert not background.up_to_date(outputs, TrackingConfig(), runs)
    send_in_background(monkeypatch, outputs, runs)
    assert background.up_to_date(outputs, TrackingConfig(), runs)


def test_an_unfinished_run_is_never_up_to_date(study: Study, outputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [study.run("naive"), study.run("naive", "failed")]
    send_in_background(monkeypatch, outputs, runs)
    assert not background.up_to_date(outputs, TrackingConfig(), runs)


def test_an_update_of_a_running_run_that_fails_stops_no_other_sending(
    study: Study, outputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send_one, requested = Mirror.send_one, []

    def fail_for_live(self: Mirror, run_id: str) -> int:
        requested.append(run_id)
        if len(requested) == 1:
            raise ConnectionError("the server is away")
        return send_one(self, run_id)

    monkeypatch.setattr(Mirror, "send_one", fail_for_live)
    er = study.run("er")
    send_in_background(monkeypatch, outputs, [er], "live unknown", er)
    assert requested == ["unknown", er]
    assert background.up_to_date(outputs, TrackingConfig(), [er])


def test_training_does_not_wait_for_a_mirror_that_reads_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = subprocess.Popen
    monkeypatch.setattr(background.subprocess, "Popen", lambda *_, stdin, **__: start(["sleep", "60"], stdin=stdin))
    with background.BackgroundMirror(tmp_path, TrackingConfig(), ["a"]) as mirror:
        # More than a pipe holds.
        for _ in range(5000):
            mirror.changed("mini-er-h2l-s1-0123456789ab", live=True)
        assert mirror.process is not None
        assert mirror.process.poll() is None
        mirror.process.kill()
    mirror.close()


def test_a_log_that_cannot_be_written_is_told_and_ends_no_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlflow-sync.log").mkdir()
    with background.BackgroundMirror(tmp_path, TrackingConfig(), ["a"]) as mirror:
        mirror.changed("a")
    assert not mirror.close()
    message = capsys.readouterr().err
    assert "cannot start sending runs" in message
    assert "mlflow-sync.log" in message


def test_ui_prints_its_address_when_the_server_answers(
    study: Study, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []
    place = "MLflow on http://127.0.0.1:"

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server: list[http.server.HTTPServer] = []

    def start_later(seconds: float) -> None:
        """The server does not answer before the first wait."""
        printed.append(capsys.readouterr().err)
        if not server:
            server.append(http.server.HTTPServer(("127.0.0.1", port), Handler))
            threading.Thread(target=server[0].serve_forever, daemon=True).start()

    def end(code: int) -> None:
        raise SystemExit(code)

    # The process that waits for the server.
    monkeypatch.setattr("os.fork", lambda: 0)
    monkeypatch.setattr("os._exit", end)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr("time.sleep", start_later)
    assert main(["mlflow", "ui", "--outputs", str(study.outputs), "--port", str(port)]) == 0
    server[0].shutdown()
    server[0].server_close()
    assert place not in "".join(printed)
    assert f"{place}{port}" in capsys.readouterr().err


def test_ui_starts_one_process_without_a_log_of_requests(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []

    def execute(path: str, command: list[str], environment: dict[str, str]) -> None:
        started.append((command, environment))
        raise SystemExit(0)

    monkeypatch.setattr("os.fork", lambda: 1)
    monkeypatch.setattr("os.execve", execute)
    monkeypatch.setenv("UVICORN_LOG_LEVEL", "debug")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert main(["mlflow", "ui", "--outputs", str(study.outputs), "--port", str(port)]) == 0
    [(command, environment)] = started
    assert command[command.index("--workers") + 1] == "1"
    assert environment["UVICORN_ACCESS_LOG"] == "false"
    assert environment["UVICORN_LOG_LEVEL"] == "debug"  # set by the user
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.full
def test_ui_answers_and_prints_the_address_of_the_runs_last(study: Study, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*XCLRUN, "mlflow", "ui", "--outputs", str(study.outputs), "--port", str(port)]
    log = tmp_path / "log"
    with log.open("w") as file:
        server = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)
    try:
        end = time.monotonic() + 120
        while True:
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
                connection.request("GET", "/api/2.0/mlflow/experiments/get-by-name?experiment_name=xclrun")
                answer = connection.getresponse()
                result = json.loads(answer.read())
                connection.close()
                break
            except (OSError, http.client.HTTPException):
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.5)
        assert answer.status == 200
        assert result["experiment"]["name"] == "xclrun"
        page = f"http://127.0.0.1:{port}/#/experiments/{result['experiment']['experiment_id']}/runs"
        while page not in log.read_text(encoding="utf-8") and time.monotonic() < end:
            time.sleep(0.2)
        lines = log.read_text(encoding="utf-8").splitlines()
        assert page in lines[-1]
        assert "Warning" not in "".join(lines)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
