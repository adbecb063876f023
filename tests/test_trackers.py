"""Trackers beside MLflow: what is new of a run is sent once, and what they hold is what the record says."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.conftest import TINY
from xclrun.config.schema import TrackingConfig
from xclrun.core.task import short_name
from xclrun.launch.workers import MirrorListener, ProgressListener
from xclrun.run import Run
from xclrun.store.records import record
from xclrun.store.rundir import RunDirectory
from xclrun.tracking import payload
from xclrun.tracking.trackers import News, Tracker, tracker
from xclrun.train.progress import Listeners, Progress

# The libraries' own affair.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


class Noted(Tracker):
    """Notes what it is given."""

    name = "noted"
    place = "here"

    def __init__(self, outputs: Path) -> None:
        super().__init__(outputs, TrackingConfig())
        self.taken: list[News] = []

    def send(self, news: News) -> None:
        self.taken.append(news)


@pytest.fixture
def directory(finished: Callable[..., Run], tmp_path: Path) -> RunDirectory:
    """A finished run of three hops, alone among its outputs."""
    run = finished("strategy=er")
    found = RunDirectory(tmp_path / "outputs" / "runs" / run.id)
    shutil.copytree(run.directory.path, found.path)
    return found


def interrupted(directory: RunDirectory, hops: int, status: str = "interrupted") -> Callable[[], None]:
    """Make a finished run one that was interrupted after so many hops; return what continues it."""
    whole = {path: path.read_bytes() for path in (directory.done, directory.manifest)}
    manifest = json.loads(whole[directory.manifest])
    manifest |= {"status": status, "stages": manifest["stages"][: hops + 1]}
    directory.manifest.write_text(json.dumps(manifest))
    directory.done.unlink()

    def go_on() -> None:
        for path, content in whole.items():
            path.write_bytes(content)

    return go_on


def expected(directory: RunDirectory) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Return (metric, language) → (hop, percent), and ("loss", "") → (updates so far, loss), from the record alone."""
    mine = record(directory)
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for metric in mine.metrics:
        for j, language in enumerate(mine.languages):
            column = 100 * mine.scores[metric][:, j]
            found[short_name(metric), language] = [(hop, value) for hop, value in enumerate(column.tolist())]
    last = {hop: max(e["step"] for e in mine.curve if e["hop"] == hop) for hop in range(1, mine.hops + 1)}
    before = {hop: sum(last[earlier] for earlier in range(1, hop)) for hop in last}
    found["loss", ""] = [(before[e["hop"]] + e["step"], e["loss"]) for e in mine.curve]
    return found


def test_what_is_new_of_a_run_is_sent_once_and_one_that_was_cut_short_again(directory: RunDirectory) -> None:
    outputs = directory.path.parents[1]
    go_on, noted = interrupted(directory, hops=1), Noted(outputs)
    assert (noted.send_one(directory.run_id), noted.send_all()) == (1, 0)
    go_on()
    # As another process would.
    later = Noted(outputs)
    assert (later.send_all(), later.send_all()) == (1, 0)
    [first], [second] = noted.taken, later.taken
    assert (first.before, first.measures, first.run.status) == ({}, {}, "interrupted")
    assert {hop for hop, *_ in first.scores} == {0, 1}
    assert {hop for hop, *_ in second.scores} == {2, 3}
    assert (bool(second.before), "intent.FP" in second.measures) == (True, True)
    sent: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for news in (first, second):
        for hop, metric, language, value in news.scores:
            sent.setdefault((metric, language), []).append((hop, value))
        sent.setdefault(("loss", ""), []).extend(news.losses)
    assert sent == expected(directory)
    assert later.send_all(rebuild=True) == 1
    assert len(later.taken[-1].scores) == len(first.scores) + len(second.scores)

    class Away(Noted):
        def send(self, news: News) -> None:
            raise ConnectionError

    shutil.rmtree(outputs / "tracked")
    with pytest.raises(ConnectionError):
        Away(outputs).send_all()
    assert Noted(outputs).send_all() == 1


