"""The contract of trackers: ours pass each check, and for each check there is a wrong tracker that fails it."""

from __future__ import annotations

import itertools
import json
import math
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from xclrun.config.schema import TrackingConfig
from xclrun.core.task import short_name
from xclrun.testing import ContractError, Sent, check_tracker, tracker_checks
from xclrun.testing.trackers import TRACKER_CONTRACT
from xclrun.tracking.trackers import Tracker, Update, tracker

if TYPE_CHECKING:
    from wandb.proto.wandb_internal_pb2 import Record

# The libraries' own affair.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

NAMES = [function.__name__ for function in TRACKER_CONTRACT]


class Notebook(Tracker):
    """A tracker as an author would write it: a JSON file for each run."""

    name = "notebook"

    def __init__(self, outputs: Path) -> None:
        super().__init__(outputs, TrackingConfig(experiment="mine"))
        self.place = str(outputs / "notebook")

    def path(self, run_id: str) -> Path:
        return Path(self.place, f"{run_id}.json")

    def load(self, run_id: str) -> dict[str, Any]:
        path = self.path(run_id)
        return json.loads(path.read_text()) if path.is_file() else {"curves": {}}

    def keep(self, run_id: str, content: dict[str, Any]) -> None:
        Path(self.place).mkdir(exist_ok=True)
        self.path(run_id).write_text(json.dumps(content))

    def send(self, update: Update) -> None:
        content = self.load(update.run.run_id)
        for value in update.values():
            content["curves"].setdefault(value.key, []).append((value.step, value.value))
        self.keep(update.run.run_id, content | {"measures": update.measures, "status": update.run.status})

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        for run_id in run_ids:
            self.path(run_id).unlink(missing_ok=True)
        return super().remove(run_ids, sweep)


def of_notebook(mine: Tracker, run_id: str) -> Sent | None:
    assert isinstance(mine, Notebook)
    content = mine.load(run_id)
    if not content["curves"]:
        return None
    curves = {name: [(step, value) for step, value in curve] for name, curve in content["curves"].items()}
    return Sent(curves, content["measures"], content["status"])


def named(make: Any) -> Callable[[Path], Tracker]:
    return lambda outputs: make(outputs, TrackingConfig(to=make.name, experiment="mine"))


@pytest.mark.parametrize("check", tracker_checks("notebook", Notebook, of_notebook), ids=str)
def test_a_tracker_of_an_author_passes(check: Callable[[], None]) -> None:
    check()


# --- Ours.


@cache
def database(folder: Path) -> str:
    """Return the address of a database of MLflow, made once: that takes more than a second."""
    from mlflow import MlflowClient

    uri = f"sqlite:///{folder / 'mlflow.db'}"
    # MLflow places files of runs relative to the folder in which a database is opened first.
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        MlflowClient(uri).search_experiments()
    return uri


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    return database(tmp_path_factory.mktemp("mlflow"))


