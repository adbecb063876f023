"""The page of contracts: it names every check; each check has a requirement of its own; nothing heavy is imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from xclrun.testing.metrics import METRIC_CONTRACT
from xclrun.testing.readers import READER_CONTRACT, WITH_BAD_ROW
from xclrun.testing.strategies import STRATEGY_CONTRACT
from xclrun.testing.tasks import TASK_CONTRACT
from xclrun.testing.trackers import TRACKER_CONTRACT

PAGE = Path(__file__).parents[2] / "docs" / "extending" / "testing.md"
CONTRACTS = {
    "Strategies": STRATEGY_CONTRACT,
    "Tasks": TASK_CONTRACT,
    "Metrics": METRIC_CONTRACT,
    "Readers": (*READER_CONTRACT, *WITH_BAD_ROW),
    "Trackers": TRACKER_CONTRACT,
}


@pytest.mark.parametrize("kind", CONTRACTS)
def test_the_page_lists_the_checks_of_a_kind(kind: str) -> None:
    section = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    [text] = [part for part in section if part.startswith(kind)]
    [checks] = re.findall(r"^Checks: (.*?)\.$", text, re.DOTALL | re.MULTILINE)
    assert re.findall(r"`(\w+)`", checks) == [check.__name__ for check in CONTRACTS[kind]]


@pytest.mark.parametrize("kind", CONTRACTS)
def test_every_check_has_one_sentence_of_its_own(kind: str) -> None:
    requirements = [" ".join(str(check.__doc__).split()) for check in CONTRACTS[kind]]
    assert len(set(requirements)) == len(requirements)
    assert all(text.endswith(".") and text[0] in "`ABCDEFGHIJKLMNOPQRSTUVWXYZ" for text in requirements)


def test_the_checks_of_readers_and_trackers_need_neither_torch_nor_pytest(run_python: Callable[..., str]) -> None:
    code = "import sys, xclrun.testing; print({'torch', 'pytest', 'mlflow', 'wandb', 'matplotlib'} & {*sys.modules})"
    assert run_python(code) == "set()"
