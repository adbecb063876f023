"""docs/strategies.md: one row for each strategy, which says of memory, expansions and refusals what the code says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from xclrun.compose.jobs import Composed
from xclrun.core.task import INTENT_SLOTS, SEQUENCE_CLASS, SPAN, TOKEN_TAGS, Task
from xclrun.strategy import STRATEGIES, make
from xclrun.strategy.shared.heads_only import HeadsOnly

PAGE = Path(__file__).parents[2] / "docs" / "strategies.md"
HEAD = ["strategy", "hop i", "kept for later hops", "extra compute", "source"]


def rows() -> Iterator[list[str]]:
    for line in PAGE.read_text().splitlines():
        if line.startswith("|") and not line.startswith("|---"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_one_row_for_each_strategy_and_no_cell_is_empty() -> None:
    tables = [row for row in rows() if row == HEAD]
    named = [row for row in rows() if row != HEAD]
    assert len(tables) > 1
    assert all(len(row) == len(HEAD) and all(row) for row in named)
    assert sorted(re.findall(r"`(\w+)`", row[0])[0] for row in named) == sorted(STRATEGIES)


@pytest.mark.some_cases
@pytest.mark.parametrize("row", [row for row in rows() if row != HEAD], ids=lambda row: row[0].split("`")[1])
def test_a_row_says_what_the_code_says(row: list[str], compose: Callable[..., Composed]) -> None:
    name = row[0].split("`")[1]
    cls = STRATEGIES[name]
    strategy: Any = make(compose(f"strategy={name}", "order=[en,de]").config.strategy)
    hop = strategy.stream(("en", "de")).hops[1]
    assert (strategy.plan(hop).state is None) == row[2].startswith("none"), "kept"
    assert cls.expandable == ("⊕" in row[0])
    assert refused(strategy, SPAN) == ("not for answers" in row[1] or (issubclass(cls, HeadsOnly) and name != "fc"))
    # The others learn every kind of task.
    if not issubclass(cls, HeadsOnly):
        assert not any(refused(strategy, task) for task in (INTENT_SLOTS, SEQUENCE_CLASS, TOKEN_TAGS))
        told = "not for several tasks in one model" in row[1]
        assert (strategy.unsupported([INTENT_SLOTS, SEQUENCE_CLASS]) is not None) == told
    # The source is the one that the module names.
    for author, year in re.findall(r"([A-Z][\w'-]+)(?: et al\.| & [\w-]+)? (\d{4})", row[4]):
        assert re.search(rf"{author}.{{0,30}}\(?{year}", module(name), re.DOTALL), (author, year)


def refused(strategy: Any, task: Task) -> bool:
    return strategy.unsupported([task]) is not None


def module(name: str) -> str:
    """Return what the modules of a strategy, and of its bases in the package, say of themselves."""
    import sys

    bases = [cls.__module__ for cls in STRATEGIES[name].__mro__ if cls.__module__.startswith("xclrun.strategy.")]
    return "\n".join(str(sys.modules[base].__doc__) for base in dict.fromkeys(bases))