def test_epochs_of_a_running_hop_are_sent_and_each_once_also_after_the_run_was_resumed(
    directory: RunDirectory,
) -> None:
    outputs, mine = directory.path.parents[1], record(directory)
    epochs = [epoch for epoch in mine.curve if epoch["hop"] == 2]
    assert len(epochs) > 1
    finish, noted = interrupted(directory, hops=1, status="running"), Noted(outputs)
    facts = {"hop": 2, "hops": 3, "name": "de", "step": 1, "steps": 2, "seconds": 1.0}
    written = [{key: value for key, value in epoch.items() if key != "hop"} for epoch in epochs[:1]]
    directory.write_progress({**facts, "epochs": written})
    assert (noted.send_one(directory.run_id), noted.send_one(directory.run_id)) == (1, 0)
    before = [epoch for epoch in mine.curve if epoch["hop"] == 1]
    assert [loss for _, loss in noted.taken[0].losses] == [epoch["loss"] for epoch in [*before, epochs[0]]]
    # Resumed: the first hops are read from the store again, and the epochs before the checkpoint are not known.
    stages = directory.read_manifest()
    directory.write_manifest({**stages, "stages": []})
    directory.write_progress({**facts, "epochs": []})
    noted.send_one(directory.run_id)
    directory.write_manifest(stages)
    directory.write_progress({**facts, "epochs": [{**written[0], "epoch": 2}]})
    noted.send_one(directory.run_id)
    finish()
    noted.send_all()
    wanted = expected(directory)
    assert [loss for news in noted.taken for loss in news.losses] == wanted["loss", ""]
    for (metric, language), scores in wanted.items():
        if language:
            sent = [(hop, value) for news in noted.taken for hop, *of, value in news.scores if of == [metric, language]]
            assert sent == scores
    steps = [step for step, _ in wanted["loss", ""]]
    dev = [
        (step, 100 * epoch["dev"]["de"]["intent_accuracy"])
        for step, epoch in zip(steps, mine.curve, strict=True)
        if "de" in epoch["dev"]
    ]
    assert dev
    found = [(step, v) for news in noted.taken for step, *of, v in news.dev if of == ["intent", "de"]]
    assert found == dev


def test_a_run_that_trains_has_one_event_file(directory: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    outputs = directory.path.parents[1]
    mirror = tracker(outputs, TrackingConfig(to="tensorboard", experiment="mine"))
    folder = outputs / "tensorboard" / "mine" / directory.run_id
    for hops in (1, 2):
        finish = interrupted(directory, hops, status="running")
        mirror.send_one(directory.run_id)
        read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
        read.Reload()
        assert [event.step for event in read.Tensors("intent.score/en")] == [*range(hops + 1)]
        finish()
    mirror.send_one(directory.run_id)
    assert len(list(folder.iterdir())) == 1
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    assert [event.step for event in read.Tensors("intent.score/en")] == [0, 1, 2, 3]
    assert [event.step for event in read.Tensors("intent.dev/en")]


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
    assert train(1) == [1]


def test_event_files_hold_scores_losses_and_measures_each_once(directory: RunDirectory) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    outputs = directory.path.parents[1]
    go_on = interrupted(directory, hops=2)
    for _ in range(2):
        tracker(outputs, TrackingConfig(to="tensorboard", experiment="mine")).send_all()
        go_on()
    folder = outputs / "tensorboard" / "mine" / directory.run_id
    assert len(list(folder.iterdir())) == 2
    read = EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()

    def values(tag: str) -> list[tuple[int, Any]]:
        return [(event.step, make_ndarray(event.tensor_proto).item()) for event in read.Tensors(tag)]

    for (metric, language), wanted in expected(directory).items():
        found = values("train/loss" if metric == "loss" else f"{metric}.score/{language}")
        assert [step for step, _ in found] == [step for step, _ in wanted]
        np.testing.assert_allclose([v for _, v in found], [v for _, v in wanted], rtol=1e-6)
    mine = record(directory)
    (update, epoch), *_ = payload.epochs(mine)
    (metric, language, value), *_ = payload.dev_scores(epoch)
    assert values(f"{metric}.dev/{language}")[0] == (update, pytest.approx(value, rel=1e-6))
    [(step, final)] = values("measure/intent.FP")
    assert (step, final) == (3, pytest.approx(100 * mine.scores["intent_accuracy"][-1].mean(), rel=1e-6))
    shown = "".join(str(v) for tag in ("run", "config", "intent.scores") for _, v in values(tag))
    assert "**er**" in shown
    assert "| hop | en | de | es |" in shown
    assert [v for _, v in values("status")] == [b"interrupted", b"finished"]
    assert "_hparams_/session_start_info" in read.SummaryMetadata.__self__.Tags()["tensors"]


def entries(file: Path) -> Iterator[bytes]:
    """Yield the entries of a file of Weights & Biases: LevelDB's log format after a header of 7 bytes."""
    content, at, entry = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := 32768 - at % 32768) < 7:
            at += left
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        entry, at = entry + content[at + 7 : at + 7 + size], at + 7 + size
        # Whole, or the last part of one.
        if kind in (1, 4):
            yield entry
            entry = b""


