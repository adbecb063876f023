"""Trackers: each value of a run is sent once, and TensorBoard and Weights & Biases store the values of the record."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TINY
from tests.testing.test_tracker_contract import entries
from xclrun.analysis.records import record
from xclrun.config.schema import TrackingConfig
from xclrun.core.task import short_name
from xclrun.launch.workers import MirrorListener, ProgressListener
from xclrun.plan import Run
from xclrun.store.files import write_json
from xclrun.store.rundir import RunDirectory
from xclrun.testing.trackers import example_record, until
from xclrun.tracking.payload import with_live_epochs
from xclrun.tracking.trackers import Tracker, Update, Value, tracker
from xclrun.train.progress import Listeners, Progress

# The libraries' own affair.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Recorder(Tracker):
    """Stores its updates."""

    name = "recorder"
    place = "memory"

    def __init__(self, outputs: Path) -> None:
        super().__init__(outputs, TrackingConfig())
        self.updates: list[Update] = []

    def send(self, update: Update) -> None:
        self.updates.append(update)


def curves(values: Iterable[Value]) -> dict[str, list[tuple[int, float]]]:
    """Return key → (step, value)."""
    result: dict[str, list[tuple[int, float]]] = {}
    for value in values:
        result.setdefault(value.key, []).append((value.step, value.value))
    return result


@pytest.fixture
def directory(finished: Callable[..., Run], tmp_path: Path) -> RunDirectory:
    """A finished run of three hops, the only one in its outputs folder."""
    run = finished("strategy=er")
    copy = RunDirectory(tmp_path / "outputs" / "runs" / run.id)
    shutil.copytree(run.directory.path, copy.path)
    return copy


def interrupted(directory: RunDirectory, hops: int, status: str = "interrupted") -> Callable[[], None]:
    """Make a finished run look interrupted after some hops; return a function that finishes it."""
    whole = {path: path.read_bytes() for path in (directory.done, directory.manifest)}
    manifest = json.loads(whole[directory.manifest])
    manifest |= {"status": status, "stages": manifest["stages"][: hops + 1]}
    directory.manifest.write_text(json.dumps(manifest))
    directory.done.unlink()

    def finish() -> None:
        for path, content in whole.items():
            path.write_bytes(content)

    return finish


def expected(directory: RunDirectory) -> dict[str, list[tuple[int, float]]]:
    """Return key → (step, value) of all curves, computed from the record."""
    run = record(directory)
    result: dict[str, list[tuple[int, float]]] = {}
    for metric in run.metrics:
        for j, language in enumerate(run.languages):
            result[f"{short_name(metric)}.score.{language}"] = list(
                enumerate((100 * run.scores[metric][:, j]).round(2).tolist())
            )
    last = {hop: max(e["step"] for e in run.curve if e["hop"] == hop) for hop in range(1, run.hops + 1)}
    before = {hop: sum(last[earlier] for earlier in range(1, hop)) for hop in last}
    for epoch in run.curve:
        step = before[epoch["hop"]] + epoch["step"]
        result.setdefault("train.loss", []).append((step, epoch["loss"]))
        for language, scores in epoch["dev"].items():
            for metric, score in scores.items():
                result.setdefault(f"{short_name(metric)}.dev.{language}", []).append((step, round(100 * score, 2)))
    assert len(result) == 1 + 4 * len(run.languages)
    return result


def test_each_value_is_sent_once_and_an_update_that_failed_is_repeated(directory: RunDirectory) -> None:
    outputs = directory.path.parents[1]
    finish, tracker = interrupted(directory, hops=1), Recorder(outputs)
    assert (tracker.send_one(directory.run_id), tracker.send_all()) == (1, 0)
    finish()
    # As in another process.
    later = Recorder(outputs)
    assert (later.send_all(), later.send_all()) == (1, 0)
    [first], [second] = tracker.updates, later.updates
    assert (first.before, first.measures, first.run.status) == ({}, {}, "interrupted")
    assert {value.step for value in first.values() if value.axis == "hop"} == {0, 1}
    assert (bool(second.before), "intent.FP" in second.measures) == (True, True)
    assert curves([*first.values(), *second.values()]) == expected(directory)
    assert later.send_all(rebuild=True) == 1
    assert curves(later.updates[-1].values()) == expected(directory)

    class Unreachable(Recorder):
        def send(self, update: Update) -> None:
            raise ConnectionError

    shutil.rmtree(outputs / "tracked")
    with pytest.raises(ConnectionError):
        Unreachable(outputs).send_all()
    assert Recorder(outputs).send_all() == 1


def test_epochs_of_a_running_hop_are_sent_and_each_once_also_after_the_run_was_resumed(
    directory: RunDirectory,
) -> None:
    outputs, run = directory.path.parents[1], record(directory)
    epochs = [epoch for epoch in run.curve if epoch["hop"] == 2]
    assert len(epochs) > 1
    finish, tracker = interrupted(directory, hops=1, status="running"), Recorder(outputs)
    facts = {"hop": 2, "hops": 3, "name": "de", "step": 1, "steps": 2, "seconds": 1.0}
    written = [{key: value for key, value in epoch.items() if key != "hop"} for epoch in epochs[:1]]
    directory.write_progress({**facts, "epochs": written})
    assert (tracker.send_one(directory.run_id), tracker.send_one(directory.run_id)) == (1, 0)
    before = [epoch for epoch in run.curve if epoch["hop"] == 1]
    losses = curves(tracker.updates[0].values())["train.loss"]
    assert [loss for _, loss in losses] == [epoch["loss"] for epoch in [*before, epochs[0]]]
    # Resumed: the first hops are read from the store again, and the epochs before the checkpoint are unknown.
    stages = directory.read_manifest()
    directory.write_manifest({**stages, "stages": []})
    directory.write_progress({**facts, "epochs": []})
    tracker.send_one(directory.run_id)
    directory.write_manifest(stages)
    directory.write_progress({**facts, "epochs": [{**written[0], "epoch": 2}]})
    tracker.send_one(directory.run_id)
    finish()
    tracker.send_all()
    assert curves(value for update in tracker.updates for value in update.values()) == expected(directory)


@pytest.mark.parametrize(
    ("status", "hop", "epochs", "added"),
    [
        ("running", 2, [1, 2], 2),
        # Progress of a hop that the manifest has, or of one that it cannot be in.
        ("running", 1, [1, 2], 0),
        ("running", 3, [1], 0),
        # Without its first epochs, or of a run that has ended.
        ("running", 2, [2, 3], 0),
        ("finished", 2, [1], 0),
        ("running", 2, [], 0),
    ],
)
def test_only_whole_epochs_of_the_hop_that_is_trained_are_added(
    status: str, hop: int, epochs: list[int], added: int, tmp_path: Path
) -> None:
    run, directory = replace(until(example_record(), 1), status=status), RunDirectory(tmp_path)
    directory.write_progress({"hop": hop, "epochs": [{"epoch": epoch, "loss": 1.0} for epoch in epochs]})
    write_json(directory.manifest, {"stages": [{}, {}]})
    curve = with_live_epochs(run, directory).curve
    assert curve[: len(run.curve)] == run.curve
    assert [epoch["hop"] for epoch in curve[len(run.curve) :]] == [hop] * added


def test_a_run_that_trains_has_one_event_file(directory: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outputs = directory.path.parents[1]
    mirror = tracker(outputs, TrackingConfig(to="tensorboard", experiment="mine"))
    folder = outputs / "tensorboard" / "mine" / directory.run_id
    for hops in (1, 2, 3):
        finish = interrupted(directory, hops, status="running") if hops < 3 else None
        mirror.send_one(directory.run_id)
        events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
        assert [event.step for event in events.Tensors("intent.score/en")] == [*range(hops + 1)]
        if finish is not None:
            finish()
    assert len(list(folder.iterdir())) == 1


def test_listeners_write_the_epochs_of_the_hop_and_notify_trackers_now_and_then(directory: RunDirectory) -> None:
    run: Any = SimpleNamespace(id=directory.run_id, directory=directory, stream=SimpleNamespace(hops=[0, 1, 2, 3]))
    hop: Any = SimpleNamespace(index=2, name="de")
    notices: list[bool] = []
    mirror: Any = SimpleNamespace(changed=lambda run_id, live: notices.append(live))

    def train(*epochs: int) -> list[int]:
        """Train these epochs in a new process; return the epochs that are written after them."""
        listeners = Listeners([ProgressListener(run), MirrorListener(run, mirror, every=1000.0)])
        listeners.hop_started(run, hop)
        for epoch in epochs:
            progress = Progress(hop, epoch, 3, 4 * epoch, 12, 8, 1.0)
            listeners.epoch_ended(progress, {"epoch": epoch, "step": 4 * epoch, "loss": 1.0, "dev": {}})
        return [epoch["epoch"] for epoch in json.loads(directory.progress.read_text())["epochs"]]

    assert train(1, 2) == [1, 2]
    assert train(2, 3) == [1, 2, 3], "continued from a checkpoint in the second epoch"
    assert notices == [True, True], "one for each process"
    hop.index = 3
    assert train(2) == [2], "epochs of the hop before are not its own"


def test_event_files_hold_a_description_the_config_and_the_settings(directory: RunDirectory) -> None:
    """That they hold scores, losses and measures is in the contract (tests/testing/test_tracker_contract)."""
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    outputs = directory.path.parents[1]
    finish = interrupted(directory, hops=2)
    for _ in range(2):
        tracker(outputs, TrackingConfig(to="tensorboard", experiment="mine")).send_all()
        finish()
    folder = outputs / "tensorboard" / "mine" / directory.run_id
    assert len(list(folder.iterdir())) == 2
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()

    def values(tag: str) -> list[tuple[int, Any]]:
        return [(event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)]

    assert [step for step, _ in values("measure/intent.FP")] == [3]
    texts = "".join(str(v) for tag in ("run", "config", "intent.scores") for _, v in values(tag))
    assert "**er**" in texts
    assert "| hop | en | de | es |" in texts
    assert [v for _, v in values("status")] == [b"interrupted", b"finished"]
    assert "_hparams_/session_start_info" in events.Tags()["tensors"]


@pytest.mark.full
def test_weights_and_biases_offline_continues_a_run_under_its_id(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    key = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", key)
    outputs = directory.path.parents[1]
    finish = interrupted(directory, hops=1)
    for _ in range(2):
        assert tracker(outputs, TrackingConfig(to="wandb", experiment="mine")).send_all() == 1
        finish()
    assert tracker(outputs, TrackingConfig(to="wandb", experiment="mine")).send_all() == 0
    files = sorted((outputs / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    named, tables = set(), set()
    for file in files:
        for entry in entries(file):
            if entry.HasField("run"):
                named.add((entry.run.run_id, entry.run.project))
                assert set(entry.run.tags) >= {"er", "seed 1"}
            if entry.HasField("history"):
                tables |= {(i.key or i.nested_key[0]) for i in entry.history.item}
    assert named == {(directory.run_id, "mine")}
    assert "intent.scores" in tables
    written = [path for path in outputs.rglob("*") if path.is_file()]
    assert not [path for path in written if key.encode() in path.read_bytes()]


@pytest.mark.full
def test_weights_and_biases_keeps_one_run_open_while_it_trains(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    outputs = directory.path.parents[1]
    mirror = tracker(outputs, TrackingConfig(to="wandb", experiment="mine"))
    for hops in (1, 2):
        finish = interrupted(directory, hops, status="running")
        assert mirror.send_one(directory.run_id) == 1
        finish()
    assert mirror.send_one(directory.run_id) == 1
    mirror.close()
    [file] = (outputs / "wandb").glob("offline-run-*/*.wandb")
    content = "".join(str(entry) for entry in entries(file))
    assert all(f"intent.dev.{language}" in content for language in record(directory).languages)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("tracking=wandb",),
            "tracking=wandb: package 'wandb' is not installed; run pip install -e '.[wandb]' in xclrun's clone",
        ),
        (
            ("tracking=tensorboard",),
            "tracking=tensorboard: package 'tensorboard' is not installed; run pip install -e '.[tensorboard]' in "
            "xclrun's clone",
        ),
        (
            ("tracking.to=wandbb",),
            "tracking.to=wandbb: unknown; did you mean 'wandb'? Known: mlflow, tensorboard, w",
        ),
        (
            ("tracking=wandb", "tracking.uri=http://x"),
            "tracking.uri=http://x: has an effect only with tracking=mlflow; set WANDB_BASE_URL in ",
        ),
    ],
)
def test_mistakes_are_told_at_plan_time(
    overrides: tuple[str, ...],
    message: str,
    xclrun: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    code, output = xclrun("plan", *(text for text in TINY if text != "tracking=none"), *overrides)
    assert (code, output.count("\n")) == (2, 1), output
    assert output.startswith(f"xclrun: {message}")


def test_sync_brings_another_tracker_up_to_date(
    directory: RunDirectory, xclrun: Callable[..., tuple[int, str]]
) -> None:
    pytest.importorskip("tensorboard")
    outputs = directory.path.parents[1]
    place = outputs / "tensorboard" / "xclrun"
    for count in ("1 run", "0 runs"):
        command = ("mlflow", "sync", "--to", "tensorboard", "--outputs", str(outputs))
        assert xclrun(*command) == (0, f"{count} sent to {place}\n")
    assert not (outputs / "mlflow.db").exists()
    code, output = xclrun(*command, "--uri", "http://x")
    assert (code, output) == (2, "xclrun: --uri http://x: applies only to MLflow; omit it with --to tensorboard\n")
