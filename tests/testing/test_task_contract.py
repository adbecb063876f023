"""The contract of tasks: ours pass, and for each check there is a wrong task that fails it."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.questions import write_questions
from xclrun.testing import Check, ContractError, task_checks
from xclrun.testing.tasks import TASK_CONTRACT

NAMES = [function.__name__ for function in TASK_CONTRACT]

# --- Ours.

OURS = ("intent_slots", "sequence_class", "token_tags", "statement_truth", "span")


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Check]]:
    """Return the checks of a task, which share their runs."""

    @cache
    def get(task: str) -> dict[str, Check]:
        folder, own = tmp_path_factory.mktemp("data"), ("dataset.root=FOLDER", "order=[en,th]")
        if task == "span":
            write_questions(folder, "en", "th")
            own = ("dataset=questions", *own, "model.max_length=32", "model.windows.question=8")
            own = (*own, "model.windows.stride=8", "model.vocab_size=400")
        elif task == "statement_truth":
            write_statements(folder)
            own = ("dataset=jsonl", *own)
        else:
            own = ()
        overrides = [text.replace("FOLDER", str(folder)) for text in own]
        return {check.name: check for check in task_checks(task, *overrides)}

    return get


def write_statements(folder: Path) -> None:
    for language in ("en", "th"):
        for split in ("train", "dev", "test"):
            rows = [
                {
                    "id": f"{i}#{j}",
                    "text": f"{language} text {i}",
                    "text_b": f"it is {j}",
                    "label": ("false", "true")[j],
                }
                for i in range(4)
                for j in range(2)
            ]
            (folder / f"{language}.{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.some_cases(*(f"intent_slots-{name}" for name in NAMES if name != "resumes_after_every_step"))
@pytest.mark.in_turn
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("task", OURS)
def test_our_tasks_pass(task: str, name: str, checks: Callable[[str], dict[str, Check]]) -> None:
    checks(task)[name]()


# --- Wrong ones.

FILE = """
import random

import numpy as np
from torch import nn

from xclrun.core.task import Column, Metric, Scored, Task, register
from xclrun.model.heads import LabelsAndTags
from xclrun.model.heads import register as head


@head("{name}")
class Head(LabelsAndTags):
    begun = 0
{body}

METRIC = Metric("{name}_accuracy", "{name}", "accuracy", Scored.labels, "label", "labels", {metric})
register(Task("{name}", METRIC, head="{name}", columns=({columns})))
"""
LIKELIHOOD = """
    def log_likelihood(self, batch, output):
        found = super().log_likelihood(batch, output)
        return {value}
"""
# Check → body of the head, arguments of the metric, and columns.
WRONG: dict[str, tuple[str, str, str]] = {
    "is_registered": ("", "", ""),
    "is_restored_from_its_description": ("", "", "Column('own', 'float32', np.float32(0)),"),
    # The mean of the batch, for each example.
    "gives_each_example_a_likelihood": (LIKELIHOOD.format(value="found.mean().expand(len(found))"), "", ""),
    "counts_units": (
        """
    def units(self, batch):
        return batch.words / batch.words.max()
""",
        "",
        "",
    ),
    "trains_all_its_parameters": (
        """
    def build(self, hidden, sizes):
        super().build(hidden, sizes)
        self.unused = nn.Linear(hidden, 2)
""",
        "",
        "",
    ),
    "finishes_a_run": (LIKELIHOOD.format(value="found * float('nan')"), "", ""),
    # The right value, and its gradient with the wrong sign.
    "learns": (LIKELIHOOD.format(value="2 * found.detach() - found"), "", ""),
    "fills_its_columns": ("", "", "Column('own', 'float32'),"),
    "measures_every_metric": ("", "score=lambda sums: np.nan * sums[..., 0]", ""),
    "predicts_without_the_other_examples": (
        """
    def predict(self, batch, output):
        output.logits = output.logits - output.logits.mean(dim=0)
        return super().predict(batch, output)
""",
        "",
        "",
    ),
    "repeats_its_results": (LIKELIHOOD.format(value="found * random.random()"), "", ""),
    # It counts its batches, and forgets the number when the run is resumed.
    "resumes_after_every_step": (
        """
    def log_likelihood(self, batch, output):
        self.begun += 1
        return super().log_likelihood(batch, output) * self.begun
""",
        "",
        "",
    ),
    # The loss divides by the number of sentences a second time.
    "accumulates_gradients": (LIKELIHOOD.format(value="found / len(found)"), "", ""),
}


@pytest.mark.some_cases("is_registered", "counts_units", "learns")
@pytest.mark.parametrize("name", NAMES)
def test_for_each_check_a_wrong_task_fails_it(name: str, tmp_path: Path, forget_plugins: Callable[[], None]) -> None:
    task, path = f"wrong_{name}", tmp_path / "wrong.py"
    body, metric, columns = WRONG[name]
    for place, text in (("{body}", body), ("{metric}", metric), ("{columns}", columns), ("{name}", task)):
        source = path.read_text() if path.is_file() else FILE
        path.write_text(source.replace(place, text))
    [check] = [c for c in task_checks(task if name != "is_registered" else "absent", plugin=path) if c.name == name]
    with pytest.raises(ContractError) as error:
        check()
    assert str(error.value).startswith(f"{check.plugin}: {name}: {check.requirement} ")