@pytest.mark.full
def test_weights_and_biases_offline_continues_a_run_under_its_id(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    from wandb.proto.wandb_internal_pb2 import Record

    key = "0123456789abcdef" * 2 + "01234567"
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", key)
    outputs = directory.path.parents[1]
    go_on = interrupted(directory, hops=1)
    for _ in range(2):
        assert tracker(outputs, TrackingConfig(to="wandb", experiment="mine")).send_all() == 1
        go_on()
    assert tracker(outputs, TrackingConfig(to="wandb", experiment="mine")).send_all() == 0
    files = sorted((outputs / "wandb").glob("offline-run-*/*.wandb"))
    assert len(files) == 2
    rows: list[dict[str, Any]] = []
    summary: dict[str, Any] = {}
    for file in files:
        for data in entries(file):
            entry = Record()
            entry.ParseFromString(data)
            if entry.HasField("run"):
                assert (entry.run.run_id, entry.run.project) == (directory.run_id, "mine")
                assert set(entry.run.tags) >= {"er", "seed 1"}
            if entry.HasField("history"):
                rows.append({i.key or i.nested_key[0]: json.loads(i.value_json) for i in entry.history.item})
            if entry.HasField("summary"):
                summary |= {i.key or i.nested_key[0]: json.loads(i.value_json) for i in entry.summary.update}
    wanted = expected(directory)
    losses = wanted.pop(("loss", ""))
    assert [(row["update"], row["train.loss"]) for row in rows if "update" in row] == losses
    for (metric, language), scores in wanted.items():
        assert [(row["hop"], row[f"{metric}.score.{language}"]) for row in rows if "hop" in row] == scores
    final = 100 * record(directory).scores["intent_accuracy"][-1].mean()
    assert summary["intent.FP"] == pytest.approx(final)
    assert summary["status"] == "finished"
    assert any("intent.scores" in row for row in rows)
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
    content = file.read_bytes()
    assert all(f"intent.dev.{language}".encode() in content for language in record(directory).languages)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (("tracking=wandb",), "tracking=wandb: pip install 'xclrun[wandb]'"),
        (("tracking=tensorboard",), "tracking=tensorboard: pip install 'xclrun[tensorboard]'"),
        (
            ("tracking.to=wandbb",),
            "tracking.to=wandbb: unknown; did you mean 'wandb'? Known: mlflow, tensorboard, w",
        ),
        (("tracking=wandb", "tracking.uri=http://x"), "tracking.uri=http://x: is MLflow's; of tracking=wandb it is "),
    ],
)
def test_mistakes_are_told_at_plan_time(
    given: tuple[str, ...],
    told: str,
    xclrun: Callable[..., tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in ("wandb", "tensorboard"):
        monkeypatch.setitem(sys.modules, package, None)
    code, said = xclrun("plan", *(text for text in TINY if text != "tracking=none"), *given)
    assert (code, said.count("\n")) == (2, 1), said
    assert said.startswith(f"xclrun: {told}")


def test_sync_brings_another_tracker_up_to_date(
    directory: RunDirectory, xclrun: Callable[..., tuple[int, str]]
) -> None:
    pytest.importorskip("tensorboard")
    outputs = directory.path.parents[1]
    place = outputs / "tensorboard" / "xclrun"
    for count in ("1 run", "0 runs"):
        given = ("sync", "--to", "tensorboard", "--outputs", str(outputs))
        assert xclrun(*given) == (0, f"{count} sent to {place}\n")
    assert not (outputs / "mlflow.db").exists()
    code, said = xclrun(*given, "--uri", "http://x")
    assert (code, said) == (2, "xclrun: --uri http://x: is MLflow's; not of --to tensorboard\n")
