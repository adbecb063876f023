"""The contract of tasks: the head's likelihood is that of each example alone, and predictions fill the task's columns.

As in the contract of strategies, each check trains small runs, with ``strategy=naive``; by default on the embedded
dataset `mini`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from xclrun.analysis.records import record
from xclrun.core import plugins
from xclrun.core.task import BY_NAME, TASKS, described, restored
from xclrun.data.batches import Batch
from xclrun.data.encodings import ENCODINGS
from xclrun.model.heads import HEADS
from xclrun.model.network import Model, build
from xclrun.store import predictions
from xclrun.testing import strategies
from xclrun.testing.strategies import StrategyCase, expect_close
from xclrun.testing.suite import Check, bound, expect, expect_equal, run_all
from xclrun.train.encodings import encodings


class TaskCase(StrategyCase):
    """A task under test; attributes of `StrategyCase`."""

    def __init__(self, name: str, overrides: tuple[str, ...], plugin: Path | None) -> None:
        super().__init__("naive", (*overrides, f"dataset.task={name}"), plugin, {})
        self.task = name

    def load(self) -> None:
        if self.plugin is None and self.task not in TASKS:
            plugins.load_installed()
        super().load()

    def model(self) -> Model:
        """Return an untrained model in eval mode."""
        run = self.planned()
        found, dataset = encodings(run), run.dataset
        sizes = (len(dataset.labels), len(dataset.tags))
        return build(run.config.model, found.tokenizer, *sizes, run.config.seed, task=dataset.targets[0].task).eval()

    def batches(self) -> Iterator[tuple[Batch, list[Batch]]]:
        """Yield the training rows of each language as one batch, and each row as a batch."""
        for (_, split), rows in encodings(self.planned()).splits.items():
            if split == "train" and len(rows):
                every = np.arange(len(rows))
                yield rows.batch(every), [rows.batch(every[i : i + 1]) for i in every]


def is_registered(case: TaskCase) -> None:
    """The task is found under its name, and its head and its encoding are registered."""
    case.load()
    expect(case.task in TASKS, f"no task {case.task!r}")
    task = TASKS[case.task]
    expect(task.head in HEADS, f"no head {task.head!r}")
    expect(task.encoding in ENCODINGS, f"no encoding {task.encoding!r}")
    case.planned()


def is_restored_from_its_description(case: TaskCase) -> None:
    """A manifest describes the task as JSON, and reports restore its metrics and columns from it."""
    task = TASKS[case.planned().dataset.targets[0].task.name]
    again = restored(json.loads(json.dumps(described(task))))
    for tagged in (False, True):
        names = [[metric.name for metric in one.measured(tagged)] for one in (again, task)]
        expect_equal(names[0], names[1], "metrics")
    expect_equal(again.columns, task.columns, "columns")
    unknown = [metric.name for metric in task.measured(True) if metric.name not in BY_NAME]
    expect(not unknown, f"metrics that are not registered: {unknown}")


def gives_each_example_a_likelihood(case: TaskCase) -> None:
    """``log_likelihood`` has the shape (B,), is finite, and does not depend on the other rows or on padding."""
    model = case.model()
    for batch, rows in case.batches():
        with torch.no_grad():
            together = model.log_likelihood(batch)
            expect_equal(tuple(together.shape), (batch.size,), "shape")
            expect(bool(together.isfinite().all()), f"likelihoods {together.tolist()}")
            alone = torch.cat([model.log_likelihood(row) for row in rows])
        largest = float((together - alone).abs().max())
        expect(largest < 1e-3, f"likelihoods of rows alone differ by up to {largest:.2g} nats")


def counts_units(case: TaskCase) -> None:
    """``units`` has the shape (B,), is positive, and does not depend on the other rows."""
    head = next(iter(case.model().heads.values()))
    for batch, rows in case.batches():
        together = np.asarray(head.units(batch))
        expect_equal(together.shape, (batch.size,), "shape")
        expect((together > 0).all(), f"units {together.tolist()}")
        alone = np.concatenate([head.units(row) for row in rows])
        expect_equal(together.tolist(), alone.tolist(), "units")


def trains_all_its_parameters(case: TaskCase) -> None:
    """The loss has a gradient for every parameter of the head and for the encoder."""
    model = case.model()
    for batch, _ in case.batches():
        model.loss(batch).backward()
    named = dict(model.named_parameters())
    without = [name for name, p in named.items() if p.grad is None and not name.startswith("encoder.")]
    expect(not without, f"no gradient of {', '.join(without)}")
    inside = [p for name, p in named.items() if name.startswith("encoder.") and p.grad is not None]
    expect(any(bool(p.grad.any()) for p in inside if p.grad is not None), "no gradient of the encoder")


def learns(case: TaskCase) -> None:
    """After some epochs on a few examples, the training loss is lower than at first."""
    run = case.alone("trainer.epochs=10", "trainer.lr=1e-2", "model.dropout=0")
    losses = [epoch["loss"] for epoch in run.directory.read_manifest()["stages"][1]["training"]["epochs"]]
    expect(losses[-1] < losses[0], f"losses {[round(loss, 3) for loss in losses]}")


def fills_its_columns(case: TaskCase) -> None:
    """Prediction rows have the columns of the task, each with values, and one row for each test example."""
    run = case.alone()
    task = run.dataset.targets[0].task
    filled = set()
    for stage in run.stages:
        table = predictions.read(run.directory.predictions(stage.hop.index))
        for column in task.columns:
            expect(column.name in table.column_names, f"columns {table.column_names}")
            filled |= {column.name for value in table[column.name].to_pylist() if value != column.missing}
        keys = list(zip(*(table[name].to_pylist() for name in ("split", "language", "example_id")), strict=True))
        expect(len(set(keys)) == len(keys), "an example with several rows")
        tested = {
            ("test", language, e.id) for language in run.stream.languages for e in run.dataset.split(language, "test")
        }
        expect_equal({key for key in keys if key[0] == "test"} ^ tested, set(), "examples with or without a row:")
    empty = [column.name for column in task.columns if column.name not in filled]
    expect(not empty, f"no values of {', '.join(empty)}")


def measures_every_metric(case: TaskCase) -> None:
    """A finished run has scores of each metric of the task, for each language."""
    run = case.alone()
    found = record(run.directory)
    task = run.dataset.targets[0].task
    for metric in task.metrics(tagged=bool(run.dataset.tags)):
        expect(metric.name in found.scores, f"no scores of {metric.name}")
        scores = found.scores[metric.name]
        expect(bool(np.isfinite(scores).all()), f"{metric.name} has the scores {scores.tolist()}")


def predicts_without_the_other_examples(case: TaskCase) -> None:
    """``evaluate.batch_size`` does not change predictions, up to rounding."""
    runs = [case.alone(f"evaluate.batch_size={size}") for size in (1, 4)]
    expect_close(*runs)


def finishes_a_run(case: TaskCase) -> None:
    """A run finishes: its losses are finite, and every hop is evaluated on every language."""
    strategies.finishes_a_run(case)


def repeats_its_results(case: TaskCase) -> None:
    """A second run is bit-identical, whatever the state of the global random generators before it."""
    strategies.repeats_its_results(case)


def resumes_after_every_step(case: TaskCase) -> None:
    """A run that is stopped after each of its steps, and resumed each time, is bit-identical."""
    strategies.resumes_after_every_step(case)


def accumulates_gradients(case: TaskCase) -> None:
    """Batches in two micro-batches (``trainer.gradient_accumulation=2``) give the same model, up to rounding."""
    strategies.accumulates_gradients(case)


TASK_CONTRACT = (
    is_registered,
    is_restored_from_its_description,
    gives_each_example_a_likelihood,
    counts_units,
    trains_all_its_parameters,
    finishes_a_run,
    learns,
    fills_its_columns,
    measures_every_metric,
    predicts_without_the_other_examples,
    repeats_its_results,
    resumes_after_every_step,
    accumulates_gradients,
)


def task_checks(name: str, *overrides: str, plugin: Path | str | None = None) -> list[Check]:
    """Return the checks of ``dataset.task=NAME``, for ``pytest.mark.parametrize``.

    Args:
        overrides: further overrides of each run. A task that cannot use the dataset `mini` needs its own data:
            ``dataset=NAME``, ``dataset.root=FOLDER`` and ``order=[…]``.
        plugin: file with the task; None: xclrun or an installed package has it. Do not import the file elsewhere.
    """
    case = TaskCase(name, overrides, Path(plugin) if plugin is not None else None)
    return bound(f"task '{name}'", TASK_CONTRACT, case)


def check_task(name: str, *overrides: str, plugin: Path | str | None = None) -> None:
    """Run `task_checks`.

    Raises:
        ContractError: a line per failed check.
    """
    run_all(task_checks(name, *overrides, plugin=plugin))
