"""Joint replay: how many batches, of what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from xclrun.plan import Run
from xclrun.strategy.joint_replay import JointReplay, JointReplaySettings
from xclrun.strategy.shared.memory import to_batches

from .real import context_of, untrained

Make = Callable[..., Run]

pytestmark = pytest.mark.usefixtures("threads")


def joint(rate: float = 0.4) -> JointReplay:
    return JointReplay(JointReplaySettings("joint_replay", rate=rate))


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0, 2.5])
def test_r_batches_to_one_of_the_hop(rate: float) -> None:
    due = [joint(rate).due(step) for step in range(1, 101)]
    assert sum(due) == round(100 * rate)
    assert max(due) - min(due) <= 1, "spread evenly"


def replayed(strategy: JointReplay, context: Any, steps: int, patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Return the sentences, by language and row, of all extra batches; the main one comes first in every step."""
    found: list[tuple[str, int]] = []

    def noting(drawn: Any, *given: Any) -> Any:
        found.extend((language, row) for language, rows in drawn.items() for row in rows.tolist())
        return to_batches(drawn, *given)

    patch.setattr("xclrun.strategy.joint_replay.to_batches", noting)
    main = context.batch(context.hop.train[0], np.arange(4))
    for step in range(1, steps + 1):
        first, *extra = (taken.batch for taken in strategy.steps(step, main, context))
        assert first is main
        assert {batch.size for batch in extra} <= {4}
    return found


def test_batches_are_uniform_over_all_earlier_data(make_run: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """In hop 3 as often of en (22 sentences) and de (18) as there are sentences; all of them come."""
    run = make_run()
    context = context_of(run, 3, untrained(run))
    found = replayed(joint(rate=2.0), context, 200, monkeypatch)
    assert len(found) == 1600
    counts, sizes = Counter(language for language, _ in found), {"en": 22, "de": 18}
    assert counts.keys() == sizes.keys()
    # Four standard deviations of a share of 1600 draws.
    assert abs(counts["en"] / 1600 - 22 / 40) < 0.05
    assert {language: len({row for of, row in found if of == language}) for language in sizes} == sizes
    assert found[:80] == replayed(joint(rate=2.0), context, 10, monkeypatch), "draws depend on the step alone"


def test_nothing_is_replayed_in_the_first_hop(make_run: Make, finished: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(make_run(), 1)
    assert replayed(joint(1.0), context, 5, monkeypatch) == []
    stages = finished("strategy=joint_replay", "strategy.rate=0.5").directory.read_manifest()["stages"]
    assert [s["training"]["updates"] - s["training"]["step"] for s in stages[1:]] == [0, 5, 4]
