"""Whole runs: what is shared equals what is not, the seed decides, and damage in the store is repaired."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import torch

from tests.conftest import some
from xclrun.analysis.records import record
from xclrun.core.errors import RunError
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.files import TEMPORARY, read_events, sha256
from xclrun.strategy import Step
from xclrun.strategy.naive import Naive
from xclrun.train import execute
from xclrun.train.encodings import encodings
from xclrun.train.progress import Listener
from xclrun.train.stages import Busy
from xclrun.train.stop import StopFlag, Stopped

from .conftest import predicted, stored

# Of the corpus's languages the first two, which is enough for what holds from one hop to the next.
SHORT = ("order=[en,de]", "trainer.epochs=1")

Make = Callable[..., Run]
Do = Callable[..., Run]


class Hearing(Listener):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.trained: list[int] = []
        self.shared: list[bool] = []
        self.notes: list[str] = []
        self.failed: list[BaseException] = []

    def hop_started(self, run: Run, hop: Any) -> None:
        self.trained.append(hop.index)

    def hop_ended(self, run: Run, hop: Any, scores: dict[str, dict[str, float]], shared: bool) -> None:
        self.shared.append(shared)

    def noted(self, text: str) -> None:
        self.notes.append(text)

    def run_failed(self, run: Run, error: BaseException) -> None:
        self.failed.append(error)


@pytest.fixture
def finished(alone: Callable[..., Any], make_run: Make) -> Make:
    """Return a finished run whose files the test may change: a copy of that of `alone`."""

    def get(*overrides: str) -> Run:
        run = make_run(*overrides)
        shutil.copytree(alone(*overrides)[2].outputs, run.outputs)
        return run

    return get


# --- Shared equals unshared.


@pytest.mark.full
def test_reference_models_are_naive_s_first_hops(alone: Callable[..., Any]) -> None:
    reference = alone("strategy=lang_spec_ft")[0]
    for order in ("order=[de,en,es]", "order=[es,en,de]"):
        result, _, run = alone("strategy=naive", order)
        # So is the evaluation before any training.
        for key in (run.stages[0].evaluation, run.stages[1].train, run.stages[1].evaluation):
            assert result[key] == reference[key]


def test_bf16_that_the_cpu_emulates_is_told_once(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xclrun.train.precision.bf16_over_fp32", lambda: 30.0)
    run, hearing = make_run("trainer.precision=bf16", *SHORT), Hearing()
    do(run, hearing)
    assert [note.partition(":")[0] for note in hearing.notes] == ["trainer.precision=bf16"]
    # With nothing left to compute it takes no time.
    do(run, hearing)
    assert len(hearing.notes) == 1


def test_a_finished_run_is_not_done_again(alone: Callable[..., Any], do: Do) -> None:
    run, hearing = alone("strategy=naive")[2], Hearing()
    before = run.directory.manifest.read_bytes(), run.directory.events.read_bytes()
    do(run, hearing)
    assert (run.directory.manifest.read_bytes(), run.directory.events.read_bytes()) == before
    assert hearing.shared == []


# --- The seed, threads, and what ran before.


def test_the_same_seed_gives_the_same_and_another_another(alone: Callable[..., Any], make_run: Make, do: Do) -> None:
    torch.manual_seed(1234)
    again = do(make_run("strategy=er", *SHORT, outputs="again"))
    everything, files, _ = alone("strategy=er", *SHORT)
    assert (stored(again.store), predicted(again)) == (everything, files)
    other = do(make_run("strategy=er", *SHORT, "seed=2", outputs="other"))
    assert other.stages[0].train != again.stages[0].train
    assert not set(predicted(other).values()) & set(files.values())
    read = [predictions.read(run.directory.predictions(2)).column("log2_gold") for run in (again, other)]
    assert not read[0].equals(read[1])


@pytest.mark.parametrize("threads", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_same_number_of_threads_gives_the_same(threads: int, make_run: Make, do: Do) -> None:
    result = []
    for name in ("one", "two"):
        run = do(make_run("order=[es,de]", "trainer.epochs=1", f"runtime.threads={threads}", outputs=name))
        assert torch.get_num_threads() == threads
        assert run.directory.read_manifest()["environment"]["threads"] == str(threads)
        result.append((stored(run.store), predicted(run)))
    assert result[0] == result[1]


# --- Files of record.


def test_files_of_record(alone: Callable[..., Any]) -> None:
    _, _, run = alone("strategy=er")
    directory, manifest = run.directory, run.directory.read_manifest()
    noted = json.loads(directory.done.read_text())
    assert all(sha256(directory.path / name) == facts["sha256"] for name, facts in noted.items())
    assert (manifest["run_id"], manifest["status"]) == (run.id, "finished")
    assert manifest["labels"] == list(run.dataset.labels)
    assert [(s["hop"], s["name"], s["train"], s["evaluation"]) for s in manifest["stages"]] == [
        (stage.hop.index, stage.hop.name, stage.train, stage.evaluation) for stage in run.stages
    ]
    scores = pd.read_parquet(directory.scores)
    assert len(scores) == 4 * 3 * 2
    matrices, languages = record(directory).scores, run.stream.languages
    for row in scores.itertuples():
        assert row.value == matrices[row.metric][row.hop, languages.index(row.language)]
        assert row.n == run.dataset.sizes("test")[row.language]


def test_predictions_cover_every_test_sentence_after_every_hop(alone: Callable[..., Any]) -> None:
    _, _, run = alone("strategy=er")
    expected = {(language, e.id) for language in ("en", "de", "es") for e in run.dataset.split(language, "test")}
    for stage in some(run.stages):
        rows = predictions.read(run.directory.predictions(stage.hop.index)).to_pandas()
        assert len(rows) == len(expected) == 25
        assert set(zip(rows["language"], rows["example_id"], strict=True)) == expected
        assert set(rows["hop"]) == {stage.hop.index}
        assert set(rows["run_id"]) == {run.id}


@pytest.mark.full
@pytest.mark.parametrize(
    ("overrides", "epoch"), [(["trainer.selection=last"], "epoch"), (["trainer.selection=best"], "best_epoch")]
)
def test_the_evaluation_point_is_where_the_weights_were_taken(
    overrides: list[str], epoch: str, make_run: Make, do: Do
) -> None:
    run = do(make_run("strategy=er", "order=[en,de]", "trainer.epochs=4", "model.lr=3e-2", *overrides))
    stages = run.directory.read_manifest()["stages"]
    for stage in stages:
        rows = predictions.read(run.directory.predictions(stage["hop"])).to_pandas()
        point = (0, 0)
        if stage["hop"]:
            facts = stage["training"]["epochs"][stage["training"][epoch] - 1]
            point = facts["step"], facts["examples"]
        assert set(zip(rows["step"], rows["examples_seen"], strict=True)) == {point}
    if epoch == "best_epoch":
        # Some hop was best before its end, or the test says nothing.
        assert any(stage["training"]["best_epoch"] < 4 for stage in stages[1:])


# --- Damage and failure.


@pytest.mark.parametrize(("kind", "how"), [("train", "flipped"), ("state", "lost"), ("evaluation", "truncated")])
def test_a_damaged_stage_is_made_again(kind: str, how: str, alone: Callable[..., Any], finished: Make, do: Do) -> None:
    everything, files, _ = alone("strategy=er")
    run = finished("strategy=er")
    key = getattr(run.stages[2], kind)
    name = sorted(run.store.facts(key)["files"])[0]
    path = run.store.path(key) / name
    content = path.read_bytes()
    if how == "truncated":
        path.write_bytes(content[:-1])
    elif how == "flipped":
        path.write_bytes(bytes([content[0] ^ 4]) + content[1:])
    else:
        path.unlink()
    # Hop 3 and the predictions have to be made again, from what hop 2 left.
    run.directory.done.unlink()
    for stale in (run.stages[3].train, run.stages[3].state, run.stages[3].evaluation):
        run.store.path(stale).rename(run.outputs / stale)
    hearing = Hearing()
    do(run, hearing)
    assert (stored(run.store), predicted(run)) == (everything, files)
    assert hearing.trained == ([2, 3] if kind == "train" else [3])
    [damage, resumed] = hearing.notes
    assert name in damage
    assert f"hop {hearing.trained[0]} ({run.stages[hearing.trained[0]].hop.name})" in resumed


def test_nothing_that_is_not_needed_is_looked_at(alone: Callable[..., Any], finished: Make, do: Do) -> None:
    """Predictions in the store are enough: the weights may be gone, and no model is built."""
    run = finished("strategy=er")
    run.directory.done.unlink()
    for stage in run.stages[1:]:
        for key in (stage.train, stage.state):
            run.store.path(key).rename(run.outputs / key)
    hearing = Hearing()
    do(run, hearing)
    assert hearing.trained == []
    assert predicted(run) == alone("strategy=er")[1]


def test_a_failed_run_says_so_and_goes_on_when_it_can(
    alone: Callable[..., Any], make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, hearing, taken = make_run(), Hearing(), itertools.count(1)

    def diverging(self: Naive, number: int, main: Any, context: Any) -> Iterator[Step]:
        factor = float("nan") if next(taken) == 15 else 1
        yield Step(main, lambda part, rows: context.model.loss(part) * factor)

    with monkeypatch.context() as patch:
        patch.setattr(Naive, "steps", diverging)
        with pytest.raises(RunError, match=r"hop 2 \(de\), epoch 1, step 3: the loss is nan"):
            do(run, hearing)
    manifest = run.directory.read_manifest()
    assert manifest["status"] == "failed"
    assert "step 3" in manifest["error"]
    assert [stage["hop"] for stage in manifest["stages"]] == [0, 1]
    assert not run.directory.finished
    assert [str(error) for error in hearing.failed] == [manifest["error"]]
    assert [event["event"] for event in read_events(run.directory.events)] == ["started", "hop", "hop", "failed"]
    left = run.directory.path / "predictions" / f"{TEMPORARY}of-a-crash"
    left.touch()
    do(run)
    assert not left.exists()
    assert (stored(run.store), predicted(run)) == alone("strategy=naive")[:2]
    assert "error" not in run.directory.read_manifest()


@pytest.mark.parametrize(
    ("error", "status", "message", "told"),
    [
        (Busy(SimpleNamespace(owner=lambda: "h, process 1")), "waiting", "h, process 1", False),  # type: ignore[arg-type]
        (Stopped(15), "interrupted", str(Stopped(15)), True),
        (KeyboardInterrupt(), "interrupted", "", True),
        (RunError("no data"), "failed", "no data", True),
        (ValueError("a\nb"), "failed", "ValueError: a b", True),
    ],
    ids=repr,
)
@pytest.mark.parametrize("disk", ["has room", "is full"])
def test_how_an_attempt_ended_is_noted(error: BaseException, status: str, message: str, told: bool, disk: str) -> None:
    """A run that waits for another process has not failed, so nobody is told."""
    written, events, failed = list[Any](), list[Any](), list[BaseException]()

    def write(manifest: dict[str, Any]) -> None:
        if disk == "is full":
            raise OSError(28, "No space left on device")
        written.append(dict(manifest))

    directory = SimpleNamespace(write_manifest=write, event=lambda kind, error: events.append((kind, error)))
    listener = SimpleNamespace(run_failed=lambda run, error: failed.append(error))
    attempt: Any = SimpleNamespace(manifest={"run_id": "r"}, run=None, directory=directory, listener=listener)
    execute._Execution._note_end(attempt, error)
    assert failed == [error] * told
    if disk == "has room":
        assert written == [{"run_id": "r", "status": status, "error": message}]
        assert events == [(status, message)]


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("broken", [False, True])
def test_ranks_that_a_failure_left_in_different_states_are_abandoned(
    ahead: bool, broken: bool, make_run: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = make_run(*SHORT), list[str]()
    ranks: Any = SimpleNamespace(failed=False, begin=lambda run: None, abandon=lambda: told.append("abandoned"))

    class Failing:
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def run_all(self, *_: Any) -> None:
            ranks.failed = broken
            raise RunError("failed")

        evaluation = run_all

    monkeypatch.setattr(execute, "_ranks", lambda run: ranks)
    monkeypatch.setattr(execute, "_Execution", Failing)
    monkeypatch.setattr(execute, "StageGraph", Failing)
    first: tuple[Any, ...] = ([0, 1],) if ahead else ()
    with pytest.raises(RunError, match="failed"):
        (execute.make_stages if ahead else execute.execute)(run, *first, Listener(), StopFlag())
    assert told == ["abandoned"] * broken


@pytest.mark.parametrize(("last", "status"), [(1, "interrupted"), (2, "finished")])
def test_a_stop_while_predictions_are_made_is_heard(last: int, status: str, make_run: Make, do: Do) -> None:
    """Also during the last ones, where what was done is done: the next run of the sweep must not begin."""

    class Stopping(Listener):
        stop = StopFlag()

        def hop_ended(self, run: Run, hop: Any, scores: Any, shared: bool) -> None:
            if hop.index == last:
                self.stop.number = 15

    run, listener = make_run(*SHORT), Stopping()
    with pytest.raises(Stopped):
        do(run, listener, listener.stop)
    manifest = run.directory.read_manifest()
    assert [stage["hop"] for stage in manifest["stages"]] == [*range(last + 1)]
    assert (manifest["status"], run.directory.finished) == (status, status == "finished")


def test_predictions_of_bf16_are_not_those_of_fp32(alone: Callable[..., Any], make_run: Make, do: Do) -> None:
    """Not at hop 0 either, which knows nothing of the trainer: so the two must not share it."""
    full = alone("strategy=naive", *SHORT)[2]
    half = do(make_run("trainer.precision=bf16", *SHORT))
    assert half.stages[0].evaluation != full.stages[0].evaluation
    rows = [predictions.read(run.directory.predictions(0)).column("log2_gold") for run in (full, half)]
    assert not rows[0].equals(rows[1])


def test_sentences_that_are_cut_are_counted_and_told(make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch) -> None:
    hearing = Hearing()
    run = do(make_run("model.max_length=8", *SHORT), hearing)
    truncated = run.directory.read_manifest()["data"]["truncated"]
    cut = {f"{language}/{split}": result.truncated for (language, split), result in encodings(run).splits.items()}
    assert truncated == {name: number for name, number in cut.items() if number}
    assert truncated["en/train"] > 0
    [message] = hearing.notes
    assert message.startswith("model.max_length=8 truncates many sentences (")
    assert f"en/train: {truncated['en/train']} of {len(run.dataset.split('en', 'train'))}" in message
    assert "spaces" not in message, "no word is too long"
    monkeypatch.setattr(execute, "LONG_WORD", 2)
    assert "spaces" in str(execute.cut_short(truncated, run))
    # A few in a split are what long sentences are.
    monkeypatch.setattr(execute, "CUT", truncated["en/train"] / len(run.dataset.split("en", "train")))
    assert execute.cut_short({"en/train": truncated["en/train"]}, run) is None
    again = do(make_run("model.max_length=8", *SHORT, "seed=2"))
    assert again.directory.read_manifest()["data"]["truncated"] == truncated
    rows = predictions.read(run.directory.predictions(1)).to_pandas()
    assert (rows["predicted_tags"].map(len) == rows["tokens"]).all()


def test_a_store_elsewhere(make_run: Make, do: Do, tmp_path: Path) -> None:
    run = do(make_run(f"paths.store={tmp_path}/elsewhere", *SHORT))
    assert list((tmp_path / "elsewhere").glob("*/*/stage.json"))
    assert not (run.outputs / "store").exists()


@pytest.mark.parametrize(
    ("where", "overrides", "message"),
    [
        (
            "train.loop",
            (),
            "training; try trainer.batch_size=2 trainer.gradient_accumulation=2 or trainer.precision=bf16",
        ),
        (
            "train.loop",
            ("trainer.batch_size=null",),
            "training; try trainer.gradient_accumulation=2 or trainer.precision",
        ),
        ("train.evaluate", (), "evaluation; try evaluate.batch_size=16 or trainer.precision=bf16"),
        ("train.evaluate", ("evaluate.batch_tokens=1024",), "evaluation; try evaluate.batch_tokens=256 or trainer"),
    ],
)
def test_without_memory_the_phase_and_the_keys_that_help_are_told(
    where: str, overrides: tuple[str, ...], message: str, make_run: Make, compose: Callable[..., Any]
) -> None:
    run = make_run(*overrides)
    try:
        exec("import torch\nraise torch.cuda.OutOfMemoryError('CUDA out of memory')", {"__name__": f"xclrun.{where}"})
    except torch.cuda.OutOfMemoryError as error:
        result = str(execute.translated(error, run))
    assert result.startswith(f"the GPU is out of memory during {message}")
    # Every key that is advised is there.
    keys = [word for word in result.partition("try ")[2].split() if "=" in word]
    compose(*keys)


def test_an_operation_without_a_deterministic_algorithm_names_the_key(make_run: Make) -> None:
    """PyTorch's own error, of an operation that has none on a CPU either."""
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError) as raised:
            torch.nn.functional.max_unpool1d(torch.ones(1, 1, 2), torch.tensor([[[0, 2]]]), 2)
    finally:
        torch.use_deterministic_algorithms(False)
    result = execute.translated(raised.value, make_run())
    assert isinstance(result, RunError)
    assert str(result).startswith("runtime.deterministic=true: ")
    assert str(result).endswith("; use runtime.deterministic=false")
    assert "\n" not in str(result)


def test_a_manifest_names_the_device(alone: Callable[..., Any]) -> None:
    assert alone()[2].directory.read_manifest()["environment"]["device"] == "cpu"
