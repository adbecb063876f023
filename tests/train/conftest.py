"""The training of one hop, put together by hand, and what tests listen for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from xclrun.model.network import build
from xclrun.plan import Run
from xclrun.store.stages import StageStore
from xclrun.strategy import Context
from xclrun.train.checkpoint import Checkpoints
from xclrun.train.encodings import encodings
from xclrun.train.evaluate import Evaluator
from xclrun.train.loop import HopTraining
from xclrun.train.progress import Listener, Progress
from xclrun.train.stop import StopFlag, Stopped
from xclrun.train.workbench import Workbench

Make = Callable[..., Run]


@pytest.fixture(scope="session")
def done_alone() -> dict[tuple[str, ...], Any]:
    return {}


@pytest.fixture
def alone(done_alone: dict[tuple[str, ...], Any], make_run: Make, do: Make) -> Callable[..., tuple[dict, dict, Run]]:
    """Do a run in a store of its own; return what is stored, the predictions, the run. Each is done once."""

    def get(*overrides: str) -> tuple[dict, dict, Run]:
        if overrides not in done_alone:
            run = do(make_run(*overrides, outputs="alone-" + "-".join(overrides)))
            done_alone[overrides] = stored(run.store), predicted(run), run
        return done_alone[overrides]

    return get


@pytest.fixture
def training(threads: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., HopTraining]:
    """Put the training of a run's hop together, from the untrained model: ``training(run, listener=…)``."""
    # Steps can be recorded without a GPU too, by an emulation.
    monkeypatch.setattr("xclrun.train.workbench.choose_device", lambda config: torch.device("cpu"))

    def make(
        run: Run,
        *,
        hop: int = 1,
        strategy: Any = None,
        listener: Listener | None = None,
        stop: StopFlag | None = None,
        evaluator: Any = Evaluator,
        checkpoints: Path | None = None,
    ) -> HopTraining:
        result, config, device = encodings(run), run.config, torch.device("cpu")
        model = build(config.model, result.tokenizer, len(run.dataset.labels), len(run.dataset.tags), config.seed)
        context = Context(
            model,
            run.stream.hops[hop],
            run.stream,
            {language: result.splits[language, "train"] for language in run.stream.languages},
            device,
            config.seed,
            config.trainer.batch_size * config.trainer.gradient_accumulation,
            config.trainer.precision.value,
        )
        bench = Workbench(run, listener or Listener(), stop or StopFlag())
        bench.strategy = strategy or run.strategy()
        bench.evaluator = evaluator(
            run.dataset, device, config.evaluate.batch_size, config.trainer.precision.value, config.evaluate.slot_f1
        )
        return HopTraining(bench.work(context), Checkpoints(checkpoints or tmp_path / "checkpoints"))

    return make


class StopAt(Listener):
    """Asks for a stop after given numbers of main steps, counted over the hops of a run."""

    def __init__(self, *steps: int) -> None:
        self.stop, self.steps, self.taken = StopFlag(), set(steps), 0

    def stepped(self, progress: Progress) -> None:
        self.taken += 1
        if self.taken in self.steps:
            self.stop.number = 15


def stopped(run: Run, do: Make, *steps: int) -> Run:
    """Stop a run again and again, each time after so many main steps more; return it."""
    for number in steps:
        listener = StopAt(number)
        with pytest.raises(Stopped):
            do(run, listener, listener.stop)
    return run


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether two sets of weights are equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def copied(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a copy of a model's weights."""
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def stored(store: StageStore) -> dict[str, dict[str, str]]:
    """Return stage key → checksums of its files: weights, states, predictions."""
    return {key: store.facts(key)["files"] for key in store.all_keys()}


def predicted(run: Run) -> dict[str, str]:
    """Return the checksums of a run's prediction files."""
    files = sorted((run.directory.path / "predictions").iterdir())
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
