"""Averaged checkpoints: numpy's mean of the files, evaluated as a hop is, and one more rule in reports."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests.conftest import all_of_some
from tests.strategy.real import graph
from xclrun.analysis.points import by_rule, hop_points, rules
from xclrun.analysis.records import record
from xclrun.core.errors import RunError, UsageError
from xclrun.plan import Run
from xclrun.store import predictions
from xclrun.store.lease import Lease
from xclrun.store.prune import damaged
from xclrun.store.tensors import save_tensors
from xclrun.train.average import average, mean_weights, weights_of
from xclrun.train.evaluate import Evaluator
from xclrun.train.progress import Listener
from xclrun.train.stages import StageGraph
from xclrun.train.stop import StopFlag

Make, Do = Callable[..., Run], Callable[..., Run]
KEEPING = ("order=[en,de]", "evaluate.every_examples=10", "trainer.selection=last")


def averaged(run: Run, last: int | None) -> list[Path]:
    return average(run, last, weights_of(run, last), Listener(), StopFlag())


def rows(path: Path) -> dict[str, list[Any]]:
    return predictions.read(path).drop_columns(["run_id", "step", "examples_seen"]).to_pydict()


def test_the_mean_is_numpy_s(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    files = [tmp_path / f"point-{k}.safetensors" for k in range(3)]
    for k, path in enumerate(files):
        halves = torch.randn(7, generator=generator).to(torch.float16)
        save_tensors(path, {"w": torch.randn(5, 4, generator=generator), "h": halves, "ids": torch.tensor([k, 2])})
    result = mean_weights(files)
    expected = np.mean([load_file(path)["w"].astype(np.float64) for path in files], axis=0).astype(np.float32)
    np.testing.assert_array_equal(result["w"].numpy(), expected)
    assert result["h"].dtype == torch.float16
    # What is no number that is trained is the last one's.
    assert result["ids"].tolist() == [2, 2]


def test_averages_are_evaluated_as_hops_are_and_stand_beside_the_run(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = do(make_run(*KEEPING, "evaluate.keep_points=all"))
    before = record(run.directory)
    # The mean of the last point alone is the hop's end.
    for hop, path in enumerate(averaged(run, 1), start=1):
        assert rows(path) == rows(run.directory.predictions(hop))
    files = averaged(run, None)
    assert [path.name.rpartition("-")[0] for path in files] == ["all-hop-1", "all-hop-2"]
    assert rows(files[0]) != rows(run.directory.predictions(1))
    # By hand: the model with the mean of all files, as numpy has it.
    stages = graph(run)
    stages.weights(2)
    folder = run.store.path(run.stages[2].train)
    points = [load_file(path) for path in sorted(folder.glob("point-*"))]
    assert len(points) == len([p for p in before.points if p["hop"] == 2])
    state = stages.bench.model.state_dict()
    for name, tensor in state.items():
        if tensor.is_floating_point():
            mean = np.mean([point[name].astype(np.float64) for point in points], axis=0)
            tensor.copy_(torch.from_numpy(mean.astype(np.float32)))
    *_, last = stages.bench.predictions(run.stages[2].hop)
    result = predictions.read(files[1]).to_pandas()
    language = result["language"].iloc[-1]
    assert result.loc[result["language"] == language, "predicted"].tolist() == last["predicted"]
    # Found in the store, they are not computed again.
    with monkeypatch.context() as patched:
        patched.setattr(Evaluator, "predict", lambda *_: pytest.fail("it is in the store"))
        assert averaged(run, None) == files
    after = record(run.directory)
    assert run.directory.finished
    assert [rule.name for rule in rules([after])][-2:] == ["average_all", "average_last-1"]
    for metric in after.metrics:
        np.testing.assert_array_equal(after.scores[metric], before.scores[metric])
        every, last = (by_rule(after, metric, rule) for rule in rules([after])[-2:])
        np.testing.assert_array_equal(last, after.scores[metric][1:])
        accuracy = result["predicted"] == result["gold"]
        if metric == "intent_accuracy":
            by_hand = [accuracy[result["language"] == k].mean() for k in after.languages]
            np.testing.assert_allclose(every[1], by_hand)
    # A damaged file counts for nothing.
    files[0].write_bytes(files[0].read_bytes()[:-1])
    assert "all" not in hop_points(record(run.directory), "intent_accuracy")[0].averaged
    assert [line.startswith(f"{files[0]}: ") for line in damaged(run.store, run.outputs)] == [True]


def test_what_an_average_needs_is_brought_before_its_lease_is_acquired(
    make_run: Make, do: Do, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be missing, and waiting for other processes under a lease is a deadlock."""
    run = do(make_run("order=[en]", "trainer.epochs=1", "evaluate.every_examples=10", "evaluate.keep_points=all"))
    stages, calls = graph(run), list[str]()
    prepare, acquire = StageGraph.prepare, Lease.try_acquire
    monkeypatch.setattr(StageGraph, "prepare", lambda self, result: (calls.append("need"), prepare(self, result)))
    monkeypatch.setattr(Lease, "try_acquire", lambda self: (calls.append("lease"), acquire(self))[1])
    zeros = {name: torch.zeros_like(tensor) for name, tensor in stages.bench.model.state_dict().items()}
    stages.averaged(run.stages[1], ["1"], lambda: zeros)
    assert calls[:2] == ["need", "lease"]
    # The hop's own weights come back where they are needed.
    stages.weights(1)
    trained = load_file(run.store.path(run.stages[1].train) / "weights.safetensors")
    state = stages.bench.model.state_dict()
    assert all_of_some(torch.equal(state[name], torch.from_numpy(tensor)) for name, tensor in trained.items())