def in_mlflow(uri: str, number: int, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return how to make an MLflow tracker of its own experiment, and how to read it."""
    import mlflow

    monkeypatch.setattr("xclrun.report.heatmaps.heatmap", lambda *_: None)
    monkeypatch.setattr("xclrun.report.style.settle", lambda *_: None)
    monkeypatch.setattr(mlflow.MlflowClient, "log_figure", lambda *_: None)

    def make(outputs: Path) -> Tracker:
        name, client = f"{number} of {outputs.name}", mlflow.MlflowClient(uri)
        if client.get_experiment_by_name(name) is None:
            client.create_experiment(name, artifact_location=(outputs / "artifacts").as_uri())
        return tracker(outputs, TrackingConfig(uri=uri, experiment=name))

    def read(mirror: Any, run_id: str) -> Sent | None:
        if (run := mirror._find("run_id", run_id)) is None:
            return None
        names = {name: mirror.client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
        curves = {name: [(v.step, v.value) for v in values] for name, values in names.items()}
        measures = {name: curves.pop(name)[-1][1] for name in [*curves] if not re.search(r"\.score\.|dev\.|loss", name)}
        return Sent(curves, measures, run.data.tags["xclrun.status"])

    return make, read


EXPERIMENTS = itertools.count()
# The other checks of MLflow and Weights & Biases are for the full tier: a run takes most of a second.
FAST = {"continues_a_run", "rebuilds", "removes_runs"}


@pytest.mark.some_cases
@pytest.mark.parametrize(
    "number",
    [pytest.param(i, id=name, marks=[] if name in FAST else pytest.mark.full) for i, name in enumerate(NAMES)],
)
def test_mlflow_passes(number: int, mlflow_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Files of a run go where the client is: SQLite has no server that could keep them.
    monkeypatch.chdir(tmp_path)
    tracker_checks("mlflow", *in_mlflow(mlflow_uri, next(EXPERIMENTS), monkeypatch))[number]()


def of_tensorboard(mirror: Tracker, run_id: str) -> Sent | None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    folder = Path(mirror.place, run_id)
    if not folder.is_dir():
        return None
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    curves, measures, status = {}, {}, "running"
    for tag in events.Tags()["tensors"]:
        values = [(e.step, make_ndarray(e.tensor_proto)) for e in events.Tensors(tag) if tag[0] != "_"]
        if tag.startswith("measure/"):
            measures[tag.removeprefix("measure/")] = values[-1][1].item()
        elif tag == "status":
            status = values[-1][1].item().decode()
        elif re.match(r"\w+\.(score|dev)/|train/loss", tag):
            curves[tag.replace("/", ".", 1)] = [(step, value.item()) for step, value in values]
    return Sent(curves, measures, status)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_tensorboard_passes(number: int) -> None:
    pytest.importorskip("tensorboard")
    from xclrun.tracking.to_tensorboard import ToTensorBoard

    tracker_checks("tensorboard", named(ToTensorBoard), of_tensorboard)[number]()


def entries(file: Path) -> list[Record]:
    """Return the records of a finished run of Weights & Biases: LevelDB's log format after a header of 7 bytes.

    Its client returns from ``finish`` before another process has written all of them; the one of the exit is the last
    that tests read.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    records: list[Record] = []
    for _ in range(200):
        records, content, at, entry = [], file.read_bytes(), 7, b""
        while at + 7 <= len(content):
            if (remaining := 32768 - at % 32768) < 7:
                at += remaining
                continue
            size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
            entry, at = entry + content[at + 7 : at + 7 + size], at + 7 + size
            # Whole, or the last part of one.
            if kind in (1, 4) and at <= len(content):
                records.append(Record.FromString(entry))
                entry = b""
        if any(record.HasField("exit") for record in records):
            return records
        time.sleep(0.1)
    return records


def of_wandb(mirror: Tracker, run_id: str) -> Sent | None:
    """Read the files of a run as `wandb sync` would, one after the other."""
    curves: dict[str, list[tuple[int, float]]] = {}
    summary: dict[str, Any] = {}
    for file in sorted((mirror.outputs / "wandb").glob("offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime):
        mine = False
        for entry in entries(file):
            mine |= entry.HasField("run") and entry.run.run_id == run_id
            if mine and entry.HasField("history"):
                row = {i.key or i.nested_key[0]: json.loads(i.value_json) for i in entry.history.item}
                for name in (name for name in row if re.search(r"\.score\.|\.dev\.|train\.loss", name)):
                    curve = curves.setdefault(name, [])
                    curve.append((row["hop" if ".score." in name else "update"], row[name]))
            if mine and entry.HasField("summary"):
                summary |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in entry.summary.update}
    if not curves:
        return None
    others = {*curves, "status", "xclrun", "hop", "update"}
    measures = {name: v for name, v in summary.items() if name not in others and not re.search(r"^_|\.scores$", name)}
    return Sent(curves, measures, summary["status"])


@pytest.mark.full
@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_weights_and_biases_passes_offline(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    from xclrun.tracking.to_wandb import ToWandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker_checks("wandb", named(ToWandb), of_wandb)[number]()


# --- Wrong ones.


class Nameless(Notebook):
    name = "My tracker/1"


class Fractions(Notebook):
    """Stores scores as fractions."""

    def send(self, update: Update) -> None:
        super().send(update)
        content = self.load(update.run.run_id)
        for name, curve in content["curves"].items():
            content["curves"][name] = [(step, v / 100 if ".score." in name else v) for step, v in curve]
        self.keep(update.run.run_id, content)


class StepsOfHops(Notebook):
    """Counts updates from the start of each hop."""

    def send(self, update: Update) -> None:
        super().send(update)
        content = self.load(update.run.run_id)
        for name, curve in content["curves"].items():
            content["curves"][name] = [(s % 8 or 8, v) if ".score." not in name else (s, v) for s, v in curve]
        self.keep(update.run.run_id, content)


class HeadlinesOnly(Notebook):
    """Stores one measure."""

    def send(self, update: Update) -> None:
        super().send(update)
        content = self.load(update.run.run_id)
        content["measures"] = {name: v for name, v in content["measures"].items() if name.endswith(".FP")}
        self.keep(update.run.run_id, content)


class FirstStatus(Notebook):
    """Stores the status of a run's first update."""

    def send(self, update: Update) -> None:
        first = self.load(update.run.run_id).get("status")
        super().send(update)
        if first:
            self.keep(update.run.run_id, self.load(update.run.run_id) | {"status": first})


class ZerosForMissing(Notebook):
    """Stores 0 for a score that was not measured."""

    def send(self, update: Update) -> None:
        super().send(update)
        content, run = self.load(update.run.run_id), update.run
        for metric, matrix in run.scores.items():
            for j, language in enumerate(run.languages):
                curve = content["curves"].setdefault(f"{short_name(metric)}.score.{language}", [])
                curve += [(hop, 0.0) for hop, row in enumerate(matrix) if math.isnan(row[j])]
        self.keep(run.run_id, content)


class Everything(Notebook):
    """Appends all values of a run each time."""

    def send(self, update: Update) -> None:
        super().send(Update(update.run, update.measures))


class Forgetful(Notebook):
    """Does not note what was sent."""

    def mark_sent(self, update: Update) -> None:
        pass


class NeverAgain(Notebook):
    """Sends a finished run once, whatever changes."""

    def before(self, run_ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        return {run_id: {"version": "sent"} for run_id in run_ids if self.load(run_id).get("status") == "finished"}

    def send_records(self, records: Any, *others: Any, **options: Any) -> int:
        return super().send_records([r for r in records if r.run_id not in self.before([r.run_id])], *others, **options)


class Shifted(Notebook):
    """Continues the steps where the last update ended."""

    def send(self, update: Update) -> None:
        content = self.load(update.run.run_id)
        for value in update.values():
            curve = content["curves"].setdefault(value.key, [])
            curve.append((max(value.step, curve[-1][0] + 1) if curve else value.step, value.value))
        self.keep(update.run.run_id, content | {"measures": update.measures, "status": update.run.status})


class OneFile(Notebook):
    """Stores all runs in one file."""

    def path(self, run_id: str) -> Path:
        return Path(self.place, "runs.json")


class Buffered(Notebook):
    """Writes a running run when it has ended, and not when the tracker is closed."""

    def send(self, update: Update) -> None:
        if update.run.status != "running":
            super().send(update)


class CopiesStay(Notebook):
    """Does not remove the copy, and says that it does."""

    def remove(self, run_ids: Sequence[str], sweep: str = "") -> bool:
        return Tracker.remove(self, run_ids, sweep)


class OnlyAscii(Notebook):
    """Refuses, as many a database does, names outside ASCII."""

    def send(self, update: Update) -> None:
        for value in update.values():
            value.key.encode("ascii")
        super().send(update)


class InTheRun(Notebook):
    """Stores its copies in the directory of the run."""

    def path(self, run_id: str) -> Path:
        return self.outputs / "runs" / run_id / "notebook.json"


class Talkative(Notebook):
    def send(self, update: Update) -> None:
        super().send(update)
        print("sent", update.run.run_id)


WRONG = {
    "names_its_place": Nameless,
    "sends_scores": Fractions,
    "sends_losses_and_dev_scores": StepsOfHops,
    "sends_measures": HeadlinesOnly,
    "sends_the_status": FirstStatus,
    "omits_missing_scores": ZerosForMissing,
    "continues_a_run": Everything,
    "sends_unchanged_runs_once": Forgetful,
    "sends_changed_runs_again": NeverAgain,
    "rebuilds": Shifted,
    "separates_runs": OneFile,
    "follows_a_running_run": Buffered,
    "removes_runs": CopiesStay,
    "accepts_names_of_languages": OnlyAscii,
    "leaves_runs_unchanged": InTheRun,
    "prints_nothing": Talkative,
}


@pytest.mark.parametrize("name", NAMES)
def test_for_each_check_a_wrong_tracker_fails_it(name: str) -> None:
    [check] = [c for c in tracker_checks("wrong", WRONG[name], of_notebook) if c.name == name]
    with pytest.raises(ContractError) as error:
        check()
    message = str(error.value)
    assert message.startswith(f"tracker 'wrong': {name}: {check.requirement} ")
    assert "\n" not in message


def test_all_failed_checks_are_reported_together() -> None:
    with pytest.raises(ContractError) as error:
        check_tracker("wrong", Talkative, of_notebook)
    assert [line.split(": ")[1] for line in str(error.value).splitlines()] == ["prints_nothing"]