def test_an_average_is_stored_under_the_points_that_it_is_of() -> None:
    """And under the evaluation, which has the settings of predictions in its key."""
    store = SimpleNamespace(facts=lambda key: {"training": {"points": [{}]}}, has=lambda key: True)
    stages: Any = SimpleNamespace(store=store, _find_or_make=lambda key, make: key)

    def key(evaluation: str, *points: str) -> Any:
        stage: Any = SimpleNamespace(train="t", evaluation=evaluation, hop=None)
        return StageGraph.averaged(stages, stage, points, dict)

    assert key("e", "1", "2") == key("e", "1", "2")
    others = [key("e", "1", "3"), key("e", "2"), key("e", "2", "1"), key("f", "1", "2")]
    assert len({*others, key("e", "1", "2")}) == 5


@pytest.mark.full
def test_averages_that_cannot_be_made_are_told(make_run: Make, do: Do, xclrun: Callable[..., Any]) -> None:
    run = do(make_run(*KEEPING, "evaluate.keep_points=2"))
    with pytest.raises(
        UsageError, match=r"--last 3: hop 1 of .* has 5 evaluation points and the weights of 2 of them; "
    ):
        averaged(run, 3)
    # A mean of all 5 points is not a mean of the last 6.
    every = do(make_run(*KEEPING, "evaluate.keep_points=all"))
    with pytest.raises(UsageError, match=r"--last 6: hop 1 of .* has 5 evaluation points .* use --last 5"):
        averaged(every, 6)
    with pytest.raises(UsageError, match="--all: hop 1"):
        averaged(run, None)
    assert not run.directory.averages.exists()
    code, output = xclrun("model", "average", run.id[:-3], "--last", "2", "--outputs", str(run.outputs))
    assert code == 0
    assert output.startswith(f"{run.id}: mean of the last 2 points, 2 hops: ")
    assert len(list(run.directory.averages.iterdir())) == 2
    for arguments, wrong in (
        (("--last", "0"), "--last 0: must be a whole number of at least 1"),
        ((), "one of the arguments --last --all is required"),
    ):
        code, output = xclrun("model", "average", run.id, *arguments, "--outputs", str(run.outputs))
        assert code == 2
        assert wrong in output
    # Of several runs none is begun where one cannot be done.
    other = do(make_run(*KEEPING, "seed=2", "evaluate.keep_points=2"))
    without = do(make_run("order=[en,de]"))
    code, output = xclrun("model", "average", other.id, without.id, "--last", "2", "--outputs", str(run.outputs))
    assert (code, other.directory.averages.exists()) == (2, False)
    assert f"{without.id} stored no weights of evaluation points" in output
    # What one damaged file of a training stands beside is not lost for it.
    folder = run.store.path(run.stages[2].train)
    point = sorted(folder.glob("point-*"))[-1]
    point.write_bytes(point.read_bytes()[:-1])
    advice = re.escape(f"retrain it with `xclrun rerun {run.id} --fresh DIR`")
    with pytest.raises(RunError, match=rf"hop 2: {re.escape(str(point))} is damaged; {advice}"):
        averaged(run, 2)
    assert (folder / "weights.safetensors").is_file()
    shutil.rmtree(folder)
    with pytest.raises(RunError, match=f"hop 2: its weights are no longer in the store; {advice}"):
        averaged(run, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["strategy=naive"], "stored no weights of evaluation points; retrain it with evaluate.keep_points=5"),
        (["strategy=lang_spec_task", "evaluate.keep_points=2"], "has language-specific weights"),
    ],
)
def test_runs_without_one_set_of_weights_have_no_average(overrides: list[str], message: str, make_run: Make) -> None:
    with pytest.raises(UsageError, match=message):
        averaged(make_run(*KEEPING, *overrides), 2)
